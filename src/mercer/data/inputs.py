"""The one transform from user features to kernel features.

Features that are constant in training are dropped, columns of a table are mapped (`table_map`), features
are standardised or weighted where asked, data is centred where the kernel is translation invariant,
projected where asked, and stored as bytes where it is 8-bit underneath.  Dropping is exact for any
input: its distance from the constants, or from the subspace that holds all training points, is the same
for all centres and is carried along as one number.

Everything here is PyTorch and runs where the data is: in `fit`, in `predict` and in the module that
`to_torch` returns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from mercer.data.bytes import SAMPLE_ROWS, Grid, recognise
from mercer.data.held import Held
from mercer.data.points import Points, byte_points
from mercer.data.rows import Array, Matrix, chunks, room, take, widest
from mercer.data.table_map import TableMap

# With fewer features the product is too small a part of the work for bytes to pay.
FEWEST_INTEGER_FEATURES = 64
# A direction with less than this share of the largest variance is rounding error of the data.
ROUNDING_VARIANCE = 1e-12


@dataclass(frozen=True)
class Inputs:
    """Fitted on training data, kept with the model, applied to every input.

    Tensors are in float64 on the CPU and are converted to the type and device of the data they meet.
    """

    n_features: int  # of the data as given
    columns: Tensor | None  # (d',)  the features that vary; None for all
    constants: Tensor  # (d - d',)  the values of those that do not
    shift: Tensor  # (w,)  subtracted; w is d', or the width of the table
    scale: Tensor | None = None  # (w,)  divided by
    projection: Tensor | None = None  # (w, k)
    lossless: bool = False  # training points lie in the space projected on
    grid: Grid | None = None  # of data stored as bytes
    table: TableMap | None = None  # from d' features to w
    absolute: bool = False  # the kernel compares numbers by absolute differences
    importances: Tensor | None = None  # (d,)  shares of the features in a learned metric
    standardised: bool = False  # divided by standard deviations, and perhaps weighted
    means: Tensor | None = None  # (d,)  of the data as given, which replace missing values

    @property
    def width(self) -> int:
        """Features that the kernel sees."""
        return len(self.shift) if self.projection is None else self.projection.shape[1]

    @property
    def n_absolute(self) -> int:
        """Leading features that the kernel compares by absolute differences."""
        if not self.absolute:
            return 0
        return self.width if self.table is None else len(self.table.numbers)

    def tensors(self) -> dict[str, Tensor]:
        """All its tensors by name, for files and modules."""
        table = {} if self.table is None else {f"table_{k}": v for k, v in vars(self.table).items()}
        return {k: v for k, v in {**vars(self), **table}.items() if isinstance(v, Tensor)}

    def with_tensors(self, tensors: dict[str, Tensor]) -> Inputs:
        """The same with other tensors in their places."""
        table = self.table
        if table is not None:
            parts = {k.removeprefix("table_"): v for k, v in tensors.items() if k.startswith("table_")}
            table = replace(table, **parts)
        own: dict[str, Any] = {k: v for k, v in tensors.items() if not k.startswith("table_")}
        return replace(self, table=table, **own)

    @property
    def unit(self) -> float:
        """Features are divided by it last: bytes, and inputs beside them, count in steps of the grid."""
        return 1.0 if self.grid is None else self.grid.scale

    def floats(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows as floats, (m, width), and their squared distances from the space of the rest, (m,).

        In the most precise type of the device: the result does not depend on the type of x, and a large
        mean takes up no digits.
        """
        varying, beyond = self.varying(x)
        z = varying if self.table is None else self.table.apply(varying)
        z = z - self.shift.to(x.device, widest(x.device))  # (m, w)
        if self.scale is not None:
            z /= self.scale.to(z)
        if self.table is not None and self.scale is not None and len(self.table.owners):
            # A value never seen is as far from all others as they are from one another.
            squares = self.scale[len(self.table.numbers) :].to(z) ** -2  # (b,)
            beyond = beyond + self.table.unknown(varying) @ squares
        if self.projection is not None:
            projection = self.projection.to(z)
            inside = z @ projection  # (m, k)
            if self.lossless:
                beyond = beyond + (z - inside @ projection.T).square().sum(1)
            z = inside
        return z, beyond

    def reachable(self, x: Tensor, reach: float) -> tuple[Tensor, Tensor]:
        """The same in the units of the points, with rows beyond `reach` moved towards the mean."""
        z, beyond = self.floats(x)
        if self.grid is not None:
            z, beyond = z / self.unit, beyond / self.unit**2
        return _within(z, beyond, reach)

    def varying(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The features that vary, (m, d'), and the distance from those that do not, (m,).

        It is squared where the kernel compares numbers by squares.
        """
        if self.columns is None:
            return x, x.new_zeros(len(x), dtype=widest(x.device))
        columns = self.columns.to(x.device)
        dropped = torch.ones(self.n_features, dtype=torch.bool, device=x.device)
        dropped[columns] = False
        constants = self.constants.to(x.device, widest(x.device))
        apart = x[:, dropped] - constants
        return x.index_select(1, columns), (apart.abs() if self.absolute else apart.square()).sum(1)

    def points(
        self,
        x: Matrix,
        rows: Array | None,
        like: Tensor,
        known: bool = False,
        memory: float = math.inf,
        as_floats: bool = False,
        reach: float = math.inf,
        held: Held | None = None,
    ) -> Points:
        """Inputs ready for the kernel, all rows or some, on the device and in the precision of `like`.

        `known`: these are training points, which lie in the space that they span.  Above `memory` bytes
        they are memory-mapped.  `as_floats`: as floats, even if they are bytes underneath.  Rows whose
        squared length is beyond `reach` are moved towards the mean, up to there.  All are prepared, so
        that each rounds as among the others, but only those `held` are kept.
        """
        n = len(x) if rows is None else len(rows)
        held = Held(n, [slice(0, n)]) if held is None else held
        if self.grid is not None and not as_floats:
            points = self._byte_points(x, rows, like, known, memory, held)
            if points is not None:
                return points
        extended = room((len(held), self.width + 2), like, memory)
        beyond = like.new_empty(len(held))
        for part, chunk in chunks(x, rows):
            z, outside = self.reachable(chunk, reach)
            for place, here in held.within(part):
                extended[place, : self.width] = z[here]
                beyond[place] = outside[here].to(like)
        far = not known and bool((beyond > 0).any())
        return Points.of_extended(extended, beyond if far else None, self.n_absolute)

    def describe(self) -> str:
        """One line for the plan."""
        done = []
        if self.columns is not None:
            done.append(f"{len(self.constants)} constant features dropped")
        if self.table is not None:
            done += self.table.describe()
        if self.standardised:
            done.append("standardised")
        if self.importances is not None:
            done.append("weighted by a learned metric")
        if self.projection is not None:
            how = "all that vary" if self.lossless else "approximate"
            done.append(f"projected on {self.width} principal directions ({how})")
        if self.grid is not None:
            done.append("stored as bytes")
        return "; ".join(done) or "as given"

    def _byte_points(
        self, x: Matrix, rows: Array | None, like: Tensor, known: bool, memory: float, held: Held
    ) -> Points | None:
        """The same as bytes, or None where a value is off the grid."""
        assert self.grid is not None
        shape = (len(held), self.width)
        codes = room(shape, like.new_zeros((), dtype=torch.int8), memory)
        beyond = like.new_zeros(len(codes))
        for part, chunk in chunks(x, rows):
            varying, outside = self.varying(chunk)
            encoded = self.grid.encode(varying)
            if encoded is None:
                return None
            for place, here in held.within(part):
                codes[place] = encoded[here].to(like.device)
                beyond[place] = (outside[here] / self.unit**2).to(like)
        far = not known and bool(beyond.any())
        return byte_points(codes, like.dtype, beyond if far else None)


def _within(z: Tensor, beyond: Tensor, reach: float) -> tuple[Tensor, Tensor]:
    """Rows, (m, d'), and squared distances, (m,), with those that are too long made shorter."""
    if reach == math.inf:
        return z, beyond
    longest = math.sqrt(reach / max(1, z.shape[1]))
    if z.numel() and not float(z.abs().max()) <= longest:
        largest = z.abs().amax(1)  # (m,)  squares may overflow
        z = z * (longest / largest.clamp(min=longest))[:, None]
    return z, beyond.clamp(max=reach)


@dataclass(frozen=True)
class Statistics:
    """Range, mean and standard deviation of each feature, from one pass over the rows, in float64."""

    low: Tensor  # (d,)
    high: Tensor  # (d,)
    mean: Tensor  # (d,)
    deviation: Tensor  # (d,)

    @classmethod
    def of(cls, x: Matrix, rows: Array, sample_weight: Array | None = None) -> Statistics:
        """Chunks are combined by the update of Chan, Golub and LeVeque (1979)."""
        rows = np.sort(rows)  # statistics do not depend on the order, and x may be a file
        found: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
        count = 0.0  # the sum of weights
        for part, chunk in chunks(x, rows):
            low, high = chunk.amin(0), chunk.amax(0)  # faster than both at once
            wide = chunk.to(widest(chunk.device), copy=True)
            w = wide.new_ones(len(wide))  # (m,)
            if sample_weight is not None:
                w = torch.from_numpy(sample_weight[rows[part]]).to(w)
            m = float(w.sum())
            mean = w @ wide / m  # (d,)
            squares = w @ wide.sub_(mean).square_()  # (d,)
            parts = (low, high, mean, squares)
            low, high, mean, squares = (part.to("cpu").double() for part in parts)
            count += m
            if found is not None:
                before = count - m
                difference = mean - found[2]
                low, high = torch.minimum(low, found[0]), torch.maximum(high, found[1])
                squares = squares + found[3] + difference.square() * (before * m / count)
                mean = found[2] + difference * (m / count)
            found = (low, high, mean, squares)
        assert found is not None
        return cls(*found[:3], (found[3] / count).sqrt_())


def fit_inputs(
    x: Matrix,
    rows: Array,
    sample_weight: Array | None = None,
    *,
    translation_invariant: bool = True,
    as_bytes: bool = False,
) -> tuple[Inputs, Tensor | None]:
    """What to do to data like the `rows` of x, and the standard deviations to scale by, (d',).

    A kernel that is not translation invariant sees the data as it is: nothing is dropped or shifted.
    `as_bytes`: store data as bytes if a few of its rows look 8-bit, in which case it is on one scale;
    whether all of it is 8-bit shows only when it is encoded.
    """
    d = x.shape[1]
    found = Statistics.of(x, rows, sample_weight)
    nothing = torch.zeros(0, dtype=torch.float64)
    if not translation_invariant:
        nowhere = torch.zeros(d, dtype=torch.float64)
        return Inputs(d, None, nothing, nowhere, means=found.mean), found.deviation
    varying = found.high > found.low  # (d,)
    if not bool(varying.any()):
        varying[0] = True  # a machine needs one feature, even if all points are identical
    columns = None if bool(varying.all()) else varying.nonzero()[:, 0]
    plain = Inputs(d, columns, found.low[~varying], found.mean[varying], means=found.mean)
    if as_bytes and plain.width >= FEWEST_INTEGER_FEATURES:
        sample = plain.varying(take(x, rows[:SAMPLE_ROWS]))[0]
        grid = recognise(sample, float(found.low[varying].min()))
        if grid is not None:
            return replace(plain, shift=torch.full_like(plain.shift, grid.origin), grid=grid), None
    return plain, found.deviation[varying]


def projected(fitted: Inputs, x: Matrix, rows: Array, n_components: int | Literal["auto"]) -> Inputs:
    """With principal directions of the prepared data: as many as asked for, or as carry all of it."""
    width = fitted.width
    if n_components != "auto" and n_components >= width:
        return fitted
    moment = torch.zeros(width, width, dtype=torch.float64)
    for _, chunk in chunks(x, rows):
        z = fitted.floats(chunk)[0].to(widest(chunk.device))
        moment += (z.T @ z).to("cpu")  # (width, width)
    variance, directions = torch.linalg.eigh(moment)
    variance, directions = variance.flip(0), directions.flip(1)
    rank = max(1, int((variance > ROUNDING_VARIANCE * variance[0]).sum()))
    k = rank if n_components == "auto" else min(n_components, rank)
    if k == width:
        return fitted
    return replace(fitted, projection=directions[:, :k].contiguous(), lossless=k == rank)
