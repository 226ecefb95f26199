"""KernelMachine: the trained function f(x) = offset + scale * sum_i alpha_i k(x_i, x).

Where the weights are much larger than the targets, the sum cancels and its rounding error shows: a
row would get another value alone than among others.  `in_double` then evaluates it in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mercer.data.dealt_points import AnyPoints, DealtPoints
from mercer.data.inputs import Inputs
from mercer.data.one_row import OneRowInputs
from mercer.data.points import Points
from mercer.data.rows import Matrix, as_tensor, widest
from mercer.data.targets import TargetUnits
from mercer.kernels import Custom
from mercer.kernels.base import Kernel
from mercer.kernels.radial import Radial
from mercer.model.one_row import OneRow
from mercer.operators.summation import by_output, pieces
from mercer.operators.tiled import TiledOperator, panel_rows
from mercer.operators.workers import small_operations
from mercer.processes.group import Group

# Matrix libraries work in groups of this many columns; a few more are as fast as fewer.
COLUMN_GROUP = 16
# Rounding error that predictions may carry, as a share of the spread of the targets.
ROUNDING_IN_PREDICTIONS = 1e-5
# It is measured on so many rows; others may have so many times as much.
MEASURED_ROWS = 64
ROUNDING_MARGIN = 4.0
# Rows and centres that are converted to float64, or at most sent by other ranks, at a time.
CENTRES_AT_ONCE = 1 << 13


@dataclass(frozen=True)
class KernelMachine:
    """Centres and weights; everything that prediction needs and nothing else."""

    kernel: Kernel  # in units of the grid's step where the centres are bytes
    inputs: Inputs
    centres: AnyPoints  # (n, d), prepared; those that are dealt to ranks need all of them at once
    alpha: Tensor  # (n, l)
    units: TargetUnits
    in_double: bool = False  # evaluate in float64

    @property
    def device(self) -> torch.device:
        return self.alpha.device

    def predict(self, x: Matrix, on_progress: Callable[[int, int], None] | None = None) -> Tensor:
        """f at each row of x, (m, l), on the machine's device and in its most precise type."""
        if len(x) == 1 and isinstance(x, np.ndarray) and self._one_row is not None:
            # Operations on so few numbers take as long as what PyTorch remembers of them.
            with small_operations(self.device), torch.inference_mode():
                z, beyond = self._one_row_inputs(as_tensor(x))
                f = self._one_row.at(z.to(self.alpha.dtype), beyond.to(self.alpha.dtype))
                f = None if f is None else self.units.decode(f)
            if f is not None:
                return f
        return self.at(self.points(x), on_progress)

    def at(self, points: Points, on_progress: Callable[[int, int], None] | None = None) -> Tensor:
        """f at prepared points."""
        with small_operations(self.device):
            f = self._product(points, self.in_double, on_progress)  # (m, l)
        return self.units.decode(f)

    def points(self, x: Matrix) -> Points:
        """Inputs ready for the kernel."""
        return self.inputs.points(x, None, self.alpha, reach=self.kernel.reach(self.alpha.dtype))

    def points_of_rows(self, x: Matrix) -> Points:
        """Rows to train on, that are not all in memory, ready for the kernel, as the centres are."""
        return self.inputs.points(x, None, self.alpha, as_floats=not self.centres.is_bytes)

    def to(self, device: torch.device | str) -> KernelMachine:
        """The same machine on another device."""
        return replace(
            self,
            centres=self.centres.to(device),
            alpha=self.alpha.to(device),
        )

    def rounding(self) -> float:
        """Rounding error of its sums on the scale of training, from a few rows; 0 if none is known."""
        most_precise = self.alpha.dtype == widest(self.device)
        # A function of the user's own may work in one precision only.
        if most_precise or isinstance(self.kernel, Custom) or not bool(self.alpha.any()):
            return 0.0
        rows = self.centres[:MEASURED_ROWS]
        return float((self._product(rows, False) - self._product(rows, True)).abs().max())

    def as_precise_as_needed(self, rounding: float, spread: float) -> KernelMachine:
        """The machine, in float64 if its rounding error is visible beside the spread of the targets."""
        visible = not ROUNDING_MARGIN * rounding <= ROUNDING_IN_PREDICTIONS * spread
        return replace(self, in_double=visible)

    def among(self, group: Group | None) -> KernelMachine:
        """The same machine for a call of these ranks, which centres that are dealt to them need."""
        if group is None or not isinstance(self.centres, DealtPoints):
            return self
        return replace(self, centres=self.centres.among(group))

    def _product(
        self,
        points: Points,
        in_double: bool,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Tensor:
        """K(points, centres) @ alpha, (m, l)."""
        if in_double or isinstance(self.centres, DealtPoints):
            dtype = torch.float64 if in_double else self.alpha.dtype
            return product_by_parts(self.kernel, points, self.centres, self.alpha, dtype, on_progress)
        return reproducible_product(self.kernel, points, self.centres, self.alpha, on_progress)

    @cached_property
    def _one_row(self) -> OneRow | None:
        """A fast way for a single row, if there is one.  Bytes are multiplied as such."""
        dtype = torch.float64 if self.in_double else self.alpha.dtype
        suits = OneRow.suits(self.kernel, self.centres, dtype, COLUMN_GROUP)
        if len(self.centres) > CENTRES_AT_ONCE or not suits:
            return None
        centres, alpha = self.centres, self.alpha
        assert isinstance(self.kernel, Radial)
        assert isinstance(centres, Points)
        if self.in_double:
            centres, alpha = centres.double(), alpha.double()
        return OneRow(self.kernel, centres, alpha, COLUMN_GROUP)

    @cached_property
    def _one_row_inputs(self) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """Prepares a single row, in a fast way if there is one."""
        reach = self.kernel.reach(self.alpha.dtype)
        if OneRowInputs.suits(self.inputs):
            return OneRowInputs(self.inputs, reach).at
        return lambda x: self.inputs.reachable(x, reach)

    def __getstate__(self) -> dict[str, Any]:
        # A pickle must open where the device it was made on is missing.
        home = self.to("cpu")
        return {f.name: getattr(home, f.name) for f in fields(home)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)


def reproducible_product(
    kernel: Kernel,
    points: Points,
    centres: Points,
    weights: Tensor,
    on_progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """K(points, centres) @ weights, (m, l), in which a row's value does not depend on its place.

    A matrix library treats leftover columns separately, and multiplies by a single vector in another way
    than by several, so the same row would round differently by its place among others.  Hence rows are
    padded to whole groups and a single output to two.  `on_progress` receives rows done and rows in all.
    """
    n, n_outputs = len(points), weights.shape[1]
    if n_outputs == 1:
        weights = torch.nn.functional.pad(weights, (0, 1))
    weights = by_output(weights)
    groups = min(panel_rows(weights.device) // COLUMN_GROUP, -(-n // COLUMN_GROUP))
    at_once = COLUMN_GROUP * max(1, groups)
    tail = n % at_once
    parts = [points[: n - tail]] if n > tail else []
    if tail:
        parts.append(_whole_groups(points[n - tail :]))
    result = weights.new_empty(n, n_outputs)  # (m, l)
    done = 0
    for part in parts:
        operator = TiledOperator(kernel, part, centres, weights.shape[1], rows_at_once=at_once)
        for rows in operator.row_parts(None):
            f = operator.times(weights, rows)[: n - done, :n_outputs]
            result[done : done + len(f)] = f
            done += len(f)
            if on_progress is not None:
                on_progress(done, n)
    return result


def product_by_parts(
    kernel: Kernel,
    points: Points,
    centres: AnyPoints,
    weights: Tensor,
    dtype: torch.dtype,
    on_progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """The same, in float64 if asked; some centres are had, and some rows converted, at a time.

    Ranks may have different points, since each asks for all parts of the centres.
    """
    at_once = CENTRES_AT_ONCE
    if isinstance(centres, DealtPoints):
        at_once = min(at_once, centres.at_once)
    n, n_parts = len(points), -(-len(centres) // at_once)
    result = torch.zeros(n, weights.shape[1], dtype=dtype, device=weights.device)
    for i, part in enumerate(pieces(0, len(centres), at_once)):
        columns, mine = centres[part], weights[part].to(dtype)
        if dtype == torch.float64:
            columns = columns.double()
        for rows in pieces(0, n, CENTRES_AT_ONCE):
            some = points[rows].double() if dtype == torch.float64 else points[rows]
            result[rows] += reproducible_product(kernel, some, columns, mine)
            if on_progress is not None:
                on_progress((i * n + rows.start + len(some)) // n_parts, n)
    return result


def _whole_groups(points: Points) -> Points:
    """Pad with copies of the last row to a multiple of COLUMN_GROUP."""
    missing = -len(points) % COLUMN_GROUP
    if not missing:
        return points
    rows = torch.arange(len(points) + missing, device=points.device)
    return points[rows.clamp_(max=len(points) - 1)]
