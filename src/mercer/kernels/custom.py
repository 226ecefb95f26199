"""A kernel function of the user's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mercer.data.dealt_points import AnyPoints
from mercer.data.points import Points
from mercer.kernels.base import Kernel

# Rows evaluated at a time where only the diagonal of a callable's block is wanted.
DIAGONAL_ROWS = 128
# Points on which a function is checked, and a negative eigenvalue, as a share of the largest, that
# rounding error does not explain: distances by matrix products have half of the digits for close pairs.
CHECKED_POINTS = 256
NEGATIVE_SHARE = 1e-3


@dataclass(frozen=True)
class Custom(Kernel):
    """Any positive definite function of two tensors, (m, d) and (t, d) to (m, t)."""

    function: Callable[[Tensor, Tensor], Tensor]
    name = "custom"
    translation_invariant = False

    def points(self, x: Tensor) -> Points:
        return Points(x, x.new_zeros(len(x)), 0.0)  # the function computes what it needs

    def block(self, a: Points, b: Points, *, same: bool = False, out: Tensor | None = None) -> Tensor:
        values = self.function(a.x, b.x)
        if not isinstance(values, Tensor) or values.shape != (len(a), len(b)):
            got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(
                f"A kernel function must return a tensor of shape {(len(a), len(b))} for inputs of "
                f"{len(a)} and {len(b)} rows. Got {got} instead."
            )
        return values.to(a.dtype) if out is None else out.copy_(values)

    def diagonal(self, a: Points) -> Tensor:
        pieces = [
            self.block(piece, piece, same=True).diagonal()
            for piece in (a[i : i + DIAGONAL_ROWS] for i in range(0, len(a), DIAGONAL_ROWS))
        ]
        return torch.cat(pieces)

    def fault(self, given: AnyPoints) -> str | None:
        """What keeps the function from being a kernel, as far as a few of these points show it."""
        points = given[:CHECKED_POINTS]
        half = len(points) // 2
        K = self.block(points, points).double()  # (c, c)
        if not bool(torch.isfinite(K).all()):
            return None  # refused with the spectrum
        tolerance = math.sqrt(torch.finfo(points.dtype).eps) * float(K.abs().max())
        alone = self.block(points[:half], points[half:])  # (c / 2, c / 2)
        apart = float((K[:half, half:] - alone).abs().max()) if half else 0.0
        if apart > tolerance:
            return (
                "the kernel function gives other values for the same two points in another block, by up "
                f"to {apart:.2g}: it must not depend on the other rows it is given"
            )
        skew = float((K - K.T).abs().max())
        if skew > tolerance:
            return (
                f"the kernel function is not symmetric: k(x, z) and k(z, x) differ by up to {skew:.2g}, "
                "and the model may be wrong"
            )
        eigenvalues = torch.linalg.eigvalsh(K.cpu())  # (c,)
        lowest, highest = float(eigenvalues[0]), float(eigenvalues[-1])
        if lowest < -NEGATIVE_SHARE * highest:
            return (
                "the kernel function is not positive semi-definite: its matrix has eigenvalues from "
                f"{lowest:.2g} to {highest:.2g}, and the model may be wrong"
            )
        return None

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "function": getattr(self.function, "__qualname__", "function")}

    def __str__(self) -> str:
        return f"custom ({self.to_dict()['function']})"
