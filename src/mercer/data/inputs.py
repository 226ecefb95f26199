"""What is done to every input before the kernel sees it.

Features that are constant in training are dropped, features of different units are put on one scale
where asked, data is centred where the kernel does not see the difference, projected where asked, and
kept as bytes where it is 8-bit underneath.  Dropping is exact for any input: its squared distance from
the constants, or from the subspace that holds all training points, is the same for all centres and goes
along as one number.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mercer.data.bytes import SAMPLE_ROWS, Grid, recognise
from mercer.data.points import Points, byte_points

# Values handled at a time, so that a copy of the data in another form is never held whole.
CHUNK_ELEMENTS = 1 << 22
# With fewer features the product is too small a part of the work for bytes to pay.
FEWEST_INTEGER_FEATURES = 64
# A direction with less than this share of the largest variance is rounding error of the data.
ROUNDING_VARIANCE = 1e-12

Array = NDArray[Any]


@dataclass(frozen=True)
class Preparation:
    """Fitted on training data, kept with the model, applied to every input."""

    n_features: int  # of the data as given
    columns: Array | None  # (d',)  the features that vary; None for all
    constants: Array  # (d - d',)  the values of those that do not
    shift: Array  # (d',)  subtracted
    scale: Array | None  # (d',)  divided by
    projection: Array | None  # (d', k)
    lossless: bool  # training points lie in the space projected on
    grid: Grid | None  # of data kept as bytes

    @property
    def width(self) -> int:
        """Features that the kernel sees."""
        return len(self.shift) if self.projection is None else self.projection.shape[1]

    def floats(self, x: Array) -> tuple[Array, Array]:
        """Rows as floats, (m, width), and their squared distances from the space of the rest, (m,)."""
        z, beyond = self._varying(x)
        z = z - self.shift.astype(x.dtype)  # (m, d')
        if self.scale is not None:
            z /= self.scale.astype(x.dtype)
        if self.projection is not None:
            projection = self.projection.astype(x.dtype)
            inside = z @ projection  # (m, k)
            if self.lossless:
                beyond = beyond + np.square(z - inside @ projection.T).sum(1)
            z = inside
        return z, beyond

    def points(
        self,
        x: Array,
        rows: Array | None,
        like: Tensor,
        known: bool = False,
        memory: float = math.inf,
    ) -> Points:
        """Inputs ready for the kernel, all rows or some, on the device and in the precision of `like`.

        `known`: these are training points, which nothing separates from the space they span.  Where they
        would take more than `memory` bytes they lie in a file and are read as they are needed.
        """
        if self.grid is not None:
            points = self._byte_points(x, rows, like, memory)
            if points is not None:
                return points
        unit = 1.0 if self.grid is None else self.grid.scale  # inputs off the grid count in its steps
        n = len(x) if rows is None else len(rows)
        extended = _room((n, self.width + 2), like, memory)
        beyond = like.new_empty(n)
        for part, chunk in _chunks(x, rows):
            z, outside = self.floats(chunk)
            extended[part, : self.width] = torch.from_numpy(np.ascontiguousarray(z / unit)).to(like)
            beyond[part] = torch.from_numpy(outside / unit**2).to(like)
        far = not known and bool((beyond > 0).any())
        return Points.of_extended(extended, beyond if far else None)

    def describe(self) -> str:
        """One line for the plan."""
        done = []
        if self.columns is not None:
            done.append(f"{len(self.constants)} constant features dropped")
        if self.scale is not None:
            done.append("features standardised, as their scales differ")
        if self.projection is not None:
            how = "all that vary" if self.lossless else "approximate"
            done.append(f"projected on {self.width} principal directions ({how})")
        if self.grid is not None:
            done.append("kept as bytes")
        return "; ".join(done) or "as given"

    def _byte_points(self, x: Array, rows: Array | None, like: Tensor, memory: float) -> Points | None:
        """The same as bytes, or None where a value is off the grid."""
        assert self.grid is not None
        shape = (len(x) if rows is None else len(rows), self.width)
        codes = _room(shape, torch.zeros((), dtype=torch.int8), memory)
        beyond = np.zeros(len(codes))
        for part, chunk in _chunks(x, rows):
            varying, outside = self._varying(chunk)
            encoded = self.grid.encode(varying)
            if encoded is None:
                return None
            codes[part] = torch.from_numpy(encoded)
            beyond[part] = outside / self.grid.scale**2
        far = torch.from_numpy(beyond).to(like) if beyond.any() else None
        return byte_points(codes.to(like.device), like.dtype, far)

    def _varying(self, x: Array) -> tuple[Array, Array]:
        """The features that vary, (m, d'), and the squared distance from those that do not, (m,)."""
        if self.columns is None:
            return x, np.zeros(len(x), dtype=x.dtype)
        dropped = np.delete(x, self.columns, axis=1) - self.constants.astype(x.dtype)
        return x[:, self.columns], np.square(dropped).sum(1)


def fit_preparation(
    x: Array, rows: Array, *, translation_invariant: bool = True, as_bytes: bool = False
) -> tuple[Preparation, Array | None]:
    """What to do to data like the `rows` of x, and the standard deviations to scale by, (d',).

    A kernel that is not translation invariant sees the data as it is: nothing is dropped or shifted.
    `as_bytes`: data of which a few rows look 8-bit is to be kept as bytes, and is on one scale; that all
    of it is 8-bit shows only when it is encoded.
    """
    d = x.shape[1]
    few = rows[:SAMPLE_ROWS]
    rows = np.sort(rows)  # statistics do not depend on the order, and x may be a file
    if not translation_invariant:
        plain = Preparation(d, None, np.zeros(0), np.zeros(d), None, None, False, None)
        return plain, _moments(plain, x, rows)[1]
    low, high = _range(x, rows)
    varying = high > low  # (d,)
    if not varying.any():
        varying[0] = True  # a machine needs one feature, if only to say that all points are alike
    columns = None if varying.all() else np.flatnonzero(varying)
    constants = low[~varying]
    plain = Preparation(d, columns, constants, np.zeros(int(varying.sum())), None, None, False, None)
    if as_bytes and plain.width >= FEWEST_INTEGER_FEATURES:
        grid = recognise(plain._varying(x[few])[0], float(low[varying].min()))
        if grid is not None:
            return replace(plain, shift=np.full(plain.width, grid.origin), grid=grid), None
    mean, deviations = _moments(plain, x, rows)
    return replace(plain, shift=mean), deviations


def _room(shape: tuple[int, int], like: Tensor, memory: float) -> Tensor:
    """An empty matrix of the type of `like`, where it is or, beyond so many bytes, in a file.

    The file is a temporary one (TMPDIR says where) that the system takes away with the tensor.
    """
    if shape[0] * shape[1] * like.element_size() <= memory:
        return like.new_empty(shape)
    dtype = torch.empty(0, dtype=like.dtype).numpy().dtype
    with tempfile.TemporaryFile(prefix="mercer-") as file:
        return torch.from_numpy(np.memmap(file, dtype=dtype, mode="w+", shape=shape))


def _chunks(x: Array, rows: Array | None) -> Iterator[tuple[slice, Array]]:
    """Slices of the result and the rows that go there."""
    n = len(x) if rows is None else len(rows)
    step = max(1, CHUNK_ELEMENTS // x.shape[1])
    for first in range(0, n, step):
        part = slice(first, min(first + step, n))
        if rows is None:
            yield part, x[part]
            continue
        # In the order they lie in, since x may be a file.
        order = np.argsort(rows[part])
        chunk = np.empty((len(order), x.shape[1]), dtype=x.dtype)
        chunk[order] = x[rows[part][order]]
        yield part, chunk


def _range(x: Array, rows: Array) -> tuple[Array, Array]:
    low, high = np.full(x.shape[1], np.inf), np.full(x.shape[1], -np.inf)
    for _, chunk in _chunks(x, rows):
        np.minimum(low, chunk.min(0), out=low)
        np.maximum(high, chunk.max(0), out=high)
    return low, high


def _moments(plain: Preparation, x: Array, rows: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of the features that vary, in float64 whatever the data is."""
    n = len(rows)
    total = np.zeros(plain.width)
    for _, chunk in _chunks(x, rows):
        total += plain._varying(chunk)[0].sum(0, dtype=np.float64)
    mean = total / n
    squares = np.zeros(plain.width)
    for _, chunk in _chunks(x, rows):
        centred = plain._varying(chunk)[0] - mean
        squares += np.einsum("ij,ij->j", centred, centred)
    return mean, np.sqrt(squares / n)


def projected(
    fitted: Preparation, x: Array, rows: Array, n_features: int | Literal["auto"]
) -> Preparation:
    """With principal directions of the prepared data: as many as asked for, or as carry all of it."""
    width = fitted.width
    if n_features != "auto" and n_features >= width:
        return fitted
    moment = np.zeros((width, width))
    for _, chunk in _chunks(x, rows):
        z = fitted.floats(chunk)[0].astype(np.float64)
        moment += z.T @ z  # (width, width)
    variance, directions = np.linalg.eigh(moment)
    variance, directions = variance[::-1], directions[:, ::-1]
    rank = max(1, int((variance > ROUNDING_VARIANCE * variance[0]).sum()))
    k = rank if n_features == "auto" else min(n_features, rank)
    if k == width:
        return fitted
    return replace(fitted, projection=np.ascontiguousarray(directions[:, :k]), lossless=k == rank)
