"""Which rows are visited when: batches, the panels they are evaluated in, and the order of visits.

Batches are contiguous in the training order, whose first s rows are the fixed coordinate block.  Kernel
values do not depend on weights, so the rows of several batches, a panel, are evaluated together, in
tiles of a good shape whatever the batch size.

The first epoch visits the panels in their own order, so that columns beyond the panel still have zero
weights and can be skipped.  Later epochs visit panels, and the batches within each, in another random
order each time: in one fixed order, descent by blocks takes several times as many epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from mercer.operators.summation import pieces


@dataclass(frozen=True)
class Panel:
    """Rows evaluated together: whole batches, none across the end of the fixed block."""

    start: int
    stop: int
    batches: tuple[slice, ...]

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)


@dataclass(frozen=True)
class Visit:
    """A panel, and its batches in the order in which they are visited."""

    index: int  # of the panel
    panel: Panel
    batches: Sequence[slice]


@dataclass(frozen=True)
class Schedule:
    """The panels of n rows, and the order in which each epoch visits them.

    With `triangular`, a step changes only the weights of its batch and of the fixed block, so rows not
    yet visited have the weights they started from.  Without `shuffled`, every epoch visits the rows in
    their own order.
    """

    n: int
    s: int
    panels: tuple[Panel, ...]
    triangular: bool = True
    shuffled: bool = True

    @property
    def longest(self) -> int:
        """Rows of the longest panel."""
        return max((len(panel) for panel in self.panels), default=1)

    @property
    def n_batches(self) -> int:
        return sum(len(panel.batches) for panel in self.panels)

    @property
    def cuts(self) -> list[int]:
        """Where the panels begin."""
        return [panel.start for panel in self.panels]

    def visits(self, epoch: int) -> list[Visit]:
        """The visits of an epoch, counted from 1; the same each time for the same epoch."""
        if epoch == 1 or not self.shuffled:
            return [Visit(i, panel, panel.batches) for i, panel in enumerate(self.panels)]
        draws = torch.Generator().manual_seed(epoch)
        order = torch.randperm(len(self.panels), generator=draws).tolist()
        return [Visit(i, self.panels[i], _permuted(self.panels[i].batches, draws)) for i in order]

    def columns_needed(self, panel: Panel, epoch: int, n_weighted: int) -> int:
        """Columns that may have weights when the panel is visited; `n_weighted` had from the start."""
        first_visit = self.triangular and epoch == 1
        return max(panel.stop, n_weighted) if first_visit else self.n

    def followed_by(self, n_more: int, m: int, rows_at_once: int) -> Schedule:
        """The same, and after these rows so many more, in batches and panels of their own."""
        more = _joined(pieces(self.n, self.n + n_more, m), rows_at_once)
        return replace(self, n=self.n + n_more, panels=(*self.panels, *more))

    def visits_with_new_rows(self, epoch: int, n_known: int) -> list[Visit]:
        """Those of an epoch that is the first for the rows from `n_known` on.

        They come before all others, in their own order: the columns after each of them still have zero
        weights, and the others are evaluated against none that has not been visited.
        """
        new = [
            Visit(i, panel, panel.batches)
            for i, panel in enumerate(self.panels)
            if panel.start >= n_known
        ]
        return new + [visit for visit in self.visits(epoch) if visit.panel.start < n_known]


def make_schedule(
    n: int, s: int, m: int, rows_at_once: int, *, triangular: bool = True, shuffled: bool = True
) -> Schedule:
    """Batches of m rows, in panels of at most `rows_at_once` rows or one batch."""
    return Schedule(n, s, tuple(panels(n, s, m, rows_at_once)), triangular, shuffled)


def panels(n: int, s: int, m: int, rows_at_once: int) -> list[Panel]:
    """Consecutive batches joined into panels of at most `rows_at_once` rows, or one batch."""
    return _joined(pieces(0, s, m), rows_at_once) + _joined(pieces(s, n, m), rows_at_once)


def batches(n: int, s: int, m: int) -> list[slice]:
    """Contiguous batches of at most m rows, of even sizes, none across the end of the fixed block."""
    return pieces(0, s, m) + pieces(s, n, m)


def _joined(cut: Sequence[slice], rows_at_once: int) -> list[Panel]:
    found: list[Panel] = []
    joined: list[slice] = []
    for batch in cut:
        first = joined[0].start if joined else batch.start
        if joined and batch.stop - first > rows_at_once:
            found.append(Panel(first, joined[-1].stop, tuple(joined)))
            joined = []
        joined.append(batch)
    if joined:
        found.append(Panel(joined[0].start, joined[-1].stop, tuple(joined)))
    return found


def first_epoch_values(n: int, s: int, rows: int) -> float:
    """Kernel values that panels of so many rows evaluate in the first epoch: half of K, and corners.

    >>> found = panels(1000, 300, 50, 100)
    >>> first_epoch_values(1000, 300, 100) == sum(len(p) * max(p.stop, 300) for p in found)
    True
    """
    return 0.5 * (n * n + s * s + rows * (n - s))


def _permuted(batches: Sequence[slice], draws: torch.Generator) -> list[slice]:
    return [batches[i] for i in torch.randperm(len(batches), generator=draws).tolist()]
