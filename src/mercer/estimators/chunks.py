"""The chunks of a stream as the user gives them, made into arrays of features, targets and weights.

All chunks get one preparation, by column name if they are frames.  Where they hold more than numbers, or
have missing values, how their columns become features is decided in a pass of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import _check_y, validate_data

from mercer.data.rows import Array
from mercer.estimators.places import check_labels, places_of_errors
from mercer.estimators.preparation import (
    column_names,
    columns_of_frames,
    columns_of_matrices,
    dense,
    selected,
)
from mercer.estimators.validation import as_numpy, more_rows, more_targets, training_data, types_of
from mercer.tables.frames import as_polars, beyond_numbers, from_matrix, is_frame
from mercer.tables.matrices import has_gaps

if TYPE_CHECKING:
    import polars as pl

Chunk = tuple[Array, Array, Array | None]  # (m, d) features, targets, (m,) weights


@dataclass(frozen=True)
class StreamOf:
    """A stream some of whose rows are not trained on."""

    rows: Any
    left_out: Array = field(default_factory=lambda: np.zeros(0, dtype=int))  # their numbers, ascending


def is_stream(X: Any, y: Any) -> bool:
    """Whether X gives chunks of rows with their targets, and is no table itself."""
    if isinstance(X, StreamOf):
        return True
    if y is not None or hasattr(X, "shape") or hasattr(X, "__array__") or hasattr(X, "__dataframe__"):
        return False
    if isinstance(X, (list, tuple)):
        return bool(X) and isinstance(X[0], tuple)
    return callable(X) or isinstance(X, Iterable)


class NeedsColumns(Exception):
    """Chunks hold more than numbers, so their columns must be surveyed; `frames`: as frames."""

    def __init__(self, frames: bool) -> None:
        super().__init__()
        self.frames = frames


class Chunks:
    """Iterating is one pass over a stream; the first chunk decides what others must agree with."""

    def __init__(self, estimator: Any, rows: Any) -> None:
        self.estimator = estimator
        self.left_out = rows.left_out if isinstance(rows, StreamOf) else np.zeros(0, dtype=int)
        self._start = passes(rows.rows if isinstance(rows, StreamOf) else rows)
        self._known = False  # number and names of columns, and how they become features
        self._target_shape: tuple[int, ...] | None = None  # of one row

    def __iter__(self) -> Iterator[Chunk]:
        for number, X, y, weight in self._given():
            with _named(number):
                found = self._validated(X, y, weight)
            yield found

    def survey(self, frames: bool) -> None:
        """One pass, to decide how the columns of all chunks become features."""
        try:
            self._survey(frames)
        except NeedsColumns:
            self._survey(frames=True)

    def _survey(self, frames: bool) -> None:
        estimator, first = self.estimator, next(self._given())
        training_data(estimator, *first[1:3], y_numeric=estimator._y_numeric)
        names, y = column_names(estimator), first[2]
        if frames:
            columns = columns_of_frames(estimator, self._each(self._frame), names, y)
        else:
            columns = columns_of_matrices(estimator, self._each(self._numbers), names, first[1], y)
        estimator.columns_, self._known = columns, True

    def _each(self, function: Callable[[Any], Any]) -> Iterator[Any]:
        for number, X, _, _ in self._given():
            with _named(number):
                found = function(X)
            yield found

    def _given(self) -> Iterator[tuple[int, Any, Any, Any]]:
        """Chunks that have rows, with their numbers; errors of the user's iterator pass through."""
        for number, chunk in enumerate(self._start()):
            X, y, weight = _parts(chunk, number)
            X, y = dense(as_numpy(X)), as_numpy(y)
            if _length(X) or _length(y):
                yield number, X, y, weight

    def _validated(self, X: Any, y: Any, weight: Any) -> Chunk:
        numeric = self.estimator._y_numeric
        if not self._known:
            training_data(self.estimator, X, y, y_numeric=numeric)  # sets number and names of columns
            if self.estimator.columns_ is not None:
                raise NeedsColumns(is_frame(X) and bool(beyond_numbers(X)))
            self._known = True
        A = self._features(X)
        y = more_targets(self.estimator, y)
        if not numeric:
            check_labels(y)
        with places_of_errors(A, y):
            y = _compact(np.array(_check_y(y, multi_output=True, y_numeric=numeric)))
        weight = None if weight is None else np.array(as_numpy(weight))
        if len(A) != len(y) or (weight is not None and weight.shape != y.shape[:1]):
            given = "" if weight is None else f" and weights of shape {weight.shape}"
            raise ValueError(f"it has {len(A):,} rows, {len(y):,} targets{given}.")
        if self._target_shape is None:
            self._target_shape = y.shape[1:]
        if y.shape[1:] != self._target_shape:
            raise ValueError(f"its targets have the shape {y.shape}, unlike those of the chunks before.")
        return A, y, weight

    def _features(self, X: Any) -> Array:
        estimator = self.estimator
        if estimator.columns_ is not None:
            return np.asarray(more_rows(estimator, X))
        if _is_bytes(X) and X.shape[1] == estimator.n_features_in_:
            return np.asarray(X)
        A = self._numbers(X)
        if has_gaps(A):
            raise NeedsColumns(frames=False)
        return A

    def _numbers(self, X: Any) -> Array:
        """The numbers of a chunk, with gaps."""
        estimator = self.estimator
        if is_frame(X):
            if beyond_numbers(X):
                raise NeedsColumns(frames=True)
            X = selected(X, column_names(estimator))
            X = as_polars(X) if hasattr(X, "column_names") else X  # an Arrow table
        how: dict[str, Any] = {"dtype": types_of(X), "ensure_all_finite": "allow-nan"}
        with places_of_errors(X):
            return np.asarray(validate_data(estimator, X, reset=False, **how))

    def _frame(self, X: Any) -> pl.DataFrame:
        names = column_names(self.estimator)
        return as_polars(selected(X, names)) if is_frame(X) else from_matrix(X, names)


def passes(rows: Any) -> Callable[[], Iterator[Any]]:
    """Start the stream from its beginning."""
    if callable(rows):
        return lambda: iter(rows())
    if iter(rows) is rows:
        raise ValueError(
            "`fit` reads its rows several times, and an iterator can be read once only. Pass a list of "
            "(X, y), an object whose iteration starts again, or a function that returns an iterator; or "
            "call `partial_fit` with each chunk."
        )
    return lambda: iter(rows)


@contextmanager
def _named(number: int) -> Iterator[None]:
    """Errors about a chunk say which."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise ValueError(f"Chunk {number} of the stream (counted from 0): {error}") from error


def _parts(chunk: Any, number: int) -> tuple[Any, Any, Any]:
    if not isinstance(chunk, (tuple, list)) or len(chunk) not in (2, 3):
        raise ValueError(
            "A stream must give (X, y) or (X, y, sample_weight) for each chunk. Chunk "
            f"{number} is a {type(chunk).__name__}."
        )
    return chunk[0], chunk[1], chunk[2] if len(chunk) == 3 else None


def _length(values: Any) -> int:
    return int(values.shape[0]) if hasattr(values, "shape") else len(values)


def _is_bytes(X: Any) -> bool:
    return isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype == np.uint8


def _compact(y: Array) -> Array:
    """Targets in half the memory, if none of them changes: those of all rows are held."""
    if y.dtype != np.float64:
        return y
    with np.errstate(over="ignore"):
        short = y.astype(np.float32)
    return short if np.array_equal(short, y) else y
