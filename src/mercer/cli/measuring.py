"""Measuring a model on rows that training did not see, beside a constant and a linear one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mercer.cli.choices import Model
from mercer.cli.linear import linear_predictions
from mercer.cli.predicting import evaluate_parts, measured
from mercer.cli.reading import Input, SomeRows
from mercer.cli.sources import Part, Source, file_parts
from mercer.cli.worst_rows import with_values
from mercer.metrics import ClassificationMeasures, Measures
from mercer.report import Evaluation
from mercer.report.numbers import number

Array = NDArray[Any]
# Features of the rows measured on that are kept for a comparison.
MOST_FEATURES_KEPT = 1 << 24


@dataclass(frozen=True)
class Measured:
    """Predictions of rows that training did not see."""

    evaluation: Evaluation
    measures: Measures
    features: Array | None  # (m, d)  of these rows, unless they are too many to remember
    notes: tuple[str, ...]


def measure(model: Model, read: Input) -> Measured | None:
    """Predict the test file or the rows held out; None if there are none."""
    features: list[Array] = []
    if read.test is not None:
        notes: dict[str, None] = {}
        parts = _remembered(file_parts(read.columns, read.test, notes), features)
        evaluation = evaluate_parts(model, parts, read.test.table.name)
        return _compared(model, read, evaluation, read.test, features, tuple(notes))
    if not len(read.held_out):
        return None
    share = 100 * len(read.held_out) / read.n_rows
    source = f"{share:.3g} % of {read.source.table.name}, held out"
    parts = _remembered(read.held_out_parts(model.machine_.device), features)
    evaluation = evaluate_parts(model, parts, source)
    return _compared(model, read, evaluation, read.source, features, ())


def _remembered(parts: Iterator[Part], features: list[Array]) -> Iterator[Part]:
    """The same parts, whose features are remembered as long as they are few."""
    count = 0
    for part in parts:
        count += part[1].size
        if count <= MOST_FEATURES_KEPT:
            features.append(part[1])
        else:
            features.clear()
        yield part


def _compared(
    model: Model,
    read: Input,
    evaluation: Evaluation,
    source: Source,
    features: list[Array],
    notes: tuple[str, ...],
) -> Measured:
    """With the values of the worst rows, and the error of a linear model."""
    evaluation = with_values(evaluation, model, source, read.columns)
    found = np.concatenate(features) if features else None  # (m, d)
    linear = None
    some = read.rows
    # A linear model is trained where all rows are.
    if found is not None and isinstance(some, SomeRows) and len(some.arrays.X) == len(some.y):
        rows = np.setdiff1d(np.arange(len(some.y)), read.held_out)
        task, places = read.columns.task, read.columns.category_places
        linear = linear_predictions(some.arrays.X, some.y, rows, found, places, task)
    if linear is not None:
        error = replace(evaluation, predicted=linear.astype(evaluation.predicted.dtype)).error
        evaluation = replace(evaluation, linear=error)
    measures = measured(model, evaluation)
    return Measured(evaluation, measures, found, (*notes, *_doubts(evaluation, measures)))


def _doubts(evaluation: Evaluation, measures: Measures) -> Iterator[str]:
    """What should make the user hesitate to use the model."""
    if is_useless(measures):
        yield "the model is no better than a constant prediction: check --target and the columns"
    elif evaluation.linear is not None and evaluation.is_no_better_than_linear:
        worse = evaluation.error > evaluation.linear
        yield (
            f"a linear model is {'better' if worse else 'as good'}: its error is "
            f"{_figure(evaluation.linear, measures)}, that of this model "
            f"{_figure(evaluation.error, measures)}"
        )


def is_useless(measures: Measures) -> bool:
    """Whether a constant prediction would be as good."""
    if isinstance(measures, ClassificationMeasures):
        if measures.lopsided:
            guess = 1 / max(2, sum(c.rows > 0 for c in measures.classes))
            return measures.balanced_accuracy <= guess and not _ranks(measures)
        return measures.error >= measures.baseline_error > 0
    return not measures.r2 > 0


def _ranks(measures: ClassificationMeasures) -> bool:
    """Whether probabilities order the rows of two classes clearly better than chance would."""
    order = measures.ranking
    if order is None:
        return False
    positive = order.share * measures.rows
    # The variance of the Mann-Whitney statistic, as a share, where there is nothing to order by.
    variance = (measures.rows + 1) / (12 * positive * (measures.rows - positive))
    return order.auc > 0.5 + 2 * math.sqrt(variance)


def _figure(error: float, measures: Measures) -> str:
    is_share = isinstance(measures, ClassificationMeasures)
    return f"{100 * error:.3g} %" if is_share else f"{number(error)} (root mean square)"
