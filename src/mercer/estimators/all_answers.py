"""All that a model says of some rows, from one evaluation of the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mercer.data.rows import Array
from mercer.estimators.classifier import KernelClassifier
from mercer.estimators.regressor import KernelRegressor

# Share of ordinary rows that are called far.
FALSE_ALARM_RATE = 0.01


@dataclass(frozen=True)
class AllAnswers:
    """Predictions, and what else was asked for."""

    predicted: Array  # (m,)
    probabilities: Array | None = None  # (m, n_classes)
    intervals: Array | None = None  # (m, 2)
    sets: Array | None = None  # (m, n_classes)
    far_shares: Array | None = None  # (m,)  exact for rows that are far


def all_answers(
    model: KernelClassifier | KernelRegressor,
    X: Any,
    *,
    probabilities: bool = False,
    coverage: float | None = None,
    far: bool = False,
) -> AllAnswers:
    """For rows X; `coverage` asks for intervals or sets, `far` for how far rows are from training."""
    decision = model._decision(X)  # (m, l)
    predicted = model._targets.decode(decision)
    shares = model._far_shares(X, far_rate(model)) if far else None
    if isinstance(model, KernelRegressor):
        intervals = None
        if coverage is not None:
            intervals = model._intervals(decision, X, *model._calibrated().intervals(coverage))
        return AllAnswers(predicted, intervals=intervals, far_shares=shares)
    found = sets = None
    if probabilities:
        found = model._targets.probabilities(decision, model.logit_scale_)
    if coverage is not None:
        most = model._calibrated().largest_mass(coverage, len(model.classes_), False)
        sets = model._sets(decision, most)
    return AllAnswers(predicted, found, sets=sets, far_shares=shares)


def far_rate(model: KernelClassifier | KernelRegressor) -> float:
    """The false-alarm rate of far rows, which few rows cannot make as low as it should be."""
    return max(FALSE_ALARM_RATE, model.least_far_share)
