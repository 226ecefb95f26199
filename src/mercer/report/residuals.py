"""True against predicted values, and the residuals of a regression."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mercer.report.charts import Axis, Chart
from mercer.report.evaluation import Evaluation, rms
from mercer.report.markup import Markup, element, facts, figure, join
from mercer.report.numbers import number

# Dots of a scatter plot: more of them only make the page larger.
MOST_DOTS = 2_000
# Fewest rows for which quantiles are drawn, and fewest rows for each of their points.
FEWEST_FOR_QUANTILES = 100
ROWS_PER_QUANTILE = 25
MOST_QUANTILES = 12
RESIDUAL_HEIGHT = 300

Array = NDArray[np.float64]


def residuals(evaluation: Evaluation) -> Markup:
    """Two scatter plots and a summary."""
    y, predicted = evaluation.y.astype(float), evaluation.predicted.astype(float)
    m = len(y)
    drawn = np.arange(m)
    if m > MOST_DOTS:
        drawn = np.sort(np.random.default_rng(0).choice(m, MOST_DOTS, replace=False))
    charts = (_true_values(y, predicted, drawn), _residuals(evaluation.residuals, predicted, drawn))
    return join(element("div", *charts, class_="pair"), _summary(evaluation.residuals))


def _true_values(y: Array, predicted: Array, drawn: NDArray[np.intp]) -> Markup:
    both = Axis.around("predicted", np.concatenate([y, predicted]))
    chart = Chart(both, Axis("true", both.low, both.high), RESIDUAL_HEIGHT)
    chart.line([both.low, both.high], [both.low, both.high], "soft dashed")
    chart.dots(predicted[drawn], y[drawn], "a cloud")
    caption = "Points on the dashed line are predicted exactly."
    if len(drawn) < len(y):
        caption += f" {len(drawn):,} of the {len(y):,} rows are drawn, chosen at random."
    ranges = _ranges(true=y, predicted=predicted)
    return figure("Predictions", chart.markup("True against predicted values", ranges), caption)


def _residuals(off: Array, predicted: Array, drawn: NDArray[np.intp]) -> Markup:
    m = len(off)
    chart = Chart(
        Axis.around("predicted", predicted), Axis.around("true − predicted", off), RESIDUAL_HEIGHT
    )
    chart.line([chart.x.low, chart.x.high], [0, 0], "soft dashed")
    chart.dots(predicted[drawn], off[drawn], "a cloud")
    caption = "Residuals of a good fit scatter around 0."
    if m >= FEWEST_FOR_QUANTILES:
        parts = np.array_split(np.argsort(predicted), min(MOST_QUANTILES, m // ROWS_PER_QUANTILE))
        at = [float(np.median(predicted[part])) for part in parts]
        low, middle, high = np.array([np.quantile(off[part], [0.1, 0.5, 0.9]) for part in parts]).T
        for edge in (low, high):
            chart.line(at, edge, "b fine dashed")
        chart.line(at, middle, "b")
        caption = "The solid line is the median; 80 % of the residuals lie between the dashed lines."
    drawing = chart.markup("Residuals against predicted values", _ranges(residuals=off))
    return figure("Residuals", drawing, caption)


def _summary(off: Array) -> Markup:
    median, ninth = np.quantile(np.abs(off), [0.5, 0.9])
    return facts(
        [
            ("root mean square error (RMSE)", number(rms(off))),
            ("mean absolute error", number(float(np.abs(off).mean()))),
            ("median absolute error", number(float(median))),
            ("90th percentile of the absolute error", number(float(ninth))),
            ("mean residual", number(float(off.mean()))),
        ]
    )


def _ranges(**columns: Array) -> str:
    """The range of each column, in words."""
    parts = (
        f"{k} from {number(float(v.min()))} to {number(float(v.max()))}" for k, v in columns.items()
    )
    return ", ".join(parts)
