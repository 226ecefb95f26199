"""A trained machine as a torch.nn.Module, to be part of a larger model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mercer.data.points import Points
from mercer.model.machine import KernelMachine
from mercer.operators.tiled import kernel_times


class MachineModule(torch.nn.Module):
    """f(x) for inputs (m, d) to (m, l); all it needs are buffers, which move with the module.

    For inference: no gradient passes through it.
    """

    varies: Tensor
    constants: Tensor
    shift: Tensor
    scale: Tensor | None
    projection: Tensor | None
    centres: Tensor
    alpha: Tensor
    offset: Tensor

    def __init__(self, machine: KernelMachine) -> None:
        super().__init__()
        preparation = machine.preparation
        self.kernel = machine.kernel
        self.unit = 1.0 if preparation.grid is None else preparation.grid.scale
        self.lossless = preparation.lossless
        like = machine.alpha

        def buffer(name: str, values: Any) -> None:
            tensor = None if values is None else torch.as_tensor(values).to(like.device)
            floats = tensor is not None and tensor.is_floating_point()
            self.register_buffer(
                name, tensor.to(like.dtype) if floats and tensor is not None else tensor
            )

        varies = torch.zeros(preparation.n_features, dtype=torch.bool)
        varies[slice(None) if preparation.columns is None else torch.as_tensor(preparation.columns)] = (
            True
        )
        buffer("varies", varies)
        buffer("constants", preparation.constants)
        buffer("shift", preparation.shift)
        buffer("scale", preparation.scale)
        buffer("projection", preparation.projection)
        centres = machine.centres.as_floats()
        buffer("centres", centres.x if centres.extended is None else centres.extended)
        self.extended = centres.extended is not None
        self.bound = centres.bound
        buffer("alpha", machine.alpha)
        buffer("offset", machine.offset)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """(m, d) to (m, l)."""
        x = x.to(self.alpha)
        beyond = (x[:, ~self.varies] - self.constants).square().sum(1)  # (m,)
        z = x[:, self.varies] - self.shift
        if self.scale is not None:
            z = z / self.scale
        if self.projection is not None:
            inside = z @ self.projection  # (m, k)
            if self.lossless:
                beyond = beyond + (z - inside @ self.projection.T).square().sum(1)
            z = inside
        if not self.extended:  # a kernel function of the user's own
            points, centres = self.kernel.points(z), self.kernel.points(self.centres)
        else:
            room = torch.nn.functional.pad(z / self.unit, (0, 2))  # (m, d + 2)
            points = Points.of_extended(room, beyond / self.unit**2)
            centres = Points(self.centres[:, :-2], self.centres[:, -1], self.bound, self.centres)
        return kernel_times(self.kernel, points, centres, self.alpha) + self.offset
