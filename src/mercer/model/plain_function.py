"""f(x) in plain operations: what autograd, `torch.export` and ONNX need.

Nothing is tiled and nothing is written in place, so that gradients pass and a graph can be traced.  All
that depends on the values of the machine, such as which features were dropped, is decided before.  The
kernel matrix of the rows given is held whole, in float64, where close points need no second look.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mercer.data.rows import widest
from mercer.kernels import (
    Cauchy,
    ExponentialPower,
    Gaussian,
    Kernel,
    L1Laplacian,
    Laplacian,
    Matern32,
    Matern52,
    NeuralTangent,
)
from mercer.kernels.radial import Radial
from mercer.model.machine import KernelMachine

# Scaled distances below this count as it, so that the gradient of their root is finite; it is then 0.
LEAST_DISTANCE = 1e-30


def _matern32(kernel: Any, u: Tensor) -> Tensor:
    t = math.sqrt(3) * u.sqrt()
    return (1 + t) * torch.exp(-t)


def _matern52(kernel: Any, u: Tensor) -> Tensor:
    t = math.sqrt(5) * u.sqrt()
    return (1 + t + t.square() / 3) * torch.exp(-t)


def _neural_tangent(kernel: NeuralTangent, chord: Tensor) -> Tensor:
    """What `NeuralTangent.from_distances` does, divided by the lengths; chord is sin²(theta / 2)."""
    theta, cosine, sine = _angle(chord)
    tangent = cosine
    for _ in range(kernel.depth):
        straight = 1 - theta / math.pi
        u = cosine * straight + sine / math.pi
        tangent = tangent * straight + u
        theta, cosine, sine = _angle((1 - u) / 2)
    return tangent


def _angle(chord: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """theta, cos(theta) and sin(theta) of sin²(theta / 2)."""
    s = chord.clamp(LEAST_DISTANCE, 1).sqrt()
    c = (1 - chord).clamp(LEAST_DISTANCE, 1).sqrt()
    # Runtimes of ONNX have the inverse sine in single precision.  A step of Newton's method doubles its
    # digits, and its derivative is that of the inverse sine.
    least = torch.minimum(s, c)
    half = least.detach().float().asin().to(s.dtype)
    half = half + (least - half.sin()) / half.cos()
    return 2 * torch.where(s <= c, half, math.pi / 2 - half), c.square() - s.square(), 2 * s * c


# What `_profile_` of each kernel does, without writing over u.
PROFILES: dict[type[Kernel], Callable[[Any, Tensor], Tensor]] = {
    Gaussian: lambda kernel, u: torch.exp2(u),
    Laplacian: lambda kernel, u: torch.exp2(-u.sqrt()),
    L1Laplacian: lambda kernel, u: torch.exp2(u),
    Cauchy: lambda kernel, u: 1 / (1 + u),
    Matern32: _matern32,
    Matern52: _matern52,
    ExponentialPower: lambda kernel, u: torch.exp(-(u ** (kernel.exponent / 2))),
}


def has_plain_form(kernel: Kernel) -> bool:
    """Whether a kernel is one of Mercer's own."""
    return type(kernel) in PROFILES or type(kernel) is NeuralTangent


