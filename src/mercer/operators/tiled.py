"""Kernel-matrix products by tiles: K(A, C) @ W without ever holding all of K(A, C).

A tile is a block of K small enough to stay in a core's cache while the kernel's elementwise passes run
over it and the product with W reads it.  It holds K[columns, rows], because W^T (l, t) times a tile
(t, R) as it lies in memory runs up to three times as fast as a tile times W.  Tiles are shared out over
the cores in chunks; every chunk has its own sum, and these are added in a fixed order, so that results
do not depend on which core did what.

Training needs K over its own points, which is symmetric, so three exact savings apply.

- *Panels.*  Kernel values do not depend on weights, so the rows of several batches are evaluated
  together, in tiles of a good shape whatever the batch.  Within the panel only the weights of its own
  rows and of the fixed block x_r change: for the first K[panel, panel] is at hand, for the second
  Z = Phi V, through which the step sees the fixed block (`iteration.py`).
- *The triangular first epoch.*  A point that no batch has visited has weight zero: columns beyond the
  panel are skipped.
- *Kept tiles.*  K[panel, :panel.stop] from the first epoch is kept while the memory budget lasts; later
  epochs read it, and read it transposed for the other half.  What does not fit is evaluated again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor

from mercer.data.points import Points
from mercer.kernels import Kernel
from mercer.operators.workers import workers_for

Item = TypeVar("Item")
TileSource = Callable[["Scratch"], Tensor]  # K[columns, rows], (t, R), given scratch memory for it
Job = Callable[[Tensor, "Scratch"], None]  # adds a product to its sum, (l, R), given scratch memory

# Elements in a tile on a CPU: 2 MB of float32, in the cache of one core.  Smaller tiles pay more for
# calls and for packing matrices than they gain.  A device with its own memory prefers few launches.
CPU_TILE_ELEMENTS = 1 << 19
DEVICE_TILE_ELEMENTS = 1 << 24
# Rows evaluated together: matrix products of so many rows run at full rate, in floats and in bytes.
CPU_PANEL_ROWS = 1_024
DEVICE_PANEL_ROWS = 4_096
# Columns of kept values read by one product.
READ_COLUMNS = 2_048
# Matrix libraries work in groups of this many columns; a few more are as fast as fewer.
COLUMN_GROUP = 16


def tile_elements(device: torch.device) -> int:
    return CPU_TILE_ELEMENTS if device.type == "cpu" else DEVICE_TILE_ELEMENTS


def panel_rows(device: torch.device) -> int:
    return CPU_PANEL_ROWS if device.type == "cpu" else DEVICE_PANEL_ROWS


def by_output(weights: Tensor) -> Tensor:
    """The same weights, (n, l), laid out so that those of one output lie together."""
    return weights.T.contiguous().T


class Scratch:
    """Memory of one worker, as a matrix of any shape.  Views are remembered: every call of torch from
    one of several threads costs as much as a thousand kernel values."""

    def __init__(self, memory: Tensor) -> None:
        self._memory = memory
        self._views: dict[tuple[int, int], Tensor] = {}

    def shaped(self, rows: int, columns: int) -> Tensor:
        view = self._views.get((rows, columns))
        if view is None:
            view = self._views[rows, columns] = _shaped(self._memory, rows, columns)
        return view


def _shaped(memory: Tensor, rows: int, columns: int) -> Tensor:
    return memory[: rows * columns].view(rows, columns)


class Summation:
    """Sums of the products of many tiles, made by all cores; workspaces are made once."""

    def __init__(self, device: torch.device, dtype: torch.dtype, rows: int, n_outputs: int) -> None:
        self.workers = workers_for(device)
        self.n_outputs = n_outputs
        size = max(rows, tile_elements(device))
        memory = torch.empty(self.workers.count, size, dtype=dtype, device=device)
        self._scratch = [Scratch(memory[i]) for i in range(self.workers.count)]
        self._sums = memory.new_empty(0, n_outputs, rows)  # (chunks, l, rows)

    def of(self, jobs: Sequence[Job], rows: int) -> Tensor:
        """The sum that the jobs add to, (rows, l)."""
        chunks = guided(jobs, self.workers.count)
        if len(chunks) > len(self._sums):
            self._sums = self._sums.new_empty(len(chunks), *self._sums.shape[1:])
        sums = self._sums[: len(chunks), :, :rows].zero_()

        def work(i: int, worker: int) -> None:
            for job in chunks[i]:
                job(sums[i], self._scratch[worker])

        self.workers.run(work, len(chunks))
        return sums.sum(0).T.contiguous()


def guided(items: Sequence[Item], workers: int) -> list[Sequence[Item]]:
    """Consecutive chunks, each half a worker's share of what is left: large at first, single at the end.

    >>> [len(chunk) for chunk in guided(range(16), 2)]
    [4, 3, 3, 2, 1, 1, 1, 1]
    """
    chunks: list[Sequence[Item]] = []
    first = 0
    while first < len(items):
        size = len(items) if workers == 1 else -(-(len(items) - first) // (2 * workers))
        chunks.append(items[first : first + size])
        first += size
    return chunks


def pieces(start: int, stop: int, width: int) -> list[slice]:
    """Contiguous slices of at most `width`, of even sizes."""
    count = -(-(stop - start) // width)
    edges = [start + (stop - start) * i // max(count, 1) for i in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


def kernel_times(
    kernel: Kernel,
    a: Points,
    centres: Points,
    weights: Tensor,
    on_progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """K(a, centres) @ weights, (len(a), l); `on_progress` gets rows done and rows in all."""
    device = weights.device
    groups = min(panel_rows(device) // COLUMN_GROUP, -(-len(a) // COLUMN_GROUP))
    at_once = COLUMN_GROUP * max(1, groups)
    columns = pieces(0, len(centres), max(1, tile_elements(device) // at_once))
    n_outputs = weights.shape[1]
    if n_outputs == 1:  # a product with one vector would round a row differently by its place
        weights = torch.nn.functional.pad(weights, (0, 1))
    weights = by_output(weights)
    summation = Summation(device, weights.dtype, at_once, weights.shape[1])
    result = weights.new_empty(len(a), weights.shape[1])  # (m, l)
    for start in range(0, len(a), at_once):
        count = min(at_once, len(a) - start)
        rows = _whole_groups(a[start : start + count])
        jobs = [_times(_evaluated(kernel, centres[c], rows), weights[c]) for c in columns]
        result[start : start + count] = summation.of(jobs, len(rows))[:count]
        if on_progress is not None:
            on_progress(min(start + at_once, len(a)), len(a))
    return result[:, :n_outputs].contiguous()


def _whole_groups(rows: Points) -> Points:
    """The rows, and the last one again until there are whole groups of them.

    A matrix library treats columns that are left over apart, and the same row would round differently by
    its place among others.
    """
    missing = -len(rows) % COLUMN_GROUP
    if not missing:
        return rows
    return rows[torch.arange(len(rows) + missing, device=rows.x.device).clamp_(max=len(rows) - 1)]


def _evaluated(
    kernel: Kernel, columns: Points, rows: Points, memory: Tensor | None = None, same: bool = False
) -> TileSource:
    """A tile evaluated in `memory` or, without it, in scratch memory."""
    shape = (len(columns), len(rows))

    def tile(scratch: Scratch) -> Tensor:
        out = scratch.shaped(*shape) if memory is None else memory
        return kernel.block(columns, rows, same=same, out=out)

    return tile


def _times(tile: TileSource, weights: Tensor, V: Tensor | None = None, Z: Tensor | None = None) -> Job:
    """K[rows, columns] weights; with V, (t, q), also K[rows, columns] V, written to Z."""
    weights_t = weights.T  # (l, t)

    def job(total: Tensor, scratch: Scratch) -> None:
        K = tile(scratch)  # (t, R)
        total.addmm_(weights_t, K)  # (l, R)
        if V is not None and Z is not None:
            torch.mm(K.T, V, out=Z)  # (R, q)

    return job


@dataclass(frozen=True)
class Panel:
    """Rows evaluated together: whole batches, none across the end of the subsample."""

    start: int
    stop: int
    batches: tuple[slice, ...]

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)


@dataclass(frozen=True)
class PanelRows:
    """K of a panel's rows: against all weights as they were, and what changing weights act through."""

    f: Tensor  # (R, l)  K[panel] @ alpha
    own: Tensor  # (R, R)  K[panel, panel]
    Z: Tensor  # (R, q)  Phi V, Phi = K[panel, :s]


