"""The neural tangent kernel of a wide network."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mercer.data.points import Points
from mercer.kernels.distances import squared_distances
from mercer.kernels.radial import Radial

# Deeper networks have a kernel that is constant but for rounding error.
MOST_LAYERS = 1_000


@dataclass(frozen=True)
class NeuralTangent(Radial):
    """Neural tangent kernel of an infinitely wide ReLU network with `depth` hidden layers.

    The input is (x / sigma, 1), the 1 being the bias.  With u_0 the cosine between two inputs and
    c_0 = c_1 = 1 at u = 1,

        kappa_0(u) = (pi - theta) / pi              kappa_1(u) = (u (pi - theta) + sin theta) / pi
        u_{h+1} = kappa_1(u_h)                      Theta_{h+1} = Theta_h kappa_0(u_h) + u_{h+1}

    and k(x, z) = |x| |z| Theta_depth, so that k(x, x) = (depth + 1) |x|².
    """

    depth: int = 2
    name = "neural_tangent"
    translation_invariant = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.depth, int) and 1 <= self.depth <= MOST_LAYERS):
            raise ValueError(
                f"`depth` must be a whole number from 1 to {MOST_LAYERS}. Got {self.depth!r} instead."
            )

    def _profile_(self, u: Tensor) -> Tensor:
        raise NotImplementedError("The neural tangent kernel is not a function of distance alone.")

    def reach(self, dtype: torch.dtype) -> float:
        return math.inf  # it grows with the length of its inputs and has no limit

    def _lengths(self, a: Points) -> Tensor:
        return (a.squared_norms / self.bandwidth**2 + 1).sqrt_()  # (n,)

    def block(self, a: Points, b: Points, *, same: bool = False, out: Tensor | None = None) -> Tensor:
        d2 = squared_distances(a, b, same, out, self._factor)  # (m, t)
        result = self.from_distances(d2, self._lengths(a)[:, None], self._lengths(b)[None, :])
        return result if out is None else out.copy_(result)

    def from_distances(self, d2: Tensor, length_a: Tensor, length_b: Tensor) -> Tensor:
        """k from squared distances, (m, t), divided by sigma², and the lengths of the inputs."""
        scale = length_a * length_b  # (m, t)
        # The angle from the chord, 1 - cos = (d² - (|x| - |z|)²) / (2 |x| |z|): the cosine itself
        # has no digits left for points that are close together.
        chord = (d2 - (length_a - length_b).square()).clamp(min=0)  # (m, t)
        theta = 2 * (chord / (4 * scale)).clamp(max=1).sqrt().asin()  # (m, t)
        u = torch.cos(theta)
        tangent = u
        for _ in range(self.depth):
            straight = (math.pi - theta) / math.pi  # kappa_0
            u = (u * straight + torch.sin(theta) / math.pi).clamp(-1, 1)  # kappa_1
            tangent = tangent * straight + u
            theta = torch.acos(u)
        return tangent * scale

    def bounds(self, points: Points) -> tuple[float, float] | None:
        # |k(x, z)| is at most the larger of k(x, x) and k(z, z), as for every positive definite kernel.
        largest = (self.depth + 1) * (points.bound / self.bandwidth**2 + 1)
        return (-largest, largest)

    def diagonal(self, a: Points) -> Tensor:
        return (self.depth + 1) * self._lengths(a).square_()
