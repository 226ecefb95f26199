"""Checking what users pass to `fit` and `predict`.

Arrays and frames go through scikit-learn's validation.  A tensor on a device gets the same checks where
it is, and never visits the CPU.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import _check_sample_weight, check_array, validate_data
from torch import Tensor

from mercer.data.rows import Array, Matrix, widest
from mercer.estimators.places import check_labels, places_of_errors
from mercer.estimators.preparation import (
    column_names,
    columns_of_frame,
    columns_of_matrix,
    dense,
    prepared,
    prepared_numbers,
    selected,
)
from mercer.estimators.row_share import rows_of
from mercer.estimators.written_targets import are_written, first_numbers, has_text, more_numbers
from mercer.tables.frames import as_polars, beyond_numbers, is_frame
from mercer.tables.kinds import of_kinds
from mercer.tables.matrices import has_gaps
from mercer.tables.notation import Notation

# Types whose values float32 holds exactly.
SMALL = (np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.float16)
# Values up to which the time of a call, and not of each row, counts.
MOST_PLAIN_VALUES = 1 << 14
SMALL_TENSORS = (torch.bool, torch.int8, torch.uint8, torch.int16, torch.float16, torch.bfloat16)


def training_data(estimator: Any, X: Any, y: Any, *, y_numeric: bool) -> tuple[Matrix, Array]:
    """Features and targets to train on.

    Sets the estimator's `n_features_in_`, `feature_names_in_` and `columns_`, which says how columns
    become features.
    """
    estimator.columns_, estimator._target_notations = None, ()
    if on_device(X):
        y, estimator._target_notations = _numbers_to_learn(as_numpy(y), y_numeric)
        X = _on_device(estimator, X, reset=True)
        dtype = np.float64 if y_numeric else None
        with places_of_errors(np.zeros(0), y):
            y = check_array(y, dtype=dtype, ensure_2d=False, input_name="y")
        if len(y) != len(X):
            raise ValueError(f"`X` and `y` must have as many rows. Got {len(X)} and {len(y)}.")
        return X, y
    how: dict[str, Any] = {"multi_output": True, "ensure_all_finite": "allow-nan"}
    if y_numeric:
        how["y_numeric"] = True
    X, y = dense(as_numpy(X)), as_numpy(y)
    if not y_numeric:
        check_labels(y)
    if is_frame(X) and X.shape[1] and beyond_numbers(X):
        columns, features, names, decimal = columns_of_frame(estimator, X, y)
        y, notations = _numbers_to_learn(y, y_numeric, decimal)
        with places_of_errors(features, y):
            features, y = validate_data(estimator, features, y, dtype=[np.float32], **how)
        estimator.columns_ = replace(columns, target_notation=next(iter(notations), None))
        estimator.n_features_in_, estimator._target_notations = len(names), notations
        estimator.feature_names_in_ = np.array(names, dtype=object)
        return features, y
    given = as_polars(X) if is_frame(X) and hasattr(X, "column_names") else X  # an Arrow table
    numbers, notations = _numbers_to_learn(y, y_numeric)
    with places_of_errors(given, numbers):
        A, checked = validate_data(estimator, given, numbers, dtype=types_of(X), **how)
    estimator._target_notations = notations
    if has_gaps(A):
        columns, A = columns_of_matrix(estimator, A, column_names(estimator), X, y)
        estimator.columns_ = replace(columns, target_notation=next(iter(notations), None))
    return A, checked


def _numbers_to_learn(
    y: Any, y_numeric: bool, decimal: str | None = None
) -> tuple[Any, tuple[Notation, ...]]:
    """Targets in which numbers may be written as text, and how; for a regressor."""
    return first_numbers(y, decimal) if y_numeric and are_written(y) else (y, ())


def more_targets(estimator: Any, y: Any) -> Array:
    """Targets of rows to score, to hold out or to train on further, as those of `fit` are."""
    y, known = as_numpy(y), estimator._target_notations
    if known and has_text(y):
        return more_numbers(y, known)
    return np.asarray(_numbers_to_learn(y, estimator._y_numeric)[0])


def more_rows(estimator: Any, X: Any) -> Array | Tensor:
    """Features of rows to predict or to hold out, with the columns of the training data."""
    if _is_plain(estimator, X):
        return X  # type: ignore[no-any-return]
    if on_device(X):
        return _on_device(estimator, X, reset=False)
    X = dense(as_numpy(X))
    columns = getattr(estimator, "columns_", None)
    if columns is not None and not columns.are_numbers:
        return prepared(estimator, X)
    if is_frame(X):
        X = _numbers_of_frame(estimator, X, columns is not None)
    with warnings.catch_warnings(), places_of_errors(X):
        if columns is not None:  # a table's rows may be given as a matrix, by position
            warnings.filterwarnings("ignore", "X does not have valid feature names")
        A: Array = validate_data(
            estimator, X, reset=False, dtype=types_of(X), ensure_all_finite="allow-nan"
        )
    if columns is not None:
        return prepared_numbers(estimator, A)
    return _filled(estimator, A) if has_gaps(A) else A


def own_centers(estimator: Any, centers: Any) -> tuple[Array | Tensor, Array]:
    """The user's own centres in random order, so that the first are a sample; and their numbers."""
    found = more_rows(estimator, centers)
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(0))
    return found[order] if isinstance(found, Tensor) else found[order.numpy()], order.numpy()


