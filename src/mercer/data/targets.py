"""Targets on the scale of training: centred and divided, in float64.

Training works in the precision of the kernel values.  A large mean would take up its digits, and large
or small units its range, so both are removed before targets are converted, and put back in float64.

Several outputs that are numbers are each divided by their standard deviation.  A squared error is then a
share of an output's variance, and the mean over outputs, by which training judges weights, does not
depend on the units of any of them.  Columns that stand for classes keep their proportions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mercer.data.rows import Array, widest

# Squared errors of larger targets would not be finite.
LARGEST_TARGET = 1e150

Part = tuple[Array, Array | None]  # (m, l) targets, (m,) weights


@dataclass(frozen=True)
class TargetUnits:
    """y = offset + scale * (what is trained on)."""

    offset: Tensor  # (l,)  float64, on the CPU: the mean of the targets
    scale: Tensor  # (l,)  likewise; the same for all outputs, or the standard deviation of each

    @classmethod
    def of(cls, Y: Array, weight: Array | None = None, *, own_scales: bool = False) -> TargetUnits:
        """Of targets Y, (n, l), with weights (n,); each output on its own scale, or all on one."""
        return cls.of_parts(lambda: iter([(Y, weight)]), own_scales=own_scales)

    @classmethod
    def of_parts(cls, parts: Callable[[], Iterator[Part]], *, own_scales: bool = False) -> TargetUnits:
        """Of targets and weights that come in parts, and are gone through twice at most."""
        lows, highs, total, count = [], [], 0.0, 0.0
        for Y, weight in parts():
            lows.append(Y.min(0))
            highs.append(Y.max(0))
            _check_size(float(np.maximum(-lows[-1], highs[-1]).max()))
            total, count = total + _sum(Y, weight), count + _count(Y, weight)
        low, high = np.min(lows, axis=0), np.max(highs, axis=0)  # (l,)
        # Not above the largest and not below the smallest target, where the mean may round to.
        offset = np.clip(total / count, low, high)  # (l,)
        spread = np.maximum(offset - low, high - offset)  # (l,)
        if not own_scales:
            spread[:] = spread.max()
        # A power of two, so that scaling rounds nothing.
        scale = np.where(spread > 0, 2.0 ** np.floor(np.log2(np.where(spread > 0, spread, 1.0))), 1.0)
        if own_scales:
            squares = 0.0
            for Y, weight in parts():
                centred = (Y - offset) / scale  # (n, l)  squares neither overflow nor vanish
                squares = squares + _sum(np.square(centred, out=centred), weight)
            variance = squares / count  # (l,)
            scale *= np.where(variance > 0, np.sqrt(variance), 1.0)
        return cls(torch.from_numpy(offset), torch.from_numpy(scale))

    def encode(self, Y: Array, like: Tensor) -> Tensor:
        """Targets to train on, (n, l), on the device and in the precision of `like`."""
        return ((torch.from_numpy(Y) - self.offset) / self.scale).to(like)

    def decode(self, f: Tensor) -> Tensor:
        """Values in the units of the targets, in the most precise type of the device of f."""
        dtype = widest(f.device)
        return f.to(dtype) * self.scale.to(f.device, dtype) + self.offset.to(f.device, dtype)


def _check_size(largest: float) -> None:
    if largest > LARGEST_TARGET:
        raise ValueError(
            f"Targets must lie between -{LARGEST_TARGET:g} and {LARGEST_TARGET:g}. Got one of size "
            f"{largest:.3g}: give them in other units."
        )


def _sum(Y: Array, weight: Array | None) -> Any:
    return Y.sum(0) if weight is None else (Y * weight[:, None]).sum(0)


def _count(Y: Array, weight: Array | None) -> float:
    return float(len(Y) if weight is None else weight.sum())
