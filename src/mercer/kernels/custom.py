"""A kernel function of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mercer.data.points import Points
from mercer.kernels.base import Kernel

# Rows evaluated at a time where only the diagonal of a callable's block is wanted.
DIAGONAL_ROWS = 128


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

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "function": getattr(self.function, "__qualname__", "function")}

    def __str__(self) -> str:
        return f"custom ({self.to_dict()['function']})"
