"""Targets on the scale of training: centred and divided, in float64.

Training works in the precision of the kernel values.  A large mean would take up its digits, and large
or small units its range, so both are removed before targets are converted, and put back in float64.

Several outputs that are numbers are each divided by their standard deviation.  A squared error is then a
share of an output's variance, and the mean over outputs, by which training judges weights, does not
depend on the units of any of them.  Columns that stand for classes keep their proportions.
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
    scale: Tensor  # (l,)  likewise; the same for all outputs, or the standard deviation of each

    @classmethod
    def of(cls, Y: Array, weight: Array | None = None, *, own_scales: bool = False) -> TargetUnits:
        """Of targets Y, (n, l), with weights (n,); each output on its own scale, or all on one."""
        largest = float(np.abs(Y).max())
        if largest > LARGEST_TARGET:
            raise ValueError(
                f"Targets must lie between -{LARGEST_TARGET:g} and {LARGEST_TARGET:g}. Got one of size "
                f"{largest:.3g}: give them in other units."
            )
        offset = np.average(Y, axis=0, weights=weight)  # (l,)
        # Not above the largest and not below the smallest target, where the mean may round to.
        offset = np.clip(offset, Y.min(0), Y.max(0))
        centred = Y - offset  # (n, l)
        spread = np.abs(centred).max(0)  # (l,)
        if not own_scales:
            spread[:] = spread.max()
        # A power of two, so that scaling rounds nothing.
        scale = np.where(spread > 0, 2.0 ** np.floor(np.log2(np.where(spread > 0, spread, 1.0))), 1.0)
        if own_scales:
            centred /= scale  # squares neither overflow nor vanish
            variance = np.average(np.square(centred, out=centred), axis=0, weights=weight)  # (l,)
            scale *= np.where(variance > 0, np.sqrt(variance), 1.0)
        return cls(torch.from_numpy(offset), torch.from_numpy(scale))

    def encode(self, Y: Array, like: Tensor) -> Tensor:
        """Targets to train on, (n, l), on the device and in the precision of `like`."""
        return ((torch.from_numpy(Y) - self.offset) / self.scale).to(like)

    def decode(self, f: Tensor) -> Tensor:
        """Values in the units of the targets, in the most precise type of the device of f."""
        dtype = widest(f.device)
        return f.to(dtype) * self.scale.to(f.device, dtype) + self.offset.to(f.device, dtype)
