"""Measures of predictions: error, recall and precision of classes, or R² and mean errors of numbers."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
# Quantile of the normal distribution for a 95 % confidence interval.
NORMAL_95 = 1.96


@dataclass(frozen=True)
class ClassMeasure:
    """Recall and precision of one class, and the class it is most often confused with."""

    label: Any
    rows: int
    recall: float | None  # None if no row has the class
    precision: float | None  # None if the class is never predicted
    mistaken_for: Any  # the class most often predicted instead; None without mistakes
    mistakes: int  # how often that is


@dataclass(frozen=True)
class ClassificationMeasures:
    rows: int
    error: float
    interval: tuple[float, float]  # 95 % confidence interval of the error
    baseline_error: float  # of predicting the most frequent class
    classes: tuple[ClassMeasure, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"task": "classification", "accuracy": 1 - self.error, **asdict(self)}


@dataclass(frozen=True)
class RegressionMeasures:
    rows: int
    r2: float
    rmse: float
    mae: float
    deviation: float  # standard deviation of the targets: the RMSE of predicting their mean

    def to_dict(self) -> dict[str, Any]:
        return {"task": "regression", **asdict(self)}


Measures = ClassificationMeasures | RegressionMeasures


def measure(task: str, y: Array, predicted: Array) -> Measures:
    """Compare predictions, (m,), with the true values y, (m,)."""
    if not len(y):
        raise ValueError("There are no rows to measure on. Hold out more rows, or use a larger file.")
    return _of_labels(y, predicted) if task == "classification" else _of_numbers(y, predicted)


def _of_labels(y: Array, predicted: Array) -> ClassificationMeasures:
    # Labels may be "1" in one array and 1 in the other.
    if (y.dtype.kind in "biuf") != (predicted.dtype.kind in "biuf"):
        y, predicted = y.astype(str), predicted.astype(str)
    labels, codes = np.unique(np.concatenate([y, predicted]), return_inverse=True)
    names = labels.tolist()
    truth, guess = codes[: len(y)], codes[len(y) :]
    count = len(names)
    rows, guesses = np.bincount(truth, minlength=count), np.bincount(guess, minlength=count)
    right = np.bincount(truth[truth == guess], minlength=count)
    # Only the pairs that occur: a confusion matrix of 10,000 classes would take 800 MB.
    wrong = truth != guess
    pairs, times = np.unique(truth[wrong] * count + guess[wrong], return_counts=True)
    # For each class its most frequent pair, since later entries replace earlier ones.
    instead = {int(pairs[i]) // count: i for i in np.argsort(times, kind="stable")}
    return ClassificationMeasures(
        len(y),
        float(wrong.mean()),
        wilson_interval(int(wrong.sum()), len(y)),
        1 - float(rows.max()) / len(y),
        tuple(
            ClassMeasure(
                names[i],
                int(rows[i]),
                float(right[i] / rows[i]) if rows[i] else None,
                float(right[i] / guesses[i]) if guesses[i] else None,
                names[int(pairs[instead[i]]) % count] if i in instead else None,
                int(times[instead[i]]) if i in instead else 0,
            )
            for i in range(count)
        ),
    )


def wilson_interval(hits: int, n: int) -> tuple[float, float]:
    """95 % confidence interval of a share observed in n rows, valid also at 0 and for few rows.

    >>> [round(bound, 3) for bound in wilson_interval(0, 100)]
    [0.0, 0.037]
    """
    share, z = hits / n, NORMAL_95**2 / n
    middle = (share + z / 2) / (1 + z)
    half = math.sqrt(z * (share * (1 - share) + z / 4)) / (1 + z)
    return max(0.0, middle - half), min(1.0, middle + half)


def _of_numbers(y: Array, predicted: Array) -> RegressionMeasures:
    y, predicted = y.astype(np.float64), predicted.astype(np.float64)
    residual = y - predicted
    spread = float(np.square(y - y.mean()).sum())
    return RegressionMeasures(
        len(y),
        1 - float(np.square(residual).sum()) / spread if spread > 0 else math.nan,
        math.sqrt(float(np.square(residual).mean())),
        float(np.abs(residual).mean()),
        math.sqrt(spread / len(y)),
    )
