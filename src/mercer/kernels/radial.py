"""Kernels that are profiles of a squared distance."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mercer.data.points import Points
from mercer.kernels.base import Kernel
from mercer.kernels.distances import add_absolute_differences_, squared_distances

# Error of a kernel value that smooth profiles may carry from cancellation.
SMOOTH_TOLERANCE = 2e-6
# Bandwidths whose square and its inverse are numbers.
SMALLEST_BANDWIDTHS = {torch.float32: 1e-18, torch.float64: 1e-150}
# Points whose kernel value is this close to 1 count as equal.
EQUAL_POINTS = 1e-9
# exp(u) is 2^(u log2 e).  PyTorch's exp2 takes a third of the time of its exp where the latter comes
# from a math library tuned for another CPU vendor, and no longer elsewhere; the factor costs nothing.
LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class Radial(Kernel):
    """k(x, z) = p(||x - z||² / bandwidth²) with p(0) = 1."""

    bandwidth: float = 1.0
    #: Error that `_profile_` may get in what it is given: none unless it is smooth at distance 0.
    tolerance: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bandwidth) and self.bandwidth > 0):
            raise ValueError(
                f"`bandwidth` must be a positive, finite number. Got {self.bandwidth!r} instead. "
                'Give the distance over which the function varies, or "auto".'
            )
        self.check(torch.float64)

    def check(self, dtype: torch.dtype) -> None:
        # Distances are divided by its square, which must be a number, and so must its inverse.
        smallest = SMALLEST_BANDWIDTHS[dtype]
        if not smallest <= self.bandwidth <= 1 / smallest:
            precision = str(dtype).removeprefix("torch.")
            raise ValueError(
                f"`bandwidth` must lie between {smallest:g} and {1 / smallest:g} in {precision}. Got "
                f"{self.bandwidth!r} instead: rescale the features."
            )

    @property
    def _factor(self) -> float:
        """What squared distances are multiplied by before the profile, at no cost of its own."""
        return 1 / self.bandwidth**2

    @abstractmethod
    def _profile_(self, u: Tensor) -> Tensor:
        """Overwrite `_factor` times squared distances with kernel values."""

    def reach(self, dtype: torch.dtype) -> float:
        # Scaled squared distances, up to 4 times as large, must be finite with room for sums of them.
        return torch.finfo(dtype).max / (64 * max(1.0, abs(self._factor)))

    def bounds(self, points: Points) -> tuple[float, float] | None:
        return (0.0, 1.0)

    def block(self, a: Points, b: Points, *, same: bool = False, out: Tensor | None = None) -> Tensor:
        return self._profile_(squared_distances(a, b, same, out, self._factor, self.tolerance))


@dataclass(frozen=True)
class Gaussian(Radial):
    """exp(-||x - z||² / (2 sigma²)).

    >>> import torch
    >>> Gaussian(bandwidth=1.0)(torch.zeros(1, 2), torch.tensor([[1.0, 1.0]]))
    tensor([[0.3679]])
    """

    name = "gaussian"
    tolerance = SMOOTH_TOLERANCE * LOG2_E

    @property
    def _factor(self) -> float:
        return -0.5 * LOG2_E / self.bandwidth**2

    def _profile_(self, u: Tensor) -> Tensor:
        return u.exp2_()

    def slope(self, K: Tensor) -> Tensor:
        return K / self.bandwidth**2


@dataclass(frozen=True)
class Laplacian(Radial):
    """exp(-||x - z|| / sigma), the Euclidean norm."""

    name = "laplacian"

    @property
    def _factor(self) -> float:
        return (LOG2_E / self.bandwidth) ** 2

    def _profile_(self, u: Tensor) -> Tensor:
        return u.sqrt_().neg_().exp2_()

    def slope(self, K: Tensor) -> Tensor:
        # r / sigma = -log k; equal points, where k has no gradient, are left out.
        return torch.where(K < 1 - EQUAL_POINTS, K / (self.bandwidth**2 * -K.log()), 0.0)


@dataclass(frozen=True)
class L1Laplacian(Radial):
    """exp(-||x - z||_1 / sigma), the sum of absolute differences.

    It is a product of kernels of one feature each.  Features compared by squares add their squared
    difference to the sum: for two values that differ by 1, that is the absolute difference.
    """

    name = "l1_laplacian"
    absolute = True
    tolerance = SMOOTH_TOLERANCE * LOG2_E

    @property
    def _factor(self) -> float:
        return -LOG2_E / self.bandwidth

    def block(self, a: Points, b: Points, *, same: bool = False, out: Tensor | None = None) -> Tensor:
        u = squared_distances(a, b, same, out, self._factor, self.tolerance)  # (m, t)
        u = add_absolute_differences_(u, a, b, same, self._factor, self.tolerance).clamp_(max=0)
        if same:
            u.fill_diagonal_(0)
        return self._profile_(u)

    def _profile_(self, u: Tensor) -> Tensor:
        return u.exp2_()

    def slope(self, K: Tensor) -> Tensor:
        return K / self.bandwidth


@dataclass(frozen=True)
class Cauchy(Radial):
    """1 / (1 + ||x - z||² / sigma²)."""

    name = "cauchy"
    tolerance = SMOOTH_TOLERANCE

    def _profile_(self, u: Tensor) -> Tensor:
        return u.add_(1).reciprocal_()

    def slope(self, K: Tensor) -> Tensor:
        return 2 * K.square() / self.bandwidth**2


@dataclass(frozen=True)
class Matern32(Radial):
    """(1 + t) exp(-t), t = sqrt(3) ||x - z|| / sigma."""

    name = "matern32"

    def _profile_(self, u: Tensor) -> Tensor:
        t = u.sqrt_().mul_(math.sqrt(3))
        decay = (t * -LOG2_E).exp2_()
        return t.add_(1).mul_(decay)


@dataclass(frozen=True)
class Matern52(Radial):
    """(1 + t + t²/3) exp(-t), t = sqrt(5) ||x - z|| / sigma."""

    name = "matern52"

    def _profile_(self, u: Tensor) -> Tensor:
        t = u.sqrt_().mul_(math.sqrt(5))
        decay = (t * -LOG2_E).exp2_()
        polynomial = (t / 3).add_(1)
        return t.mul_(polynomial).add_(1).mul_(decay)


@dataclass(frozen=True)
class ExponentialPower(Radial):
    """exp(-(||x - z|| / sigma)^p), 0 < p <= 2: p = 1 is the Laplacian."""

    exponent: float = 1.0
    name = "exponential_power"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.exponent <= 2:
            raise ValueError(
                "`exponent` must lie in (0, 2], where the kernel is positive definite. "
                f"Got {self.exponent!r} instead."
            )

    def _profile_(self, u: Tensor) -> Tensor:
        return u.pow_(self.exponent / 2).mul_(-LOG2_E).exp2_()
