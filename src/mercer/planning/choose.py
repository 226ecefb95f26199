"""Choosing s, q, m and eta: how many eigenvalues to level, and the batch and step that follow.

SGD with the levelled kernel k_q profits from batches up to m*(k_q).  q is chosen so that m* reaches the
batch m_G that the device can use; where the subsample is too small for that, it grows.
"""

from __future__ import annotations

from dataclasses import dataclass

from mercer.data.dealt_points import AnyPoints, DealtPoints
from mercer.kernels.base import Kernel
from mercer.method.critical_batch import (
    FEWEST_FRESH,
    FRESH_POINTS,
    FreshEstimate,
    FreshSample,
    fresh_sample,
    own_critical_batches,
    paper_components,
    safe_components,
)
from mercer.method.preconditioner import LevelledKernel, level
from mercer.method.spectrum import SMALL_MATRIX, NystromSpectrum, nystrom_spectrum
from mercer.method.step import best_step_size
from mercer.operators.tiled import panel_rows
from mercer.operators.workers import small_operations
from mercer.planning.keeping import keeping
from mercer.planning.memory import (
    data_bytes,
    estimate_points,
    kept_bytes,
    repeated_bytes,
    work_bytes,
)
from mercer.planning.plan import Plan, of_the_run
from mercer.planning.resource import Resource

# Paper, section 5: s = 2,000 for n <= 1e5 and 12,000 above.  Here s starts at the first and grows up to
# the second.
SUBSAMPLE_SIZE = 2_000
LARGEST_SUBSAMPLE = 12_000
# Eigenvectors beyond this share of s describe the subsample more than the data: on MNIST, s = 2,000,
# going from q = s/4 to q = s/2 doubles the work of every correction to lower beta by 7 %.
COMPONENT_SHARE = 0.25
# Fewest eigenpairs computed: fewer take as long.
FEWEST_COMPUTED = 128
# A subsample this small is decomposed whole in milliseconds.
SMALL_SUBSAMPLE = 400
# Work, as a share of one epoch's, that levelling may add where it is not needed to reach m_G but still
# useful; and that a larger subsample may take where it is needed, since every epoch gains from it.
SPARE_WORK_SHARE = 0.03
GROWTH_WORK_SHARE = 0.5
# Growth of m* below which a larger subsample is not worth a further doubling.
GROWTH_WORTH_HAVING = 1.2
# Elementwise passes of one kernel value cost about as much as this many features.
ELEMENTWISE_FEATURES = 50
# A batch below this share of the rows that run at full rate wastes more of the device than a batch
# beyond m* wastes of its points.
SMALLEST_BATCH_SHARE = 1 / 8


@dataclass(frozen=True)
class Requests:
    """Numbers set by the user; None where the method chooses."""

    subsample_size: int | None = None
    preconditioner_rank: int | None = None
    batch_size: int | None = None
    step_size: float | None = None


@dataclass(frozen=True)
class BatchLimits:
    """What bounds the batch on a device, before the spectrum does."""

    m_C: float
    m_S: int
    m_G: int


@dataclass(frozen=True)
class Levelling:
    """A subsample, how much of its spectrum is levelled, and the batches that allows."""

    spectrum: NystromSpectrum
    fresh: FreshSample
    estimate: FreshEstimate  # of the q chosen
    paper_q: int
    batch: BatchLimits

    @property
    def q(self) -> int:
        return self.estimate.q


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
) -> tuple[Plan, LevelledKernel]:
    """Choose s, q, m and eta for training points in random order; the first s are the subsample.

    `keeps` says whether kernel values may be kept: a single epoch has no use for them.  `coded` says
    whether in 16 bits: the ranks of a group keep them as they are.  `n_closing` of the held-out points
    are trained on in the end.
    """
    n, d = points.shape
    n_all = n + n_closing
    with small_operations(points.device):  # the same numbers for any number of threads
        found = _levelling(kernel, points, n_outputs, resource, ridge, requests)
        plain = found.fresh.estimate(None, 0)
        paper = found.estimate
        if found.paper_q != found.q or ridge:  # that of the paper has no ridge
            paper = found.fresh.estimate(level(found.spectrum, found.paper_q), found.paper_q)
    s, q, estimate, batch = found.spectrum.s, found.q, found.estimate, found.batch
    beta, lambda_1 = estimate.beta + ridge, estimate.lambda_1 + ridge / n
    floor = max(1.0, SMALLEST_BATCH_SHARE * resource.full_rate_rows)
    m = requests.batch_size or int(min(batch.m_G, max(estimate.critical(ridge, n), floor)))
    size, dealt = resource.element_size, isinstance(points, DealtPoints)
    stored = 1 if points.is_bytes else points.dtype.itemsize
    rows, ranks = max(m, panel_rows(points.device)), resource.ranks
    coded = coded and ranks == 1
    kept = keeping(kernel, points, s, q, m, n_held_out, size, coded=coded, n_closing=n_closing)
    plan = Plan(
        **of_the_run(kernel, points, n_outputs, resource),
        capacity_batch_size=batch.m_C,
        memory_batch_size=batch.m_S,
        device_batch_size=batch.m_G,
        subsample_size=s,
        preconditioner_rank=q,
        paper_rule=paper,
        paper_rule_own_critical=float(own_critical_batches(found.spectrum)[found.paper_q - 1]),
        beta_plain=plain.beta_max,
        lambda_1_plain=plain.lambda_1,
        beta=beta,
        beta_max=estimate.beta_max + ridge,
        lambda_1=lambda_1,
        batch_size=m,
        step_size=requests.step_size or best_step_size(m, beta, lambda_1),
        ridge=ridge,
        kept_memory=kept_bytes(
            resource.usable,
            work=ranks * work_bytes(n_all, n_outputs, s, size)
            + repeated_bytes(n_all, rows + q, ranks, size),
            data=0.0 if data_on_disk else data_bytes(n_all, d, ranks, stored, s if dealt else None),
            held_out=ranks * n_held_out,
            d=d,
            wanted=kept.wanted,
            element_size=size,
        )
        if keeps
        else 0.0,
        kept_as=kept.code,
        bound=_active_bound(m, batch, n, s, requests),
        eigenvalues=tuple((found.spectrum.sigma / s).tolist()),
        data_on_disk=data_on_disk,
        dealt=dealt,
        n_held_out=n_held_out,
        n_closing=n_closing,
        notes=found.spectrum.notes,
    )
    return plan, level(found.spectrum, q, ridge * s / n)


