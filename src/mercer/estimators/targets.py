"""Labels and numbers to columns of targets, and back; probabilities."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import expit
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target

Array = NDArray[Any]

# Logit scale where no held-out part can fit one: a point that is interpolated (1 against 0) then gets
# odds of e^4 over each other class.
DEFAULT_LOGIT_SCALE = 4.0
# A standard deviation of that scale, as a factor.  Fitted without it, to 40 and to 150 rows of a dozen
# problems, the scale had a geometric mean of 4.5 and a standard deviation of 1.6.
LOGIT_SCALE_SPREAD = 2.0
# Rows of a class that should have been enough to predict it once, and how many such classes are named.
ENOUGH_ROWS = 10
MOST_CLASSES_NAMED = 5


class Targets(Protocol):
    """How the targets of an estimator become columns and back."""

    classify: ClassVar[bool]  # whether columns stand for classes

    def encode(self, y: Array) -> NDArray[np.float64]:
        """Targets as columns, (n, l)."""

    def decode(self, decision: Array) -> Array:
        """Predictions from the values of the columns, (m, l)."""

    def score(self, y: Array, decision: Array, sample_weight: Any = None) -> float:
        """How good predictions are, larger being better."""

    def rare_rows(self, y: Array) -> NDArray[np.bool_]:
        """Rows without which a class would be missing, (n,)."""

    def strata(self, y: Array) -> Array | None:
        """Labels whose proportions a split should keep, if any."""

    def doubts(self, unseen: Unseen) -> list[str]:
        """What the user should know of these decisions."""


@dataclass(frozen=True)
class Unseen:
    """Decisions for rows that the model, or one made like it, was not trained on."""

    y: Array  # (m,) or (m, l)
    decisions: Array  # (m, l)
    weights: Array | None = None  # (m,)  their sum is the number of different rows


@dataclass(frozen=True)
class Labels:
    """One column for two classes, -1 and 1; else one for each class or label."""

    classes: Array
    multilabel: bool = False
    classify: ClassVar[bool] = True

    @classmethod
    def of(cls, y: Array, known: Array | None = None) -> tuple[Labels, Array]:
        """The labels of y, or those `known`, and y as one column of them or as an indicator matrix."""
        check_classification_targets(y)
        if type_of_target(y) == "multilabel-indicator":
            return cls(np.arange(y.shape[1]), True), y
        if y.ndim == 2 and y.shape[1] > 1:
            raise ValueError(
                "`y` must be one column of labels, or a 0/1 indicator matrix of several labels. Got "
                f"{y.shape[1]} columns with other values: fit one classifier for each column."
            )
        y = column_or_1d(y, warn=True)
        classes = np.unique(y) if known is None else known
        if not np.isin(y, classes).all():
            raise ValueError("`classes` must name all classes of `y`. Got others in `y` as well.")
        if len(classes) < 2:
            raise ValueError(
                "`y` must contain at least 2 classes. Got 1 class instead: "
                f"{classes[0]!r} for every row."
            )
        return cls(classes), y

    @property
    def is_binary(self) -> bool:
        return not self.multilabel and len(self.classes) == 2

    def encode(self, y: Array) -> NDArray[np.float64]:
        if self.multilabel:
            return np.where(y > 0, 1.0, -1.0)  # (n, l)
        if not np.isin(y, self.classes).all():
            raise ValueError("`y_val` must hold only classes that occur in `y`. Got others as well.")
        index = np.searchsorted(self.classes, y)
        if self.is_binary:
            return np.where(index == 1, 1.0, -1.0)[:, None]  # (n, 1)
        return np.eye(len(self.classes))[index]  # (n, l)

    def decode(self, decision: Array) -> Array:
        if self.multilabel:
            return (decision > 0).astype(int)
        if self.is_binary:
            return np.asarray(self.classes[(decision[:, 0] > 0).astype(int)])
        return np.asarray(self.classes[decision.argmax(1)])

    def score(self, y: Array, decision: Array, sample_weight: Any = None) -> float:
        return float(accuracy_score(y, self.decode(decision), sample_weight=sample_weight))

    def rare_rows(self, y: Array) -> NDArray[np.bool_]:
        if self.multilabel:
            positive = y > 0  # (n, l)
            only = positive & (positive.sum(0) == 1) | ~positive & ((~positive).sum(0) == 1)
            return np.asarray(only.any(1))
        _, index, counts = np.unique(y, return_inverse=True, return_counts=True)
        return np.asarray(counts[index] == 1)

    def strata(self, y: Array) -> Array | None:
        return None if self.multilabel else y

    def doubts(self, unseen: Unseen) -> list[str]:
        """Classes that are never predicted."""
        if self.multilabel:
            return []
        classes, counts = np.unique(unseen.y, return_counts=True)
        missing = (counts >= ENOUGH_ROWS) & ~np.isin(classes, self.decode(unseen.decisions))
        if not missing.any():
            return []
        named = ", ".join(
            f"{label} ({count:,} rows)"
            for label, count in zip(classes[missing][:MOST_CLASSES_NAMED], counts[missing], strict=False)
        )
        more = " and others" if missing.sum() > MOST_CLASSES_NAMED else ""
        return [
            f"on the {len(unseen.y):,} rows predicted without training on them, the class {named}{more} "
            'is never predicted: if that matters, use class_weight="balanced", or a threshold of your '
            "own on `predict_proba`"
        ]

    def probabilities(self, decision: Array, logit_scale: float) -> Array:
        """Probabilities, (m, n_classes), the largest being that of the label decoded."""
        logits = logit_scale * decision.astype(np.float64)
        if self.multilabel:
            return np.asarray(expit(logits))
        if self.is_binary:
            return np.asarray(expit(np.column_stack([-logits[:, 0], logits[:, 0]])))
        shifted = np.exp(logits - logits.max(1, keepdims=True))
        return np.asarray(shifted / shifted.sum(1, keepdims=True))

    def fit_logit_scale(self, unseen: Unseen) -> float:
        """The factor that makes these decisions the best logits, by maximum posterior likelihood.

        Few rows say little: the likelihood alone would make every probability 0 or 1 where all rows are
        predicted right, and all of them equal where most are wrong.  A priori, the factor is
        `DEFAULT_LOGIT_SCALE` up to `LOGIT_SCALE_SPREAD`.
        """
        decision, targets = unseen.decisions.astype(np.float64), self.encode(unseen.y)
        weights = np.ones(len(decision)) if unseen.weights is None else unseen.weights  # (m,)

        def negative_log_posterior(log_scale: float) -> float:
            logits = math.exp(log_scale) * decision
            if self.multilabel or decision.shape[1] == 1:
                losses = np.logaddexp(0, -logits * targets).mean(1)
            else:
                losses = np.logaddexp.reduce(logits, axis=1) - (logits * targets).sum(1)
            deviation = (log_scale - math.log(DEFAULT_LOGIT_SCALE)) / math.log(LOGIT_SCALE_SPREAD)
            return float(weights @ losses) + deviation**2 / 2

        fitted = minimize_scalar(negative_log_posterior, bounds=(-3, 5), method="bounded")
        return math.exp(float(fitted.x))


@dataclass(frozen=True)
class Numbers:
    """One column for each output."""

    single: bool  # y was one-dimensional
    classify: ClassVar[bool] = False

    def encode(self, y: Array) -> NDArray[np.float64]:
        return np.asarray(y, dtype=np.float64).reshape(len(y), -1)

    def decode(self, decision: Array) -> Array:
        return decision[:, 0] if self.single else decision

    def score(self, y: Array, decision: Array, sample_weight: Any = None) -> float:
        if len(y) < 2:
            return math.nan
        return float(r2_score(self.encode(y), decision, sample_weight=sample_weight))

    def rare_rows(self, y: Array) -> NDArray[np.bool_]:
        return np.zeros(len(y), dtype=bool)

    def strata(self, y: Array) -> Array | None:
        return None

    def doubts(self, unseen: Unseen) -> list[str]:
        return []
