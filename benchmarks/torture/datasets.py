"""Small hard datasets: random rows of real and made ones, with rows repeated in ways that real data has.

Rows are in float64 and as they come: features are on different scales, and images are in 0..255.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets

from benchmarks.paper.data import FOLDER, SOURCES, read

Array = NDArray[Any]
Floats = NDArray[np.float64]
# Rows of a dataset that are kept in memory, from which cases draw theirs.
POOL_ROWS = 3_000
MADE_ROWS = 1_500
# Distance of a near-duplicate, as a share of each feature's standard deviation: below float32's rounding
# of the features' sizes, above float64's.
NEAR = 1e-7
OVERSAMPLED_COPIES = 5


@dataclass(frozen=True)
class Table:
    """Rows and their targets, which are numbers or labels."""

    X: Array  # (n, d)
    y: Array  # (n,)
    numeric: bool

    def take(self, rows: Array) -> Table:
        return Table(self.X[rows], self.y[rows], self.numeric)


MADE: dict[str, tuple[Callable[[], Any], bool]] = {
    "iris": (lambda: datasets.load_iris(return_X_y=True), False),
    "wine": (lambda: datasets.load_wine(return_X_y=True), False),
    "breast_cancer": (lambda: datasets.load_breast_cancer(return_X_y=True), False),
    "digits": (lambda: datasets.load_digits(return_X_y=True), False),
    "diabetes": (lambda: datasets.load_diabetes(return_X_y=True), True),
    "circles": (lambda: datasets.make_circles(MADE_ROWS, noise=0.2, random_state=0), False),
    "moons": (lambda: datasets.make_moons(MADE_ROWS, noise=0.3, random_state=0), False),
    "friedman1": (lambda: datasets.make_friedman1(MADE_ROWS, noise=1.0, random_state=0), True),
    "classification": (
        lambda: datasets.make_classification(MADE_ROWS, n_classes=3, n_informative=5, random_state=0),
        False,
    ),
    "swiss_roll": (lambda: datasets.make_swiss_roll(MADE_ROWS, noise=0.1, random_state=0), True),
}


def _table(columns: list[Array], rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Columns as rows, and numbers that depend on the first two of them."""
    first, second = ((c - np.median(c)) / (c.std() or 1.0) for c in columns[:2])
    y = np.tanh(first) + np.sin(3 * second) + 0.1 * rng.normal(size=MADE_ROWS)
    return np.column_stack(columns).astype(np.float64), y


def _codes() -> tuple[Floats, Floats]:
    """Codes with two, a few and many values, one of which nearly always occurs, beside numbers."""
    rng = np.random.default_rng(0)
    sizes = (5, 60, 2, 300)
    columns = [rng.integers(0, size, MADE_ROWS) for size in sizes]
    columns.append(np.where(rng.random(MADE_ROWS) < 0.99, 7, rng.integers(100, 110, MADE_ROWS)))
    return _table([*columns, rng.normal(size=MADE_ROWS)], rng)


def _heavy_tails() -> tuple[Floats, Floats]:
    """Columns whose largest values are far beyond the others, up to 1e12 times the median."""
    rng = np.random.default_rng(0)
    normal = rng.normal(size=(MADE_ROWS, 4))
    columns = [np.exp(2 * normal[:, 0]), 1 / normal[:, 1], np.exp(8 * normal[:, 2]), normal[:, 3] ** 9]
    return _table(columns, rng)


def _constant_columns() -> tuple[Floats, Floats]:
    """Columns with one value, or one value but for a single row, beside numbers and codes."""
    rng = np.random.default_rng(0)
    single = np.zeros(MADE_ROWS)
    single[0] = 1e6
    columns = [rng.normal(size=MADE_ROWS), rng.integers(0, 4, MADE_ROWS), np.full(MADE_ROWS, 3.7)]
    return _table([*columns, np.zeros(MADE_ROWS), single], rng)


