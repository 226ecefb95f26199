"""What a model says of some rows, as the columns of a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from mercer.estimators.all_answers import AllAnswers, far_rate
from mercer.estimators.classifier import KernelClassifier
from mercer.estimators.regressor import KernelRegressor

PREDICTION = "prediction"
LOWER, UPPER = "lower", "upper"  # the ends of an interval
LABEL_SET = "set"  # the labels in a prediction set
FAR = "far"  # whether the row is far from all training rows
BETWEEN_LABELS = " | "


def answer_table(
    model: KernelClassifier | KernelRegressor,
    answers: AllAnswers,
    copied: Sequence[pl.Series],
    far: bool,
) -> pl.DataFrame:
    """The columns `copied` from the rows themselves, and those with answers; `far` marks far rows."""
    series = [*copied, pl.Series(PREDICTION, answers.predicted)]
    if answers.intervals is not None:
        ends = zip((LOWER, UPPER), answers.intervals.T, strict=True)
        series += [pl.Series(name, values) for name, values in ends]
    if answers.sets is not None and isinstance(model, KernelClassifier):
        labels = np.array([str(label) for label in model.classes_], dtype=object)
        series.append(
            pl.Series(LABEL_SET, [BETWEEN_LABELS.join(labels[chosen]) for chosen in answers.sets])
        )
    if answers.probabilities is not None and isinstance(model, KernelClassifier):
        series += [
            pl.Series(f"probability of {label}", column)
            for label, column in zip(
                model.classes_, answers.probabilities.astype(np.float32).T, strict=True
            )
        ]
    if far and answers.far_shares is not None:
        series.append(pl.Series(FAR, answers.far_shares <= far_rate(model)))
    return pl.DataFrame(series)
