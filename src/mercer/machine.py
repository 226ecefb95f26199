"""KernelMachine: the trained function f(x) = sum_i alpha_i k(x_i, x) + offset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from mercer.eightbit import Grid
from mercer.kernels import Kernel, Points, byte_points
from mercer.products import kernel_times


@dataclass(frozen=True)
class KernelMachine:
    """Centres and weights; everything that prediction needs and nothing else."""

    kernel: Kernel  # in units of the grid's step where there is one
    shift: Tensor  # (d,)  subtracted from every input: the mean of the data, or zero
    centres: Points  # (n, d), shifted
    alpha: Tensor  # (n, l)
    offset: Tensor  # (l,)  the mean of the targets
    grid: Grid | None = None  # of centres kept as bytes

    @property
    def device(self) -> torch.device:
        return self.alpha.device

    def predict(self, x: Tensor, on_progress: Callable[[int, int], None] | None = None) -> Tensor:
        """f at each row of x, (m, l), on the machine's device and in its precision."""
        points = self.points(x)
        return kernel_times(self.kernel, points, self.centres, self.alpha, on_progress) + self.offset

    def points(self, x: Tensor) -> Points:
        """Inputs ready for the kernel: bytes where the centres are and x lies on their grid."""
        if self.grid is not None:
            codes = self.grid.encode(x.cpu().numpy())
            if codes is not None:
                return byte_points(torch.from_numpy(codes).to(self.device), self.alpha.dtype)
        x = x.to(self.device, self.alpha.dtype) - self.shift  # (m, d)
        return self.kernel.points(x if self.grid is None else x / self.grid.scale)

    def to(self, device: torch.device | str) -> KernelMachine:
        """The same machine on another device."""
        return KernelMachine(
            self.kernel,
            self.shift.to(device),
            self.centres.to(device),
            self.alpha.to(device),
            self.offset.to(device),
            self.grid,
        )

    def __getstate__(self) -> dict[str, Any]:
        # A pickle must open where the device it was made on is missing.
        home = self.to("cpu")
        return {f.name: getattr(home, f.name) for f in fields(home)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)


def data_shift(kernel: Kernel, x: Tensor) -> Tensor:
    """What to subtract from the data: its mean where the kernel does not see it, else nothing.

    Distances between points near the origin lose least to cancellation.
    """
    if not kernel.translation_invariant:
        return x.new_zeros(x.shape[1])
    return x.mean(0)