MADE |= {"codes": (_codes, True), "heavy_tails": (_heavy_tails, True)}
MADE |= {"constant_columns": (_constant_columns, True)}


def names() -> tuple[str, ...]:
    """The datasets at hand: those that scikit-learn has, and the files in the data folder."""
    found = [name for name, source in SOURCES.items() if (FOLDER / f"{source.file}.npz").is_file()]
    return (*MADE, *found)


@cache
def pool(name: str) -> Table:
    """Random rows of a dataset."""
    if name in MADE:
        make, numeric = MADE[name]
        X, y = make()
    else:
        source = SOURCES[name]
        X, y, *_ = read(FOLDER / f"{source.file}.npz")
        numeric = source.kind == "regression"
    rows = np.random.default_rng(0).permutation(len(X))[:POOL_ROWS]
    X, y = X[rows].reshape(len(rows), -1), y[rows]
    return Table(X.astype(np.float64), y.astype(np.float64) if numeric else y, numeric)


def plain(table: Table, n: int, rng: np.random.Generator) -> Table:
    return table.take(rng.permutation(len(table.y))[:n])


def doubled(table: Table, n: int, rng: np.random.Generator) -> Table:
    return _shuffled(plain(table, n // 2, rng), 2, rng)


def tripled(table: Table, n: int, rng: np.random.Generator) -> Table:
    return _shuffled(plain(table, n // 3, rng), 3, rng)


def bootstrap(table: Table, n: int, rng: np.random.Generator) -> Table:
    return table.take(rng.integers(min(n, len(table.y)), size=n))


def oversampled(table: Table, n: int, rng: np.random.Generator) -> Table:
    """One class, or the rows with the largest targets, several times."""
    few = plain(table, n // 2, rng)
    rare = few.y >= np.quantile(few.y, 0.9) if few.numeric else few.y == few.y[0]
    rows = np.concatenate([np.arange(len(few.y)), np.repeat(np.flatnonzero(rare), OVERSAMPLED_COPIES)])
    return few.take(rng.permutation(rows)[:n])


def near_duplicates(table: Table, n: int, rng: np.random.Generator) -> Table:
    """Every row twice, the copies a little apart."""
    found = doubled(table, n, rng)
    noise = rng.normal(size=found.X.shape) * found.X.std(0)
    return Table(found.X + NEAR * noise, found.y, found.numeric)


def conflicting(table: Table, n: int, rng: np.random.Generator) -> Table:
    """Every row twice, the copies with targets of their own."""
    found = doubled(table, n, rng)
    return Table(found.X, rng.permutation(found.y), found.numeric)


def constant_targets(table: Table, n: int, rng: np.random.Generator) -> Table:
    """The same number for every row; labels need two classes, and one of them gets a single row."""
    found = plain(table, n, rng)
    y = found.y.copy()
    other = np.flatnonzero(y != y[0])[:1]
    y[:] = y[0]
    if not found.numeric:
        y[other] = found.y[other]
    return Table(found.X, y, found.numeric)


ROWS: dict[str, Callable[[Table, int, np.random.Generator], Table]] = {
    f.__name__: f
    for f in (
        plain,
        doubled,
        tripled,
        bootstrap,
        oversampled,
        near_duplicates,
        conflicting,
        constant_targets,
    )
}


def median_distance(X: Floats, rows: int = 300) -> float:
    """The median distance between the first rows, of those that differ."""
    x = X[:rows] - X[:rows].mean(0)
    squares = (x**2).sum(1)
    d2 = squares[:, None] + squares[None, :] - 2 * x @ x.T  # (rows, rows)
    apart = d2[d2 > 1e-10 * squares.max()]
    return float(np.sqrt(np.median(apart))) if len(apart) else 1.0


def _shuffled(table: Table, times: int, rng: np.random.Generator) -> Table:
    return table.take(rng.permutation(np.repeat(np.arange(len(table.y)), times)))
