"""What an operator is: products with a kernel matrix that is never held whole.

An operator is K between two sets of points, its rows and its columns (the centres of a model).  The
implementations differ only in how they compute it:

    tiled    tiles of K that stay in a core's cache, whole tiles to whole cores
    kept     remembers the tiles that another operator evaluated
    refined  corrects products with tiles that are kept approximately
    sharded  this process's share of the columns, and the sum over processes

`to_centres` and `sharded_centres` are the first and the last of these for fewer centres than rows.

None of them knows about batches, steps or labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Operator(Protocol):
    """K(rows, columns)."""

    def times(self, weights: Tensor, rows: slice | None = None, columns: slice | None = None) -> Tensor:
        """K[rows, columns] @ weights[columns], (R, l); all rows and all columns by default."""

    def block(self, rows: slice, columns: slice) -> Tensor:
        """K[rows, columns] as a dense matrix, (R, t)."""

    def diagonal(self, rows: slice) -> Tensor:
        """k(x, x) for each of the rows, (R,)."""


@dataclass(frozen=True)
class PanelProducts:
    """Products with the rows of one panel; valid until the operator's next call."""

    f: Tensor  # (R, l)  K[panel, columns] @ weights
    own: Tensor  # (R, R)  K[panel, panel]
    Z: Tensor  # (R, q)  K[panel, :s] @ basis


class SquareOperator(Operator, Protocol):
    """K over one set of points, whose first s rows carry a basis, (s, q).

    `panel` evaluates the rows of a panel once for everything that a descent through it needs.
    """

    def panel(self, rows: slice, weights: Tensor, stop: int) -> PanelProducts:
        """The products of `rows` with the columns before `stop`; later ones must have zero weights.

        Columns up to the end of the panel and of the basis always take part.  Fastest for weights laid
        out `by_output`.
        """
