"""Data that is 8-bit underneath: bytes, or bytes scaled and shifted, such as pixels over 255.

Such data is kept as int8 codes, a quarter of the memory, with

    x = offset + scale * (code + 128)

and squared distances are scale² times those of the codes, which integer products give exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Rows looked at before all of them are: data that is not 8-bit is recognised by a few.
SAMPLE_ROWS = 256
# Rows encoded at a time.
CHUNK_ROWS = 8_192
# Values may be off their grid by this share of a step, from having been divided in single precision.
GRID_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Grid:
    """256 equally spaced values."""

    offset: float
    scale: float

    def encode(self, x: NDArray[np.floating]) -> NDArray[np.int8] | None:
        """int8 codes of x, or None where a value is not on the grid."""
        codes = np.empty(x.shape, dtype=np.int8)
        for first in range(0, len(x), CHUNK_ROWS):
            steps = (x[first : first + CHUNK_ROWS] - self.offset) / self.scale
            whole = np.rint(steps)
            np.subtract(steps, whole, out=steps)
            if not (np.abs(steps).max(initial=0) <= GRID_TOLERANCE):
                return None
            if whole.min(initial=0) < 0 or whole.max(initial=0) > 255:
                return None
            codes[first : first + CHUNK_ROWS] = whole - 128
        return codes

    @property
    def origin(self) -> float:
        """The value of code 0."""
        return self.offset + 128 * self.scale


def recognise(x: NDArray[np.floating], low: float) -> Grid | None:
    """The grid that a few rows seem to lie on, `low` being the lowest value of all; or None."""
    values = np.unique(x)
    if not 2 <= len(values) <= 256:
        return None
    spread = float(values[-1]) - float(values[0])
    # The smallest gap may be several steps apart from rounding; the range tells the step better.
    steps = round(spread / float(np.diff(values).min()))
    return Grid(low, spread / steps) if steps <= 255 else None