class TrainingProducts:
    """K over the training points, in training order: the first s are the fixed coordinate block x_r.

    Parameters
    ----------
    V : (s, q), the levelled kernel's eigenvectors on the fixed block
    m : batch size
    n_outputs : columns of the weights
    budget : bytes that may be kept from the first epoch on
    rows_at_once : rows evaluated together, at least a batch; None for what suits the device
    """

    def __init__(
        self,
        kernel: Kernel,
        points: Points,
        V: Tensor,
        m: int,
        n_outputs: int,
        budget: float = 0.0,
        rows_at_once: int | None = None,
    ) -> None:
        self.kernel = kernel
        self.points = points
        self.V = V
        self.s, q = V.shape
        device = points.x.device
        self.panels = panels(len(points), self.s, m, rows_at_once or panel_rows(device))
        rows = max((len(panel) for panel in self.panels), default=1)
        width = max(1, tile_elements(device) // rows)
        self._pieces = column_pieces(self.panels, self.s, width)
        self._columns = {(c.start, c.stop): points[c] for c in self._pieces}
        # Workspaces, made once: fresh memory is slow memory.
        self._summation = Summation(device, points.dtype, rows, n_outputs)
        self._own = V.new_empty(rows * rows)
        # One for each piece of the fixed block, and for what an own block inside it cuts off.
        in_block = sum(c.stop <= self.s for c in self._pieces) + 2 if q else 0
        self._Z_parts = V.new_empty(in_block, rows, q)
        # Z takes little memory for the values it saves evaluating, so it comes before the tiles.
        size = len(points) * q * V.element_size()
        self._keeps_Z = size <= budget
        self.kept_bytes = size if self._keeps_Z else 0
        self._Z = V.new_empty(len(points) if self._keeps_Z else rows, q)
        self._Z_known = 0  # panels whose Z is kept
        self._budget = budget
        self._kept: list[Tensor] = []  # of the first panels, each K[:width, panel]

    def rows(self, index: int, alpha: Tensor, seen: int) -> PanelRows:
        """The rows of panel `index`, valid until the next call; fastest for alpha laid out `by_output`.

        Points from `seen` on must have zero weight, and are skipped.
        """
        panel = self.panels[index]
        R = len(panel)
        known = index < len(self._kept)
        kept = self._kept[index] if known else self._room_for(index)  # (width, R)
        own = _shaped(self._own, R, R) if kept is None else kept[panel.rows]
        rows = self.points[panel.rows]
        projects = index >= self._Z_known and self.V.numel() > 0
        jobs: list[Job] = []
        n_parts = 0
        if known and kept is not None and not projects:
            jobs = [_times(_constant(kept[c]), alpha[c]) for c in pieces(0, len(kept), READ_COLUMNS)]
        for columns in [] if jobs else self._lower(index):
            same = columns == panel.rows
            memory = own if same else None if kept is None else kept[columns]
            points = rows if same else self._at(columns)
            tile = _constant(memory) if known else _evaluated(self.kernel, points, rows, memory, same)
            if projects and columns.stop <= self.s:
                Z_part = self._Z_parts[n_parts, :R]
                jobs.append(_times(tile, alpha[columns], self.V[columns], Z_part))
                n_parts += 1
            else:
                jobs.append(_times(tile, alpha[columns]))
        f = self._summation.of(jobs + self._upper(index, rows, alpha, seen), R)  # (R, l)
        if not known and kept is not None:
            self._kept.append(kept)
        Z = self._Z[panel.rows] if self._keeps_Z else self._Z[:R]
        if projects:
            torch.sum(self._Z_parts[:n_parts, :R], 0, out=Z)
            self._Z_known += self._keeps_Z
        return PanelRows(f, own, Z)

    def refill(self, n_panels: int) -> None:
        """Evaluate and keep what was kept of the first panels in a run that was interrupted."""
        nothing = self.V.new_zeros(len(self.points), self._summation.n_outputs)
        for index in range(n_panels):
            self.rows(index, nothing, seen=0)

    def _room_for(self, index: int) -> Tensor | None:
        """Memory for the tiles of a panel, (width, R), if the budget has room for it."""
        panel = self.panels[index]
        shape = (max(panel.stop, self.s), len(panel))
        size = shape[0] * shape[1] * self._own.element_size()
        if index != len(self._kept) or self.kept_bytes + size > self._budget:
            return None
        self.kept_bytes += size
        return self._own.new_empty(shape)

    def _at(self, columns: slice) -> Points:
        known = self._columns.get((columns.start, columns.stop))
        return self.points[columns] if known is None else known

    def _lower(self, index: int) -> list[slice]:
        """Column pieces up to the panel's end, or the fixed block's; the panel itself is one piece."""
        panel = self.panels[index]
        before = self._between(0, panel.start)
        return [*before, panel.rows, *self._between(panel.stop, self.s)]

    def _between(self, start: int, stop: int) -> list[slice]:
        """The column pieces from start to stop, cut to fit."""
        cut = [slice(max(c.start, start), min(c.stop, stop)) for c in self._pieces]
        return [c for c in cut if c.start < c.stop]

    def _upper(self, index: int, rows: Points, alpha: Tensor, seen: int) -> list[Job]:
        """K[panel, j] alpha_j for the panels j that follow, from kept tiles where there are any."""
        panel = self.panels[index]
        jobs: list[Job] = []
        first = max(panel.stop, self.s)  # columns before are in the lower part
        for j in range(index + 1, len(self._kept)):
            other = self.panels[j]
            if first <= other.start < seen:
                jobs.append(_times(_constant(self._kept[j][panel.rows].T), alpha[other.rows]))
                first = other.stop
        left = self._between(first, max(first, seen))
        return jobs + [_times(_evaluated(self.kernel, self._at(c), rows), alpha[c]) for c in left]


def column_pieces(panels: Sequence[Panel], s: int, width: int) -> list[slice]:
    """The columns, cut at panels: a long panel into several pieces, short ones together in one."""
    found: list[slice] = []
    gathered = slice(0, 0)
    for panel in panels:
        if gathered.stop > gathered.start and (panel.stop - gathered.start > width or panel.start == s):
            found += pieces(gathered.start, gathered.stop, width)
            gathered = slice(panel.start, panel.start)
        gathered = slice(gathered.start, panel.stop)
    return found + pieces(gathered.start, gathered.stop, width)


def _constant(tile: Tensor | None) -> TileSource:
    assert tile is not None
    return lambda scratch: tile


class HeldOutProducts:
    """K(held-out points, training points) @ alpha, again and again: kept where the budget allows."""

    def __init__(
        self, kernel: Kernel, held_out: Points, points: Points, n_outputs: int, budget: float = 0.0
    ) -> None:
        self.kernel = kernel
        self.points = points
        device = points.x.device
        at_once = min(panel_rows(device), max(1, len(held_out)))
        self._width = max(1, tile_elements(device) // at_once)
        self._rows = [held_out[i : i + at_once] for i in range(0, len(held_out), at_once)]
        self._summation = Summation(device, points.dtype, at_once, n_outputs)
        size = len(held_out) * len(points) * held_out.squared_norms.element_size()
        self.kept_bytes = size if size <= budget else 0
        self._kept: list[Tensor] = []  # for each of the rows' parts, K[points, part]
        self._known = 0  # columns of them that have been evaluated

    def times(self, alpha: Tensor, columns: slice | None = None) -> Tensor:
        """K(held-out points, columns) @ alpha[columns], (n_val, l); all columns by default."""
        columns = slice(0, len(self.points)) if columns is None else columns
        if self.kept_bytes and not self._kept:
            self._kept = [alpha.new_empty(len(self.points), len(rows)) for rows in self._rows]
        read = bool(self._kept) and columns.stop <= self._known
        # Cut alike whether read or evaluated, so that the sums round alike.
        cut = pieces(columns.start, columns.stop, self._width)
        results = []
        for i, rows in enumerate(self._rows):
            jobs: list[Job] = []
            for c in cut:
                memory = self._kept[i][c] if self._kept else None
                evaluated = _evaluated(self.kernel, self.points[c], rows, memory)
                jobs.append(_times(_constant(memory) if read else evaluated, alpha[c]))
            results.append(self._summation.of(jobs, len(rows)))
        if self._kept and columns.start <= self._known:
            self._known = max(self._known, columns.stop)
        return torch.cat(results)


def first_epoch_values(n: int, s: int, rows: int) -> float:
    """Kernel values that panels of so many rows evaluate in the first epoch: half of K, and corners.

    >>> found = panels(1000, 300, 50, 100)
    >>> first_epoch_values(1000, 300, 100) == sum(len(p) * max(p.stop, 300) for p in found)
    True
    """
    return 0.5 * (n * n + s * s + rows * (n - s))


def panels(n: int, s: int, m: int, panel_rows: int) -> list[Panel]:
    """Consecutive batches gathered into panels of at most `panel_rows` rows, or one batch."""
    found: list[Panel] = []
    gathered: list[slice] = []
    for batch in batches(n, s, m):
        first = gathered[0].start if gathered else batch.start
        if gathered and (batch.stop - first > panel_rows or batch.start == s):
            found.append(Panel(first, gathered[-1].stop, tuple(gathered)))
            gathered = []
        gathered.append(batch)
    if gathered:
        found.append(Panel(gathered[0].start, gathered[-1].stop, tuple(gathered)))
    return found


def batches(n: int, s: int, m: int) -> list[slice]:
    """Contiguous batches of at most m points, of even sizes, none across the end of the subsample."""
    return pieces(0, s, m) + pieces(s, n, m)
