"""The ways to prepare features that are tried: as given, standardised, by rank, with categories."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mercer.data.inputs import Inputs
from mercer.data.points import Points
from mercer.data.rows import Array, Matrix, take
from mercer.data.table_map import QUANTILE_ROWS, TableMap
from mercer.kernels.base import Kernel
from mercer.kernels.distances import add_absolute_differences_, squared_distances

# With more numbers, absolute differences take ten times as long as a matrix product and more.
MOST_ABSOLUTE = 64
# Two different categories are as far apart as two numbers that differ by one standard deviation.
INDICATOR_SCALE = 2.0**0.5


@dataclass(frozen=True)
class Variant:
    """One way to prepare the features, and the rows of the search prepared like that.

    A metric has one weight for each block: a number is a block of its own, and all indicators of a
    category are one.
    """

    label: str
    inputs: Inputs
    x: Tensor  # (s, w)

    @property
    def n_numbers(self) -> int:
        """Leading features that are numbers; the rest are indicators."""
        return self.x.shape[1] if self.inputs.table is None else len(self.inputs.table.numbers)

    @property
    def blocks(self) -> Tensor:
        """The block of each feature, (w,)."""
        numbers = torch.arange(self.n_numbers)
        if self.inputs.table is None:
            return numbers
        categories = torch.unique(self.inputs.table.owners, return_inverse=True)[1]
        return torch.cat([numbers, self.n_numbers + categories])

    @property
    def n_blocks(self) -> int:
        return int(self.blocks.max()) + 1

    @property
    def suits_absolute(self) -> bool:
        """Whether sums of absolute differences are worth their time."""
        return self.inputs.grid is None and self.n_numbers <= MOST_ABSOLUTE

    def distances(self, kernel: Kernel, rows: slice) -> Tensor:
        """Between some rows of the search, as the kernel has them, (m, m)."""
        points = self.points(kernel, rows)
        d = squared_distances(points, points, same=True)
        return (
            add_absolute_differences_(d, points, points, True, 1.0, 0.0)
            if kernel.absolute
            else d.sqrt_()
        )

    def factors(self, kernel: Kernel, weights: Tensor) -> Tensor:
        """What each feature is multiplied by for a metric with these weights of blocks, (w,)."""
        factors = weights[self.blocks]
        if kernel.absolute:  # indicators count by squares all the same
            factors[self.n_numbers :] = factors[self.n_numbers :].sqrt()
        return factors

    def points(
        self,
        kernel: Kernel,
        rows: slice | Tensor,
        weights: Tensor | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> Points:
        """Some rows of the search as the kernel sees them, with a metric if there is one."""
        x = self.x[rows].double()  # (m, w)
        if kernel.translation_invariant:
            x = x - x.mean(0)
        if weights is not None:
            x = x * self.factors(kernel, weights)
        return Points.extend(x.to(dtype), self.n_numbers if kernel.absolute else 0)

    def prepared(self, kernel: Kernel, weights: Tensor | None = None) -> Inputs:
        """The inputs for a kernel, with a metric if there is one."""
        inputs = replace(self.inputs, absolute=kernel.absolute)
        if weights is None:
            return inputs
        scale = torch.ones_like(inputs.shift) if inputs.scale is None else inputs.scale
        return replace(
            inputs,
            scale=scale / self.factors(kernel, weights),
            importances=self.by_feature(weights if kernel.absolute else weights.square()),
        )

    def by_feature(self, values: Tensor) -> Tensor:
        """Values of blocks as shares of the user's features, (d,)."""
        inputs, table = self.inputs, self.inputs.table
        sources = torch.arange(len(inputs.shift)) if table is None else table.sources
        place = torch.empty(self.n_blocks, dtype=torch.int64)
        place[self.blocks] = sources  # each block comes from one feature
        found = torch.zeros(inputs.n_features, dtype=torch.float64)
        found[place if inputs.columns is None else inputs.columns[place]] = values / values.sum()
        return found


def median_distance(points: Points) -> float:
    """The median distance between distinct points; 1 where there are none."""
    d2 = squared_distances(points, points, same=True)  # (s, s)
    apart = d2[d2 > 0]
    return float(apart.median().sqrt()) if len(apart) else 1.0


def with_table(
    plain: Inputs,
    x: Matrix,
    rows: Array,
    coded: dict[int, Tensor],
    sample_weight: Array | None = None,
    *,
    ranked: bool,
) -> Inputs:
    """Inputs that map columns: numbers by rank if asked, features in `coded` as categories."""
    features = torch.arange(plain.n_features) if plain.columns is None else plain.columns
    rows = rows[:QUANTILE_ROWS]
    weights = torch.ones(len(rows)) if sample_weight is None else torch.from_numpy(sample_weight[rows])
    weights = weights.double()  # (m,)
    table = TableMap.fit(x, rows, features, coded, weights, ranked=ranked)
    sample = table.apply(plain.varying(take(x, rows))[0]).to("cpu").double()  # (m, w)
    share = weights / weights.sum()
    shift, n_numbers = share @ sample, len(table.numbers)  # (w,)
    scale = torch.full_like(shift, INDICATOR_SCALE)
    if ranked:
        scale[:n_numbers] = (share @ (sample - shift)[:, :n_numbers].square()).sqrt()
    elif plain.scale is None:
        scale[:n_numbers] = 1.0
    else:
        scale[:n_numbers] = plain.scale[table.numbers]
    return replace(plain, shift=shift, scale=torch.where(scale > 0, scale, 1.0), table=table)
