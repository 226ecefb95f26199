"""Choosing s, q, m and eta for a device, and what is kept in its memory."""

from __future__ import annotations

from mercer.data.dealt_points import AnyPoints, DealtPoints
from mercer.kernels.base import Kernel
from mercer.method.preconditioner import LevelledKernel, level
from mercer.method.step import best_step_size
from mercer.operators.tiled import panel_rows
from mercer.operators.workers import small_operations
from mercer.planning.epochs import Goal
from mercer.planning.keeping import Keeping, keeping
from mercer.planning.levelling import BatchLimits, Requests, batch_size, levelling
from mercer.planning.memory import data_bytes, kept_bytes, repeated_bytes, work_bytes
from mercer.planning.plan import Plan, of_the_run
from mercer.planning.resource import Resource


def choose(
    kernel: Kernel,
    points: AnyPoints,
    n_outputs: int,
    resource: Resource,
    ridge: float = 0.0,
    requests: Requests = Requests(),
    n_held_out: int = 0,
    data_on_disk: bool = False,
    keeps: bool = True,
    coded: bool = True,
    n_closing: int = 0,
    goal: Goal | None = None,
) -> tuple[Plan, LevelledKernel]:
    """Choose s, q, m and eta for training points in random order; the first s are the subsample.

    `keeps` says whether kernel values may be kept: a single epoch has no use for them.  `coded` says
    whether in 16 bits: the ranks of a group keep them as they are.  `n_closing` of the held-out points
    are trained on in the end.  With a `goal`, q is the one that is expected to reach it first; without,
    one that costs little.
    """
    n, d = points.shape
    n_all = n + n_closing
    size, dealt, ranks = resource.element_size, isinstance(points, DealtPoints), resource.ranks
    stored = 1 if points.is_bytes else points.dtype.itemsize

    def kept(s: int, q: int, m: int) -> tuple[Keeping, float]:
        """How values are kept, and the bytes of those for which there is room."""
        parts = (kernel, points, s, q, m, n_held_out, size)
        wanted = keeping(*parts, coded=coded and ranks == 1, n_closing=n_closing)
        rows = max(m, panel_rows(points.device))
        work = ranks * work_bytes(n_all, n_outputs, s, size)
        return wanted, kept_bytes(
            resource.usable,
            work=work + repeated_bytes(n_all, rows + q, ranks, size),
            data=0.0 if data_on_disk else data_bytes(n_all, d, ranks, stored, s if dealt else None),
            held_out=ranks * n_held_out,
            d=d,
            wanted=wanted.wanted,
            element_size=size,
        )

    def keeps_all(s: int, q: int, m: int) -> bool:
        wanted, room = kept(s, q, m)
        return keeps and room >= wanted.wanted

    with small_operations(points.device):  # the same numbers for any number of threads
        found = levelling(kernel, points, n_outputs, resource, ridge, requests, goal, keeps_all)
        plain = found.fresh.estimate(None, 0)
        paper = found.estimate
        if found.paper_q != found.q or ridge:  # that of the paper has no ridge
            paper = found.fresh.estimate(level(found.spectrum, found.paper_q), found.paper_q)
    s, q, estimate, batch = found.spectrum.s, found.q, found.estimate, found.batch
    beta, lambda_1 = estimate.beta + ridge, estimate.lambda_1 + ridge / n
    m = batch_size(requests, batch, estimate, ridge, n, resource)
    how, room = kept(s, q, m)
    plan = Plan(
        **of_the_run(kernel, points, n_outputs, resource),
        capacity_batch_size=batch.m_C,
        memory_batch_size=batch.m_S,
        device_batch_size=batch.m_G,
        subsample_size=s,
        preconditioner_rank=q,
        rank_reason=found.reason,
        paper_rule=paper,
        paper_rule_own_critical=found.paper_own_critical,
        beta_plain=plain.beta_max,
        lambda_1_plain=plain.lambda_1,
        beta=beta,
        beta_max=estimate.beta_max + ridge,
        lambda_1=lambda_1,
        batch_size=m,
        step_size=requests.step_size or best_step_size(m, beta, lambda_1),
        ridge=ridge,
        kept_memory=room if keeps else 0.0,
        kept_as=how.code,
        bound=_active_bound(m, batch, n, s, requests),
        eigenvalues=tuple((found.spectrum.sigma / s).tolist()),
        data_on_disk=data_on_disk,
        dealt=dealt,
        n_held_out=n_held_out,
        n_closing=n_closing,
        notes=found.spectrum.notes,
    )
    return plan, level(found.spectrum, q, ridge * s / n)


def _active_bound(m: int, batch: BatchLimits, n: int, s: int, requests: Requests) -> str:
    if requests.batch_size is not None:
        return "set by the user"
    if batch.m_G == n and s == n:
        return "data"
    if m < batch.m_G:
        return "spectrum"
    return "memory" if batch.m_S < batch.m_C else "capacity"
