"""KernelMachine: the trained function f(x) = sum_i alpha_i k(x_i, x) + offset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from mercer.data.inputs import Inputs
from mercer.data.points import Points
from mercer.data.rows import Matrix
from mercer.kernels.base import Kernel
from mercer.operators.summation import by_output
from mercer.operators.tiled import TiledOperator, panel_rows

# Matrix libraries work in groups of this many columns; a few more are as fast as fewer.
COLUMN_GROUP = 16


@dataclass(frozen=True)
class KernelMachine:
    """Centres and weights; everything that prediction needs and nothing else."""

    kernel: Kernel  # in units of the grid's step where the centres are bytes
    inputs: Inputs
    centres: Points  # (n, d), prepared
    alpha: Tensor  # (n, l)
    offset: Tensor  # (l,)  the mean of the targets

    @property
    def device(self) -> torch.device:
        return self.alpha.device

    def predict(self, x: Matrix, on_progress: Callable[[int, int], None] | None = None) -> Tensor:
        """f at each row of x, (m, l), on the machine's device and in its precision."""
        return self.at(self.points(x), on_progress)

    def at(self, points: Points, on_progress: Callable[[int, int], None] | None = None) -> Tensor:
        """f at prepared points."""
        f = reproducible_product(self.kernel, points, self.centres, self.alpha, on_progress)
        return f + self.offset

    def points(self, x: Matrix) -> Points:
        """Inputs ready for the kernel."""
        return self.inputs.points(x, None, self.alpha)

    def to(self, device: torch.device | str) -> KernelMachine:
        """The same machine on another device."""
        return replace(
            self,
            centres=self.centres.to(device),
            alpha=self.alpha.to(device),
            offset=self.offset.to(device),
        )

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


def _whole_groups(points: Points) -> Points:
    """Pad with copies of the last row to a multiple of COLUMN_GROUP."""
    missing = -len(points) % COLUMN_GROUP
    if not missing:
        return points
    rows = torch.arange(len(points) + missing, device=points.x.device)
    return points[rows.clamp_(max=len(points) - 1)]
