"""KernelMachine: the trained function f(x) = offset + scale * sum_i alpha_i k(x_i, x).

Where the weights are much larger than the targets, the sum cancels and its rounding error shows: a
row would get another value alone than among others.  `in_double` then evaluates it in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from mercer.data.inputs import Inputs
from mercer.data.points import Points
from mercer.data.rows import Matrix, widest
from mercer.data.targets import TargetUnits
from mercer.kernels import Custom
from mercer.kernels.base import Kernel
from mercer.operators.summation import by_output, pieces
from mercer.operators.tiled import TiledOperator, panel_rows
from mercer.operators.workers import small_operations

# Matrix libraries work in groups of this many columns; a few more are as fast as fewer.
COLUMN_GROUP = 16
# Rounding error that predictions may carry, as a share of the spread of the targets.
ROUNDING_IN_PREDICTIONS = 1e-5
# It is measured on so many rows; others may have so many times as much.
MEASURED_ROWS = 64
ROUNDING_MARGIN = 4.0
# Rows and centres that are converted to float64 at a time.
DOUBLE_ROWS = 1 << 13


@dataclass(frozen=True)
class KernelMachine:
    """Centres and weights; everything that prediction needs and nothing else."""

    kernel: Kernel  # in units of the grid's step where the centres are bytes
    inputs: Inputs
    centres: Points  # (n, d), prepared
    alpha: Tensor  # (n, l)
    units: TargetUnits
    in_double: bool = False  # evaluate in float64

    @property
    def device(self) -> torch.device:
        return self.alpha.device

    def predict(self, x: Matrix, on_progress: Callable[[int, int], None] | None = None) -> Tensor:
        """f at each row of x, (m, l), on the machine's device and in its most precise type."""
        return self.at(self.points(x), on_progress)

    def at(self, points: Points, on_progress: Callable[[int, int], None] | None = None) -> Tensor:
        """f at prepared points."""
        product = double_product if self.in_double else reproducible_product
        with small_operations(self.device):
            f = product(self.kernel, points, self.centres, self.alpha, on_progress)  # (m, l)
        return self.units.decode(f)

    def points(self, x: Matrix) -> Points:
        """Inputs ready for the kernel."""
        return self.inputs.points(x, None, self.alpha, reach=self.kernel.reach(self.alpha.dtype))

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
        parts = (self.kernel, rows, self.centres, self.alpha)
        return float((reproducible_product(*parts) - double_product(*parts)).abs().max())

    def as_precise_as_needed(self, rounding: float, spread: float) -> KernelMachine:
        """The machine, in float64 if its rounding error is visible beside the spread of the targets."""
        visible = not ROUNDING_MARGIN * rounding <= ROUNDING_IN_PREDICTIONS * spread
        return replace(self, in_double=visible)

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
    parts = [points[: n - tail], _whole_groups(points[n - tail :])] if tail else [points]
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


def double_product(
    kernel: Kernel,
    points: Points,
    centres: Points,
    weights: Tensor,
    on_progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """The same in float64, (m, l); some rows and some centres are converted at a time."""
    n, n_parts = len(points), -(-len(centres) // DOUBLE_ROWS)
    result = torch.zeros(n, weights.shape[1], dtype=torch.float64, device=weights.device)
    for rows in pieces(0, n, DOUBLE_ROWS):
        some = points[rows].double()
        for i, part in enumerate(pieces(0, len(centres), DOUBLE_ROWS), start=1):
            columns = centres[part].double()
            result[rows] += reproducible_product(kernel, some, columns, weights[part].double())
            if on_progress is not None:
                on_progress(rows.start + len(some) * i // n_parts, n)
    return result


def _whole_groups(points: Points) -> Points:
    """Pad with copies of the last row to a multiple of COLUMN_GROUP."""
    missing = -len(points) % COLUMN_GROUP
    if not missing:
        return points
    rows = torch.arange(len(points) + missing, device=points.x.device)
    return points[rows.clamp_(max=len(points) - 1)]
