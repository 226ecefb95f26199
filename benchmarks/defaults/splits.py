"""Datasets of the comparison, and their splits into training and test rows.

The rows of a split follow from its number alone, so every method gets the same ones.  The training rows
of a smaller size are among those of a larger one, and the test rows are the same.

- Where a dataset has an official test part, training rows are drawn from its training part, and up to
  TEST_ROWS test rows from its test part.  Other datasets are split at random.
- A dataset with fewer training rows than asked for is `whole`: three quarters of its rows are used for
  training and the rest for testing.  Where it has an official test part, that is three quarters of the
  training part, since with all of it the splits would be equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine

from benchmarks.paper.data import SOURCES, read

Array = NDArray[Any]
TEST_ROWS = 5_000
# Share of the rows for training where there are few.
TRAINING_SHARE = 0.75
SMALL: dict[str, Callable[..., Any]] = {
    "breast_cancer": load_breast_cancer,
    "wine": load_wine,
    "digits": load_digits,
    "diabetes": load_diabetes,
}
# Datasets by file name, with their names in the table, in its order.
TITLES = {
    "breast_cancer": "breast cancer",
    "wine": "wine",
    "digits": "digits",
    "diabetes": "diabetes (regression)",
    "adult": "Adult",
    "california_houses": "California houses (regression)",
    "cifar10_gray": "CIFAR-10, grey",
    "connect4": "Connect-4",
    "covtype": "Covertype",
    "house_16H": "house 16H (regression)",
    "magic": "MAGIC",
    "mnist": "MNIST",
    "nycflights13": "New York flights (regression)",
    "svhn_gray_recropped": "SVHN, re-cropped, grey",
    "usps": "USPS",
}
REGRESSION = {s.file for s in SOURCES.values() if s.kind == "regression"} | {"diabetes"}
# Columns of integer codes without an order.  Binary columns, such as Covertype's, need no declaration.
CATEGORIES = {
    # workclass, education, marital status, occupation, relationship, race, sex, native country
    "adult": (1, 3, 5, 6, 7, 8, 9, 13),
    "connect4": tuple(range(42)),  # a square is empty or has a piece of one of two players
}


@dataclass(frozen=True)
class Dataset:
    """All rows of a dataset; the test part is None where there is no official one."""

    name: str
    X: Array
    y: Array
    X_test: Array | None = None
    y_test: Array | None = None

    @property
    def is_regression(self) -> bool:
        return self.name in REGRESSION


@dataclass(frozen=True)
class Split:
    """Training and test rows of a dataset.

    Labels count from 0.  A test label that no training row has is -1, which no method predicts.
    """

    dataset: str
    number: int
    X: Array  # (n, d) float64
    y: Array  # (n,)
    X_test: Array
    y_test: Array
    is_regression: bool
    whole: bool  # the dataset has fewer training rows than asked for
    categories: tuple[int, ...] = ()  # columns that are declared as categories


def names(folder: Path) -> list[str]:
    """The datasets of scikit-learn and those in the folder, in the order of the table."""
    found = {*SMALL, *(path.stem for path in folder.glob("*.npz"))}
    return [name for name in TITLES if name in found] + sorted(found - set(TITLES))


def load(name: str, folder: Path) -> Dataset:
    if name in SMALL:
        return Dataset(name, *SMALL[name](return_X_y=True))
    return Dataset(name, *read(folder / f"{name}.npz"))


def draw(data: Dataset, rows: int, number: int, *, declared: bool = False) -> Split:
    """Split `number` of the dataset, with `rows` training rows if it has that many."""
    rng = np.random.default_rng(number)
    train = rng.permutation(len(data.X))
    share = int(TRAINING_SHARE * len(train))
    if data.X_test is None or data.y_test is None:
        n_test = min(TEST_ROWS, len(train) - share)
        test, train = train[:n_test], train[n_test:]
        X_test, y_test = data.X[test], data.y[test]
    else:
        test = rng.permutation(len(data.X_test))[:TEST_ROWS]
        X_test, y_test = data.X_test[test], data.y_test[test]
    whole = len(train) < rows
    train = train[: share if whole else rows]
    y = data.y[train]
    if not data.is_regression:
        y, y_test = counted(y, y_test)
    return Split(
        data.name,
        number,
        features(data.X[train]),
        y,
        features(X_test),
        y_test,
        data.is_regression,
        whole,
        CATEGORIES.get(data.name, ()) if declared else (),
    )


def draw_all(data: Dataset, sizes: list[int], splits: int, *, declared: bool) -> Iterator[Split]:
    """The splits of every size.  Those of a whole dataset are equal at larger sizes, and come once."""
    seen = set()
    for rows in sizes:
        for number in range(splits):
            split = draw(data, rows, number, declared=declared)
            if (len(split.X), number) not in seen:
                seen.add((len(split.X), number))
                yield split


def features(X: Array) -> Array:
    """Rows of numbers; pixels are divided by 255."""
    unit = 255 if X.dtype == np.uint8 else 1
    return X.reshape(len(X), -1).astype(np.float64) / unit


def counted(y: Array, y_test: Array) -> tuple[Array, Array]:
    """Labels counted from 0 in the order of the training labels, and -1 for all others.

    >>> counted(np.array([7, 3, 7]), np.array([3, 5, 9]))
    (array([1, 0, 1]), array([ 0, -1, -1]))
    """
    classes, codes = np.unique(y, return_inverse=True)
    found = np.searchsorted(classes, y_test).clip(max=len(classes) - 1)
    return codes, np.where(classes[found] == y_test, found, -1)
