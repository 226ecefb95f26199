"""Kernel-matrix products by tiles: K(A, C) @ W without ever holding all of K(A, C).

A tile is a block of K small enough to stay in cache while the kernel's elementwise passes run over it
and the product with W reads it.

Training needs K over its own points, which is symmetric, so three exact savings apply.

- *Panels.*  Kernel values do not depend on weights, so the rows of several batches are evaluated
  together, in tiles of a good shape whatever the batch.  Within the panel only the weights of its own
  rows and of the fixed block x_r change, and for those columns its kernel values are at hand.
- *The triangular first epoch.*  A point that no batch has visited has weight zero: columns beyond the
  panel are skipped.
- *Kept panels.*  K[panel, :panel.stop] from the first epoch is kept while the memory budget lasts; later
  epochs read it, and read it transposed for the other half.  What does not fit is evaluated again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from mercer.kernels import Kernel, Points

# Elements in a tile on a CPU: exp over a tile of a few MB ran at 0.12 to 0.15 ns an element, against
# 0.31 ns over a block of 240 MB; smaller tiles pay more for the calls than they gain.  A device with its
# own memory prefers few large launches.
CPU_TILE_ELEMENTS = 1 << 20
DEVICE_TILE_ELEMENTS = 1 << 26
# Rows evaluated together: matrix products of 1,024 rows run at full rate, in floats and in bytes.
PANEL_ROWS = 1_024


def tile_elements(device: torch.device) -> int:
    return CPU_TILE_ELEMENTS if device.type == "cpu" else DEVICE_TILE_ELEMENTS


def kernel_times(
    kernel: Kernel,
    a: Points,
    centres: Points,
    weights: Tensor,
    on_progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """K(a, centres) @ weights, (len(a), l); `on_progress` gets rows done and rows in all."""
    result = weights.new_zeros(len(a), weights.shape[1])  # (m, l)
    elements = tile_elements(weights.device)
    buffer = weights.new_empty(min(elements, max(1, min(PANEL_ROWS, len(a)) * len(centres))))
    for start in range(0, len(a), PANEL_ROWS):
        rows = a[start : start + PANEL_ROWS]
        width = max(1, len(buffer) // len(rows))
        for first in range(0, len(centres), width):
            columns = centres[first : first + width]
            out = buffer[: len(rows) * len(columns)].view(len(rows), len(columns))
            tile = kernel.block(rows, columns, out=out)  # (m, t)
            result[start : start + len(rows)].addmm_(tile, weights[first : first + width])
        if on_progress is not None:
            on_progress(start + len(rows), len(a))
    return result


@dataclass(frozen=True)
class Panel:
    """Rows evaluated together: whole batches, none across the end of the subsample."""

    start: int
    stop: int
    batches: tuple[slice, ...]

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class PanelRows:
    """K of a panel's rows: against all weights as they were, and the columns whose weights change."""

    f: Tensor  # (R, l)  K[panel] @ alpha
    phi: Tensor  # (R, s)  K[panel, :s]
    own: Tensor  # (R, R)  K[panel, panel]


