"""K by tiles: each tile is evaluated in a core's cache, multiplied, and forgotten."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mercer.data.points import Points
from mercer.kernels.base import Kernel
from mercer.operators.base import PanelProducts
from mercer.operators.summation import AnyTile, Scratch, Summation, Tile, pieces, shaped, tile_elements

# Rows evaluated together: matrix products of so many rows run at full rate, in floats and in bytes.
CPU_PANEL_ROWS = 1_024
DEVICE_PANEL_ROWS = 4_096


def panel_rows(device: torch.device) -> int:
    """Rows that are best evaluated together on a device."""
    return CPU_PANEL_ROWS if device.type == "cpu" else DEVICE_PANEL_ROWS


class TiledOperator:
    """K(rows, columns), evaluated anew for every product.

    Parameters
    ----------
    n_outputs : columns of the weights that it is multiplied by
    rows_at_once : rows evaluated together; None for what suits the device
    cuts : columns at which tiles should begin
    tile_size : elements of a tile; None for what suits the device
    basis : (s, q), for `panel`: K[rows, :s] @ basis is computed from the same tiles
    """

    def __init__(
        self,
        kernel: Kernel,
        rows: Points,
        columns: Points,
        n_outputs: int,
        *,
        rows_at_once: int | None = None,
        cuts: Sequence[int] = (),
        basis: Tensor | None = None,
        tile_size: int | None = None,
    ) -> None:
        self.kernel = kernel
        self.rows = rows
        self.columns = columns
        device = columns.device
        self.basis = columns.squared_norms.new_empty(0, 0) if basis is None else basis
        self.s, q = self.basis.shape
        self.rows_at_once = rows_at_once or max(1, min(panel_rows(device), len(rows)))
        width = max(1, (tile_size or tile_elements(device)) // self.rows_at_once)
        self._pieces = column_pieces(len(columns), cuts, self.s, width)
        self._views = {(c.start, c.stop): columns[c] for c in self._pieces}
        # Workspaces, allocated once: fresh memory is slow memory.
        self.summation = Summation(device, columns.dtype, self.rows_at_once, n_outputs)
        self._own = self.basis.new_empty(self.rows_at_once**2 if self.s or cuts else 0)
        # One for each piece of the fixed block, and for what an own block inside it cuts off.
        in_block = sum(c.stop <= self.s for c in self._pieces) + 2 if q else 0
        self._Z_parts = self.basis.new_empty(in_block, self.rows_at_once, q)
        self._Z = self.basis.new_empty(self.rows_at_once, q)

    def times(self, weights: Tensor, rows: slice | None = None, columns: slice | None = None) -> Tensor:
        columns = slice(0, len(self.columns)) if columns is None else columns
        parts = []
        for part in self.row_parts(rows):
            tiles = self.tiles(self.rows[part], columns)
            parts.append(self.summation.of([tile.times(weights) for tile in tiles], _length(part)))
        return torch.cat(parts) if parts else weights.new_zeros(0, weights.shape[1])

    def block(self, rows: slice, columns: slice) -> Tensor:
        same = self.rows is self.columns and rows == columns
        points = self.rows[rows]
        return self.kernel.block(points, points if same else self.columns[columns], same=same)

    def diagonal(self, rows: slice) -> Tensor:
        return self.kernel.diagonal(self.rows[rows])

    def panel(self, rows: slice, weights: Tensor, stop: int) -> PanelProducts:
        points, own = self.rows[rows], self.own_memory(rows)
        tiles = [
            self.tile(points, c, own if c == rows else None, same=c == rows)
            for c in self.columns_up_to(rows)
        ]
        tiles += self.tiles(points, slice(max(rows.stop, self.s), stop))
        return self.collect(rows, tiles, weights, own, self.Z_memory(rows))

    # What a wrapper that remembers tiles builds on.

    def row_parts(self, rows: slice | None) -> list[slice]:
        """The rows, all by default, in parts that are evaluated together."""
        rows = slice(0, len(self.rows)) if rows is None else rows
        starts = range(rows.start, rows.stop, self.rows_at_once)
        return [slice(i, min(i + self.rows_at_once, rows.stop)) for i in starts]

    def own_memory(self, rows: slice) -> Tensor:
        """Workspace for K[rows, rows]."""
        R = _length(rows)
        if len(self._own) < R * R:
            self._own = self._own.new_empty(R * R)
        return shaped(self._own, R, R)

    def Z_memory(self, rows: slice) -> Tensor:
        """Workspace for K[rows, :s] @ basis."""
        return self._Z[: _length(rows)]

    def tile(
        self, rows: Points, columns: slice, memory: Tensor | None = None, same: bool = False
    ) -> Tile:
        """K[columns, rows], to be evaluated in `memory` or, without it, in scratch memory."""
        known = self._views.get((columns.start, columns.stop))
        points = rows if same else self.columns[columns] if known is None else known
        shape = (len(points), len(rows))

        def values(scratch: Scratch) -> Tensor:
            out = scratch.shaped(*shape) if memory is None else memory
            return self.kernel.block(points, rows, same=same, out=out)

        return Tile(columns, values)

    def tiles(self, rows: Points, columns: slice, memory: Tensor | None = None) -> list[Tile]:
        """Tiles that cover the columns; each is written to its part of `memory`, (n, R), if given."""
        return [
            self.tile(rows, c, None if memory is None else memory[c])
            for c in self.between(columns.start, columns.stop)
        ]

    def columns_up_to(self, rows: slice) -> list[slice]:
        """Column pieces up to the end of the rows or of the basis; the rows are one of them."""
        return [*self.between(0, rows.start), rows, *self.between(rows.stop, self.s)]

    def between(self, start: int, stop: int) -> list[slice]:
        """The column pieces from start to stop, cut to fit."""
        cut = [slice(max(c.start, start), min(c.stop, stop)) for c in self._pieces]
        return [c for c in cut if c.start < c.stop]

    def collect(
        self,
        rows: slice,
        tiles: Sequence[AnyTile],
        weights: Tensor,
        own: Tensor,
        Z: Tensor,
        known: bool = False,
    ) -> PanelProducts:
        """Sum the products of the tiles; Z is computed on the way unless it is `known`."""
        R, jobs, n_parts = _length(rows), [], 0
        for tile in tiles:
            if not known and Z.shape[1] and tile.columns.stop <= self.s:
                jobs.append(tile.times(weights, self.basis[tile.columns], self._Z_parts[n_parts, :R]))
                n_parts += 1
            else:
                jobs.append(tile.times(weights))
        f = self.summation.of(jobs, R)  # (R, l)
        if not known and Z.shape[1]:
            torch.sum(self._Z_parts[:n_parts, :R], 0, out=Z)
        return PanelProducts(f, own, Z)


def _length(rows: slice) -> int:
    return int(rows.stop - rows.start)


def column_pieces(n: int, cuts: Sequence[int], s: int, width: int) -> list[slice]:
    """The columns, cut at some of the cuts: a long part into several pieces, short ones joined.

    No piece crosses column s.
    """
    edges = sorted({0, n, *(cut for cut in cuts if 0 < cut < n), *((s,) if 0 < s < n else ())})
    found: list[slice] = []
    start = 0
    for edge, following in zip(edges[1:], [*edges[2:], n], strict=True):
        if edge in (n, s) or following - start > width:
            found += pieces(start, edge, width)
            start = edge
    return found
