"""Few rows: the plan to solve the equations at once, with all rows in one batch and nothing levelled."""

from __future__ import annotations

import torch

from mercer.data.points import Points
from mercer.kernels.base import Kernel
from mercer.method.critical_batch import FreshEstimate
from mercer.method.preconditioner import LevelledKernel, nothing_levelled
from mercer.method.step import best_step_size
from mercer.operators.workers import small_operations
from mercer.planning.memory import work_bytes
from mercer.planning.plan import Plan, of_the_run
from mercer.planning.resource import Resource

# A factorisation of this many rows takes about as long as the choice of a preconditioner.
MOST_DIRECT_ROWS = 3_000
# Points whose spectrum is shown.
SPECTRUM_POINTS = 500
DOUBLE_SIZE = 8


def is_small(n: int, n_outputs: int, resource: Resource) -> bool:
    """Whether n rows are few enough, in time and in memory."""
    needed = 2 * work_bytes(n, n_outputs, n, DOUBLE_SIZE)
    return n <= MOST_DIRECT_ROWS and needed <= resource.usable_each


def direct_plan(
    kernel: Kernel, points: Points, n_outputs: int, resource: Resource, ridge: float
) -> tuple[Plan, LevelledKernel]:
    """The plan of an exact step; its spectrum is that of a few points."""
    n, d = points.shape
    few = points[:SPECTRUM_POINTS]
    with small_operations(points.device):  # the same numbers for any number of threads
        K = kernel.block(few, few, same=True)  # (s, s)
        eigenvalues = torch.linalg.eigvalsh(K).flip(0).clamp_(min=0) / len(few)  # (s,)
    k_diag = kernel.diagonal(points)  # (n,)
    tiny = torch.finfo(points.dtype).tiny
    beta, lambda_1 = max(float(k_diag.mean()), tiny), max(float(eigenvalues[0]), tiny)
    plain = FreshEstimate(q=0, beta=beta, beta_max=float(k_diag.max()), lambda_1=lambda_1)
    plan = Plan(
        **of_the_run(kernel, points, n_outputs, resource),
        capacity_batch_size=resource.capacity_batch(n, d, n_outputs),
        memory_batch_size=resource.memory_batch(n, d, n_outputs),
        device_batch_size=n,
        subsample_size=0,
        preconditioner_rank=0,
        paper_rule=plain,
        paper_rule_own_critical=plain.critical_batch_size,
        beta_plain=beta,
        lambda_1_plain=lambda_1,
        beta=beta + ridge,
        beta_max=plain.beta_max + ridge,
        lambda_1=lambda_1 + ridge / n,
        batch_size=n,
        step_size=best_step_size(n, beta + ridge, lambda_1 + ridge / n),
        ridge=ridge,
        kept_memory=0.0,
        bound="data",
        eigenvalues=tuple(eigenvalues.tolist()),
        direct=True,
    )
    return plan, nothing_levelled(points.squared_norms)
