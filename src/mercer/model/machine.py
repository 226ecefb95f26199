"""KernelMachine: the trained function f(x) = sum_i alpha_i k(x_i, x) + offset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from mercer.data.inputs import Preparation
from mercer.data.points import Points
from mercer.kernels import Kernel
from mercer.operators.tiled import kernel_times


@dataclass(frozen=True)
class KernelMachine:
    """Centres and weights; everything that prediction needs and nothing else."""

    kernel: Kernel  # in units of the grid's step where the centres are bytes
    preparation: Preparation
    centres: Points  # (n, d), prepared
    alpha: Tensor  # (n, l)
    offset: Tensor  # (l,)  the mean of the targets

    @property
    def device(self) -> torch.device:
        return self.alpha.device

    def predict(self, x: NDArray[Any], on_progress: Callable[[int, int], None] | None = None) -> Tensor:
        """f at each row of x, (m, l), on the machine's device and in its precision."""
        points = self.points(x)
        return kernel_times(self.kernel, points, self.centres, self.alpha, on_progress) + self.offset

    def points(self, x: NDArray[Any]) -> Points:
        """Inputs ready for the kernel."""
        return self.preparation.points(x, None, self.alpha)

    def to(self, device: torch.device | str) -> KernelMachine:
        """The same machine on another device."""
        return replace(
            self,
            centres=self.centres.to(device),
            alpha=self.alpha.to(device),
            offset=self.offset.to(device),
        )

    def __getstate__(self) -> dict[str, Any]:
        # A pickle must open where the device it was made on is missing.
        home = self.to("cpu")
        return {f.name: getattr(home, f.name) for f in fields(home)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)
