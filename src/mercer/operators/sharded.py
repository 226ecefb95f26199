"""K over one set of points, shared out over the processes of a group.

Columns are dealt to the ranks in blocks (`deal.py`).  For the rows of a panel, a rank adds up the
products of its own blocks, and one collective adds the R l partial sums of all ranks.

The fixed block, the first s columns, is dealt by rows instead: a rank evaluates the tiles K[:s, rows] of
its own blocks of the panel, and these give their part of f and all of Z for these rows.

    rows of the panel x columns           who
    fixed block, but for the panel        the rank whose rows they are      f, Z
    blocks before the panel, kept         the rank whose columns they are   f
    blocks after the panel, if kept       the rank whose rows they are: what it kept, transposed
    blocks after the panel, otherwise     the rank whose columns they are   f
    the panel itself, K[panel, panel]     every rank: the steps need it

The steps of a panel change the weights of its own columns and of the fixed block, and no others.  So a
rank adds up the products of the next panel with all other columns while the sums of the present one are
on their way, and messages take time only where they take longer than that.  What is added up ahead, and
what after the steps, follows from the order of visits (`neighbours`) and from nothing else.

The points of a panel come from the ranks that hold them, if each holds only those of its own columns
(`data/dealt_points.py`).  Those of the next panel are sent while one is worked on.

All ranks have all weights and take the same steps.  Which tiles are evaluated, kept and multiplied
together does not depend on the number of ranks, and sums do not depend on their order (`exact_sums.py`),
so the weights are the same to the last bit for any number of ranks.  Products of some math libraries
round differently at other addresses of their operands, so all that has another place with another number
of ranks begins at the address of an allocation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mercer.data.dealt_points import AnyPoints, PanelPoints
from mercer.data.points import Points
from mercer.kernels.base import Kernel
from mercer.operators.base import PanelProducts
from mercer.operators.deal import Block, Deal, block_columns
from mercer.operators.exact_sums import ExactSums, Lane, in_one, largest_unit
from mercer.operators.summation import Job, Scratch, Tile, pieces

# Columns of the fixed block in one tile.
FIXED_COLUMNS = 512
# Kernel values are at most the largest k(x, x), but for rounding.
ROUNDING_ROOM = 2.0


@dataclass(frozen=True)
class KeptPanel:
    """What a rank keeps of K[:stop, rows] for the rows of one panel."""

    fixed: dict[int, Tensor]  # by first row: K[fixed block but for the panel, its own rows], (s', w)
    # By first column: K[a block of its own between the fixed block and the panel, rows], (w, R)
    before: dict[int, Tensor]
    own: Tensor  # (R, R)


@dataclass(frozen=True)
class Visited:
    """A panel that is being visited."""

    rows: slice
    points: Points  # (R, d)
    weights: Tensor  # (n, l)
    stop: int  # columns from here on have zero weights
    memory: KeptPanel | None  # where its tiles are kept
    read: bool  # they are there already
    before: slice | None  # the panel visited before it, whose weights change until then

    def is_late(self, panel: slice) -> bool:
        """Whether the weights of another panel may have changed since the one before was begun."""
        return panel == self.before


@dataclass(frozen=True)
class Ahead:
    """Sums for a panel over the columns that the steps of the one before it do not change."""

    panel: tuple[slice, int, slice | None]  # its rows and `stop`, and the panel before it
    unit: float  # the largest of its sums
    f_units: Tensor  # (n_units, l, R)


class ShardedSquare:
    """A square operator whose columns are shared out; keeps tiles up to `budget` bytes of all ranks."""

    def __init__(
        self,
        kernel: Kernel,
        points: AnyPoints,
        n_outputs: int,
        deal: Deal,
        basis: Tensor,
        budget: float = 0.0,
    ) -> None:
        self.kernel = kernel
        self.points = points
        self.basis = basis
        self.s, self.q = basis.shape
        self.deal = deal
        self._panels = {panel.start: panel for panel in deal.panels}
        self._views: dict[tuple[int, int], Points] = {}  # of the points, by columns
        self.budget = budget  # bytes that may be kept
        n, longest = len(points), max((_length(panel) for panel in deal.panels), default=1)
        device, dtype = points.device, points.dtype
        self._sums = ExactSums(device, dtype, longest, n_outputs)
        self._largest = ROUNDING_ROOM * points.largest(kernel.diagonal)
        # Workspaces, allocated once: fresh memory is slow memory.
        self._own = basis.new_empty(longest**2)
        size = n * self.q * basis.element_size()
        self._all_Z = basis.new_empty(n, self.q) if 0 < size <= budget else None
        self._Z_end = 0  # rows before it have their Z
        self._Z = basis.new_empty(longest, self.q)
        # Of all ranks, counted as if there were one: what is kept does not depend on their number.
        self.kept_bytes = size if self._all_Z is not None else 0
        self._kept: dict[int, KeptPanel] = {}  # by first row
        self.end = 0  # the rows before it are kept
        self._rectangle = ShardedRectangle(kernel, points, points, n_outputs, self.deal)
        self._arriving = PanelPoints(points)
        self._now: tuple[slice, Points] | None = None  # the panel that is being visited
        self._before: slice | None = None  # the panel visited before the one that will be asked for
        self._after: tuple[slice, int] | None = None  # the one after it, and its `stop`
        self._room: tuple[slice, KeptPanel] | None = None  # for the tiles of a panel not yet visited
        self._ahead: Ahead | None = None

    def times(self, weights: Tensor, rows: slice | None = None, columns: slice | None = None) -> Tensor:
        return self._rectangle.times(weights, rows, columns)

    def block(self, rows: slice, columns: slice) -> Tensor:
        a = self.points[rows]
        same = rows == columns
        return self.kernel.block(a, a if same else self.points[columns], same=same)

    def diagonal(self, rows: slice) -> Tensor:
        """Of a panel that is being visited, without asking other ranks for its points."""
        now = self._now
        return self.kernel.diagonal(now[1] if now is not None and now[0] == rows else self.points[rows])

    def neighbours(self, before: slice | None, after: tuple[slice, int] | None) -> None:
        """Tell which panel was visited before the one that `panel` will be called for, and which will be
        after it, with its `stop`."""
        self._before, self._after = before, after

    def panel(self, rows: slice, weights: Tensor, stop: int) -> PanelProducts:
        after, visited = self._after, self._visited(rows, weights, stop, self._before)
        self._before = self._after = None
        self._now = (rows, visited.points) if len(visited.points) == _length(rows) else None
        self._send_ahead(after)
        R, memory, group = _length(rows), visited.memory, self.deal.group
        own = self._own[: R * R].view(R, R) if memory is None else memory.own
        Z = self._Z[:R] if self._all_Z is None else self._all_Z[rows]
        known = not self.q or (self._all_Z is not None and rows.stop <= self._Z_end)
        if not known:
            Z.zero_()
        mine = self.deal.between(rows.start, rows.stop)
        bound = self._largest * float(weights.abs().sum(0).max())
        # While sums are on their way to the other ranks, each does what all have to do.
        f_units = self._sums.of(
            [self._rows_of(block, visited, None if known else Z) for block in mine], R, bound
        )  # (n_units, l, R)
        in_basis = rows.start < self.s
        if not visited.read and in_basis:
            self._evaluate_own(visited.points, own)
        if not known and in_basis:
            for block in mine:
                here = _within(block.columns, rows)
                Z[here].addmm_(own[here], self.basis[rows])  # (w, q)
        adding = [] if known else group.start_adding(Z)
        f_units += self._sums.of(self._columns(visited, late=True), R, bound)
        f_units += self._unchanged(visited, bound)
        adding += group.start_adding(f_units)
        if not visited.read and not in_basis:
            self._evaluate_own(visited.points, own)
        f_own = weights[rows].T @ own  # (l, R)
        if not visited.read and memory is not None:
            self._kept[rows.start] = memory
            self.end, self._room = rows.stop, None
        if after is not None:
            following = self._visited(after[0], weights, after[1], rows)
            self._ahead = Ahead(
                (*after, rows), largest_unit(bound), self._summed_ahead(following, bound)
            )
        group.finish(adding)
        f = in_one(f_units, own.dtype).add_(f_own).T  # (R, l)
        if self._all_Z is not None and rows.start == self._Z_end:
            self._Z_end = rows.stop
        return PanelProducts(f, own, Z)

    def _visited(self, rows: slice, weights: Tensor, stop: int, before: slice | None) -> Visited:
        kept = self._kept.get(rows.start)
        memory = self._room_for(rows) if kept is None else kept
        # Where all values are kept, no rank needs the points; but those that were sent have to be taken.
        evaluates = kept is None or stop > self.end
        needed = evaluates or self._arriving.sent(rows)
        points = self._arriving.of(rows) if needed else self.points[:0]
        return Visited(rows, points, weights, stop, memory, kept is not None, before)

    def _unchanged(self, visited: Visited, bound: float) -> Tensor:
        """The sums over columns whose weights did not change in the panel before, (n_units, l, R)."""
        ahead, self._ahead = self._ahead, None
        panel = visited.rows, visited.stop, visited.before
        if ahead is not None and (ahead.panel, ahead.unit) == (panel, largest_unit(bound)):
            return ahead.f_units
        return self._summed_ahead(visited, bound)

    def _summed_ahead(self, visited: Visited, bound: float) -> Tensor:
        rows = visited.rows
        lanes = [
            Lane(_within(block.columns, rows), self._transposed(block, visited, late=False))
            for block in self.deal.between(rows.start, rows.stop)
        ]
        return self._sums.of(lanes + self._columns(visited, late=False), _length(rows), bound)

    def _send_ahead(self, after: tuple[slice, int] | None) -> None:
        """Begin to send the points of the panel that comes next, if its values are to be evaluated."""
        if after is None:
            return
        rows, stop = after
        if rows.stop > self.s and (rows.start not in self._kept or self.end < stop):
            self._arriving.send(rows)

    def _evaluate_own(self, points: Points, own: Tensor) -> None:
        self.kernel.block(points, points, same=True, out=own)

    def _rows_of(self, block: Block, visited: Visited, Z: Tensor | None) -> Lane:
        """What the rank whose rows a block of the panel is does for them; computes their Z if given."""
        rows, weights, memory = visited.rows, visited.weights, visited.memory
        here = _within(block.columns, rows)
        points, jobs, place = self.points.own(block.columns), list[Job](), 0
        columns = None if memory is None else memory.fixed[block.columns.start]
        for c in self._fixed_columns(rows):
            part = None if columns is None else columns[place : place + _length(c)]  # (t, w)
            tile = self._tile(c, points, part, visited.read)
            if Z is None:
                jobs.append(tile.times(weights))
            else:
                jobs.append(_with_Z(tile, weights, self.basis[c], Z[here]))
            place += _length(c)
        return Lane(here, jobs + self._transposed(block, visited, late=True))

    def _transposed(self, block: Block, visited: Visited, late: bool) -> list[Job]:
        """Products of a block of the panel's rows with later columns that its rank keeps: K[later panel,
        rows] is the transpose of what was kept when that was visited."""
        jobs: list[Job] = []
        if block.columns.start < self.s:
            return jobs
        for start, later in self._kept.items():
            panel = self._panels[start]
            if max(visited.rows.stop, self.s) <= start < visited.stop and visited.is_late(panel) == late:
                tile = Tile.known(panel, later.before[block.columns.start].T)
                jobs.append(tile.times(visited.weights))
        return jobs

    def _columns(self, visited: Visited, late: bool) -> list[Lane]:
        """What the rank whose columns blocks are does for all rows of the panel."""
        rows, memory = visited.rows, visited.memory
        lanes: dict[int, list[Job]] = {}
        for block in self.deal.between(self.s, rows.start):
            if visited.is_late(block.panel) != late:
                continue
            part = None if memory is None else memory.before[block.columns.start]  # (w, R)
            tile = self._tile(block.columns, visited.points, part, visited.read)
            lanes.setdefault(block.lane, []).append(tile.times(visited.weights))
        for block in self.deal.between(max(rows.stop, self.s), visited.stop):
            start = block.columns.start
            if visited.is_late(block.panel) != late:
                continue
            if start >= self.end:
                tile = self._tile(block.columns, visited.points)
            elif rows.start < self.s:
                fixed = self._kept[block.panel.start].fixed[start]  # (s, w)
                tile = Tile.known(block.columns, fixed[rows].T)
            else:
                continue  # it is kept by the rank whose rows these are
            lanes.setdefault(block.lane, []).append(tile.times(visited.weights))
        return [Lane(slice(0, _length(rows)), jobs) for jobs in lanes.values()]

    def _fixed_columns(self, rows: slice) -> list[slice]:
        """The fixed block, but for the panel itself, in pieces."""
        before, after = min(rows.start, self.s), min(rows.stop, self.s)
        return pieces(0, before, FIXED_COLUMNS) + pieces(after, self.s, FIXED_COLUMNS)

    def _tile(
        self, columns: slice, rows: Points, memory: Tensor | None = None, read: bool = False
    ) -> Tile:
        """K[columns, rows] as it is in `memory`, or to be evaluated there or in scratch memory."""
        if read and memory is not None:
            return Tile.known(columns, memory)
        points = self._views.get((columns.start, columns.stop))
        if points is None:
            points = self._views[columns.start, columns.stop] = self.points.own(columns)
        shape = (len(points), len(rows))

        def values(scratch: Scratch) -> Tensor:
            out = scratch.shaped(*shape) if memory is None else memory
            return self.kernel.block(points.aligned(), rows, out=out)

        return Tile(columns, values)

    def _room_for(self, rows: slice) -> KeptPanel | None:
        """Memory for the tiles of these rows, if they are next and the budget has room."""
        if self._room is not None and self._room[0] == rows:
            return self._room[1]
        R, new = _length(rows), self.basis.new_empty
        size = max(rows.stop, self.s) * R * self.basis.element_size()
        if rows.start != self.end or self.kept_bytes + size > self.budget:
            return None
        self.kept_bytes += size
        height = sum(_length(c) for c in self._fixed_columns(rows))
        mine, before = (self.deal.between(*c) for c in ((rows.start, rows.stop), (self.s, rows.start)))
        room = KeptPanel(
            {block.columns.start: new(height, len(block)) for block in mine},
            {block.columns.start: new(len(block), R) for block in before},
            new(R, R),
        )
        self._room = rows, room
        return room


class ShardedRectangle:
    """K(rows, columns) @ weights, the columns shared out; its values are kept if the budget allows.

    All ranks see the rows, part by part.
    """

    def __init__(
        self,
        kernel: Kernel,
        rows: AnyPoints,
        columns: AnyPoints,
        n_outputs: int,
        deal: Deal,
        budget: float = 0.0,
    ) -> None:
        self.kernel = kernel
        self.rows = rows
        self.columns = columns
        self.deal = deal
        width = 4 * block_columns(columns.device)
        self._parts = pieces(0, len(rows), width)
        longest = max((_length(part) for part in self._parts), default=1)
        self._sums = ExactSums(columns.device, columns.dtype, longest, n_outputs)
        self._largest = ROUNDING_ROOM * max(p.largest(kernel.diagonal) for p in (rows, columns))
        size = len(rows) * len(columns) * columns.dtype.itemsize
        self.kept_bytes = size if size <= budget else 0  # of all ranks
        self._values: dict[tuple[int, int], Tensor] = {}  # by first row and column of a tile

    def times(self, weights: Tensor, rows: slice | None = None, columns: slice | None = None) -> Tensor:
        columns = slice(0, len(self.columns)) if columns is None else columns
        keeps = bool(self.kept_bytes) and rows is None
        parts = self._parts
        if rows is not None:
            parts = pieces(rows.start, rows.stop, _length(self._parts[0]) if self._parts else 1)
        bound = self._largest * float(weights[columns].abs().sum(0).max()) if len(weights) else 0.0
        found = [self._product(weights, part, columns, keeps, bound) for part in parts]
        if not found:
            return weights.new_zeros(0, weights.shape[1])
        units = torch.cat(found, 2)  # (n_units, l, rows)
        self.deal.group.add(units)
        return in_one(units, weights.dtype).T.contiguous()

    def block(self, rows: slice, columns: slice) -> Tensor:
        return self.kernel.block(self.rows[rows], self.columns[columns])

    def diagonal(self, rows: slice) -> Tensor:
        return self.kernel.diagonal(self.rows[rows])

    def _product(
        self, weights: Tensor, part: slice, columns: slice, keeps: bool, bound: float
    ) -> Tensor:
        """The sums of this rank for some rows, (n_units, l, R)."""
        points, lanes = self.rows[part].aligned(), dict[int, list[Job]]()
        for block in self.deal.own:
            first = max(block.columns.start, columns.start)
            here = slice(first, min(block.columns.stop, columns.stop))
            if here.start < here.stop:
                tile = self._tile(here, points, part, keeps and here == block.columns)
                lanes.setdefault(block.lane, []).append(tile.times(weights))
        every = slice(0, _length(part))
        return self._sums.of([Lane(every, jobs) for jobs in lanes.values()], _length(part), bound)

    def _tile(self, columns: slice, rows: Points, part: slice, keeps: bool) -> Tile:
        key = part.start, columns.start
        known = self._values.get(key) if keeps else None
        if known is not None:
            return Tile.known(columns, known)
        points, shape = self.columns.own(columns), (_length(columns), len(rows))
        memory = rows.squared_norms.new_empty(shape) if keeps else None

        def values(scratch: Scratch) -> Tensor:
            out = scratch.shaped(*shape) if memory is None else memory
            return self.kernel.block(points.aligned(), rows, out=out)

        if memory is not None:
            self._values[key] = memory
        return Tile(columns, values)


def _with_Z(tile: Tile, weights: Tensor, basis: Tensor, Z: Tensor) -> Job:
    """Adds K[rows, columns] weights to the sum, and K[rows, columns] basis to Z, (w, q)."""
    weights_t = weights[tile.columns].T  # (l, t)

    def job(total: Tensor, scratch: Scratch) -> None:
        K = tile.values(scratch)  # (t, w)
        total.addmm_(weights_t, K)  # (l, w)
        Z.addmm_(K.T, basis)

    return job


def _length(rows: slice) -> int:
    return int(rows.stop - rows.start)


def _within(columns: slice, rows: slice) -> slice:
    """The columns of a panel, counted from its beginning."""
    return slice(columns.start - rows.start, columns.stop - rows.start)
