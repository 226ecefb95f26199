"""Kernel values in 16 bits: integers between known bounds.

A value is stored as the nearest of 65,401 evenly spaced ones,

    k  =  middle + step * code,      -LARGEST_CODE <= code <= LARGEST_CODE,

so it is off by at most half a step, 7.6e-6 for kernels between 0 and 1.  Products with weights need not
compute k: k W = step code W + middle 1 1^T W, and the last term is the same for all rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Codes beyond it are left for values that rounding error puts outside of the bounds.
LARGEST_CODE = 32_700
# float32 numbers near 1.5 * 2^23 are whole, and the low bits of one are those of its difference from it.
# So adding it rounds to the nearest integer, which a copy of the low 16 bits then has.
ROUNDS_TO_INTEGERS = float(3 << 22)
# With what rounding error in float32 adds.
HALF_A_STEP = 0.51
CODE_BYTES = 2


@dataclass(frozen=True)
class FixedPoint:
    """Numbers from `low` to `high` in 16 bits.

    >>> code, K = FixedPoint(0.0, 1.0), torch.tensor([[0.0, 0.3, 1.0]])
    >>> kept = torch.empty(1, 3, dtype=torch.int16)
    >>> code.encode(K.clone(), kept, torch.empty(1, 3))
    >>> bool((code.decode(kept, torch.empty(1, 3)) - K).abs().max() <= code.error)
    True
    """

    low: float
    high: float

    @property
    def step(self) -> float:
        return (self.high - self.low) / (2 * LARGEST_CODE)

    @property
    def middle(self) -> float:
        """The value of code 0: a whole number of steps, so that encoding can be exact about it."""
        return self.step * round((self.low + self.high) / (2 * self.step))

    @property
    def error(self) -> float:
        """The largest difference between a value and what its code stands for."""
        return HALF_A_STEP * self.step

    def encode(self, values: Tensor, codes: Tensor, scratch: Tensor) -> None:
        """Write the codes of float32 values; `scratch`, of the same shape, may be the values."""
        shift = values.new_tensor(ROUNDS_TO_INTEGERS - round(self.middle / self.step))
        torch.add(shift, values, alpha=1 / self.step, out=scratch)  # one pass
        codes.copy_(scratch.view(torch.int32))

    def decode(self, codes: Tensor, out: Tensor) -> Tensor:
        """The values that codes stand for."""
        return torch.add(out.new_tensor(self.middle), out.copy_(codes), alpha=self.step, out=out)
