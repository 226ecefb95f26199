"""Torch modules for what transformers of scikit-learn compute; gradients pass, and exporters take them.

Every module maps (m, p) to (m, k) in the precision of its input, with NaN for missing values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from mercer.data.rows import widest

Array = NDArray[Any]


class Affine(torch.nn.Module):
    """(x - shift) / scale, within bounds."""

    shift: Tensor
    scale: Tensor

    def __init__(self, shift: Any, scale: Any, bounds: tuple[float, float] | None = None) -> None:
        super().__init__()
        _keep(self, shift=0.0 if shift is None else shift, scale=1.0 if scale is None else scale)
        self.bounds = bounds

    def forward(self, x: Tensor) -> Tensor:
        z = (x - self.shift.to(x)) / self.scale.to(x)
        return z if self.bounds is None else torch.where(z.isnan(), z, z.clamp(*self.bounds))


class Product(torch.nn.Module):
    """(x - shift) A."""

    shift: Tensor
    A: Tensor

    def __init__(self, shift: Any, A: Any) -> None:
        super().__init__()
        _keep(self, shift=0.0 if shift is None else shift, A=A)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.shift.to(x)) @ self.A.to(x)


class Chosen(torch.nn.Module):
    """Some of the columns."""

    places: Tensor

    def __init__(self, places: Any) -> None:
        super().__init__()
        self.register_buffer("places", torch.as_tensor(np.asarray(places, dtype=np.int64)))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, self.places]


class Filled(torch.nn.Module):
    """Missing values are replaced, and `marked` columns of the input have one that says where."""

    values: Tensor
    kept: Tensor
    marked: Tensor

    def __init__(self, missing: float, values: Any, marked: Sequence[int]) -> None:
        super().__init__()
        self.missing = missing
        kept = np.flatnonzero(~np.isnan(values))  # columns without values are left out
        _keep(self, values=values[kept], kept=kept, marked=np.asarray(marked, dtype=np.int64))

    def forward(self, x: Tensor) -> Tensor:
        gaps = x.isnan() if math.isnan(self.missing) else x == self.missing
        z = torch.where(gaps[:, self.kept], self.values.to(x), x[:, self.kept])
        return torch.cat([z, gaps[:, self.marked].to(x.dtype)], 1)


class Normalised(torch.nn.Module):
    """Every row has norm one."""

    def __init__(self, norm: str) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        sizes = {
            "l1": lambda: x.abs().sum(1, keepdim=True),
            "l2": lambda: x.square().sum(1, keepdim=True).sqrt(),
            "max": lambda: x.abs().amax(1, keepdim=True),
        }[self.norm]()
        return x / torch.where(sizes == 0, 1.0, sizes)


class Powers(torch.nn.Module):
    """Products of columns; `powers`, (k, p), has their exponents."""

    factors: Tensor

    def __init__(self, powers: Array) -> None:
        super().__init__()
        p, degree = powers.shape[1], max(1, int(powers.sum(1).max()))
        factors = [np.repeat(np.arange(p), row).tolist() for row in powers]
        # Place p is a column of ones.
        _keep(self, factors=np.array([row + [p] * (degree - len(row)) for row in factors]))

    def forward(self, x: Tensor) -> Tensor:
        ones = torch.ones_like(x[:, :1])
        return torch.cat([x, ones], 1)[:, self.factors].prod(2)


class Bins(torch.nn.Module):
    """Numbers of the bins that values lie in; `edges`, (p, e), are the inner ones."""

    edges: Tensor

    def __init__(self, edges: Array) -> None:
        super().__init__()
        _keep(self, edges=edges)

    def forward(self, x: Tensor) -> Tensor:
        return (x[:, :, None] >= self.edges.to(x)).to(x.dtype).sum(2)


class Indicators(torch.nn.Module):
    """A column for each category; unknown ones have zeros."""

    owners: Tensor
    categories: Tensor

    def __init__(self, owners: Sequence[int], categories: Sequence[float]) -> None:
        super().__init__()
        values = np.asarray(categories, dtype=np.float64)
        _keep(self, owners=np.asarray(owners, dtype=np.int64), categories=values)

    def forward(self, x: Tensor) -> Tensor:
        z, categories = x[:, self.owners], self.categories.to(x)
        return ((z == categories) | (z.isnan() & categories.isnan())).to(x.dtype)


class Beside(torch.nn.Module):
    """The results of several modules beside one another."""

    def __init__(self, parts: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.parts], 1)


class Widest(torch.nn.Module):
    """The same numbers in the most precise type."""

    def forward(self, x: Tensor) -> Tensor:
        return x.to(widest(x.device))


def _keep(module: torch.nn.Module, **values: Any) -> None:
    for name, value in values.items():
        array = value.toarray() if sparse.issparse(value) else np.asarray(value)
        array = array.astype(np.int64 if array.dtype.kind in "iu" else np.float64)
        module.register_buffer(name, torch.from_numpy(array))
