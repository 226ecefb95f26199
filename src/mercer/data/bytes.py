"""Data that is 8-bit underneath: bytes, or bytes scaled and shifted, such as pixels over 255.

Such data is stored as int8 codes, a quarter of the memory, with

    x = offset + scale * (code + 128)

and squared distances are scale² times those of the codes, which integer products give exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Rows that show whether data is 8-bit, before all of it is encoded.
SAMPLE_ROWS = 256
# Values encoded at a time: a few copies of them stay in a core's cache.
ENCODED_VALUES = 1 << 17
# Values may be off their grid by this share of a step, from having been divided in single precision.
GRID_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Grid:
    """256 equally spaced values."""

    offset: float
    scale: float

    def encode(self, x: Tensor) -> Tensor | None:
        """int8 codes of x, or None where a value is not on the grid."""
        if x.dtype == torch.uint8 and self == ALL_BYTES:
            return x.bitwise_xor(0x80).view(torch.int8)
        codes = torch.empty(x.shape, dtype=torch.int8, device=x.device)
        step = max(1, ENCODED_VALUES // max(1, x.shape[1]))
        for first in range(0, len(x), step):
            steps = (x[first : first + step] - self.offset).div_(self.scale)
            if steps.numel() == 0:
                continue
            whole = steps.round()
            off = steps.sub_(whole).abs_().max()
            low, high = torch.aminmax(whole)
            if not bool((off <= GRID_TOLERANCE) & (low >= 0) & (high <= 255)):
                return None
            codes[first : first + step] = whole.sub_(128)
        return codes

    @property
    def origin(self) -> float:
        """The value of code 0."""
        return self.offset + 128 * self.scale


ALL_BYTES = Grid(0.0, 1.0)


def recognise(x: Tensor, low: float) -> Grid | None:
    """The grid that a few rows seem to lie on, `low` being the lowest value of all; or None."""
    if x.dtype == torch.uint8:  # rows to come may have any value
        return ALL_BYTES
    values = torch.unique(x)
    if not 2 <= len(values) <= 256:
        return None
    spread = float(values[-1]) - float(values[0])
    # The smallest gap may be off by rounding; the range gives the step more accurately.
    steps = round(spread / float(values.diff().min()))
    return Grid(low, spread / steps) if steps <= 255 else None
