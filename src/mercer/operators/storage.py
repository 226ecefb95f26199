"""How kept kernel values are stored: as they were evaluated, or in 16 bits.

A tile in 16 bits is evaluated and multiplied in a core's cache like any other, and then encoded.  It is
read in pieces that are decoded in cache.  What their products leave out, the value of code 0 times the
sum of the weights, is the same for all rows and is added once: see `fixed_point.py`.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from mercer.data.points import Points
from mercer.operators.fixed_point import CODE_BYTES, FixedPoint
from mercer.operators.pool import POOL, SMALLEST_BLOCK
from mercer.operators.summation import DEVICE_TILE_ELEMENTS, Scratch, Tile, pieces
from mercer.operators.tiled import TiledOperator

# Columns of values as they were evaluated that one product reads.
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
        self._read_codes = CPU_READ_CODES if on_cpu else DEVICE_TILE_ELEMENTS
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

    def reading(self, columns: slice, memory: Tensor) -> list[Tile]:
        """Tiles of memory that holds K[columns, rows], (t, R)."""
        first = columns.start
        if self.code is None:
            cut = pieces(first, columns.stop, READ_COLUMNS)
            return [Tile.known(c, memory[c.start - first : c.stop - first]) for c in cut]
        cut = pieces(first, columns.stop, max(1, self._read_codes // memory.shape[1]))
        return [Tile(c, _decoded(memory[c.start - first : c.stop - first]), self.code.step) for c in cut]

    def reading_transposed(self, columns: slice, memory: Tensor) -> list[Tile]:
        """Tiles of memory that holds K[rows, columns], (R, t)."""
        if self.code is None:
            return [Tile.known(columns, memory.T)]
        cut = pieces(0, len(memory), max(1, self._read_codes // memory.shape[1]))
        return [
            Tile(columns, _decoded(memory[rows], transposed=True), self.code.step, rows) for rows in cut
        ]

    def left_out(self, weights: Tensor) -> Tensor | None:
        """What tiles that were read leave out of each row's product with their weights, (l,)."""
        return None if self.code is None else self.code.middle * weights.sum(0)


def _decoded(codes: Tensor, transposed: bool = False) -> Callable[[Scratch], Tensor]:
    """Codes as floats, in scratch memory."""

    def values(scratch: Scratch) -> Tensor:
        found = scratch.shaped(*codes.shape).copy_(codes)
        return found.T if transposed else found

    return values
