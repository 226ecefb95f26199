"""Points ready for kernel evaluation: floats with their norms, or bytes.

A kernel compares features by squared differences, or the first `n_absolute` of them by absolute ones.
Norms are those of the features compared by squares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mercer.data.rows import widest

# Values that are squared at a time while norms are computed.
NORM_ELEMENTS = 1 << 22
# Up to this many features, the squared norm of bytes, at most 2^14 per feature, is an integer that
# float32 represents exactly, and so is every distance small enough for rounding to matter.
EXACT_FEATURES = 1_024
# Bytes.  PyTorch's allocations begin at multiples of it, and some math libraries round products by the
# address of an operand modulo it (MKL on an AMD processor, modulo 16).
ADDRESS_BYTES = 64


@dataclass(frozen=True)
class Points:
    """Points ready for kernel evaluation; `points[rows]` is a view for a slice of rows.

    Float points are stored as rows (x, 1, ||x||²): the product of such a row with the `partner` row
    f (-2 z, ||z||², 1) of another point is f ||x - z||², with no further pass over the result.  It
    leaves out features compared by absolute differences.
    """

    x: Tensor  # (n, d)  floats, or int8 where the data is 8-bit
    squared_norms: Tensor  # (n,)  floats
    bound: float  # on the squared norms
    extended: Tensor | None = None  # (n, d + 2), of which x and squared_norms are views
    # (n,)  squared distance from the space that holds the other points, part of squared_norms
    beyond: Tensor | None = None
    n_absolute: int = 0  # leading features that are compared by absolute differences
    absolute_bound: float = 0.0  # on the sums of the absolute values of these

    @classmethod
    def extend(cls, x: Tensor, n_absolute: int = 0) -> Points:
        """Points of float rows x, (n, d), copied once."""
        n, d = x.shape
        extended = x.new_empty(n, d + 2)
        extended[:, :d] = x
        return cls.of_extended(extended, None, n_absolute)

    @classmethod
    def of_extended(cls, extended: Tensor, beyond: Tensor | None = None, n_absolute: int = 0) -> Points:
        """Points of rows with room for two numbers after x, (n, d + 2), which are filled in."""
        x, norms = extended[:, n_absolute:-2], extended[:, -1]
        extended[:, -2] = 1
        for rows in _few_rows(x):
            norms[rows] = x[rows].square().sum(1)
        if beyond is not None:
            norms += beyond
        return cls.of_whole(extended, beyond, n_absolute)

    @classmethod
    def of_whole(cls, extended: Tensor, beyond: Tensor | None = None, n_absolute: int = 0) -> Points:
        """Points of rows (x, 1, ||x||²) as they are, (n, d + 2)."""
        norms = extended[:, -1]
        bound = float(norms.max()) if len(extended) else 0.0
        x = extended[:, :-2]
        sums = [x[rows, :n_absolute].abs().sum(1).max() for rows in _few_rows(x) if n_absolute]
        absolute_bound = float(max(sums, default=0.0))
        return cls(x, norms, bound, extended, beyond, n_absolute, absolute_bound)

    def __len__(self) -> int:
        return self.x.shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        return self.x.shape[0], self.x.shape[1]

    @property
    def device(self) -> torch.device:
        return self.x.device

    def __getitem__(self, rows: slice | Tensor) -> Points:
        beyond = None if self.beyond is None else self.beyond[rows]
        if self.extended is None:
            return Points(self.x[rows], self.squared_norms[rows], self.bound, None, beyond)
        return self._stored(self.extended[rows], beyond)

    def aligned(self) -> Points:
        """The same points, copied unless they begin where an allocation may: products round alike."""
        # Those of bytes are exact.
        if self.is_bytes or self.rows.data_ptr() % ADDRESS_BYTES == 0:
            return self
        return self.copied()

    def copied(self) -> Points:
        """The same points in memory of their own."""
        if self.extended is None:
            return replace(self, x=self.x.clone())
        return self._stored(self.extended.clone(), self.beyond)

    def _stored(self, extended: Tensor, beyond: Tensor | None) -> Points:
        """Points like these, of rows as they are stored."""
        x, norms = extended[:, :-2], extended[:, -1]
        bounds = (self.n_absolute, self.absolute_bound)
        return Points(x, norms, self.bound, extended, beyond, *bounds)

    def followed_by(self, others: Points) -> Points:
        """These points and then the others, of the same kind, copied."""
        beyond = None
        if self.beyond is not None or others.beyond is not None:
            parts = [
                torch.zeros_like(points.squared_norms) if points.beyond is None else points.beyond
                for points in (self, others)
            ]
            beyond = torch.cat(parts)
        bound = max(self.bound, others.bound)
        if self.extended is None or others.extended is None:
            norms = torch.cat([self.squared_norms, others.squared_norms])
            return Points(torch.cat([self.x, others.x]), norms, bound, None, beyond)
        extended = torch.cat([self.extended, others.extended])
        x, norms = extended[:, :-2], extended[:, -1]
        absolute = max(self.absolute_bound, others.absolute_bound)
        return Points(x, norms, bound, extended, beyond, self.n_absolute, absolute)

    def first(self, n: int) -> Points:
        """The first n of the points."""
        return self if n == len(self) else self[:n]

    def own(self, rows: slice) -> Points:
        """Those of the rows that this process holds, which are all of them."""
        return self[rows]

    def largest(self, function: Callable[[Points], Tensor]) -> float:
        """The largest of the numbers that a function gives for each point; 0 for no points."""
        return float(function(self).max()) if len(self) else 0.0

    def to(self, device: torch.device | str) -> Points:
        beyond = None if self.beyond is None else self.beyond.to(device)
        if self.extended is None:
            return Points(self.x.to(device), self.squared_norms.to(device), self.bound, None, beyond)
        return self._stored(self.extended.to(device), beyond)

    def __reduce__(self) -> tuple[Any, ...]:  # views would be written out once each
        if self.extended is None:
            return (Points, (self.x, self.squared_norms, self.bound, None, self.beyond))
        return (Points.of_extended, (self.extended, self.beyond, self.n_absolute))

    @property
    def by_squares(self) -> Tensor:
        """The features that are compared by squared differences, (n, d - n_absolute)."""
        return self.x[:, self.n_absolute :]

    def partner(self, factor: float) -> Tensor:
        """f (-2 x, ||x||², 1) for every row, (n, d - n_absolute + 2); cached for the tiles of a row."""
        known: tuple[float, Tensor] | None = self.__dict__.get("_partner")
        if known is None or known[0] != factor:
            norms = factor * self.squared_norms[:, None]
            parts = [-2 * factor * self.by_squares, norms, torch.full_like(norms, factor)]
            known = (factor, torch.cat(parts, 1))
            object.__setattr__(self, "_partner", known)
        return known[1]

    @property
    def by_feature(self) -> Tensor:
        """The features that are compared by absolute differences, (n_absolute, n), copied."""
        return self.x[:, : self.n_absolute].T.contiguous()

    @property
    def rows(self) -> Tensor:
        """The points as stored: bytes, (n, d), or extended rows, (n, d + 2)."""
        return self.x if self.extended is None else self.extended

    @property
    def dtype(self) -> torch.dtype:
        return self.squared_norms.dtype

    @property
    def is_bytes(self) -> bool:
        return self.x.dtype == torch.int8

    def double(self) -> Points:
        """The same points in float64; norms are computed again, since those at hand are rounded."""
        if self.dtype == torch.float64:
            return self
        beyond = None if self.beyond is None else self.beyond.double()
        if self.is_bytes:
            return byte_points(self.x, torch.float64, beyond)
        if self.extended is None:
            return Points(self.x.double(), self.squared_norms.double(), self.bound, None, beyond)
        extended = torch.empty(self.extended.shape, dtype=torch.float64, device=self.x.device)
        extended[:, :-2] = self.x
        return Points.of_extended(extended, beyond, self.n_absolute)

    def as_floats(self) -> Points:
        if not self.is_bytes:
            return self
        n, d = self.x.shape
        extended = self.squared_norms.new_empty(n, d + 2)
        extended[:, :d] = self.x
        return Points.of_extended(extended, self.beyond)


def _few_rows(x: Tensor) -> list[slice]:
    """All rows, some at a time."""
    step = max(1, NORM_ELEMENTS // max(1, x.shape[1]))
    return [slice(first, first + step) for first in range(0, len(x), step)]


def byte_points(codes: Tensor, dtype: torch.dtype, beyond: Tensor | None = None) -> Points:
    """Points for int8 codes, (n, d); their norms are exact integers."""
    # Floats add integers exactly up to 2^24 or 2^53, and several times as fast.
    exact = torch.float32 if codes.shape[1] <= EXACT_FEATURES else widest(codes.device)
    norms = [codes[rows].to(exact).square_().sum(1) for rows in _few_rows(codes)]
    squared_norms = torch.cat(norms).to(dtype) if norms else codes.new_zeros(0, dtype=dtype)
    if beyond is not None:
        squared_norms += beyond
    return Points(codes, squared_norms, float(squared_norms.max()) if norms else 0.0, None, beyond)
