"""From points and targets to a run: its schedule, its operators, and how much of K they keep."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mercer.data.dealt_points import AnyPoints, DealtPoints
from mercer.data.points import Points
from mercer.data.streams import StreamedPoints
from mercer.kernels.base import Kernel
from mercer.method.conjugate import watched_rows
from mercer.method.normal_equations import NormalEquations
from mercer.method.preconditioner import Preconditioner
from mercer.method.projection import Projection, is_factorised
from mercer.method.schedule import Schedule, make_schedule
from mercer.method.shared_equations import SharedEquations
from mercer.method.step import Step
from mercer.model.expansion import ExpansionWithTemporaries
from mercer.operators.base import SquareOperator
from mercer.operators.deal import Deal
from mercer.operators.fixed_point import FixedPoint
from mercer.operators.kept import KeptRectangle, KeptSquare
from mercer.operators.refined import Refined
from mercer.operators.sharded import ROUNDING_ROOM, ShardedRectangle, ShardedSquare
from mercer.operators.sharded_centres import ShardedCentres
from mercer.operators.tiled import TiledOperator, panel_rows
from mercer.operators.to_centres import CentresOperator, rows_with_centres
from mercer.operators.workers import workers_for
from mercer.processes.group import Group
from mercer.training.closing import SolvedAndClosed, TrainingAndClosing
from mercer.training.delayed import DelayedProjection
from mercer.training.direct import DirectSolve
from mercer.training.loop import Training
from mercer.training.stopping import Limits
from mercer.training.validation import Validation


@dataclass(frozen=True)
class HeldOutPart:
    """Prepared points that are not trained on, their centred targets, and how predictions are scored."""

    points: Points
    y: Tensor  # (n_val, l)
    score: Callable[[Tensor], float] = lambda predictions: float("nan")


@dataclass(frozen=True)
class WatchedPart:
    """A sample of the points that are trained on, with their targets and weights."""

    points: Points
    y: Tensor  # (w, l)
    weight: Tensor | None = None  # (w, 1)


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


def dealing(n: int, s: int, m: int, group: Group, device: torch.device, n_closing: int = 0) -> Deal:
    """Which columns each rank has in a run with batches of m, the first s rows being the subsample.

    `n_closing` rows after the n are held out at first.
    """
    schedule = make_schedule(n, s, m, panel_rows(device))
    return _deal(schedule.followed_by(n_closing, m, panel_rows(device)), group, device)


def dealing_anyhow(n: int, group: Group, device: torch.device, n_closing: int = 0) -> Deal:
    """Which rows each rank has where these are not the columns: there are fewer, or no plan yet."""
    return dealing(n, 0, panel_rows(device), group, device, n_closing)


def _deal(schedule: Schedule, group: Group, device: torch.device) -> Deal:
    return Deal([panel.rows for panel in schedule.panels], schedule.s, group, device)


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
    n_closing: int = 0,
) -> Training:
    """A run on points in training order, not yet begun; every row is a centre.

    `kept_memory` are bytes for kernel values to be kept, in 16 bits if `kept_as` says how;
    `rows_at_once` are evaluated together, at least a batch, None for what suits the device; `operator`
    computes products with K over the points, by default by tiles.  `loss_unit` is that of the losses
    reported.  With a `group`, the columns of K are shared out over its ranks, `kept_memory` is that of
    all of them, and values are kept as they are; the points may be dealt to the ranks by `dealing`.

    The last `n_closing` rows are those of `held_out`, which are trained on once they have said when to
    stop; see closing.py.
    """
    n, n_outputs = len(y) - n_closing, y.shape[1]
    s = len(preconditioner.V)
    at_once = rows_at_once or panel_rows(points.device)
    schedule = make_schedule(n, s, step.m, at_once, triangular=triangular, shuffled=shuffled)
    of_all = schedule.followed_by(n_closing, step.m, at_once)
    deal, centres = None, points.first(n)
    if group is not None and operator is None:
        deal = _deal(schedule, group, points.device)
    validation = None
    if held_out is not None:
        rectangle: KeptRectangle | ShardedRectangle
        if deal is None:
            assert isinstance(centres, Points)
            inner = TiledOperator(kernel, held_out.points, centres, n_outputs)
            rectangle = KeptRectangle(inner, kept_memory)
        else:
            parts = (held_out.points, centres, n_outputs, deal)
            rectangle = ShardedRectangle(kernel, *parts, kept_memory)
        kept_memory -= rectangle.kept_bytes
        validation = Validation(rectangle, held_out.y, held_out.score)
    if deal is not None and group is not None:
        deal = _deal(of_all, group, points.device)
        operator = ShardedSquare(kernel, points, n_outputs, deal, preconditioner.V, kept_memory)
    if operator is None:
        assert isinstance(points, Points)
        tiled = tiled_square(kernel, points, n_outputs, of_all, preconditioner.V)
        operator = tiled
        if kept_memory:
            kept = KeptSquare(tiled, kept_memory, kept_as)
            operator = kept if kept_as is None else Refined(kept)
    given = (operator, preconditioner, schedule, step, y, limits, validation)
    options: dict[str, Any] = {
        "sample_weight": sample_weight,
        "start_from": start_from,
        "loss_unit": loss_unit,
    }
    if n_closing:
        return TrainingAndClosing(*given, of_all=of_all, **options)
    return Training(*given, **options)


def assemble_with_centres(
    kernel: Kernel,
    points: AnyPoints | StreamedPoints,
    centres: Points,
    y: Tensor,
    step: Step,
    step_on_centres: Step,
    preconditioner: Preconditioner,
    limits: Limits,
    *,
    ridge: float = 0.0,
    n_temporary: int | None = None,
    kept_memory: float = 0.0,
    kept_as: FixedPoint | None = None,
    kept_rows_memory: float = 0.0,
    rows_at_once: int | None = None,
    held_out: HeldOutPart | None = None,
    watched: WatchedPart | None = None,
    sample_weight: Tensor | None = None,
    start_from: Tensor | None = None,
    loss_unit: float = 1.0,
    group: Group | None = None,
    n_closing: int = 0,
) -> Training:
    """A run with fewer centres than points, the first s of them the subsample, not yet begun.

    `ridge` is that of the whole problem; the step has none.  There are at most `n_temporary` temporary
    centres, by default as many as centres, but at least a panel of them.  `kept_memory` is for values of
    K over the centres and between held-out points and centres, `kept_rows_memory` for those of rows with
    the centres, without a group.  Points of a stream are visited in their own order, and need rows to be
    `watched`, a sample that is in memory.  With an exact step, the equations are solved at once, and
    nothing is levelled.
    With a `group`, the columns are shared out over its ranks, or the rows if the step is exact;
    `kept_memory` is that of all ranks, and values are kept as they are.  The points may be dealt to the
    ranks by `dealing_anyhow`.

    With an exact step, the last `n_closing` rows may be those of `held_out`, which are added to the
    equations once they have judged the solution without them.
    """
    n, n_outputs = len(y) - n_closing, y.shape[1]
    p, s, device = len(centres), len(preconditioner.V), points.device
    # An exact step needs no values of rows among one another.
    at_once = rows_at_once or (panel_rows(device) if step.exact else rows_with_centres(p, device))
    shuffled = not isinstance(points, StreamedPoints) and not step.exact
    m = at_once if step.exact else step.m
    schedule = make_schedule(n, 0, m, at_once, triangular=False, shuffled=shuffled)
    on_centres = m if step.exact else step_on_centres.m
    of_centres = make_schedule(p, s, on_centres, at_once, triangular=False)
    deal = None if group is None else _deal(of_centres, group, device)

    def to_centres(rows: Points, budget: float = 0.0) -> KeptRectangle | ShardedRectangle:
        if deal is not None:
            return ShardedRectangle(kernel, rows, centres, n_outputs, deal, budget)
        return KeptRectangle(TiledOperator(kernel, rows, centres, n_outputs), budget)

    validation = None
    if held_out is not None:
        rectangle = to_centres(held_out.points, kept_memory)
        kept_memory -= rectangle.kept_bytes
        validation = Validation(rectangle, held_out.y, held_out.score)
    operator: CentresOperator | ShardedCentres
    if group is not None and deal is not None:
        operator = ShardedCentres(
            *(kernel, points, centres, n_outputs, deal, dealing_anyhow(n, group, device, n_closing)),
            basis=preconditioner.V,
            rows_at_once=schedule.longest,
        )
    else:
        assert not isinstance(points, DealtPoints)
        operator = CentresOperator(
            kernel,
            points,
            centres,
            n_outputs,
            basis=preconditioner.V,
            rows_at_once=schedule.longest,
            kept_rows=schedule.longest,
            budget=kept_rows_memory,
        )
    start = y.new_zeros(p, n_outputs) if start_from is None else start_from
    delayed: DelayedProjection | DirectSolve
    kind = Training
    if step.exact:
        model = ExpansionWithTemporaries(start, 0)
        closing = schedule.followed_by(n_closing, m, at_once).panels[len(schedule.panels) :]
        equations = _equations(operator, y, sample_weight)
        delayed = DirectSolve(operator, model, schedule, ridge, equations, closing)
        kind = SolvedAndClosed if closing else kind
    else:
        square: SquareOperator
        if deal is not None:
            square = ShardedSquare(kernel, centres, n_outputs, deal, preconditioner.V, kept_memory)
        else:
            square = tiled = tiled_square(kernel, centres, n_outputs, of_centres, preconditioner.V)
            square = KeptSquare(tiled, kept_memory, kept_as) if kept_memory else tiled
        exact = is_factorised(p, device)
        projection = Projection(square, preconditioner, of_centres, step_on_centres, y, exact)
        most = max(schedule.longest, p if n_temporary is None else n_temporary)
        model = ExpansionWithTemporaries(start, most)
        if watched is None:
            if isinstance(points, StreamedPoints):
                raise ValueError("Points of a stream need a sample that is watched.")
            watched = _watched(points, y, sample_weight, watched_rows(n, p))
        shown = Validation(to_centres(watched.points), watched.y, lambda f: math.nan)
        delayed = DelayedProjection(operator, projection, model, schedule, ridge, shown, watched.weight)
    return kind(
        operator,
        preconditioner,
        schedule,
        step,
        y,
        limits,
        validation,
        sample_weight=sample_weight,
        loss_unit=loss_unit,
        delayed=delayed,
    )


def _watched(points: AnyPoints, y: Tensor, weight: Tensor | None, parts: Sequence[slice]) -> WatchedPart:
    """Parts of the rows, which are few."""
    first, *others = (points[rows] for rows in parts if rows.stop > rows.start)
    for more in others:
        first = first.followed_by(more)
    if weight is not None:
        weight = torch.cat([weight[rows] for rows in parts])  # (w, 1)
    return WatchedPart(first, torch.cat([y[rows] for rows in parts]), weight)


def _equations(
    operator: CentresOperator | ShardedCentres, y: Tensor, weight: Tensor | None
) -> Callable[[slice], NormalEquations]:
    """What makes equations of some rows, to which nothing has been added."""
    p, workers = len(operator.centres), workers_for(y.device)
    if isinstance(operator, CentresOperator):
        return lambda _: NormalEquations(p, y.shape[1], workers, y.device)
    rows, diagonal, deal = operator.rows, operator.kernel.diagonal, operator.row_deal
    largest = ROUNDING_ROOM * operator.centres.largest(diagonal)
    if not isinstance(rows, StreamedPoints):  # whose k(x, x) must all be the same
        largest = max(largest, ROUNDING_ROOM * rows.largest(diagonal))

    def made(of: slice) -> NormalEquations:
        w = None if weight is None else weight[of]
        return SharedEquations(p, y[of], w, largest, deal.n_blocks, workers, deal.group)

    return made
