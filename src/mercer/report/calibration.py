"""The calibration of probabilities: how often predictions of a given probability are correct."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mercer.metrics import wilson_interval
from mercer.report.charts import Axis, Chart
from mercer.report.evaluation import Evaluation
from mercer.report.markup import Markup, element, figure
from mercer.report.numbers import number, percent

BINS = 10
# Bins with fewer rows are merged with their neighbours, since a fraction of so few rows says little.
ROWS_PER_BIN = 5


def calibration(evaluation: Evaluation) -> Markup:
    """The calibration curve and its summary."""
    m, confidence, correct = len(evaluation.y), evaluation.confidence, evaluation.correct
    if confidence is None:
        return Markup("")
    index = np.minimum((confidence * BINS).astype(int), BINS - 1)
    columns = np.bincount(index, minlength=BINS)
    bins = [np.isin(index, group) for group in _joined(columns)]
    sizes = np.array([rows.sum() for rows in bins])
    hits = np.array([correct[rows].sum() for rows in bins])
    means = np.array([confidence[rows].mean() for rows in bins])
    intervals = np.array([wilson_interval(int(h), int(n)) for h, n in zip(hits, sizes, strict=True)])
    x = Axis("predicted probability", index.min() / BINS, 1.0, kind="share")
    chart = Chart(x, Axis("fraction correct", 0.0, 1.0, kind="share"))
    # In the background, the number of rows in each bin.
    edges = np.linspace(0, 1, BINS + 1)[index.min() :]
    chart.columns(edges, 0.3 * columns[index.min() :] / columns.max(), "soft")
    chart.line([x.low, 1], [x.low, 1], "soft dashed")
    chart.spans(means, intervals[:, 0], intervals[:, 1], "a fine")
    chart.dots(means, hits / sizes, "a")
    gap = float(sizes @ np.abs(hits / sizes - means) / m)
    low, high = wilson_interval(int(correct.sum()), m)
    verdict = "the difference is within the sampling error"
    if confidence.mean() > high:
        verdict = "the model is overconfident"
    elif confidence.mean() < low:
        verdict = "the model is underconfident"
    chart_of_bins = figure(
        "Calibration curve",
        chart.markup(
            "Calibration curve",
            "; ".join(
                f"predicted {number(100 * s)} %: {h} of {n} correct"
                for s, h, n in zip(means, hits, sizes, strict=True)
            ),
        ),
        "On the dashed line, probabilities would be perfectly calibrated. Bars are 95 % confidence "
        "intervals; grey columns show the number of rows.",
    )
    words = element(
        "div",
        element(
            "p",
            f"The predicted class has a probability of {percent(float(confidence.mean()), m)} on "
            f"average, and {percent(float(correct.mean()), m)} of the predictions are correct: "
            f"{verdict}.",
        ),
        element("p", f"Averaged over the bins of the chart, the two differ by {percent(gap, m)}."),
        class_="stack",
    )
    return element("div", chart_of_bins, words, class_="pair")


def _joined(sizes: NDArray[Any]) -> list[list[int]]:
    """Groups of neighbouring bins with enough rows each; at least one group."""
    groups: list[list[int]] = [[]]
    for b in range(len(sizes)):
        if sizes[groups[-1]].sum() >= ROWS_PER_BIN:
            groups.append([])
        groups[-1].append(b)
    if len(groups) > 1 and sizes[groups[-1]].sum() < ROWS_PER_BIN:
        last = groups.pop()
        groups[-1] += last
    return groups
