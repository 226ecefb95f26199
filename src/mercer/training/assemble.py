"""From points and targets to a run: its schedule, its operators, and how much of K they keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mercer.data.dealt_points import AnyPoints
from mercer.data.points import Points
from mercer.kernels.base import Kernel
from mercer.method.preconditioner import Preconditioner
from mercer.method.schedule import Schedule, make_schedule
from mercer.method.step import Step
from mercer.operators.base import SquareOperator
from mercer.operators.fixed_point import FixedPoint
from mercer.operators.kept import KeptRectangle, KeptSquare
from mercer.operators.refined import Refined
from mercer.operators.sharded import Deal, ShardedRectangle, ShardedSquare
from mercer.operators.tiled import TiledOperator, panel_rows
from mercer.processes.group import Group
from mercer.training.loop import Training
from mercer.training.stopping import Limits
from mercer.training.validation import Validation


@dataclass(frozen=True)
class HeldOutPart:
    """Prepared points that are not trained on, their centred targets, and how predictions are scored."""

    points: Points
    y: Tensor  # (n_val, l)
    score: Callable[[Tensor], float] = lambda predictions: float("nan")


def tiled_square(
    kernel: Kernel,
    points: Points,
    n_outputs: int,
    schedule: Schedule,
    V: Tensor,
    tile_size: int | None = None,
) -> TiledOperator:
    """K over the points, in tiles that end where the panels of a schedule do."""
    return TiledOperator(
        kernel,
        points,
        points,
        n_outputs,
        rows_at_once=schedule.longest,
        cuts=schedule.cuts,
        basis=V,
        tile_size=tile_size,
    )


def dealing(n: int, s: int, m: int, group: Group, device: torch.device) -> Deal:
    """Which columns each rank has in a run with batches of m, the first s rows being the subsample."""
    panels = make_schedule(n, s, m, panel_rows(device)).panels
    return Deal([panel.rows for panel in panels], s, group, device)


def assemble(
    kernel: Kernel,
    points: AnyPoints,
    y: Tensor,
    step: Step,
    preconditioner: Preconditioner,
    limits: Limits,
    *,
    kept_memory: float = 0.0,
    kept_as: FixedPoint | None = None,
    rows_at_once: int | None = None,
    held_out: HeldOutPart | None = None,
    sample_weight: Tensor | None = None,
    start_from: Tensor | None = None,
    triangular: bool = True,
    shuffled: bool = True,
    operator: SquareOperator | None = None,
    loss_unit: float = 1.0,
    group: Group | None = None,
) -> Training:
    """A run on points in training order, not yet begun; every row is a centre.

    `kept_memory` are bytes for kernel values to be kept, in 16 bits if `kept_as` says how;
    `rows_at_once` are evaluated together, at least a batch, None for what suits the device; `operator`
    computes products with K over the points, by default by tiles.  `loss_unit` is that of the losses
    reported.  With a `group`, the columns of K are shared out over its ranks, `kept_memory` is that of
    all of them, and values are kept as they are; the points may be dealt to the ranks by `dealing`.
    """
    n, n_outputs = y.shape
    s = len(preconditioner.V)
    at_once = rows_at_once or panel_rows(points.device)
    schedule = make_schedule(n, s, step.m, at_once, triangular=triangular, shuffled=shuffled)
    deal = None
    if group is not None and operator is None:
        deal = Deal([panel.rows for panel in schedule.panels], s, group, points.device)
    validation = None
    if held_out is not None:
        rectangle: KeptRectangle | ShardedRectangle
        if deal is None:
            assert isinstance(points, Points)
            inner = TiledOperator(kernel, held_out.points, points, n_outputs)
            rectangle = KeptRectangle(inner, kept_memory)
        else:
            parts = (held_out.points, points, n_outputs, deal)
            rectangle = ShardedRectangle(kernel, *parts, kept_memory)
        kept_memory -= rectangle.kept_bytes
        validation = Validation(rectangle, held_out.y, held_out.score)
    if deal is not None:
        operator = ShardedSquare(kernel, points, n_outputs, deal, preconditioner.V, kept_memory)
    if operator is None:
        assert isinstance(points, Points)
        tiled = tiled_square(kernel, points, n_outputs, schedule, preconditioner.V)
        operator = tiled
        if kept_memory:
            kept = KeptSquare(tiled, kept_memory, kept_as)
            operator = kept if kept_as is None else Refined(kept)
    return Training(
        operator,
        preconditioner,
        schedule,
        step,
        y,
        limits,
        validation,
        sample_weight=sample_weight,
        start_from=start_from,
        loss_unit=loss_unit,
    )