class TrainingProducts:
    """K over the training points, in training order: the first s are the fixed coordinate block x_r.

    Parameters
    ----------
    m : batch size
    budget : bytes of kernel values that may be kept from the first epoch on
    panel_rows : rows evaluated together, at least a batch
    """

    def __init__(
        self,
        kernel: Kernel,
        points: Points,
        s: int,
        m: int,
        budget: float = 0.0,
        panel_rows: int = PANEL_ROWS,
    ) -> None:
        self.kernel = kernel
        self.points = points
        self.s = s
        self.panels = panels(len(points), s, m, panel_rows)
        self.kept_bytes = 0
        self._budget = budget
        self._kept: list[Tensor] = []  # of the first panels, each K[panel, :max(panel.stop, s)]
        # Workspaces, made once: fresh memory is slow memory.
        rows = max((len(panel) for panel in self.panels), default=1)
        elements = max(tile_elements(points.x.device), rows * rows)
        self._tile = torch.empty(elements, dtype=points.dtype, device=points.x.device)
        self._phi = self._tile.new_empty(rows, s)
        self._own = self._tile.new_empty(rows, rows)

    def rows(self, index: int, alpha: Tensor, seen: int) -> PanelRows:
        """The rows of panel `index`, valid until the next call.

        Points from `seen` on must have zero weight, and are skipped.
        """
        panel = self.panels[index]
        width = max(panel.stop, self.s)
        if index < len(self._kept):
            kept = self._kept[index]
            rows = self._views(panel, kept, kept @ alpha[:width])
        else:
            rows = self._evaluate(index, alpha, width)
        if seen > width:
            self._add_upper(index, alpha, rows.f)
        return rows

    def _views(self, panel: Panel, lower: Tensor, f: Tensor) -> PanelRows:
        return PanelRows(f, lower[:, : self.s], lower[:, panel.start : panel.stop])

    def _evaluate(self, index: int, alpha: Tensor, width: int) -> PanelRows:
        """K[panel, :width] @ alpha[:width]; its kernel values are kept where the budget allows."""
        panel = self.panels[index]
        points = self.points[panel.start : panel.stop]
        f = alpha.new_zeros(len(panel), alpha.shape[1])  # (R, l)
        size = len(panel) * width * self._tile.element_size()
        kept: Tensor | None = None
        if index == len(self._kept) and self.kept_bytes + size <= self._budget:
            self.kept_bytes += size
            kept = self._tile.new_empty(len(panel), width)
            self._kept.append(kept)
            rows = self._views(panel, kept, f)
        else:  # phi and the panel's own columns outlive their tile, the rest does not
            phi = self._phi[: len(panel)]
            inside = panel.stop <= self.s
            own = phi[:, panel.start : panel.stop] if inside else self._own[: len(panel), : len(panel)]
            rows = PanelRows(f, phi, own)
        for first, last in self._column_tiles(panel, width):
            # Evaluated in memory that is in cache, then written once to where it stays.
            out = self._scratch(len(panel), last - first)
            columns = self.points[first:last]
            tile = self.kernel.block(points, columns, same=first == panel.start, out=out)  # (R, t)
            f.addmm_(tile, alpha[first:last])
            if kept is not None:
                kept[:, first:last] = tile
            elif last <= self.s:
                rows.phi[:, first:last] = tile
            elif first == panel.start:
                rows.own.copy_(tile)
        return rows

    def _add_upper(self, index: int, alpha: Tensor, f: Tensor) -> None:
        """Add K[panel, j] alpha_j for the panels j that follow, from kept tiles where there are any."""
        panel = self.panels[index]
        rows = self.points[panel.start : panel.stop]
        transposed = alpha.new_zeros(alpha.shape[1], len(panel))  # (l, R)
        first = max(panel.stop, self.s)  # columns before are in the lower part
        for j in range(index + 1, len(self._kept)):
            other = self.panels[j]
            if other.start >= self.s:
                # Weights first: (l, R') (R', R) runs three times as fast as its transpose.
                weights = alpha[other.start : other.stop].T.contiguous()  # (l, R')
                transposed.addmm_(weights, self._kept[j][:, panel.start : panel.stop])
                first = other.stop
        f.add_(transposed.T)
        width = max(1, len(self._tile) // len(panel))
        for low in range(first, len(alpha), width):
            high = min(low + width, len(alpha))
            out = self._scratch(len(panel), high - low)
            f.addmm_(self.kernel.block(rows, self.points[low:high], out=out), alpha[low:high])

    def _scratch(self, rows: int, columns: int) -> Tensor:
        return self._tile[: rows * columns].view(rows, columns)

    def _column_tiles(self, panel: Panel, width: int) -> Iterator[tuple[int, int]]:
        """Column ranges up to `width`, cut where phi ends and around the panel's own columns."""
        tile = max(1, len(self._tile) // len(panel))
        cuts = sorted({0, self.s, panel.start, panel.stop, width})
        for low, high in pairwise(cuts):
            own = low == panel.start  # one tile, so that the diagonal is known
            for first in range(low, high, high - low if own else tile):
                yield first, high if own else min(first + tile, high)


class HeldOutProducts:
    """K(held-out points, training points) @ alpha, again and again: kept where the budget allows."""

    def __init__(self, kernel: Kernel, held_out: Points, points: Points, budget: float = 0.0) -> None:
        self.kernel = kernel
        self.held_out = held_out
        self.points = points
        size = len(held_out) * len(points) * held_out.squared_norms.element_size()
        self.kept_bytes = size if size <= budget else 0
        self._kept: Tensor | None = None  # (n_val, n)

    def times(self, alpha: Tensor) -> Tensor:
        """(n_val, l)"""
        if not self.kept_bytes:
            return kernel_times(self.kernel, self.held_out, self.points, alpha)
        if self._kept is None:
            self._kept = alpha.new_empty(len(self.held_out), len(self.points))
            width = max(1, tile_elements(alpha.device) // PANEL_ROWS)
            for start in range(0, len(self.held_out), PANEL_ROWS):
                rows = slice(start, start + PANEL_ROWS)
                for first in range(0, len(self.points), width):
                    columns = slice(first, first + width)
                    out = self._kept[rows, columns]
                    self.kernel.block(self.held_out[rows], self.points[columns], out=out)
        return self._kept @ alpha


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
    slices: list[slice] = []
    for low, high in ((0, s), (s, n)):
        pieces = -(-(high - low) // m)
        edges = [low + (high - low) * i // max(pieces, 1) for i in range(pieces + 1)]
        slices += [slice(a, b) for a, b in pairwise(edges)]
    return slices
