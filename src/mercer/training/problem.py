"""What is trained on, and what was decided about it before training begins."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from torch import Tensor

from mercer.data.dealt_points import AnyPoints, DealtPoints
from mercer.data.inputs import Inputs
from mercer.data.rows import Array, Matrix, SharedRows
from mercer.data.streams import RowStream, StreamedPoints
from mercer.data.targets import TargetUnits
from mercer.kernels.base import Kernel
from mercer.method.preconditioner import LevelledKernel
from mercer.model.machine import KernelMachine
from mercer.operators.deal import Deal
from mercer.planning.plan import Plan
from mercer.selection.candidates import Selection
from mercer.selection.setting import LeftOut

# Rows of a stream that are permuted together, at most.
MOST_IN_BLOCK = 1 << 16


@dataclass(frozen=True)
class StreamMark:
    """Numbers that decide which rows of a stream are the sample, and the order of all."""

    seed: int
    sample: int  # rows in it, at most
    block: int  # rows that are permuted together


@dataclass(frozen=True)
class Streamed:
    """Rows of a stream, and the targets and weights of all of them in the order of the stream.

    Targets become columns a block at a time: as float64 they may take more memory than all else.
    """

    rows: RowStream
    y: Array  # (N,) or (N, l)
    encode: Callable[[Array], Array]  # targets as columns
    sample_weight: Array | None  # (N,)
    made_with: StreamMark  # what the sample and the blocks depend on

    def parts(self) -> Iterator[tuple[Array, Array | None]]:
        """Targets as columns, and weights, of each block in training order."""
        for numbers in self.rows.numbers():
            weight = None if self.sample_weight is None else self.sample_weight[numbers]
            yield self.encode(self.y[numbers]), weight

    @property
    def weight(self) -> Array | None:
        """In training order, (n,)."""
        return None if self.sample_weight is None else self.sample_weight[self.rows.order]


@dataclass(frozen=True)
class Data:
    """The user's rows in their order; `rows` are those to train on, in training order."""

    X: Matrix  # (N, d)
    Y: Array  # (N, l)  targets as columns
    rows: Array  # (n,)
    X_val: Matrix | None = None
    Y_val: Array | None = None
    sample_weight: Array | None = None  # (N,)
    strata: Array | None = None  # (N,)  classes, whose shares a sample should keep
    classes: bool = False  # the columns of Y stand for classes, and not each for a number of its own
    centers: Matrix | None = None  # (p, d)  the user's own, in random order
    numbers: Array | None = None  # by which the user knows centres that are no rows of X here
    stream: Streamed | None = None  # what is trained on, where the rows here are a sample of it
    # (h,)  of the rows of X that are X_val and may be trained on once they have said when to stop
    closing_rows: Array | None = None

    @property
    def own_scales(self) -> bool:
        """Whether losses are means of each output's share of variance, and not squared errors."""
        return not self.classes and self.Y.shape[1] > 1

    @cached_property
    def units(self) -> TargetUnits:
        """The units of the targets on the rows to train on."""
        return TargetUnits.of_parts(self._parts, own_scales=self.own_scales)

    def _parts(self) -> Iterator[tuple[Array, Array | None]]:
        if self.stream is None:
            return iter([(self.Y[self.rows], self.training_weight)])
        return self.stream.parts()

    def targets(self, units: TargetUnits, like: Tensor) -> Tensor:
        """Those to train on in training order, (n, l), on the device and in the precision of `like`."""
        if self.stream is None:
            return units.encode(self.Y[self.rows], like)
        y, filled = like.new_empty(len(self.stream.rows), self.Y.shape[1]), 0
        for Y, _ in self._parts():
            y[filled : filled + len(Y)] = units.encode(Y, like)
            filled += len(Y)
        return y

    @property
    def training_rows(self) -> Array:
        """Numbers of the user's rows in training order, (n,)."""
        return self.rows if self.stream is None else self.stream.rows.order

    def all_rows(self, n_closing: int) -> Array:
        """The rows to train on, in training order, and after them those of closing epochs, if any."""
        if not n_closing:
            return self.rows
        assert self.closing_rows is not None
        assert len(self.closing_rows) == n_closing
        return np.concatenate([self.rows, self.closing_rows])

    @property
    def training_weight(self) -> Array | None:
        """Weights of rows in training order, (n,)."""
        if self.stream is not None:
            return self.stream.weight
        return None if self.sample_weight is None else self.sample_weight[self.rows]

    @property
    def comparable_Y(self) -> Array:
        """Targets whose squared errors may be added over outputs, (N, l)."""
        return self.Y / self.units.scale.numpy() if self.own_scales else self.Y

    @property
    def loss_unit(self) -> float:
        """What a squared error of 1 in training is as a loss."""
        return 1.0 if self.own_scales else float(self.units.scale[0]) ** 2

    @property
    def n_held_out(self) -> int:
        return 0 if self.X_val is None else len(self.X_val)


def training_points(
    data: Data, inputs: Inputs, like: Tensor, limit: float, deal: Deal | None, n_closing: int = 0
) -> AnyPoints:
    """The points to train on, memory-mapped where they take more than `limit` bytes of a rank.

    If each rank has only some of the rows, they are dealt to the ranks by `deal`.  Without one, as where
    the equations are solved at once, each rank gets all of them.  Rows of closing epochs come last.
    Where they have values that the others have not, they are moved into the space of the others.
    """
    rows = data.all_rows(n_closing)
    if deal is None or not isinstance(data.X, SharedRows):
        return inputs.points(data.X, rows, like, True, limit)
    row = inputs.width if inputs.grid is not None else (inputs.width + 2) * like.element_size()
    each = len(rows) * row / deal.group.size
    memory = 0.0 if each > limit else math.inf
    points = inputs.points(data.X, rows, like, True, memory, held=deal.held)
    return DealtPoints(points, deal.held, deal.group)


def streamed_points(data: Data, machine: KernelMachine) -> StreamedPoints | None:
    """The points to train on, if they come as a stream."""
    if data.stream is None:
        return None
    centres = machine.centres
    return StreamedPoints(
        data.stream.rows, machine.points_of_rows, machine.alpha, centres.shape[1], centres.is_bytes
    )


def rows_each(points: AnyPoints) -> float:
    """Bytes of the points that a rank holds, on average."""
    return points.rows.nbytes / (points.group.size if isinstance(points, DealtPoints) else 1)


@dataclass(frozen=True)
class Problem:
    """All that training needs, ready on the device."""

    kernel: Kernel  # in the units of the user's data
    ridge: float  # as the user knows it; the plan has it in units of the largest sample weight
    machine: KernelMachine  # untrained
    preconditioner: LevelledKernel
    plan: Plan
    y: Tensor  # (n, l)  centred
    selection: Selection | None
    left_out: LeftOut | None = None
    points: AnyPoints | StreamedPoints | None = None  # to train on, where they are not the centres

    def without_closing(self) -> Problem:
        """The same where the rows that were held out have not been trained on."""
        plan, machine = replace(self.plan, n_closing=0), self.machine
        if plan.n_centers is not None:
            return replace(self, plan=plan)
        centres, alpha = machine.centres.first(plan.n), machine.alpha[: plan.n]
        return replace(self, plan=plan, machine=replace(machine, centres=centres, alpha=alpha))

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Rows of a stream may be read; at the end no thread and no iterator of it is left."""
        try:
            yield
        finally:
            if isinstance(self.points, StreamedPoints):
                self.points.close()
