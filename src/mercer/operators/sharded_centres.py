"""K between rows and fewer centres, shared out over the processes of a group.

The columns are those of `to_centres.py`: the centres, whose first s carry the basis, and the rows of the
panels visited since they were last cleared.  All are dealt to the ranks in blocks (`deal.py`).

    products                             who
    K(panel, columns) weights, basis     the rank whose columns they are; one collective adds them
    K(centres, panel) changes            the rank whose columns they are; `complete` joins the parts
    the panel itself, K(panel, panel)    every rank: the steps need it

All ranks hold the centres, and each the temporary centres of its own blocks.  A block and the order in
which products are added within a lane do not depend on the number of ranks, and lanes are added exactly
(`exact_sums.py`), so results are the same to the last bit for any number of ranks.

For equations that are solved at once, rows are dealt instead: each rank evaluates K(centres, its rows).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from mercer.data.dealt_points import AnyPoints, PanelPoints
from mercer.data.points import Points
from mercer.data.rows import as_integers
from mercer.data.streams import StreamedPoints
from mercer.kernels.base import Kernel
from mercer.operators.base import PanelProducts
from mercer.operators.deal import LANES, Block, Deal, block_columns
from mercer.operators.exact_sums import ExactSums, Lane, in_one
from mercer.operators.sharded import ROUNDING_ROOM, ShardedRectangle
from mercer.operators.summation import Job, Scratch, Tile, pieces, shaped


class ShardedCentres:
    """Products of rows with centres and temporary centres, the columns shared out.

    Parameters
    ----------
    rows : of which each rank may hold only those of its blocks in `row_deal`, or a stream of all of them
    centres : all of them, on every rank
    deal : of the centres
    row_deal : of the rows, for `own_parts`
    basis : (s, q), on the first s centres
    rows_at_once : rows of the longest panel
    """

    def __init__(
        self,
        kernel: Kernel,
        rows: AnyPoints | StreamedPoints,
        centres: Points,
        n_outputs: int,
        deal: Deal,
        row_deal: Deal,
        *,
        basis: Tensor,
        rows_at_once: int,
    ) -> None:
        self.kernel = kernel
        self.rows = rows
        self.centres = centres
        self.deal = deal
        self.row_deal = row_deal
        self.basis = basis
        self.n_temporary = 0
        self._temporary: list[tuple[int, slice, Points]] = []  # lanes, columns and points of this rank
        self._n_blocks = deal.n_blocks  # with those of all temporary centres
        self.rows_at_once = rows_at_once
        self._largest_centre = centres.largest(kernel.diagonal)
        self._largest = self._largest_centre  # k(x, x) of all columns and of the panel
        self._arriving = PanelPoints(rows)
        self._next: slice | None = None  # the panel after the one that will be asked for, if known
        self._columns = {block.columns.start: centres[block.columns].aligned() for block in deal.own}
        # Workspaces, allocated once.  K(a block of its own, panel), each at an address of its own.
        self._memory = {
            block.columns.start: basis.new_empty(len(block) * rows_at_once) for block in deal.own
        }
        self._own = basis.new_empty(rows_at_once**2)
        s, q = basis.shape
        parts = (centres.device, centres.dtype, rows_at_once)
        self._sums = ExactSums(*parts, n_outputs)
        self._Z_sums = ExactSums(*parts, q) if q else None
        self._basis_bound = float(basis.abs().sum(0).max()) if q else 0.0
        self._in_basis = [block for block in deal.own if block.columns.stop <= s]
        self._panel = centres[:0]

    def clear(self) -> None:
        """Forget the temporary centres."""
        self._temporary, self.n_temporary, self._n_blocks = [], 0, self.deal.n_blocks
        self._largest = self._largest_centre

    def neighbours(self, before: slice | None, after: tuple[slice, int] | None) -> None:
        """Tell which panel follows the one that `panel` will be called for."""
        self._next = None if after is None else after[0]

    def panel(self, rows: slice, weights: Tensor, stop: int) -> PanelProducts:
        """The products of a panel; its rows become temporary centres, of weights that are still 0."""
        points, group = self._arriving.of(rows), self.deal.group
        if self._next is not None:
            self._arriving.send(self._next)
            self._next = None
        R = len(points)
        self._panel = points
        self._largest = max(self._largest, points.largest(self.kernel.diagonal))
        lanes: dict[int, list[Job]] = {}
        for block in self.deal.own:
            tile = self._tile(block.columns, self._columns[block.columns.start], points, block)
            lanes.setdefault(block.lane, []).append(tile.times(weights))
        for lane, columns, others in self._temporary:
            lanes.setdefault(lane, []).append(self._tile(columns, others, points).times(weights))
        # While sums are on their way to the other ranks, each does what all have to do.
        f_units = self._sums.of(_lanes(lanes.values(), R), R, self._bound(weights))
        adding = group.start_adding(f_units)
        Z = self.basis.new_empty(R, 0)
        if self._Z_sums is not None:
            jobs = [[self._known(block, R).times(self.basis)] for block in self._in_basis]
            bound = ROUNDING_ROOM * self._largest * self._basis_bound
            Z_units = self._Z_sums.of(_lanes(jobs, R), R, bound)  # (n_units, q, R)
            adding += group.start_adding(Z_units)
        own = self._own[: R * R].view(R, R)
        self.kernel.block(points, points, same=True, out=own)
        self._make_temporary(points)
        group.finish(adding)
        if self._Z_sums is not None:
            Z = in_one(Z_units, self.basis.dtype).T.contiguous()  # (R, q)
        return PanelProducts(in_one(f_units, own.dtype).T, own, Z)

    def transposed(self, changes: Tensor) -> Tensor:
        """K(centres, rows of the last panel) @ changes, (p, k): of this rank's centres, else 0."""
        found = changes.new_zeros(len(self.centres), changes.shape[1])
        changes_t, R = changes.T.contiguous(), len(changes)  # (k, R)

        def work(i: int, worker: int) -> None:
            block = self.deal.own[i]
            K = shaped(self._memory[block.columns.start], len(block), R)  # (w, R)
            found[block.columns] = (changes_t @ K.T).T

        self._sums.workers.run(work, len(self.deal.own))
        return found

    def complete(self, sums: Tensor) -> None:
        """Replace sums of what `transposed` gave by those of all ranks, (p, k)."""
        self.deal.group.add(as_integers(sums))  # each to zeros, so their bits do not change

    def own_parts(self, rows: slice) -> list[slice]:
        """Of the rows of a panel, those that this rank evaluates with all centres."""
        return [block.columns for block in self.row_deal.between(rows.start, rows.stop)]

    def values(self, rows: slice) -> Tensor:
        """K(centres, some rows of this rank), (p, R)."""
        own = self.rows[rows] if isinstance(self.rows, StreamedPoints) else self.rows.own(rows)
        points, p = own.aligned(), len(self.centres)
        found = self.basis.new_empty(p, len(points))
        parts = pieces(0, p, block_columns(self.centres.device))

        def work(i: int, worker: int) -> None:
            self.kernel.block(self.centres[parts[i]], points, out=found[parts[i]])

        self._sums.workers.run(work, len(parts))
        return found

    def times(self, weights: Tensor, rows: slice | None = None, columns: slice | None = None) -> Tensor:
        """K(rows, centres) @ weights of the centres, (R, l)."""
        rows = slice(0, len(self.rows)) if rows is None else rows
        columns = slice(0, len(self.centres)) if columns is None else columns
        found = []
        for part in pieces(rows.start, rows.stop, self.rows_at_once):
            points = self.rows[part].aligned()
            every = ShardedRectangle(self.kernel, points, self.centres, weights.shape[1], self.deal)
            found.append(every.times(weights, columns=columns))
        return torch.cat(found)

    def block(self, rows: slice, columns: slice) -> Tensor:
        return self.kernel.block(self.rows[rows], self.centres[columns])

    def diagonal(self, rows: slice) -> Tensor:
        """Of the rows of the last panel."""
        return self.kernel.diagonal(self._panel)

    def _bound(self, weights: Tensor) -> float:
        """On the absolute value of any sum of products with some of the columns."""
        return ROUNDING_ROOM * self._largest * float(weights.abs().sum(0).max())

    def _tile(self, columns: slice, others: Points, rows: Points, kept: Block | None = None) -> Tile:
        """K[columns, rows] to be evaluated in the memory of a block or in scratch memory."""
        shape = (len(others), len(rows))

        def values(scratch: Scratch) -> Tensor:
            if kept is None:
                out = scratch.shaped(*shape)
            else:
                out = shaped(self._memory[kept.columns.start], *shape)
            return self.kernel.block(others, rows, out=out)

        return Tile(columns, values)

    def _known(self, block: Block, R: int) -> Tile:
        """K[a block, rows of the last panel], which was evaluated."""
        return Tile.known(block.columns, shaped(self._memory[block.columns.start], len(block), R))

    def _make_temporary(self, points: Points) -> None:
        """The rows of a panel become columns, dealt like the centres."""
        first, group = len(self.centres) + self.n_temporary, self.deal.group
        for c in pieces(0, len(points), block_columns(points.device)):
            lane = self._n_blocks % LANES
            self._n_blocks += 1
            if lane % group.size == group.rank:
                columns = slice(first + c.start, first + c.stop)
                self._temporary.append((lane, columns, points[c].copied()))
        self.n_temporary += len(points)


def _lanes(jobs: Iterable[list[Job]], rows: int) -> list[Lane]:
    """Lanes of products for all rows."""
    return [Lane(slice(0, rows), of_lane) for of_lane in jobs]
