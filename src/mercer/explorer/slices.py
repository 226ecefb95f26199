"""The learned function along one column, and along two as a map.

All other columns have the values of one row, by default a typical one.  A column of several features,
such as a date with its cycles, is moved by giving the row these features of other rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mercer.estimators import KernelClassifier
from mercer.explorer.dataset import Dataset, Field
from mercer.explorer.settings import Model, Settings

Array = NDArray[Any]

LINE_POINTS = 60
MAP_POINTS = 24
MOST_SLICE_DOTS = 500
MOST_SLICE_LEVELS = 40
# Rows whose mean is shown instead of the function at a single row.
AVERAGED_ROWS = 40


@dataclass(frozen=True)
class Axis:
    """Values of a column: where they are drawn, what they are called, and their features."""

    at: Array  # (k,)
    labels: list[str]  # of categories; empty for numbers
    features: Array  # (k, w)


def axis_of(data: Dataset, field: Field, rows: Array, count: int) -> Axis:
    """Values of a column among these rows: evenly spaced numbers, or the most frequent categories."""
    places = list(field.places)
    F = np.asarray(data.X[rows][:, places], dtype=np.float64)  # (m, w)
    if field.levels:
        codes, counts = np.unique(F[:, 0], return_counts=True)
        kept = np.sort(codes[np.argsort(-counts, kind="stable")][:MOST_SLICE_LEVELS])
        names = [field.levels[int(c)] if 0 <= c < len(field.levels) else "(other)" for c in kept]
        return Axis(np.arange(len(kept), dtype=float), names, kept[:, None])
    primary = F[:, 0]
    low, high = np.quantile(primary, [0.01, 0.99])
    if len(places) == 1:
        values = np.unique(primary)
        if len(values) > count:
            values = np.linspace(low, high if high > low else low + 1.0, count)
        return Axis(values, [], values[:, None])
    # Several features, such as a date and its cycles: those of rows at even ranks.
    order = np.argsort(primary, kind="stable")
    chosen = order[np.unique(np.linspace(0, len(order) - 1, count).astype(int))]
    _, first = np.unique(primary[chosen], return_index=True)
    return Axis(primary[chosen[first]], [], F[chosen[first]])


def typical_row(data: Dataset, rows: Array) -> int:
    """The row nearest to the medians of all features, in units of their spread."""
    A = np.asarray(data.X[rows], dtype=np.float64)  # (m, d)
    spread = np.quantile(A, 0.9, axis=0) - np.quantile(A, 0.1, axis=0)
    distance = np.abs(A - np.median(A, axis=0)) / np.where(spread > 0, spread, 1.0)
    return int(rows[distance.sum(1).argmin()])


class Slicer:
    """Evaluates one model on rows that differ in one or two columns."""

    def __init__(self, data: Dataset, settings: Settings, model: Model) -> None:
        self.data, self.settings, self.model = data, settings, model
        self.rows = data.held_out
        self.used = data.features_of(settings.columns)

    def line(self, column: int, output: int | None, averaged: bool, row: int | None) -> dict[str, Any]:
        """The function along a column, with rows of the data under it."""
        field = self.data.about.fields[column]
        axis = axis_of(self.data, field, self.rows, LINE_POINTS)
        output = self._output(output, row)
        bases = self._bases(averaged, row)  # (b, d)
        f = self._along([(field, axis)], bases, output)  # (k, b)
        dots = self.rows[:MOST_SLICE_DOTS]
        places = np.asarray(self.data.X[dots][:, field.places[0]], dtype=float)
        known = np.ones(len(dots), bool)
        if field.levels:
            where = {float(code): i for i, code in enumerate(axis.features[:, 0])}
            known = np.array([p in where for p in places], bool)
            places = np.array([where.get(p, 0) for p in places], float)
        else:
            known = (places >= axis.at[0]) & (places <= axis.at[-1])
        return {
            "column": column,
            "x": axis.at.tolist(),
            "labels": axis.labels,
            "y": f.mean(1).tolist(),
            "low": np.quantile(f, 0.1, axis=1).tolist() if averaged else [],
            "high": np.quantile(f, 0.9, axis=1).tolist() if averaged else [],
            "dots": [places[known].tolist(), self._truth(dots[known], output).tolist()],
            "output": output,
            "row": None if averaged else self._row(row),
        }

    def map(self, first: int, second: int, output: int | None, row: int | None) -> dict[str, Any]:
        """The function over two columns, (k2, k1), with rows of the data over it."""
        fields = [self.data.about.fields[i] for i in (first, second)]
        axes = [axis_of(self.data, field, self.rows, MAP_POINTS) for field in fields]
        output = self._output(output, row)
        f = self._along(list(zip(fields, axes, strict=True)), self._bases(False, row), output)[:, 0]
        dots = self.rows[:MOST_SLICE_DOTS]
        at = [np.asarray(self.data.X[dots][:, field.places[0]], dtype=float) for field in fields]
        for i, (field, axis) in enumerate(zip(fields, axes, strict=True)):
            if field.levels:
                where = {float(code): j for j, code in enumerate(axis.features[:, 0])}
                at[i] = np.array([where.get(p, -1) for p in at[i]], float)
        return {
            "columns": [first, second],
            "x": axes[0].at.tolist(),
            "y": axes[1].at.tolist(),
            "labels": [axes[0].labels, axes[1].labels],
            "z": f.reshape(len(axes[0].at), len(axes[1].at)).T.tolist(),
            "dots": [at[0].tolist(), at[1].tolist(), self._truth(dots, output).tolist()],
            "output": output,
            "row": self._row(row),
        }

    def _row(self, row: int | None) -> int:
        return typical_row(self.data, self.rows) if row is None else int(self.rows[row])

    def _output(self, output: int | None, row: int | None) -> int | None:
        """The class whose probability is shown: unless one was chosen, that of the row."""
        if output is not None or not isinstance(self.model, KernelClassifier):
            return output
        X = self._bases(False, row)[:, self.used].astype(self.data.X.dtype)
        return int(np.asarray(self.model.predict_proba(X))[0].argmax())

    def _bases(self, averaged: bool, row: int | None) -> Array:
        chosen = self.rows[:AVERAGED_ROWS] if averaged else np.array([self._row(row)])
        return np.asarray(self.data.X[chosen], dtype=np.float64)

    def _along(self, moved: list[tuple[Field, Axis]], bases: Array, output: int | None) -> Array:
        """f at all combinations of the values, (k1 k2, b)."""
        sizes = [len(axis.at) for _, axis in moved]
        grid = np.indices(sizes).reshape(len(sizes), -1)  # (1 or 2, k)
        k, b = grid.shape[1], len(bases)
        X = np.repeat(bases, k, axis=0)  # (b k, d)
        for (field, axis), places in zip(moved, grid, strict=True):
            X[:, list(field.places)] = np.tile(axis.features[places], (b, 1))
        X = X[:, self.used].astype(self.data.X.dtype)
        return self._values(X, output).reshape(b, k).T

    def _values(self, X: Array, output: int | None) -> Array:
        if isinstance(self.model, KernelClassifier):
            return np.asarray(self.model.predict_proba(X))[:, output or 0]
        return np.asarray(self.model.predict(X), dtype=float)

    def _truth(self, rows: Array, output: int | None) -> Array:
        """Targets of rows; of classes, whether it is this one."""
        y = self.data.y[rows]
        if self.data.about.task == "regression":
            return y.astype(float)
        assert isinstance(self.model, KernelClassifier)
        same: Array = y == self.model.classes_[output or 0]
        return same.astype(float)
