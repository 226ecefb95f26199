"""The headline: the best estimate of the error on new rows that there is.

From the most to the least reliable: rows that nothing was decided on, rows held out for early stopping,
and the leave-one-out predictions of the search.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.base import is_classifier

from mercer.metrics import LOPSIDED, wilson_interval
from mercer.report.evaluation import Evaluation, rms
from mercer.report.learning import Model, best_weights, name_of_loss
from mercer.report.numbers import number, percent, three_decimals


@dataclass(frozen=True)
class Headline:
    """One large figure, its name, and sentences on where it comes from."""

    figure: str
    name: str
    sentences: Sequence[str]


@dataclass(frozen=True)
class LeftOut:
    """The score of the leave-one-out predictions of the search."""

    score: float  # accuracy or R²
    is_error: bool  # it is shown as an error
    rows: int

    @property
    def figure(self) -> str:
        return percent(1 - self.score, self.rows) if self.is_error else three_decimals(self.score)

    @property
    def name(self) -> str:
        return "error" if self.is_error else "R²"

    @property
    def source(self) -> str:
        """
        >>> LeftOut(0.9, True, 2000).source
        'leave-one-out on the 2,000 rows of the search'
        """
        return f"leave-one-out on the {self.rows:,} rows of the search"


def left_out(model: Model) -> LeftOut | None:
    """What leave-one-out says of a model; None if nothing was searched."""
    score, selection = model.left_out_score_, model.selection_
    if score is None or selection is None or not math.isfinite(score):
        return None
    return LeftOut(score, is_classifier(model), selection.points_left_out)


def headline(model: Model, evaluation: Evaluation | None) -> Headline:
    """The result on the rows of an evaluation, or the next best estimate."""
    if evaluation is None:
        return _held_out(model) or _left_out(model) or _unknown()
    return _classes(evaluation) if is_classifier(model) else _numbers(evaluation)


def _classes(evaluation: Evaluation) -> Headline:
    m, wrong = len(evaluation.y), int((~evaluation.correct).sum())
    low, high = wilson_interval(wrong, m)
    common = np.unique(evaluation.y, return_counts=True)[1].max()
    guess, linear = percent(1 - common / m, m), evaluation.linear
    if 1 - common / m < LOPSIDED:
        labels, codes = np.unique(evaluation.y, return_inverse=True)
        each = [float((~evaluation.correct[codes == i]).mean()) for i in range(len(labels))]
        return Headline(
            percent(float(np.mean(each)), m),
            "balanced error",
            [
                "The mean of the errors of the classes, since one class is much more frequent than the "
                "others.",
                f"{wrong:,} of {m:,} rows ({evaluation.source}) are misclassified, "
                f"{percent(wrong / m, m)}; predicting the most frequent class would give {guess}.",
            ],
        )
    return Headline(
        percent(wrong / m, m),
        "error",
        [
            f"{wrong:,} of {m:,} rows ({evaluation.source}) are misclassified.",
            f"The 95 % confidence interval of the error is {percent(low, m)} to {percent(high, m)}.",
            f"Predicting the most frequent class would give an error of {guess}"
            + (f", a linear model one of {percent(linear, m)}." if linear is not None else "."),
        ],
    )


def _numbers(evaluation: Evaluation) -> Headline:
    y = np.asarray(evaluation.y, dtype=float)
    typical, spread = rms(evaluation.residuals), rms(y - y.mean())
    sentence = (
        f"On {len(y):,} rows ({evaluation.source}) the root mean square error (RMSE) is "
        f"{number(typical)}; predicting their mean would give {number(spread)}"
        + (f", a linear model {number(evaluation.linear)}." if evaluation.linear is not None else ".")
    )
    if spread == 0:
        return Headline(number(typical), "RMSE", [sentence])
    share = 1 - (typical / spread) ** 2
    explained = f"The model explains {percent(share, 1000)} of the variance." if share > 0 else ""
    return Headline(three_decimals(share), "R²", [explained, sentence])


def _held_out(model: Model) -> Headline | None:
    """The result on the rows that decided when to stop."""
    best = best_weights(model)
    if best is None:
        return None
    plan = model.plan_
    m = plan.n_held_out
    if plan.direct:
        sentences = [f"Measured on {m:,} held-out rows."]
    else:
        sentences = [
            f"Measured on {m:,} held-out rows, with the weights reached {best.when}.",
            "The same rows decided when to stop training, so the estimate is slightly optimistic.",
        ]
    if plan.n_closing:
        sentences.append("After that, the model was trained on these rows as well and may be better.")
    if best.score is None:
        return Headline(number(best.loss), f"held-out loss ({name_of_loss(model)})", sentences)
    if is_classifier(model):
        return Headline(percent(1 - best.score, m), "error", sentences)
    return Headline(three_decimals(best.score), "R²", sentences)


def _left_out(model: Model) -> Headline | None:
    """The result of predicting each row of the search from the others."""
    found = left_out(model)
    if found is None:
        return None
    sentences = [
        f"No rows were held out. This is {found.source}: each of them predicted from the others.",
        "The same rows chose the kernel and its parameters, so the estimate is slightly optimistic.",
    ]
    if model.plan_.n > found.rows:
        sentences.append(f"The model itself was trained on {model.plan_.n:,} rows and may be better.")
    return Headline(found.figure, f"{found.name}, leave-one-out", sentences)


def _unknown() -> Headline:
    sentence = "No rows were held out, so the error on new rows is unknown."
    return Headline("Not measured", "", [sentence])
