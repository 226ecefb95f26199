"""Intervals or sets on rows that were not trained on: how often they hold the true value."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mercer.metrics import wilson_interval
from mercer.report.evaluation import Evaluation
from mercer.report.markup import Markup, element, join, table
from mercer.report.numbers import number, percent

Array = NDArray[Any]
# Groups of rows from the narrowest to the widest interval, and the fewest rows of each.
COVERAGE_GROUPS = 5
ROWS_PER_GROUP = 20
# Widths that differ by a smaller share are one.
SAME_WIDTH = 1e-9


def coverage(evaluation: Evaluation) -> Markup:
    """The measured coverage, over all rows and by width."""
    found, m = evaluation.coverage, len(evaluation.y)
    if found is None:
        return Markup("")
    is_set = evaluation.probabilities is not None
    low, high = wilson_interval(int(found.hits.sum()), m)
    what = "classes" if is_set else "intervals"
    size = number(float(found.widths.mean()))
    unit = "wide" if not is_set else "class" if size == "1" else "classes"
    sentence = element(
        "p",
        f"{'Sets of classes' if is_set else 'Intervals'} made to hold the true value of "
        f"{percent(found.asked, 100)} of new rows hold that of {percent(found.share, m)} "
        f"(95 % confidence interval {percent(low, m)} to {percent(high, m)}). "
        f"{'A set has' if is_set else 'They are'} {size} {unit} on average.",
    )
    groups = _groups(found.widths, is_set)
    if len(groups) < 2:
        return sentence
    rows = (
        (
            _range(found.widths[group], is_set),
            f"{len(group):,}",
            percent(float(found.hits[group].mean()), len(group)),
        )
        for group in groups
    )
    heads = ["Classes in the set#" if is_set else "Width#", "Rows#", "True value inside#"]
    return join(sentence, table(heads, rows, caption=f"From the smallest {what} to the largest."))


def _groups(widths: Array, is_set: bool) -> list[Array]:
    """Rows by the size of their set, the largest together, or in fifths by width."""
    if is_set:
        sizes = np.unique(widths)
        groups = [np.flatnonzero(widths == size) for size in sizes[: COVERAGE_GROUPS - 1]]
        rest = sizes[COVERAGE_GROUPS - 1 :]
        return [*groups, np.flatnonzero(widths >= rest[0])] if len(rest) else groups
    # Ends that were added to different predictions are apart by the same width up to rounding.
    same = np.ptp(widths) <= SAME_WIDTH * widths.max()
    if len(widths) < COVERAGE_GROUPS * ROWS_PER_GROUP or same:
        return []
    return np.array_split(np.argsort(widths, kind="stable"), COVERAGE_GROUPS)


def _range(widths: Array, is_set: bool) -> str:
    low, high = float(widths.min()), float(widths.max())
    if is_set:
        return f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"
    return f"{number(low)} to {number(high)}"
