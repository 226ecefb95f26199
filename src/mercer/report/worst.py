"""The rows that were predicted worst."""

from __future__ import annotations

import math

import numpy as np

from mercer.report.evaluation import Evaluation, rms
from mercer.report.markup import Markup, any_long, element, label, table
from mercer.report.numbers import number, percent

MOST_ROWS = 15


def worst_labels(evaluation: Evaluation) -> Markup:
    wrong = np.flatnonzero(~evaluation.correct)
    if not len(wrong):
        return element("p", f"None: all {len(evaluation.y):,} rows are classified correctly.")
    confidence = evaluation.confidence
    if confidence is not None:
        wrong = wrong[np.argsort(-confidence[wrong], kind="stable")]
    shown = wrong[:MOST_ROWS]
    rows = (
        [evaluation.rows[i], label(evaluation.y[i]), label(evaluation.predicted[i])]
        + ([] if confidence is None else [percent(float(confidence[i]), 1000)])
        for i in shown
    )
    heads = ["Row#", "True", "Predicted"] + ([] if confidence is None else ["Probability#"])
    order = ", most confident first" if confidence is not None else ""
    caption = _first_of(len(shown), len(wrong), "mistakes", order)
    stacked = any_long(*evaluation.y[shown], *evaluation.predicted[shown])
    return table(heads, rows, caption=caption, stacked=stacked)


def worst_values(evaluation: Evaluation) -> Markup:
    residuals = evaluation.residuals
    typical = rms(residuals) or 1.0
    size = math.floor(math.log10(typical))
    shown = np.argsort(-np.abs(residuals), kind="stable")[:MOST_ROWS]

    def value(v: float) -> str:
        """To three digits of the RMSE, so that the numbers in a column can be compared."""
        if abs(size) > 6:
            return number(v, 5)
        return f"{v:,.{max(0, 2 - size)}f}".replace("-", "−")

    rows = (
        [
            evaluation.rows[i],
            value(evaluation.y[i]),
            value(evaluation.predicted[i]),
            value(residuals[i]),
            f"{abs(residuals[i]) / typical:.1f}",
        ]
        for i in shown
    )
    heads = ["Row#", "True#", "Predicted#", "Residual#", "Residual / RMSE#"]
    order = f", largest residuals first; the RMSE is {number(typical)}"
    caption = _first_of(len(shown), len(residuals), "rows", order)
    return table(heads, rows, caption=caption)


def _first_of(shown: int, total: int, what: str, order: str) -> str:
    count = f"All {total:,}" if shown == total else f"{shown:,} of {total:,}"
    return f"{count} {what}{order}."
