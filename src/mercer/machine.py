"""KernelMachine: the trained function f(x) = sum_i alpha_i k(x_i, x) + offset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from mercer.kernels import Kernel, Points
from mercer.products import kernel_times


@dataclass(frozen=True)
class KernelMachine:
    """Centres and weights; everything that prediction needs and nothing else."""

    kernel: Kernel
    shift: Tensor  # (d,)  subtracted from every input: the mean of the data, or zero
    centres: Points  # (n, d), shifted
    alpha: Tensor  # (n, l)
    offset: Tensor  # (l,)  the mean of the targets

    @property
    def device(self) -> torch.device:
        return self.alpha.device

    def predict(self, x: Tensor, on_progress: Callable[[int, int], None] | None = None) -> Tensor:
        """f at each row of x, (m, l), on the machine's device and in its precision."""
        x = x.to(self.device, self.alpha.dtype) - self.shift  # (m, d)
        points = self.kernel.points(x)
        return kernel_times(self.kernel, points, self.centres, self.alpha, on_progress) + self.offset

    def to(self, device: torch.device | str) -> KernelMachine:
        """The same machine on another device."""
        centres = Points(self.centres.x.to(device), self.centres.squared_norms.to(device))
        return KernelMachine(
            self.kernel, self.shift.to(device), centres, self.alpha.to(device), self.offset.to(device)
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
