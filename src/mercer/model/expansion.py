"""The function while it is being trained: f(x) = sum_j weights_j k(centres_j, x).

Training changes two blocks of weights at each step: those of the rows in the batch, and those of the
fixed block.  It asks this record where they are.  Here every training row is a centre, in training
order, and the fixed block is the first s of them.
"""

from __future__ import annotations

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
