"""The plan to solve the equations at once, with nothing levelled.

Few rows are one batch.  Of few centres, the equations are added up in one pass over the rows, at

    n p (p + B) / 2 + 3 p³   multiplications in float64, each as long as two in float32,

for blocks of B columns.  Up to some thousands of centres, that is less than the kernel values of a few
epochs.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from mercer.data.points import Points
from mercer.kernels.base import Kernel
from mercer.method.critical_batch import FreshEstimate
from mercer.method.normal_equations import GRAM_BLOCK
from mercer.method.preconditioner import LevelledKernel, nothing_levelled
from mercer.method.step import best_step_size
from mercer.operators.tiled import panel_rows
from mercer.operators.workers import small_operations
from mercer.planning.memory import normal_bytes, work_bytes
from mercer.planning.plan import Plan, of_the_run
from mercer.planning.resource import Resource

# A factorisation of this many rows takes about as long as the choice of a preconditioner.
MOST_DIRECT_ROWS = 3_000
# Points whose spectrum is shown.
SPECTRUM_POINTS = 500
DOUBLE_SIZE = 8
# Multiplications in float32 that take as long as one in float64.
DOUBLE_WORK = 2
# Kernel values of an epoch of descent with delayed projections, in units of n p.
EPOCH_VALUES = 2.5


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


def normal_seconds(n: int, p: int, value: float, feature: float, devices: int = 1) -> float:
    """Of adding up and solving the equations of p centres, a kernel value and a multiplication in
    float32 taking so long.  Several devices share out the rows, and each solves."""
    adding = n * p * value + DOUBLE_WORK * feature * n * p * (p + GRAM_BLOCK) / 2
    return adding / devices + DOUBLE_WORK * feature * 3 * p**3


def solves_centres(
    n: int,
    p: int,
    n_outputs: int,
    value: float,
    feature: float,
    epochs: int,
    resource: Resource,
    devices: int = 1,
) -> bool:
    """Whether the equations of p centres are solved sooner than so many epochs end, in the memory."""
    size = resource.element_size
    needed = normal_bytes(n, p, panel_rows(torch.device(resource.device)), n_outputs, size)
    descent = epochs * EPOCH_VALUES * n * p * value / devices
    return needed <= resource.usable_each and normal_seconds(n, p, value, feature, devices) <= descent


def direct_centres_plan(
    kernel: Kernel, points: Points, n: int, p: int, n_outputs: int, resource: Resource, ridge: float
) -> tuple[Plan, LevelledKernel]:
    """The plan of one pass over n rows, of which the points are some, with p centres."""
    few = points[: max(p, SPECTRUM_POINTS)]
    plan, nothing = direct_plan(kernel, few, n_outputs, resource, ridge)
    return replace(plan, n=n, batch_size=n, device_batch_size=n, n_centers=p), nothing
