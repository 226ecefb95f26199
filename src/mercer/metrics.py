"""How good predictions are: error and a line for each class, or R² and typical deviations."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
# Of the normal distribution, for an interval that holds the true error 95 times in 100.
NORMAL_95 = 1.96


@dataclass(frozen=True)
class ClassMeasure:
    """One class: how many rows have it, how many of them are found, how often it is said rightly."""

    label: Any
    rows: int
    recall: float | None  # None where no row has it
    precision: float | None  # None where it is never said
    mistaken_for: Any  # the class most often said instead; None where there is no mistake
    mistakes: int  # and how often


@dataclass(frozen=True)
class ClassificationMeasures:
    rows: int
    error: float
    interval: tuple[float, float]  # of the error, 95 %
    baseline_error: float  # of always saying the commonest class
    classes: tuple[ClassMeasure, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"task": "classification", "accuracy": 1 - self.error, **asdict(self)}


@dataclass(frozen=True)
class RegressionMeasures:
    rows: int
    r2: float
    rmse: float
    mae: float
    deviation: float  # of the targets from their mean: the rmse of predicting that

    def to_dict(self) -> dict[str, Any]:
        return {"task": "regression", **asdict(self)}


Measures = ClassificationMeasures | RegressionMeasures


def measure(task: str, y: Array, predicted: Array) -> Measures:
    """Measures of predictions, (m,), against the truth, (m,)."""
    if not len(y):
        raise ValueError("There must be rows to measure on. Got none: give a larger holdout or file.")
    return _of_labels(y, predicted) if task == "classification" else _of_numbers(y, predicted)


def _of_labels(y: Array, predicted: Array) -> ClassificationMeasures:
    if (y.dtype.kind in "biuf") != (predicted.dtype.kind in "biuf"):  # "1" in one file, 1 in the other
        y, predicted = y.astype(str), predicted.astype(str)
    labels, codes = np.unique(np.concatenate([y, predicted]), return_inverse=True)
    names = labels.tolist()
    truth, said = codes[: len(y)], codes[len(y) :]
    count = len(names)
    rows, claims = np.bincount(truth, minlength=count), np.bincount(said, minlength=count)
    right = np.bincount(truth[truth == said], minlength=count)
    # Only pairs that occur: a full confusion matrix of 10^5 classes would not fit anywhere.
    wrong = truth != said
    pairs, times = np.unique(truth[wrong] * count + said[wrong], return_counts=True)
    instead = {int(pairs[i]) // count: i for i in np.argsort(times, kind="stable")}  # the last one stays
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
                float(right[i] / claims[i]) if claims[i] else None,
                names[int(pairs[instead[i]]) % count] if i in instead else None,
                int(times[instead[i]]) if i in instead else 0,
            )
            for i in range(count)
        ),
    )


def wilson_interval(hits: int, n: int) -> tuple[float, float]:
    """95 % interval of a share seen in n rows, which is sound at 0 and for few rows as well.

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