class PlainFunction(torch.nn.Module):
    """(m, d) to (m, l)."""

    rows: Tensor
    alpha: Tensor
    offset: Tensor
    target_scale: Tensor
    shift: Tensor
    constants: Tensor
    levels: Tensor
    members: Tensor
    beyond_of_rows: Tensor | None
    scale: Tensor | None
    projection: Tensor | None
    columns: Tensor | None
    dropped: Tensor | None
    numbers: Tensor | None
    knots: Tensor | None
    scores: Tensor
    owners: Tensor | None
    unknown: Tensor | None

    def __init__(self, machine: KernelMachine) -> None:
        super().__init__()
        kernel, inputs = machine.kernel, machine.inputs
        assert isinstance(kernel, Radial)
        self.kernel = kernel
        self.n_absolute, self.unit, self.absolute = inputs.n_absolute, inputs.unit, inputs.absolute
        self.lossless = inputs.lossless
        centres = machine.centres.as_floats()
        tensors: dict[str, Tensor | None] = {
            "rows": centres.x,
            "beyond_of_rows": centres.beyond,
            "alpha": machine.alpha,
            "offset": machine.units.offset,
            "target_scale": machine.units.scale,
            "shift": inputs.shift,
            "scale": inputs.scale,
            "projection": inputs.projection,
        }
        if inputs.columns is not None:
            dropped = torch.ones(inputs.n_features, dtype=torch.bool)
            dropped[inputs.columns] = False
            tensors |= {"columns": inputs.columns, "constants": inputs.constants}
            tensors["dropped"] = dropped.nonzero()[:, 0]
        if inputs.table is not None:
            table = inputs.table
            tensors |= {"numbers": table.numbers, "knots": table.knots, "scores": table.scores}
            if len(table.owners):
                tensors |= {"owners": table.owners, "levels": table.levels}
                _, category, counts = torch.unique(table.owners, return_inverse=True, return_counts=True)
                members = torch.nn.functional.one_hot(category).double()  # (b, c)
                tensors["members"] = members
                if inputs.scale is not None:
                    squares = inputs.scale[len(table.numbers) :].double() ** -2  # (b,)
                    tensors["unknown"] = members.T @ squares / counts  # (c,)
        names = ("columns", "dropped", "constants", "numbers", "knots", "scores", "owners", "levels")
        for name in (*names, "members", "unknown", *tensors):
            value = tensors.get(name)
            self.register_buffer(name, value)

    def forward(self, x: Tensor) -> Tensor:
        dtype = widest(x.device)
        z, beyond = self._prepared(x.to(dtype))  # (m, k), (m,)
        a, rows = self.n_absolute, self.rows.to(dtype)  # (n, k)
        squares = (
            z[:, a:].square().sum(1, keepdim=True)
            + rows[:, a:].square().sum(1)
            - 2 * z[:, a:] @ rows[:, a:].T
        )  # (m, n)
        if a:
            squares = squares + sum((z[:, j : j + 1] - rows[:, j]).abs() for j in range(a))
        squares = squares.clamp(min=0) + beyond[:, None]
        if self.beyond_of_rows is not None:
            squares = squares + self.beyond_of_rows.to(dtype)
        K = self._kernel_values(squares, z, beyond, rows)  # (m, n)
        f = K @ self.alpha.to(dtype)  # (m, l)
        return f * self.target_scale.to(dtype) + self.offset.to(dtype)

    def _kernel_values(self, squares: Tensor, z: Tensor, beyond: Tensor, rows: Tensor) -> Tensor:
        kernel = self.kernel
        if isinstance(kernel, NeuralTangent):
            norms = z.square().sum(1) + beyond
            lengths = (norms / kernel.bandwidth**2 + 1).sqrt()[:, None]  # (m, 1)
            others = (rows.square().sum(1) / kernel.bandwidth**2 + 1).sqrt()[None, :]  # (1, n)
            scale = lengths * others  # (m, n)
            chord = (squares * kernel._factor - (lengths - others).square()) / (4 * scale)
            return scale * _neural_tangent(kernel, chord)
        factor = kernel._factor
        u = (squares * abs(factor)).clamp(min=LEAST_DISTANCE)
        return PROFILES[type(kernel)](kernel, u if factor > 0 else -u)

    def _prepared(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """As `Inputs.floats` does, (m, k), and the squared distance from the space of the rest, (m,)."""
        dtype = x.dtype
        beyond = x.new_zeros(()).expand(x.shape[0])
        if self.columns is not None:
            apart = x[:, self.dropped] - self.constants.to(dtype)
            beyond = beyond + (apart.abs() if self.absolute else apart.square()).sum(1)
            x = x[:, self.columns]
        z = x
        if self.numbers is not None:
            z = x[:, self.numbers]
            if self.knots is not None:
                z = _interpolated(z, self.knots.to(dtype), self.scores.to(dtype))
            if self.owners is not None:
                single = torch.float32
                hits = (x[:, self.owners].to(single) == self.levels.to(single)).to(dtype)  # (m, b)
                z = torch.cat([z, hits], 1)
                if self.unknown is not None:
                    known = hits @ self.members.to(dtype)  # (m, c)
                    beyond = beyond + (1 - known) @ self.unknown.to(dtype)
        z = z - self.shift.to(dtype)
        if self.scale is not None:
            z = z / self.scale.to(dtype)
        if self.projection is not None:
            projection = self.projection.to(dtype)
            inside = z @ projection
            if self.lossless:
                beyond = beyond + (z - inside @ projection.T).square().sum(1)
            z = inside
        return z / self.unit, beyond / self.unit**2


def _interpolated(x: Tensor, knots: Tensor, scores: Tensor) -> Tensor:
    """The scores at x, (m, a), linearly between knots, (a, k), and constant beyond them."""
    k = knots.shape[1]
    if k == 1:
        return scores.T.expand(x.shape[0], -1) + 0 * x
    upper = (x[:, :, None] > knots).sum(-1).clamp(1, k - 1)  # (m, a)
    places = torch.arange(knots.shape[0], device=x.device) * k  # (a,)

    def at(table: Tensor, index: Tensor) -> Tensor:
        return table.reshape(-1)[places + index]

    low, high = at(knots, upper - 1), at(knots, upper)  # (m, a)
    apart = high > low
    share = ((x - low) / torch.where(apart, high - low, 1.0)).clamp(0, 1)
    share = torch.where(apart, share, 0.0)
    return at(scores, upper - 1) * (1 - share) + at(scores, upper) * share
