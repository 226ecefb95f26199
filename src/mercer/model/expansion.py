"""The function while it is being trained: f(x) = sum_j weights_j k(centres_j, x).

Training changes two blocks of weights at each step: those of the rows in the batch, and those of the
fixed block.  It asks this record where they are.  The fixed block is the first s centres.

Either every training row is a centre, in training order.  Or there are fewer centres, and the rows that
were visited since the last projection are temporary centres beside them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mercer.operators.summation import by_output


class Expansion:
    """Weights of the centres, (p, l); all others read and change them through here."""

    def __init__(self, weights: Tensor) -> None:
        self.weights = by_output(weights)  # (p, l)

    def of_rows(self, rows: slice) -> Tensor:
        """The weights of these training rows, as a view that may be written to."""
        return self.weights[rows]

    def fixed_block(self, s: int) -> Tensor:
        """The weights of the fixed block, (s, l), likewise."""
        return self.weights[:s]

    @property
    def n_weighted(self) -> int:
        """Centres from this one on have zero weights."""
        rows = self.weights.any(1).nonzero()
        return int(rows.max()) + 1 if len(rows) else 0

    def lasting(self, weights: Tensor) -> Tensor:
        """Of weights like these, those of the centres that the trained model will have."""
        return weights


class ExpansionWithTemporaries(Expansion):
    """Weights of p centres, and of temporary ones after them, (p + w, l)."""

    def __init__(self, weights: Tensor, n_temporary: int) -> None:
        """`weights`, (p, l), are those to start from."""
        self.p = len(weights)
        super().__init__(torch.cat([weights, weights.new_zeros(n_temporary, weights.shape[1])]))
        self._slots: dict[tuple[int, int], slice] = {}  # of the panels visited, by their rows
        self._used = 0

    def make_room(self, rows: slice) -> None:
        """The rows of a panel become temporary centres, after those there are."""
        first = self.p + self._used
        self._used += rows.stop - rows.start
        self._slots[rows.start, rows.stop] = slice(first, self.p + self._used)

    def of_rows(self, rows: slice) -> Tensor:
        return self.weights[self._slots[rows.start, rows.stop]]

    def clear(self) -> None:
        """The temporary centres are needed no longer."""
        self.weights[self.p :] = 0
        self._slots, self._used = {}, 0

    def lasting(self, weights: Tensor) -> Tensor:
        return weights[: self.p]
