"""RowShare: what a rank gives in place of X where each has only some of the rows."""

from __future__ import annotations

from typing import Any


class RowShare:
    """The rows of this rank, in place of X, where no process should hold all rows.

    Every rank of a process group calls `fit`, `predict` or `score` with its own share, and with the
    targets and weights of these rows.  The rows of all shares are one data set: those of rank 0 come
    first, then those of rank 1, and so on.  A share may have any number of rows, and also none.
    Outside a process group, the share is all there is.

    `fit` ends with the same weights as if each rank had been given all rows.  Each rank holds about its
    share of the points, also in a fitted model with every row as a centre: `predict` and `save` then
    need all ranks at once, and a saved model loads anywhere.  Fewer centres are on all ranks.  `predict`
    gives each rank the predictions for its own rows, and `score` is that of all rows.

    Parameters
    ----------
    X : array or tensor of shape (rows of this rank, features)

    Examples
    --------
    >>> import numpy as np
    >>> from mercer import KernelRegressor, RowShare
    >>> X = np.linspace(0, 6, 100)[:, None]
    >>> model = KernelRegressor(random_state=0).fit(RowShare(X), np.sin(X[:, 0]))
    >>> model.predict(RowShare(X[:3])).shape
    (3,)
    """

    def __init__(self, X: Any) -> None:
        self.X = X

    def __repr__(self) -> str:
        return f"RowShare({type(self.X).__name__} with {len(self.X):,} rows)"


def rows_of(X: Any) -> Any:
    """The rows that this process was given."""
    return X.X if isinstance(X, RowShare) else X
