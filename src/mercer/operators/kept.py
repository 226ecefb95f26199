"""Operators that remember the tiles another operator evaluated.

K over one set of points is symmetric.  `KeptSquare` keeps K[panel, :panel.stop] of the first panels
while its budget lasts, and serves it directly and transposed: later epochs read what was kept and
evaluate the rest.  `KeptRectangle` keeps K(rows, columns) for other rows than columns, all or nothing.

The square may keep its values in 16 bits: half the memory, and an error in each that `refined.py` keeps
from mattering.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mercer.operators.base import PanelProducts
from mercer.operators.fixed_point import FixedPoint
from mercer.operators.storage import Storage
from mercer.operators.summation import AnyTile, Tile, shaped
from mercer.operators.tiled import TiledOperator


class KeptSquare:
    """A square operator that keeps tiles, up to `budget` bytes, in the order of first visits.

    With a `code`, they are kept in 16 bits.
    """

    def __init__(self, inner: TiledOperator, budget: float, code: FixedPoint | None = None) -> None:
        self.inner = inner
        self._storage = Storage(inner, code)
        n, q = len(inner.rows), inner.basis.shape[1]
        # Z takes little memory for the values it saves evaluating, so it comes before the tiles.
        size = n * q * inner.basis.element_size()
        self.budget = budget if size <= budget else 0.0  # bytes that may be kept
        self._Z = inner.basis.new_empty(n, q) if size <= budget else None
        self._Z_end = 0  # rows before it have their Z
        self.kept_bytes = size if self._Z is not None else 0
        self._values: dict[int, Tensor] = {}  # by first row: K[:width, rows], (width, R)
        self.end = 0  # the rows before it are kept
        self._scratch = inner.basis.new_empty(0)  # for an own block while it is encoded

    def times(self, weights: Tensor, rows: slice | None = None, columns: slice | None = None) -> Tensor:
        return self.inner.times(weights, rows, columns)

    def block(self, rows: slice, columns: slice) -> Tensor:
        return self.inner.block(rows, columns)

    def diagonal(self, rows: slice) -> Tensor:
        return self.inner.diagonal(rows)

    def panel(self, rows: slice, weights: Tensor, stop: int) -> PanelProducts:
        inner = self.inner
        points, values = inner.rows[rows], self._values.get(rows.start)
        room = self._room_for(rows) if values is None else None
        tiles: list[AnyTile]
        if values is not None:
            tiles, own = self._storage.reading(slice(0, len(values)), values), self._own(rows, values)
        else:
            tiles, own = self._evaluated(rows, room)
        read = slice(0, 0 if values is None else len(values))  # columns that are not evaluated
        covered = first = max(rows.stop, inner.s)  # columns before it
        for start, others in self._values.items():
            if first <= start < stop:
                later = slice(start, start + others.shape[1])
                tiles.append(self._storage.reading_transposed(later, others[rows]))
                first = later.stop
        tiles += inner.tiles(points, slice(first, max(first, stop)))
        known = self._Z is not None and rows.stop <= self._Z_end
        Z = inner.Z_memory(rows) if self._Z is None else self._Z[rows]
        found = inner.collect(rows, tiles, weights, own, Z, known)
        for columns in (read, slice(covered, first)):
            missing = self._storage.left_out(weights[columns])  # (l,)
            if missing is not None:
                found.f.add_(missing)
        if room is not None:
            self._keep(rows, room, own)
        if self._Z is not None and rows.start == self._Z_end:
            self._Z_end = rows.stop
        return found

    def _evaluated(self, rows: slice, room: Tensor | None) -> tuple[list[AnyTile], Tensor]:
        """Tiles up to the end of the rows or of the basis, and where the own block will be, (R, R)."""
        inner, points = self.inner, self.inner.rows[rows]
        in_room = room is not None and self._storage.code is None
        own = room[rows] if room is not None and in_room else inner.own_memory(rows)
        tiles: list[AnyTile] = []
        for c in inner.columns_up_to(rows):
            if c == rows:
                tiles.append(inner.tile(points, c, own, same=True))
            elif room is None:
                tiles.append(inner.tile(points, c))
            else:
                tiles.append(self._storage.filling(points, c, room[c]))
        return tiles, own

    def _own(self, rows: slice, values: Tensor) -> Tensor:
        """K[rows, rows] of values that are kept, (R, R)."""
        code, own = self._storage.code, values[rows]
        return own if code is None else code.decode(own, self.inner.own_memory(rows))

    def _keep(self, rows: slice, room: Tensor, own: Tensor) -> None:
        """The room has been filled; steps still need the own block as it is."""
        code = self._storage.code
        if code is not None:
            if len(self._scratch) < own.numel():
                self._scratch = self._scratch.new_empty(own.numel())
            code.encode(own, room[rows], shaped(self._scratch, *own.shape))
        self._values[rows.start] = room
        self.end = rows.stop

    def _room_for(self, rows: slice) -> Tensor | None:
        """Memory for the tiles of these rows, (width, R), if they are next and the budget has room."""
        shape = (max(rows.stop, self.inner.s), rows.stop - rows.start)
        size = shape[0] * shape[1] * self._storage.value_bytes
        if rows.start != self.end or self.kept_bytes + size > self.budget:
            return None
        self.kept_bytes += size
        return self._storage.room(*shape)


class KeptRectangle:
    """K(rows, columns) @ weights again and again: all values are kept if the budget allows."""

    def __init__(self, inner: TiledOperator, budget: float) -> None:
        self.inner = inner
        self._storage = Storage(inner, None)
        size = len(inner.rows) * len(inner.columns) * self._storage.value_bytes
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
                memory = self._storage.room(len(inner.columns), part.stop - part.start)
                self._values[part.start] = memory
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
