"""Frames, and matrices with missing values, as features: the preparation that a file gets.

`fit` decides how each column becomes features and keeps the decision as `columns_`; `predict` finds the
columns by name.  A matrix or a frame of numbers without gaps needs none of this, and has no `columns_`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse
from sklearn.base import is_classifier

from mercer.data.rows import Array
from mercer.kernels import is_translation_invariant
from mercer.planning.memory import GIB, free_memory
from mercer.tables.columns import Columns
from mercer.tables.errors import TableError
from mercer.tables.frames import (
    as_polars,
    booleans,
    categories,
    frame_features,
    from_matrix,
    is_frame,
    survey_frames,
    written_in,
)
from mercer.tables.kinds import Kind, no_column
from mercer.tables.matrices import survey_matrices
from mercer.tables.wording import quoted, similar

if TYPE_CHECKING:
    import polars as pl

    from mercer.tables.recognition import Recognised

# The name of a target that has none, as in a file.
UNNAMED_TARGET = "y"
# A sparse matrix may take this share of the free memory once it is dense; training needs as much again.
DENSE_SHARE = 0.5


def columns_of_frame(estimator: Any, X: Any, y: Any) -> tuple[Columns, Array, list[str], str | None]:
    """How a frame with other columns than numbers becomes features; these, (n, d); all its names.

    Last is the decimal mark of the numbers that it has as text, if they show one.
    """
    frame = as_polars(X)
    names = frame.columns
    text = {*categories(X), *(names[i] for i in declared(estimator, names))}
    written = written_in(frame, text)
    columns = columns_of_frames(estimator, [frame], names, y, written)
    return columns, frame_features(columns, frame), names, written.decimal


def columns_of_frames(
    estimator: Any,
    frames: Iterable[pl.DataFrame],
    names: list[str],
    y: Any,
    written: Recognised | None = None,
) -> Columns:
    """How frames with the same columns, whose rows follow one another, become features.

    `written` says which columns of text hold numbers or dates; by default none do.
    """
    one_hot = estimator.categorical_features is None or not is_translation_invariant(estimator.kernel)
    chosen = [names[i] for i in declared(estimator, names)]
    found, notes = survey_frames(frames, names, written, categorical=chosen, one_hot=one_hot)
    return Columns(*_target(estimator, y), notes, found)


def columns_of_matrix(
    estimator: Any, A: Array, names: list[str], X: Any, y: Any
) -> tuple[Columns, Array]:
    """How numbers with missing values become features; these, (n, d).  A are the numbers of X."""
    columns = columns_of_matrices(estimator, [A], names, X, y)
    return columns, _numbers(columns, A, names)


def columns_of_matrices(
    estimator: Any, matrices: Iterable[Array], names: list[str], X: Any, y: Any
) -> Columns:
    """The same of matrices whose rows follow one another; X and y are the first as they were given."""
    chosen = [names[i] for i in declared(estimator, names)]
    marked = booleans(X) if is_frame(X) else set()
    found = survey_matrices(matrices, names, categorical=chosen, booleans=marked)
    if not found:
        raise ValueError("`X` must have values to learn from. Got only missing ones.")
    return Columns(*_target(estimator, y), (), found)


def prepared(estimator: Any, X: Any) -> Array:
    """The features of rows to predict, from a frame or from a matrix with the columns of training."""
    columns: Columns = estimator.columns_
    if is_frame(X):
        frame = as_polars(X, columns.names)
        if frame.width < len(columns.columns):
            absent = next(column for column in columns.columns if column.name not in frame.columns)
            raise no_column(absent.name, absent.kind, [str(name) for name in _names(X)])
        return frame_features(columns, frame)
    return frame_features(columns, from_matrix(X, column_names(estimator)))


def prepared_numbers(estimator: Any, A: Array) -> Array:
    """The features of numbers to predict, (m, n_features_in_) to (m, d)."""
    return _numbers(estimator.columns_, A, column_names(estimator))


def selected(X: Any, names: list[str]) -> Any:
    """These columns of a frame, which may have others, in any order."""
    given = {str(name): name for name in _names(X)}
    absent = next((name for name in names if name not in given), None)
    if absent is not None:
        raise TableError(
            f"`X` has no column {quoted(absent)}, which the model was trained on."
            f"{similar(absent, list(given))}"
        )
    if list(given) == names:
        return X
    return X[[given[name] for name in names]] if hasattr(X, "iloc") else X.select(names)


def column_names(estimator: Any) -> list[str]:
    """Names of the columns given to `fit`; x0, x1, … where they had none, as in scikit-learn."""
    names = getattr(estimator, "feature_names_in_", None)
    return [f"x{i}" for i in range(estimator.n_features_in_)] if names is None else list(names)


def declared(estimator: Any, names: list[str]) -> list[int]:
    """Numbers of the columns that the user declared as categories."""
    given = estimator.categorical_features
    if given is None or isinstance(given, str):
        return []
    d, given = len(names), list(given)
    if len(given) == d and all(isinstance(item, (bool, np.bool_)) for item in given):
        return [i for i, item in enumerate(given) if item]
    found = []
    for item in given:
        known = item in names if isinstance(item, str) else not isinstance(item, bool) and -d <= item < d
        if not known:
            raise ValueError(
                "`categorical_features` must name columns of X by number or by name, or be a list of "
                f"True and False for each of its {d} columns. Got {item!r}, which is none of them."
            )
        found.append(names.index(item) if isinstance(item, str) else int(item) % d)
    return found


def category_places(estimator: Any) -> list[int] | Any:
    """Numbers of the features that are categories, or "auto" or None to look for some or for none."""
    given, columns = estimator.categorical_features, getattr(estimator, "columns_", None)
    if columns is not None and given is not None:
        return columns.category_places or ("auto" if isinstance(given, str) else [])
    if given is None or isinstance(given, str):
        return given
    return declared(estimator, column_names(estimator))


def by_column(estimator: Any, shares: Array) -> Array:
    """Shares of the features, (d,), added up for each column given to `fit`, (n_features_in_,)."""
    if getattr(estimator, "columns_", None) is None:
        return shares
    place = {name: i for i, name in enumerate(column_names(estimator))}
    found = np.zeros(len(place))
    np.add.at(found, [place[name] for name in estimator.columns_.owners], shares)
    return found


def of_features(model: Any) -> Any:
    """A model that is given features in place of columns, which its metadata describes.

    For files, whose rows are prepared in parts.
    """
    if model.columns_ is None:
        return model
    bare = copy.copy(model)
    bare.metadata_ = {**model.metadata_, "columns": model.columns_.to_dict()}
    bare.columns_, bare.n_features_in_ = None, model.machine_.inputs.n_features
    if hasattr(bare, "feature_names_in_"):
        del bare.feature_names_in_
    return bare


def dense(X: Any) -> Any:
    """A sparse matrix as an array, if that fits into memory; anything else unchanged."""
    if not sparse.issparse(X):
        return X
    size, free = float(np.prod(X.shape)) * max(4, X.dtype.itemsize), free_memory()
    if size > DENSE_SHARE * free:
        raise ValueError(
            f"A sparse `X` becomes dense, which takes {size / GIB:.1f} GiB here, more than half of the "
            f"{free / GIB:.1f} GiB that are free. Use fewer rows, or reduce its columns, with "
            "TruncatedSVD for example."
        )
    return X.toarray()


def _numbers(columns: Columns, A: Array, names: list[str]) -> Array:
    if list(columns.names) != names:
        place = {name: j for j, name in enumerate(names)}
        A = A[:, [place[name] for name in columns.names]]
    return columns.features_of_numbers(A)


def _names(X: Any) -> Any:
    return getattr(X, "column_names", None) or X.columns


def _target(estimator: Any, y: Any) -> tuple[str, Any, Kind]:
    """Name, task and kind of the target, for a file with the same columns."""
    name = getattr(y, "name", None)
    values = np.asarray(y)
    kind: Kind = "boolean" if values.dtype.kind == "b" else "number"
    task = "classification" if is_classifier(estimator) else "regression"
    if values.dtype.kind not in "biuf" and task == "classification":
        kind = "text"
    return name if isinstance(name, str) and name else UNNAMED_TARGET, task, kind