def held_out_data(estimator: Any, X_val: Any, y_val: Any) -> tuple[Matrix | None, Array | None]:
    """A held-out part given by the user, if any."""
    if (X_val is None) != (y_val is None):
        raise ValueError("`X_val` and `y_val` must be given together. Got only one of them.")
    if X_val is None:
        return None, None
    return more_rows(estimator, X_val), more_targets(estimator, y_val)


def row_weights(sample_weight: Any, y: Array) -> Array | None:
    """Weights that are numbers of at least 0; zero leaves a row out."""
    if sample_weight is None:
        return None
    weight = _check_sample_weight(as_numpy(sample_weight), y, dtype=np.float64)
    if weight.min() < 0 or not weight.max() > 0:
        raise ValueError(
            "`sample_weight` must be at least 0 and not 0 everywhere. Got values from "
            f"{weight.min():.3g} to {weight.max():.3g}."
        )
    return np.asarray(weight)


def finite_predictions(decision: Array) -> Array:
    """The predictions, which must be finite."""
    finite = np.isfinite(decision)
    if not finite.all():
        raise ValueError(
            f"The features of a row must be small enough for its prediction to be finite. Row "
            f"{int(np.argmin(finite.all(1)))} of X (counted from 0) is not: rescale its features."
        )
    return decision


def on_device(X: Any) -> bool:
    """Whether X is a tensor that is not in the CPU's memory, and should not go there."""
    return isinstance(X, Tensor) and X.device.type != "cpu"


def as_numpy(values: Any) -> Any:
    """Tensors as arrays, anything else unchanged for scikit-learn to judge."""
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values


def to_numpy(values: Tensor) -> Array:
    return np.asarray(values.cpu().numpy())


def like(values: Array, X: Any) -> Any:
    """Return a tensor, where X is, if X was one; labels that are text stay arrays."""
    rows = rows_of(X)
    if isinstance(rows, Tensor) and values.dtype.kind in "biuf":
        return torch.from_numpy(np.ascontiguousarray(values)).to(rows.device)
    return values


def _is_plain(estimator: Any, X: Any) -> bool:
    """Whether X is a small array in which scikit-learn's checks, which take long, find nothing."""
    return (
        type(X) is np.ndarray
        and X.ndim == 2
        and 0 < X.size <= MOST_PLAIN_VALUES
        and X.dtype in (np.float32, np.float64)
        and X.shape[1] == estimator.n_features_in_
        and getattr(estimator, "columns_", None) is None
        and not hasattr(estimator, "feature_names_in_")
        and bool(np.isfinite(X).all())
    )


def _numbers_of_frame(estimator: Any, X: Any, by_name: bool) -> Any:
    """A frame whose columns hold numbers, as training did; `by_name`: others are ignored."""
    names = column_names(estimator)
    if by_name and hasattr(estimator, "feature_names_in_"):
        X = selected(X, names)
    others = beyond_numbers(X) if X.shape[1] else []
    if others:  # numbers in text, or an error that names the first row with something else
        texts = of_kinds(as_polars(X, others), dict.fromkeys(others, "number"))
        return as_polars(X).with_columns(texts)
    return as_polars(X) if hasattr(X, "column_names") else X  # an Arrow table


def _filled(estimator: Any, A: Array) -> Array:
    """Missing values replaced by the means of the training data, which had none."""
    means = estimator.machine_.inputs.means
    if means is None:
        raise ValueError(
            "`X` has missing values, but the model is of an earlier version, which does not know the "
            "means of its columns: fill the values, or train again."
        )
    return np.where(np.isnan(A), means.numpy().astype(A.dtype), A)


def types_of(X: Any) -> list[type]:
    """The types that X may have; another is converted to the first of them, without loss.

    Lists, and numbers such as seconds since 1970, have more digits than float32.
    """
    small = getattr(X, "dtype", None) in (*SMALL, *SMALL_TENSORS)
    return [np.float32, np.float64] if small else [np.float64, np.float32]


def _on_device(estimator: Any, X: Tensor, reset: bool) -> Tensor:
    if X.ndim != 2 or not X.numel():
        raise ValueError(
            "`X` must be a matrix with at least one row and one column. Got a tensor of shape "
            f"{tuple(X.shape)}."
        )
    validate_data(estimator, X, reset=reset, skip_check_array=True)  # the number of features
    if X.dtype not in (torch.float32, torch.float64):
        X = X.float() if X.dtype in SMALL_TENSORS else X.to(widest(X.device))
    finite = torch.isfinite(X)
    if not bool(finite.all()):
        i, j = (int(place) for place in (~finite).nonzero()[0])
        raise ValueError(
            f"`X` must be finite, but the column 'x{j}' holds {float(X[i, j])} in row {i + 1:,} "
            "(counted from 1). Correct it, or leave the row out."
        )
    return X.detach()
