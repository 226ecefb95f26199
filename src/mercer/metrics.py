"""Measures of predictions: errors and rankings of classes, or R² and mean errors of numbers."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, roc_auc_score

Array = NDArray[Any]
# Quantile of the normal distribution for a 95 % confidence interval.
NORMAL_95 = 1.96
# Error of always predicting the most frequent class, below which the error is not the headline.
LOPSIDED = 0.1
# Rows of a class that should have been enough to predict it once.
ENOUGH_TO_PREDICT = 10


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
class Ranking:
    """How well the probabilities of two classes order the rows; positive is the rarer class."""

    positive: Any
    share: float  # of the rows, which is the average precision of a random order
    auc: float  # area under the ROC curve
    average_precision: float


@dataclass(frozen=True)
class ClassificationMeasures:
    rows: int
    error: float
    interval: tuple[float, float]  # 95 % confidence interval of the error
    baseline_error: float  # of predicting the most frequent class
    classes: tuple[ClassMeasure, ...]
    balanced_accuracy: float  # the mean recall of the classes that occur
    log_loss: float | None = None  # of the probabilities, in nats; None without any
    ranking: Ranking | None = None  # for two classes with probabilities

    @property
    def lopsided(self) -> bool:
        """Whether one class is so frequent that the error says little about the others."""
        return self.baseline_error < LOPSIDED

    @property
    def never_predicted(self) -> list[ClassMeasure]:
        """Classes with enough rows of which none is predicted."""
        return [one for one in self.classes if one.precision is None and one.rows >= ENOUGH_TO_PREDICT]

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


def measure(
    task: str,
    y: Array,
    predicted: Array,
    probabilities: Array | None = None,
    classes: Array | None = None,
) -> Measures:
    """Compare predictions, (m,), with the true values y, (m,).

    `probabilities`, (m, n_classes), are those of `classes`, and are measured too if they are given.
    """
    if not len(y):
        raise ValueError("There are no rows to measure on. Hold out more rows, or use a larger file.")
    if task != "classification":
        return _of_numbers(y, predicted)
    found = _of_labels(y, predicted)
    if probabilities is None or classes is None:
        return found
    return replace(
        found,
        log_loss=_log_loss(y, probabilities, classes),
        ranking=ranking(y, probabilities, classes),
    )


def class_places(classes: Array, y: Array) -> NDArray[np.int64]:
    """The place of each label among the classes, (m,); -1 for labels that are none of them.

    >>> class_places(np.array([1, 2]), np.array(["2", "3"]))
    array([ 1, -1])
    """
    if (y.dtype.kind in "biuf") != (classes.dtype.kind in "biuf"):
        y, classes = y.astype(str), classes.astype(str)
    index = {label: i for i, label in enumerate(classes.tolist())}
    return np.array([index.get(label, -1) for label in y.tolist()], dtype=np.int64)


def positive_class(places: Array) -> int | None:
    """The rarer of two classes that both occur, and no others; None if there are not two."""
    counts = np.bincount(places + 1, minlength=3)
    if len(counts) != 3 or counts[0] or not counts[1:].all():
        return None
    return int(counts[2] <= counts[1])


def ranking(y: Array, probabilities: Array, classes: Array) -> Ranking | None:
    """How well the probabilities of two classes order the rows."""
    places = class_places(classes, y)
    positive = positive_class(places) if len(classes) == 2 else None
    if positive is None:
        return None
    truth, score = places == positive, probabilities[:, positive]
    return Ranking(
        classes.tolist()[positive],
        float(truth.mean()),
        float(roc_auc_score(truth, score)),
        float(average_precision_score(truth, score)),
    )


def _log_loss(y: Array, probabilities: Array, classes: Array) -> float | None:
    """None if a class occurs that the model does not know: it would be infinite."""
    places = class_places(classes, y)
    if places.min() < 0:
        return None
    p = probabilities[np.arange(len(y)), places].astype(np.float64)
    return float(-np.log(np.maximum(p, np.finfo(np.float32).tiny)).mean())


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
        float(np.mean(right[rows > 0] / rows[rows > 0])),
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
