"""K between rows and fewer centres, and the rows of a few panels as temporary centres.

    columns 0 .. p-1         the centres, the first s of which carry the basis
    columns p .. p+w-1       temporary centres: rows of the panels visited since they were last cleared

A panel's rows are evaluated once.  Their values are kept until the next panel, because descent needs
K(panel, centres) before it knows the residual, and K(centres, panel) times what it did to the weights
afterwards.  Those of the first panels visited are kept for all epochs while a budget lasts, as they were
evaluated, so that the sums have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mercer.data.points import Points
from mercer.data.streams import StreamedPoints
from mercer.kernels.base import Kernel
from mercer.operators.base import PanelProducts
from mercer.operators.storage import Storage
from mercer.operators.summation import Scratch, Tile, pieces, shaped, tile_elements
from mercer.operators.tiled import TiledOperator, panel_rows

# Rows of a panel that is descended on, where there are fewer centres: fewer rows would take as long.
FEWEST_AT_ONCE = 128


def rows_with_centres(p: int, device: torch.device) -> int:
    """Rows that are best evaluated together with p centres: steps need their own values, too."""
    return min(panel_rows(device), max(p, FEWEST_AT_ONCE))


class CentresOperator:
    """Products of rows with centres and temporary centres.

    Parameters
    ----------
    rows, centres : points; `rows[slice]` are prepared points, which may be read when they are asked for
    n_outputs : columns of the weights
    basis : (s, q), on the first s centres
    rows_at_once : rows of the longest panel
    kept_rows : rows whose values with all centres are kept until the next panel, at most
    budget : bytes for values that are kept from epoch to epoch
    """

    def __init__(
        self,
        kernel: Kernel,
        rows: Points | StreamedPoints,
        centres: Points,
        n_outputs: int,
        *,
        basis: Tensor,
        rows_at_once: int,
        kept_rows: int,
        budget: float = 0.0,
    ) -> None:
        self.kernel = kernel
        self.rows = rows
        self.centres = centres
        # Its rows are those of a panel, given to `tiles` as points; the centres stand in for them.
        self._tiled = TiledOperator(
            kernel, centres, centres, n_outputs, rows_at_once=rows_at_once, basis=basis
        )
        self._width = max(1, tile_elements(centres.device) // rows_at_once)
        self._temporary: list[tuple[slice, Points]] = []  # pieces of columns, and the points there
        self.n_temporary = 0
        self._memory = basis.new_empty(len(centres) * min(kept_rows, rows_at_once))
        self._values: Tensor | None = None  # (p, R)  of the last panel
        self._panel: Points | None = None
        self._storage = Storage(self._tiled, None)
        self._left = budget  # bytes
        self._kept: dict[int, Tensor] = {}  # by first row: K(centres, panel), (p, R)

    def clear(self) -> None:
        """Forget the temporary centres."""
        self._temporary, self.n_temporary = [], 0

    def panel(self, rows: slice, weights: Tensor, stop: int) -> PanelProducts:
        """The products of a panel; its rows become temporary centres, of weights that are still 0."""
        tiled, p = self._tiled, len(self.centres)
        points = self.rows[rows]
        R, first = len(points), p + self.n_temporary
        local = slice(0, R)
        own = tiled.own_memory(local)
        self._panel = points
        self._values, room = self._kept.get(rows.start), None
        if self._values is not None:  # cut as if they were evaluated, so that the sums round alike
            tiles = [Tile.known(c, self._values[c]) for c in tiled.between(0, p)]
        else:
            room = self._room_to_keep(R)
            fits = p * R <= len(self._memory)
            self._values = shaped(self._memory, p, R) if room is None and fits else room
            tiles = tiled.tiles(points, slice(0, p), self._values)
        tiles += [self._tile(points, columns, others) for columns, others in self._temporary]
        slot = slice(first, first + R)
        tiles.append(Tile(slot, self._evaluated(points, points, own, same=True)))
        for c in pieces(0, R, self._width):
            self._temporary.append((slice(first + c.start, first + c.stop), points[c]))
        self.n_temporary += R
        found = tiled.collect(local, tiles, weights, own, tiled.Z_memory(local))
        if room is not None:  # only now it is filled
            self._kept[rows.start] = room
            self._left -= room.nbytes
        return found

    def _room_to_keep(self, R: int) -> Tensor | None:
        """Memory for K(centres, panel), (p, R), to be kept for all epochs, if the budget has room."""
        size = len(self.centres) * R * self._storage.value_bytes
        return self._storage.room(len(self.centres), R) if size <= self._left else None

    def transposed(self, changes: Tensor) -> Tensor:
        """K(centres, rows of the last panel) @ changes, (p, k), for changes (R, k)."""
        assert self._panel is not None
        parts, points, values = self._tiled.between(0, len(self.centres)), self._panel, self._values
        found = changes.new_empty(len(self.centres), changes.shape[1])
        changes_t = changes.T.contiguous()  # (k, R)

        def work(i: int, worker: int) -> None:
            c = parts[i]
            K = self.kernel.block(self.centres[c], points) if values is None else values[c]  # (t, R)
            found[c] = (changes_t @ K.T).T

        self._tiled.summation.workers.run(work, len(parts))
        return found

    def complete(self, sums: Tensor) -> None:
        """Complete sums of what `transposed` gave, (p, k), which here are complete."""

    def own_parts(self, rows: slice) -> list[slice]:
        """Of the rows of a panel, those that this process evaluates with all centres, in parts."""
        return [rows]

    def values(self, rows: slice) -> Tensor:
        """K(centres, rows), (p, R), until the next panel."""
        points, parts = self.rows[rows], self._tiled.between(0, len(self.centres))
        found = shaped(self._memory, len(self.centres), len(points))

        def work(i: int, worker: int) -> None:
            c = parts[i]
            self.kernel.block(self.centres[c], points, out=found[c])

        self._tiled.summation.workers.run(work, len(parts))
        return found

    def times(self, weights: Tensor, rows: slice | None = None, columns: slice | None = None) -> Tensor:
        """K(rows, centres) @ weights of the centres, (R, l)."""
        rows = slice(0, len(self.rows)) if rows is None else rows
        columns = slice(0, len(self.centres)) if columns is None else columns
        tiled, parts = self._tiled, []
        for first in range(rows.start, rows.stop, tiled.rows_at_once):
            points = self.rows[slice(first, min(first + tiled.rows_at_once, rows.stop))]
            jobs = [tile.times(weights) for tile in tiled.tiles(points, columns)]
            parts.append(tiled.summation.of(jobs, len(points)))
        return torch.cat(parts)

    def block(self, rows: slice, columns: slice) -> Tensor:
        return self.kernel.block(self.rows[rows], self.centres[columns])

    def diagonal(self, rows: slice) -> Tensor:
        """Of the rows of the last panel."""
        assert self._panel is not None
        return self.kernel.diagonal(self._panel)

    def _tile(self, rows: Points, columns: slice, others: Points) -> Tile:
        return Tile(columns, self._evaluated(others, rows, None))

    def _evaluated(
        self, points: Points, rows: Points, memory: Tensor | None, same: bool = False
    ) -> Callable[[Scratch], Tensor]:
        def values(scratch: Scratch) -> Tensor:
            out = scratch.shaped(len(points), len(rows)) if memory is None else memory
            return self.kernel.block(points, rows, same=same, out=out)

        return values
