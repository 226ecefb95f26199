"""Checking what users pass to `fit` and `predict`.

Arrays and frames go through scikit-learn's validation.  A tensor on a device gets the same checks where
it is, and never visits the CPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import _check_sample_weight, check_array, validate_data
from torch import Tensor

from mercer.data.rows import Array, Matrix, widest
from mercer.estimators.row_share import rows_of

# Types whose values float32 holds exactly.
SMALL = (np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.float16)
SMALL_TENSORS = (torch.bool, torch.int8, torch.uint8, torch.int16, torch.float16, torch.bfloat16)


def training_data(estimator: Any, X: Any, y: Any, *, y_numeric: bool) -> tuple[Matrix, Array]:
    """Rows and targets to train on; sets the estimator's `n_features_in_` and `feature_names_in_`."""
    if not on_device(X):
        numeric = {"y_numeric": True} if y_numeric else {}
        return validate_data(  # type: ignore[no-any-return]
            estimator, as_numpy(X), as_numpy(y), multi_output=True, dtype=_types(X), **numeric
        )
    X = _on_device(estimator, X, reset=True)
    dtype = np.float64 if y_numeric else None
    y = check_array(as_numpy(y), dtype=dtype, ensure_2d=False, input_name="y")
    if len(y) != len(X):
        raise ValueError(f"`X` and `y` must have as many rows. Got {len(X)} and {len(y)}.")
    return X, y


def more_rows(estimator: Any, X: Any) -> Array | Tensor:
    """Rows to predict or to hold out, with the features of the training data."""
    if on_device(X):
        return _on_device(estimator, X, reset=False)
    return np.asarray(validate_data(estimator, as_numpy(X), reset=False, dtype=_types(X)))


def own_centers(estimator: Any, centers: Any) -> Array | Tensor:
    """The user's own centres in random order, so that the first of them are a sample."""
    found = more_rows(estimator, centers)
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(0))
    return found[order] if isinstance(found, Tensor) else found[order.numpy()]


def held_out_data(estimator: Any, X_val: Any, y_val: Any) -> tuple[Matrix | None, Array | None]:
    """A held-out part given by the user, if any."""
    if (X_val is None) != (y_val is None):
        raise ValueError("`X_val` and `y_val` must be given together. Got only one of them.")
    if X_val is None:
        return None, None
    return more_rows(estimator, X_val), np.asarray(as_numpy(y_val))


def category_columns(estimator: Any) -> list[int] | Any:
    """Numbers of the columns declared as categories, or "auto" or None as they are."""
    given = estimator.categorical_features
    if given is None or isinstance(given, str):
        return given
    d, names = estimator.n_features_in_, list(getattr(estimator, "feature_names_in_", []))
    given = list(given)
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
    finite = np.isfinite(decision).all(1)
    if not finite.all():
        raise ValueError(
            f"The features of a row must be small enough for its prediction to be finite. Row "
            f"{int(np.argmin(finite))} of X (counted from 0) is not: rescale its features."
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


def _types(X: Any) -> list[type]:
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
    if not bool(torch.isfinite(X).all()):
        raise ValueError("`X` must be finite. Got NaN or infinity in it.")
    return X.detach()
