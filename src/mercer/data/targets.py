"""Targets on the scale of training: centred and divided, in float64.

Training works in the precision of the kernel values.  A large mean would take up its digits, and large
or small units its range, so both are removed before targets are converted, and put back in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mercer.data.rows import Array, widest

# Squared errors of larger targets would not be finite.
LARGEST_TARGET = 1e150


@dataclass(frozen=True)
class TargetUnits:
    """y = offset + scale * (what is trained on)."""

    offset: Tensor  # (l,)  float64, on the CPU: the mean of the targets
    scale: float = 1.0  # a power of two, so that scaling rounds nothing

    @classmethod
    def of(cls, Y: Array, weight: Array | None = None) -> TargetUnits:
        """Of targets Y, (n, l), with weights (n,)."""
        largest = float(np.abs(Y).max())
        if largest > LARGEST_TARGET:
            raise ValueError(
                f"Targets must lie between -{LARGEST_TARGET:g} and {LARGEST_TARGET:g}. Got one of size "
                f"{largest:.3g}: give them in other units."
            )
        offset = np.average(Y, axis=0, weights=weight)  # (l,)
        # Not above the largest and not below the smallest target, where the mean may round to.
        offset = np.clip(offset, Y.min(0), Y.max(0))
        spread = float(np.abs(Y - offset).max())
        scale = float(2.0 ** np.floor(np.log2(spread))) if spread > 0 else 1.0
        return cls(torch.from_numpy(offset), scale)

    def encode(self, Y: Array, like: Tensor) -> Tensor:
        """Targets to train on, (n, l), on the device and in the precision of `like`."""
        return ((torch.from_numpy(Y) - self.offset) / self.scale).to(like)

    def decode(self, f: Tensor) -> Tensor:
        """Values in the units of the targets, in the most precise type of the device of f."""
        dtype = widest(f.device)
        return f.to(dtype) * self.scale + self.offset.to(f.device, dtype)

    @property
    def loss_unit(self) -> float:
        """What a squared error of 1 in training is in the units of the targets."""
        return self.scale * self.scale