def _levelling(
    kernel: Kernel,
    points: AnyPoints,
    n_outputs: int,
    resource: Resource,
    ridge: float,
    requests: Requests,
) -> Levelling:
    """Grow q, the eigenpairs computed and the subsample until m* reaches m_G or it no longer pays."""
    n, d = points.shape
    features = d / max(1.0, resource.integer_gain) if points.is_bytes else d
    work = features + n_outputs + ELEMENTWISE_FEATURES
    affordable = max(FEWEST_FRESH, estimate_points(resource.usable_each, d, resource.element_size))
    s = _subsample_size(n, requests, affordable)
    width = _first_components(s, n, work, requests)
    critical_before = 0.0
    while True:
        spectrum = nystrom_spectrum(kernel, points[:s], width)
        rank = len(spectrum.sigma) if requests.preconditioner_rank else safe_components(spectrum, n)
        batch = _batch_limits(n, d, n_outputs, s * rank, resource, requests)
        fresh = fresh_sample(kernel, points, s, min(FRESH_POINTS, affordable))
        paper_q = min(rank, paper_components(spectrum, batch.m_G))
        q = _components(rank, paper_q, _spare_components(s, n, work), requests)
        rho = ridge * s / n
        estimate = fresh.estimate(level(spectrum, q, rho), q)
        while (
            estimate.critical(ridge, n) < batch.m_G and requests.preconditioner_rank is None and q < rank
        ):
            q = min(2 * q, rank)
            estimate = fresh.estimate(level(spectrum, q, rho), q)
        critical = estimate.critical(ridge, n)
        if critical < batch.m_G and q == width < _most_components(s, requests):
            width = min(2 * width, _most_components(s, requests))
            continue
        grown = min(2 * s, LARGEST_SUBSAMPLE, affordable)
        grows = (
            critical < batch.m_G
            and requests.subsample_size is None
            and s < grown <= n // 2
            and critical > GROWTH_WORTH_HAVING * critical_before
            and 2 * n * grown * q + 3 * grown**2 * work < GROWTH_WORK_SHARE * n * n * work
        )
        if not grows:
            return Levelling(spectrum, fresh, estimate, paper_q, batch)
        s, critical_before = grown, critical
        width = max(width, _first_components(s, n, work, requests))


def _batch_limits(
    n: int, d: int, n_outputs: int, preconditioner: int, resource: Resource, requests: Requests
) -> BatchLimits:
    m_S = resource.memory_batch(n, d, n_outputs, preconditioner)
    m_C = resource.capacity_batch(n, d, n_outputs)
    # Tiles hold no block of the batch, so memory alone is no reason for one that wastes the device.
    m_G = min(m_C, max(m_S, resource.full_rate_rows))
    if requests.batch_size is not None:
        m_G = requests.batch_size
    return BatchLimits(m_C, m_S, int(max(1, min(m_G, n))))


def _subsample_size(n: int, requests: Requests, affordable: int) -> int:
    s = requests.subsample_size
    if s is None:
        most = min(SUBSAMPLE_SIZE, affordable)
        s = n if n < most + FEWEST_FRESH else most
        q = requests.preconditioner_rank
        return s if q is None else min(n, max(s, q + 1))
    if not 1 <= s <= n:
        raise ValueError(
            f"`subsample_size` must be between 1 and the number of training points, {n} after any "
            f"held-out part. Got {s} instead."
        )
    return s


def _most_components(s: int, requests: Requests) -> int:
    if requests.preconditioner_rank is not None:
        return requests.preconditioner_rank
    return max(1, s - 1 if s <= SMALL_SUBSAMPLE else int(COMPONENT_SHARE * s))


def _first_components(s: int, n: int, work: float, requests: Requests) -> int:
    """Eigenpairs computed at first; more follow where they are not enough."""
    most = _most_components(s, requests)
    if requests.preconditioner_rank is not None or s <= SMALL_MATRIX:
        return most
    return min(most, max(FEWEST_COMPUTED, 2 * _spare_components(s, n, work)))


def _spare_components(s: int, n: int, work: float) -> int:
    """Eigenvalues whose levelling costs next to nothing."""
    return int(SPARE_WORK_SHARE * n * work / (2 * s))


def _components(rank: int, paper: int, spare: int, requests: Requests) -> int:
    """The adjusted q: at least the paper's, and as many more as cost next to nothing."""
    if requests.preconditioner_rank is not None:
        return min(requests.preconditioner_rank, rank)
    return min(rank, max(paper, spare))


def _active_bound(m: int, batch: BatchLimits, n: int, s: int, requests: Requests) -> str:
    if requests.batch_size is not None:
        return "set by the user"
    if batch.m_G == n and s == n:
        return "data"
    if m < batch.m_G:
        return "spectrum"
    return "memory" if batch.m_S < batch.m_C else "capacity"
