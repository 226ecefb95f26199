"""What a kernel is: a small frozen record that gives k over two sets of points."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from mercer.data.points import Points
from mercer.digits import in_digits


class Kernel(ABC):
    """A positive definite kernel.  Subclasses are frozen dataclasses; see `Gaussian`."""

    name: ClassVar[str]
    #: k(x + c, z + c) == k(x, z), so that data may be centred first.
    translation_invariant: ClassVar[bool] = True
    #: Numbers are compared by absolute differences, and what stands for categories by squared ones.
    absolute: ClassVar[bool] = False

    def points(self, x: Tensor) -> Points:
        """Prepare rows of `x` for `block` and `diagonal`."""
        return Points.extend(x, x.shape[1] if self.absolute else 0)

    @abstractmethod
    def block(self, a: Points, b: Points, *, same: bool = False, out: Tensor | None = None) -> Tensor:
        """The dense (len(a), len(b)) matrix k(a_i, b_j).  `same`: a and b are the same points."""

    def diagonal(self, a: Points) -> Tensor:
        """k(x, x) for each point, (n,)."""
        return torch.ones_like(a.squared_norms)

    def bounds(self, points: Points) -> tuple[float, float] | None:
        """The smallest and the largest value that k may have on these points; None if not known."""
        return None

    def slope(self, K: Tensor) -> Tensor | None:
        """What the gradient of k in x is made of, from kernel values K; None if that is not known.

        The gradient is -slope (x - z), or -slope sign(x - z) where differences are absolute.
        """
        return None

    def check(self, dtype: torch.dtype) -> None:  # noqa: B027  most kernels have nothing to check
        """Raise if the parameters are out of range for points of this type."""

    def reach(self, dtype: torch.dtype) -> float:
        """Squared length up to which points can be evaluated; beyond it k has reached its limit."""
        return math.inf

    def __call__(self, x: Tensor, z: Tensor) -> Tensor:
        return self.block(self.points(x), self.points(z), same=x is z)

    def to_dict(self) -> dict[str, Any]:
        """The kernel as plain data, for a plan or a file; the inverse is `kernel_from_dict`."""
        return {"name": self.name} | {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    def __str__(self) -> str:
        values = [f"{f.name} {in_digits(getattr(self, f.name))}" for f in fields(self)]  # type: ignore[arg-type]
        return f"{self.name} ({', '.join(values)})" if values else self.name
