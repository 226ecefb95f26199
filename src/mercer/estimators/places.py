"""Where X or y has a value that cannot be used: errors name its row and its column."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from mercer.data.rows import Array
from mercer.tables.frames import is_frame, is_missing
from mercer.tables.wording import quoted


@contextmanager
def places_of_errors(X: Any, y: Any = None) -> Iterator[None]:
    """Inside the block, errors of validation say where the first invalid value is."""
    try:
        yield
    except ValueError as error:
        found = _in_features(X)
        if found is None and y is not None:
            found = _in_targets(np.asarray(y))
        if found is None:
            raise
        raise ValueError(found) from error


def check_labels(y: Any) -> None:
    """Raise if a label is missing, which neither sorting nor scikit-learn tells."""
    values = np.asarray(y)
    found = _in_targets(values) if values.dtype.kind == "O" else None
    if found is not None:
        raise ValueError(found)


def _in_features(X: Any) -> str | None:
    """The first infinite number or text in the features; None if there is none."""
    if is_frame(X):
        names = [str(name) for name in X.columns]
        A = X.to_numpy(dtype=np.float64, na_value=np.nan) if hasattr(X, "iloc") else X.to_numpy()
    else:
        A = np.asarray(X)
        names = [f"x{j}" for j in range(A.shape[1])] if A.ndim == 2 else []
    if A.ndim != 2:
        return None
    if A.dtype.kind in "OUS":
        return _first_text(A, names)
    if A.dtype.kind != "f" or not np.isinf(A).any():
        return None
    i, j = np.argwhere(np.isinf(A))[0]
    return (
        f"Input X contains infinity: the column {quoted(names[j])} holds {A[i, j]} in row {i + 1:,} "
        "(counted from 1). Correct it, or use NaN if the value is missing."
    )


def _first_text(A: Array, names: list[str]) -> str | None:
    for i, row in enumerate(A.tolist()):
        found = next((j for j, value in enumerate(row) if _is_text(value)), None)
        if found is not None:
            return (
                f"Input X contains text: the column {quoted(names[found])} holds "
                f"{quoted(str(row[found]))} in row {i + 1:,} (counted from 1). Text becomes categories "
                "in a frame of pandas or Polars."
            )
    return None


def _is_text(value: Any) -> bool:
    """Whether a value is text other than a number as Python writes it."""
    try:
        float(value)
    except ValueError:
        return True
    except TypeError:  # not text, and scikit-learn says what it is
        return False
    return False


def _in_targets(y: Array) -> str | None:
    """The first target that is missing or infinite; None if there is none."""
    if y.ndim not in (1, 2) or y.dtype.kind not in "fO":
        return None
    if y.dtype.kind == "f":
        wrong, what = np.isnan(y), "NaN"
        if not wrong.any():
            wrong, what = np.isinf(y), "infinity"
    else:
        wrong, what = np.array([is_missing(value) for value in y.flat], dtype=bool), "a missing value"
    rows = wrong.reshape(len(y), -1).any(axis=1) if len(y) else wrong
    if not rows.any():
        return None
    return (
        f"Input y contains {what} in {int(rows.sum()):,} of {len(y):,} rows, first in row "
        f"{int(rows.argmax()) + 1:,} (counted from 1). Leave these rows out, or correct them."
    )
