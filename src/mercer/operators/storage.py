"""How kept kernel values are stored: as they were evaluated, or in 16 bits.

A tile in 16 bits is evaluated and multiplied in a core's cache like any other, and then encoded.  It is
read in pieces that are decoded in cache.  What their products leave out, the value of code 0 times the
sum of the weights, is the same for all rows and is added once: see `fixed_point.py`.
"""

from __future__ import annotations

import mmap
import weakref
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mercer.data.points import Points
from mercer.operators.fixed_point import CODE_BYTES, FixedPoint
from mercer.operators.pool import POOL, SMALLEST_BLOCK
from mercer.operators.summation import (
    DEVICE_TILE_ELEMENTS,
    ROW_GAP,
    AnyTile,
    Job,
    Scratch,
    Tile,
    pieces,
)
from mercer.operators.tiled import TiledOperator

# Columns of kept values that are read as one tile.
READ_COLUMNS = 2_048
# Codes that are decoded at a time on a CPU: 1 MB of float32, beside 0.5 MB of codes.
CPU_READ_CODES = 1 << 18


def value_bytes(code: FixedPoint | None, element_size: int) -> int:
    """Bytes of a kept value."""
    return element_size if code is None else CODE_BYTES


class Storage:
    """Memory for kernel values of an operator, and tiles that fill and read it."""

    def __init__(self, inner: TiledOperator, code: FixedPoint | None) -> None:
        self.inner = inner
        self.code = code
        self.value_bytes = value_bytes(code, inner.basis.element_size())
        on_cpu = inner.basis.device.type == "cpu"
        self._at_once = CPU_READ_CODES if on_cpu else DEVICE_TILE_ELEMENTS
        self._most_read = READ_COLUMNS if on_cpu else len(inner.columns)  # a device decodes all at once
        self._blocks: list[mmap.mmap] | None = [] if on_cpu else None  # devices have pools of their own
        if self._blocks is not None:
            weakref.finalize(self, POOL.give_back, self._blocks).atexit = False

    def room(self, columns: int, rows: int) -> Tensor:
        """Memory for K[columns, rows], (t, R), to be used as long as the storage lives."""
        dtype = self.inner.basis.dtype if self.code is None else torch.int16
        size = columns * rows * self.value_bytes
        if self._blocks is None or size < SMALLEST_BLOCK:
            return self.inner.basis.new_empty(columns, rows, dtype=dtype)
        self._blocks.append(POOL.take(size))
        return torch.frombuffer(self._blocks[-1], dtype=dtype, count=columns * rows).view(columns, rows)

    def filling(self, points: Points, columns: slice, memory: Tensor) -> Tile:
        """K[columns, points], to be evaluated and kept in this memory, (t, R)."""
        code = self.code
        if code is None:
            return self.inner.tile(points, columns, memory)
        return replace(
            self.inner.tile(points, columns), keep=lambda values: code.encode(values, memory, values)
        )

    def reading(self, columns: slice, memory: Tensor) -> list[AnyTile]:
        """Tiles of memory that holds K[columns, rows], (t, R)."""
        first = columns.start
        width = READ_COLUMNS if self.code is None else self._most_read
        cut = [(c, memory[c.start - first : c.stop - first]) for c in pieces(first, columns.stop, width)]
        if self.code is None:
            return [Tile.known(c, part) for c, part in cut]
        return [CodedTile(c, part, self.code.step, self._at_once) for c, part in cut]

    def reading_transposed(self, columns: slice, memory: Tensor) -> AnyTile:
        """A tile of memory that holds K[rows, columns], (R, t)."""
        if self.code is None:
            return Tile.known(columns, memory.T)
        return CodedTile(columns, memory, self.code.step, self._at_once, transposed=True)

    def left_out(self, weights: Tensor) -> Tensor | None:
        """What tiles that were read leave out of each row's product with their weights, (l,)."""
        return None if self.code is None else self.code.middle * weights.sum(0)


@dataclass(frozen=True)
class CodedTile:
    """K[columns, rows] as codes, which are decoded `at_once` in a core's cache."""

    columns: slice
    codes: Tensor  # (t, R), or (R, t) if it is transposed
    step: float
    at_once: int
    transposed: bool = False

    def times(self, weights: Tensor, basis: Tensor | None = None, Z: Tensor | None = None) -> Job:
        """What codes leave out of K[rows, columns] weights is `Storage.left_out`; they have no Z."""
        assert basis is None

        def job(total: Tensor, scratch: Scratch) -> None:
            weights_t = weights[self.columns].T  # (l, t)
            height, width = self.codes.shape
            for part in pieces(0, height, max(1, self.at_once // (width + ROW_GAP))):
                values = scratch.shaped(part.stop - part.start, width, ROW_GAP).copy_(self.codes[part])
                if self.transposed:
                    total[:, part].addmm_(weights_t, values.T, alpha=self.step)
                else:
                    total.addmm_(weights_t[:, part], values, alpha=self.step)

        return job
