"""Predictions of a model on rows that it was not trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mercer.report.markup import shortened
from mercer.report.numbers import cell

# Characters of a name, and of a value that is text, in a line of them.
LONGEST_IN_LINE = 20


@dataclass(frozen=True)
class Coverage:
    """Intervals or sets, compared with the true values."""

    asked: float
    hits: NDArray[np.bool_]  # (m,)  the true value is inside
    widths: NDArray[Any]  # (m,)  or numbers of classes

    @property
    def share(self) -> float:
        """The share of rows whose true value is inside."""
        return float(self.hits.mean())

    def to_dict(self) -> dict[str, float]:
        return {
            "coverage": self.asked,
            "measured": self.share,
            "mean_width": float(self.widths.mean()),
            "median_width": float(np.median(self.widths)),
        }


@dataclass(frozen=True)
class RowValues:
    """What the table holds in some columns of some rows."""

    names: tuple[str, ...]  # of the columns
    rows: dict[int, tuple[Any, ...]]  # by the number of the row, from 1


@dataclass(frozen=True)
class Evaluation:
    """True values and predictions."""

    y: NDArray[Any]  # (m,)
    predicted: NDArray[Any]  # (m,)
    probabilities: NDArray[Any] | None  # (m, classes), None for a regression
    rows: NDArray[Any]  # (m,)  row numbers in the file, from 1
    source: str  # such as "20 % of train.csv, held out"
    coverage: Coverage | None = None
    linear: float | None = None  # the error, or RMSE, of a linear model on the same rows
    values: RowValues | None = None  # of the worst rows

    def __post_init__(self) -> None:
        shapes = [np.shape(values) for values in (self.y, self.predicted, self.rows)]
        if len(set(shapes)) > 1 or len(shapes[0]) != 1 or shapes[0][0] == 0:
            raise ValueError(
                "`y`, `predicted` and `rows` must be one-dimensional, of the same length and not empty. "
                f"Got shapes {shapes}."
            )

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Which rows are classified correctly, (m,)."""
        return np.asarray(self.y == self.predicted)

    @property
    def confidence(self) -> NDArray[np.float64] | None:
        """The probability of the predicted class, (m,)."""
        if self.probabilities is None:
            return None
        return np.asarray(self.probabilities.max(1), dtype=np.float64)

    @property
    def residuals(self) -> NDArray[np.float64]:
        """True minus predicted values, (m,)."""
        return np.asarray(np.float64(self.y) - np.float64(self.predicted))

    @property
    def error(self) -> float:
        """The share of rows that are misclassified, or the RMSE."""
        if self.probabilities is not None:
            return float((~self.correct).mean())
        return rms(self.residuals)

    @property
    def is_no_better_than_linear(self) -> bool:
        return self.linear is not None and self.error >= self.linear

    def value_pairs(self, i: int) -> dict[str, Any]:
        """The values of the i-th row by their columns, as far as they are known."""
        found = None if self.values is None else self.values.rows.get(int(self.rows[i]))
        if found is None or self.values is None:
            return {}
        return dict(zip(self.values.names, found, strict=True))

    def values_of(self, i: int, longest: int) -> str:
        """The same in one line, with as many values as it has room for, each of them whole."""
        found: list[str] = []
        room = longest
        for name, value in self.value_pairs(i).items():
            pair = f"{shortened(name, LONGEST_IN_LINE)} {shortened(cell(value), LONGEST_IN_LINE)}"
            room -= len(pair) + 2
            if room < 0 and found:
                found.append("…")
                break
            found.append(pair)
        return ", ".join(found)


def worst_rows(evaluation: Evaluation) -> NDArray[np.intp]:
    """Mistakes, the most confident first; of numbers all rows, the largest residuals first."""
    if evaluation.probabilities is None and evaluation.y.dtype.kind in "fiu":
        return np.argsort(-np.abs(evaluation.residuals), kind="stable")
    wrong = np.flatnonzero(~evaluation.correct)
    confidence = evaluation.confidence
    return wrong if confidence is None else wrong[np.argsort(-confidence[wrong], kind="stable")]


def rms(values: NDArray[np.float64]) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean(np.square(values))))
