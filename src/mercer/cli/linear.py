"""A linear model of the same table, for comparison: a kernel has to be better than that to pay."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.compose import make_column_transformer
from sklearn.linear_model import RidgeClassifierCV, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

Array = NDArray[Any]
# Rows to train on, features, and classes up to which it takes about a second at most.
MOST_LINEAR_ROWS = 5_000
MOST_LINEAR_FEATURES = 300
MOST_LINEAR_CLASSES = 50
# Ridges that leave-one-out error chooses from, for features of unit variance.
LINEAR_RIDGES = tuple(10.0**k for k in range(-3, 5))


def linear_predictions(
    X: Array, y: Array, rows: Array, new: Array, categories: Sequence[int], task: str
) -> Array | None:
    """Of the rows `new`, (m, d), by a ridge regression on some of these rows of X; None if too large."""
    classifies = task == "classification"
    if X.shape[1] > MOST_LINEAR_FEATURES or (
        classifies and len(np.unique(y[rows])) > MOST_LINEAR_CLASSES
    ):
        return None
    if len(rows) > MOST_LINEAR_ROWS:
        rows = np.sort(np.random.default_rng(0).choice(rows, MOST_LINEAR_ROWS, replace=False))
    if len(rows) < 2 or (classifies and len(np.unique(y[rows])) < 2):
        return None
    numbers = [j for j in range(X.shape[1]) if j not in set(categories)]
    prepare = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), list(categories)),
        (StandardScaler(), numbers),
    )
    model = make_pipeline(prepare, (RidgeClassifierCV if classifies else RidgeCV)(LINEAR_RIDGES))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nearly collinear columns
        return np.asarray(model.fit(np.asarray(X[rows], np.float64), y[rows]).predict(new))
