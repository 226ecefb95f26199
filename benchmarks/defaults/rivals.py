"""The methods of the comparison.

Libraries run at their defaults: only the random seed, verbosity and the number of threads are set.
Mercer and the boosting libraries get features and targets as they are.  The SVM, kernel ridge and the
linear models get standardised features (images: pixels over 255) and standardised targets.  The linear
models are logistic and linear regression at scikit-learn's defaults.

Grid searches try C, or the ridge, and gamma on a 4 by 4 grid with three folds.  They use at most
SEARCH_ROWS of the training rows; the best setting is then fitted to all of them.

Categories are declared to each library in its own way, by a parameter or by the column types of a pandas
table.  Methods of scikit-learn that take no categories get one-hot columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, SVR
from threadpoolctl import threadpool_limits

from benchmarks.defaults.record import Categories, Key, Measurement
from benchmarks.defaults.splits import Array, Split
from mercer.stopwatch import Stopwatch

# A grid search with more rows takes hours.
SEARCH_ROWS = 2_000
# Rows with at least this many features are images, whose features are on one scale.
IMAGE_FEATURES = 200
# With fewer values than this, a grid search ends before other processes have started.
PARALLEL_VALUES = 1_000_000
MERCER, LIGHT, SVM, LINEAR = "Mercer", "LightGBM", "SVM, grid search", "linear"


@dataclass(frozen=True)
class Library:
    """Estimators named `prefix`Classifier and `prefix`Regressor."""

    module: str
    prefix: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    columns: str = ""  # the parameter that takes the indices of categories
    declared: Mapping[str, Any] = field(default_factory=dict)  # settings for declared categories
    table: bool = False  # whether declared categories come in a pandas table
    threads: str = ""  # the parameter that limits threads; without it, only OpenMP is limited

    def make(self, split: Split, threads: int | None) -> Any:
        kind = "Regressor" if split.is_regression else "Classifier"
        settings = {"random_state": 0, **self.settings}
        if threads and self.threads:
            settings[self.threads] = threads
        if split.categories:
            settings |= self.declared
            if self.columns:
                settings[self.columns] = list(split.categories)
        return getattr(import_module(self.module), self.prefix + kind)(**settings)


LIBRARIES = {
    MERCER: Library("mercer", "Kernel", columns="categorical_features", threads="n_jobs"),
    LIGHT: Library("lightgbm", "LGBM", {"verbose": -1}, table=True, threads="n_jobs"),
    "XGBoost": Library(
        "xgboost",
        "XGB",
        {"verbosity": 0},
        declared={"enable_categorical": True},
        table=True,
        threads="n_jobs",
    ),
    "CatBoost": Library(
        "catboost",
        "CatBoost",
        {"verbose": False, "allow_writing_files": False},
        columns="cat_features",
        table=True,
        threads="thread_count",
    ),
    "HistGradientBoosting": Library(
        "sklearn.ensemble", "HistGradientBoosting", columns="categorical_features"
    ),
}
BOOSTING = tuple(name for name in LIBRARIES if name != MERCER)
# Mercer without one of its parts: measured only if asked for, and shown by `ablation`.
ABLATIONS: dict[str, dict[str, Any]] = {
    "Mercer, no ranks": {"scale": True},
    "Mercer, no categories": {"categorical_features": None},
    "Mercer, Laplacian only": {"kernel": "laplacian"},
    "Mercer, no metric": {"metric": False},
    "Mercer, a part held out": {"early_stopping": True},
}
LIBRARIES |= {name: Library("mercer", "Kernel", settings) for name, settings in ABLATIONS.items()}


def prepared(split: Split, model: Any) -> Any:
    """The model on standardised features and targets, and one-hot columns for declared categories."""
    scaler = "passthrough" if split.X.shape[1] >= IMAGE_FEATURES else StandardScaler()
    if split.categories:
        one_hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
        scaler = make_column_transformer((one_hot, list(split.categories)), remainder=scaler)
    pipe = make_pipeline(scaler, model)
    if split.is_regression:
        return TransformedTargetRegressor(pipe, transformer=StandardScaler())
    return pipe


def searched(split: Split, model: Any, parameter: str, values: list[float], threads: int | None) -> Any:
    """The prepared model with the best values of `parameter` and gamma, to be fitted to all rows."""
    X, y = split.X[:SEARCH_ROWS], split.y[:SEARCH_ROWS]  # in random order
    variance = float(X.var()) if X.shape[1] >= IMAGE_FEATURES else 1.0
    base = 1 / (X.shape[1] * variance)  # scikit-learn's "scale"
    step = ("regressor__" if split.is_regression else "") + type(model).__name__.lower()
    grid = {
        f"{step}__{parameter}": values,
        f"{step}__gamma": [base / 8, base / 2, 2 * base, 8 * base],
    }
    pipe = prepared(split, model)
    jobs = (threads or -1) if X.size > PARALLEL_VALUES else None
    search = GridSearchCV(pipe, grid, cv=3, n_jobs=jobs, refit=False).fit(X, y)
    return clone(pipe).set_params(**search.best_params_)


def linear(split: Split, threads: int | None) -> Any:
    return prepared(split, LinearRegression() if split.is_regression else LogisticRegression())


def svm(split: Split, threads: int | None) -> Any:
    model = SVR() if split.is_regression else SVC()
    return searched(split, model, "C", [0.1, 1, 10, 100], threads)


def kernel_ridge(split: Split, threads: int | None) -> Any:
    return searched(split, KernelRidge(kernel="rbf"), "alpha", [1e-3, 1e-2, 0.1, 1.0], threads)


# Each makes an estimator for a split; grid searches take place there.
SKLEARN: dict[str, Callable[[Split, int | None], Any]] = {
    SVM: svm,
    "kernel ridge, grid search": kernel_ridge,
    LINEAR: linear,
}
REGRESSION_ONLY = {"kernel ridge, grid search"}
METHODS = (*(name for name in LIBRARIES if name not in ABLATIONS), *SKLEARN)


def package(method: str) -> str:
    return LIBRARIES[method].module.partition(".")[0] if method in LIBRARIES else "sklearn"


def installed(method: str) -> bool:
    return find_spec(package(method)) is not None


def applies(method: str, split: Split) -> bool:
    return split.is_regression or method not in REGRESSION_ONLY


def key(method: str, split: Split) -> Key:
    categories: Categories = "declared" if split.categories else "as-they-stand"
    return (split.dataset, len(split.X), split.number, method, categories)


def measure(method: str, split: Split, threads: int | None = None) -> Measurement:
    """Train on a split, and measure the error on its test rows."""
    X, X_test = split.X, split.X_test
    make = SKLEARN[method] if method in SKLEARN else LIBRARIES[method].make
    if split.categories and method in LIBRARIES and LIBRARIES[method].table:
        X, X_test = tables(split)
    with threadpool_limits(threads):
        with Stopwatch() as watch:
            model = make(split, threads).fit(X, split.y)
        predicted = np.ravel(model.predict(X_test))  # CatBoost returns labels as a column
    if split.is_regression:
        error = 1 - r2_score(split.y_test, predicted)
    else:
        error = np.mean(predicted != split.y_test)
    version = import_module(package(method)).__version__
    return Measurement(*key(method, split), split.whole, float(error), watch.seconds, version)


def tables(split: Split) -> tuple[Any, Any]:
    """Training and test rows as pandas tables, where categories have the type `category`."""
    import pandas as pd

    def table(X: Array) -> Any:
        columns: dict[str, Any] = {f"x{j}": column for j, column in enumerate(X.T)}
        for j in split.categories:
            codes = np.union1d(split.X[:, j], split.X_test[:, j]).astype(int)
            columns[f"x{j}"] = pd.Categorical(X[:, j].astype(int), categories=codes)
        return pd.DataFrame(columns)

    return table(split.X), table(split.X_test)
