"""The rows that were predicted worst."""

from __future__ import annotations

import math

from mercer.report.evaluation import Evaluation, rms, worst_rows
from mercer.report.markup import LONGEST_LABEL, Markup, any_long, element, label, table
from mercer.report.numbers import MOST_DIGITS, cell, number, probability
from mercer.short_labels import ShortLabels

MOST_ROWS = 15
# Characters of a column's name and of a value in a row.
LONGEST_NAME_IN_ROW = 24
LONGEST_VALUE_IN_ROW = 24


def worst_labels(evaluation: Evaluation) -> Markup:
    wrong, confidence = worst_rows(evaluation), evaluation.confidence
    if not len(wrong):
        return element("p", f"None: all {len(evaluation.y):,} rows are classified correctly.")
    shown = wrong[:MOST_ROWS]
    names = ShortLabels([*evaluation.y, *evaluation.predicted])
    rows = (
        [
            evaluation.rows[i],
            label(names.at(evaluation.y[i], LONGEST_LABEL)),
            label(names.at(evaluation.predicted[i], LONGEST_LABEL)),
            *([] if confidence is None else [probability(float(confidence[i]))]),
            *_values(evaluation, i),
        ]
        for i in shown
    )
    heads = ["Row#", "True", "Predicted"] + ([] if confidence is None else ["Probability#"])
    heads += _head_of_values(evaluation)
    order = ", most confident first" if confidence is not None else ""
    caption = _first_of(len(shown), len(wrong), "mistakes", order)
    long = any_long(*evaluation.y[shown], *evaluation.predicted[shown])
    stacked = long or evaluation.values is not None
    return table(heads, rows, caption=caption, stacked=stacked)


def worst_values(evaluation: Evaluation) -> Markup:
    residuals = evaluation.residuals
    typical = rms(residuals) or 1.0
    size = math.floor(math.log10(typical))
    shown = worst_rows(evaluation)[:MOST_ROWS]

    def value(v: float) -> str:
        """To three digits of the RMSE, so that the numbers in a column can be compared."""
        if not -6 <= size < MOST_DIGITS:
            return number(v, 5)
        return f"{v:,.{max(0, 2 - size)}f}".replace("-", "−")

    rows = (
        [
            evaluation.rows[i],
            value(evaluation.y[i]),
            value(evaluation.predicted[i]),
            value(residuals[i]),
            f"{abs(residuals[i]) / typical:.1f}",
            *_values(evaluation, i),
        ]
        for i in shown
    )
    heads = [
        "Row#",
        "True#",
        "Predicted#",
        "Residual#",
        "Residual / RMSE#",
        *_head_of_values(evaluation),
    ]
    order = f", largest residuals first; the RMSE is {number(typical)}"
    caption = _first_of(len(shown), len(residuals), "rows", order)
    return table(heads, rows, caption=caption, stacked=evaluation.values is not None)


def _head_of_values(evaluation: Evaluation) -> list[str]:
    return [] if evaluation.values is None else ["Values"]


def _values(evaluation: Evaluation, i: int) -> list[Markup]:
    """What the table holds in this row, if that is known."""
    if evaluation.values is None:
        return []
    parts: list[object] = []
    for name, value in evaluation.value_pairs(i).items():
        text = element("span", label(name, LONGEST_NAME_IN_ROW), class_="soft")
        parts += [", " if parts else "", text, " ", label(cell(value), LONGEST_VALUE_IN_ROW)]
    return [element("span", *parts, class_="values")]


def _first_of(shown: int, total: int, what: str, order: str) -> str:
    if total == 1:
        return f"The only {what.removesuffix('s')}."
    count = f"All {total:,}" if shown == total else f"{shown:,} of {total:,}"
    return f"{count} {what}{order}."
