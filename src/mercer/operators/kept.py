"""Operators that remember the tiles another operator evaluated.

K over one set of points is symmetric.  `KeptSquare` keeps K[panel, :panel.stop] of the first panels
while its budget lasts, and serves it directly and transposed: later epochs read what was kept and
evaluate the rest.  `KeptRectangle` keeps K(rows, columns) for other rows than columns, all or nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mercer.operators.base import PanelProducts
from mercer.operators.summation import Tile, pieces
from mercer.operators.tiled import TiledOperator

# Columns of kept values read by one product.
READ_COLUMNS = 2_048


class KeptSquare:
    """A square operator that keeps tiles, up to `budget` bytes, in the order of first visits."""

    def __init__(self, inner: TiledOperator, budget: float) -> None:
        self.inner = inner
        self._budget = budget
        n, q = len(inner.rows), inner.basis.shape[1]
        # Z takes little memory for the values it saves evaluating, so it comes before the tiles.
        size = n * q * inner.basis.element_size()
        self._Z = inner.basis.new_empty(n, q) if 0 < size <= budget else None
        self._Z_end = 0  # rows before it have their Z
        self.kept_bytes = size if self._Z is not None else 0
        self._values: dict[int, Tensor] = {}  # by first row: K[:width, rows], (width, R)
        self._end = 0  # the rows before it are kept

    def times(self, weights: Tensor, rows: slice | None = None, columns: slice | None = None) -> Tensor:
        return self.inner.times(weights, rows, columns)

    def block(self, rows: slice, columns: slice) -> Tensor:
        return self.inner.block(rows, columns)

    def diagonal(self, rows: slice) -> Tensor:
        return self.inner.diagonal(rows)

    def panel(self, rows: slice, weights: Tensor, stop: int) -> PanelProducts:
        inner = self.inner
        points = inner.rows[rows]
        kept = self._values.get(rows.start)
        room = self._room_for(rows) if kept is None else None
        memory = room if kept is None else kept  # (width, R)
        own = inner.own_memory(rows) if memory is None else memory[rows]
        Z_known = self._Z is not None and rows.stop <= self._Z_end
        if kept is not None and (Z_known or not inner.basis.numel()):
            tiles = [Tile.known(c, kept[c]) for c in pieces(0, len(kept), READ_COLUMNS)]
        elif kept is not None:
            tiles = [Tile.known(c, kept[c]) for c in inner.columns_up_to(rows)]
        else:
            tiles = []
            for c in inner.columns_up_to(rows):
                where = own if c == rows else None if memory is None else memory[c]
                tiles.append(inner.tile(points, c, where, same=c == rows))
        first = max(rows.stop, inner.s)  # columns before it are covered
        for start, values in self._values.items():
            if first <= start < stop:
                later = slice(start, start + values.shape[1])
                tiles.append(Tile.known(later, values[rows].T))
                first = later.stop
        tiles += inner.tiles(points, slice(first, max(first, stop)))
        Z = inner.Z_memory(rows) if self._Z is None else self._Z[rows]
        found = inner.collect(rows, tiles, weights, own, Z, Z_known)
        if room is not None:
            self._values[rows.start] = room
            self._end = rows.stop
        if self._Z is not None and rows.start == self._Z_end:
            self._Z_end = rows.stop
        return found

    def _room_for(self, rows: slice) -> Tensor | None:
        """Memory for the tiles of these rows, (width, R), if they are next and the budget has room."""
        shape = (max(rows.stop, self.inner.s), rows.stop - rows.start)
        size = shape[0] * shape[1] * self.inner.basis.element_size()
        if rows.start != self._end or self.kept_bytes + size > self._budget:
            return None
        self.kept_bytes += size
        return self.inner.basis.new_empty(shape)


class KeptRectangle:
    """K(rows, columns) @ weights again and again: all values are kept if the budget allows."""

    def __init__(self, inner: TiledOperator, budget: float) -> None:
        self.inner = inner
        size = len(inner.rows) * len(inner.columns) * inner.basis.element_size()
        self.kept_bytes = size if size <= budget else 0
        self._values: dict[int, Tensor] = {}  # by first row of a part: K[columns, part]
        self._known = 0  # columns of them that have been evaluated

    def times(self, weights: Tensor, rows: slice | None = None, columns: slice | None = None) -> Tensor:
        if not self.kept_bytes or rows is not None:
            return self.inner.times(weights, rows, columns)
        inner = self.inner
        columns = slice(0, len(inner.columns)) if columns is None else columns
        read = columns.stop <= self._known
        results = []
        for part in inner.row_parts(None):
            memory = self._values.get(part.start)
            if memory is None:
                shape = (len(inner.columns), part.stop - part.start)
                memory = self._values[part.start] = weights.new_empty(shape)
            # Cut alike whether read or evaluated, so that the sums round alike.
            if read:
                cut = inner.between(columns.start, columns.stop)
                tiles = [Tile.known(c, memory[c]) for c in cut]
            else:
                tiles = inner.tiles(inner.rows[part], columns, memory)
            jobs = [tile.times(weights) for tile in tiles]
            results.append(inner.summation.of(jobs, part.stop - part.start))
        if columns.start <= self._known:
            self._known = max(self._known, columns.stop)
        return torch.cat(results)

    def block(self, rows: slice, columns: slice) -> Tensor:
        return self.inner.block(rows, columns)

    def diagonal(self, rows: slice) -> Tensor:
        return self.inner.diagonal(rows)
