"""Where a model errs, on rows it was not trained on.

Classes: the confusion matrix (of many classes, those confused most), how far probabilities can be
trusted, and the surest mistakes.  Numbers: predicted against true, residuals, and the rows furthest off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mercer.metrics import wilson_interval
from mercer.report.charts import Axis, Chart
from mercer.report.markup import (
    LONGEST_LABEL,
    Markup,
    any_long,
    element,
    facts,
    figure,
    join,
    label,
    section,
    shortened,
    table,
)
from mercer.report.numbers import number, percent

# Classes of which a whole confusion matrix can be read, and how many of more are shown.
MOST_CLASSES = 12
MOST_CONFUSED_CLASSES = 10
MOST_PAIRS = 8
LONGEST_IN_MATRIX = 22
# Heads of the confusion matrix that stand side by side on a phone; longer ones are turned upright.
MOST_LEVEL_CHARACTERS = 24
MOST_MISTAKES = 15
RELIABILITY_BINS = 10
# Bins with fewer rows say next to nothing and are joined with their neighbours.
ROWS_PER_RELIABILITY_BIN = 5
# Dots of a cloud: more say nothing more and only make the page larger.
MOST_DOTS = 2_000
# Fewer residuals have no quantiles worth a line; each of its points stands for at least so many.
FEWEST_FOR_QUANTILES = 100
ROWS_PER_QUANTILE = 25
MOST_QUANTILES = 12


@dataclass(frozen=True)
class Evaluation:
    """What the model says of rows it was not trained on."""

    y: NDArray[Any]  # (m,)
    predicted: NDArray[Any]  # (m,)
    probabilities: NDArray[Any] | None  # (m, classes), where there are classes
    rows: NDArray[Any]  # (m,)  their numbers in the file, from 1
    source: str  # such as "20 % of train.csv, held out"

    def __post_init__(self) -> None:
        shapes = [np.shape(values) for values in (self.y, self.predicted, self.rows)]
        if len(set(shapes)) > 1 or len(shapes[0]) != 1 or shapes[0][0] == 0:
            raise ValueError(
                "`y`, `predicted` and `rows` of an evaluation must be columns of the same length, with "
                f"at least one row. Got shapes {shapes}."
            )

    @property
    def right(self) -> NDArray[np.bool_]:
        """Which labels are predicted, (m,)."""
        return np.asarray(self.y == self.predicted)

    @property
    def sure(self) -> NDArray[np.float64] | None:
        """The probability of what is predicted, (m,)."""
        if self.probabilities is None:
            return None
        return np.asarray(self.probabilities.max(1), dtype=np.float64)

    @property
    def residuals(self) -> NDArray[np.float64]:
        """True − predicted, (m,)."""
        return np.asarray(np.float64(self.y) - np.float64(self.predicted))


def errors(evaluation: Evaluation, classes: NDArray[Any] | None) -> Markup:
    """The sections on mistakes; `classes` are those of the model, None where it predicts numbers."""
    if classes is not None:
        return join(
            section("Where it errs", _confusion(classes, evaluation)),
            section("How far its probabilities can be trusted", _reliability(evaluation)),
            section("Worst mistakes", _worst_labels(evaluation)),
        )
    return join(
        section("Where it errs", _regression_charts(evaluation)),
        section("Worst mistakes", _worst_values(evaluation)),
    )


def _confusion(classes: NDArray[Any], evaluation: Evaluation) -> Markup:
    """The confusion matrix, of many classes those confused most, and then also the pairs."""
    y, predicted, m = evaluation.y, evaluation.predicted, len(evaluation.y)
    labels, codes = np.unique(np.concatenate([classes, y, predicted]), return_inverse=True)
    t, p = np.split(codes[len(classes) :], 2)  # (m,) each
    wrong = t != p
    n_labels = len(labels)
    # Pairs that occur, never the whole square of classes.
    pairs, counts = np.unique(t[wrong] * n_labels + p[wrong], return_counts=True)
    order = np.argsort(-counts, kind="stable")
    confused = [
        (int(i) // n_labels, int(i) % n_labels, int(c))
        for i, c in zip(pairs[order], counts[order], strict=True)
    ]
    whole = n_labels <= MOST_CLASSES
    if not confused and not whole:
        return element("p", f"All {m:,} rows are classified rightly.")
    shown = list(range(n_labels)) if whole else _most_confused(confused)
    matrix = _matrix(labels, t, p, shown, other=not whole)
    if whole:
        return matrix
    sizes = np.bincount(t, minlength=n_labels)
    worst = confused[:MOST_PAIRS]
    rows = (
        (label(labels[i]), label(labels[j]), f"{c:,}", percent(c / sizes[i], sizes[i]))
        for i, j, c in worst
    )
    stacked = any_long(*(labels[k] for pair in worst for k in pair[:2]))
    return join(
        element("p", f"Of {n_labels:,} classes, the {len(shown)} confused most."),
        matrix,
        element("h3", "Pairs confused most"),
        table(["True", "Predicted", "Rows#", "Of the class#"], rows, stacked=stacked),
    )


def _most_confused(confused: Sequence[tuple[int, int, int]]) -> list[int]:
    """Classes of the pairs confused most, those of a pair beside each other."""
    shown: dict[int, None] = {}
    for i, j, _ in confused:
        if len(shown | {i: None, j: None}) > MOST_CONFUSED_CLASSES:
            break
        shown |= {i: None, j: None}
    return list(shown)


def _matrix(
    labels: NDArray[Any], t: NDArray[Any], p: NDArray[Any], shown: Sequence[int], other: bool
) -> Markup:
    k = len(shown)
    place = np.full(len(labels), k)
    place[shown] = np.arange(k)
    inside = place[t] < k
    flat = np.bincount(place[t[inside]] * (k + 1) + place[p[inside]], minlength=k * (k + 1))
    counts = flat.reshape(k, k + 1)  # of the last column: predictions of classes not shown
    sizes = counts.sum(1)
    shares = counts / np.maximum(sizes, 1)[:, None]  # (k, k + 1)
    off = np.where(np.eye(k, k + 1, dtype=bool), 0, shares)
    most = off.max() or 1.0
    width = k + 1 if other else k
    texts = [shortened(labels[i], LONGEST_IN_MATRIX) for i in shown]
    named = [label(text) for text in texts]
    upright = k * max(map(len, texts)) > max(MOST_LEVEL_CHARACTERS, 3 * k)
    heads = [*named, element("span", "any other", class_="soft")] if other else named
    columns = (
        element("th", element("div", h, class_="upright") if upright else h, scope="col") for h in heads
    )
    body = []
    for i in range(k):
        weights = [float(off[i, j] / most if i != j else shares[i, j]) for j in range(width)]
        cells = (_cell(int(counts[i, j]), i == j, weights[j]) for j in range(width))
        right = percent(shares[i, i], int(sizes[i])) if sizes[i] else "–"
        ends = (element("td", text, class_="sum") for text in (right, f"{sizes[i]:,}"))
        full = shortened(labels[shown[i]], LONGEST_LABEL)
        body.append(element("tr", element("th", named[i], scope="row", title=full), *cells, *ends))
    table = element(
        "table",
        element(
            "thead",
            element("tr", element("th"), element("th", "Predicted", colspan=width), class_="axis"),
            element(
                "tr",
                element("th", "True", class_="soft"),
                *columns,
                *(element("th", text, scope="col", class_="soft") for text in ("right", "rows")),
            ),
        ),
        element("tbody", *body),
        class_="matrix wide" if upright else "matrix",
    )
    return join(
        # To be scrolled by keyboard too, where it is wider than the page.
        element("div", table, class_="scroll", tabindex=0, role="region", aria_label="Confusion matrix"),
        element(
            "p",
            "Blue tints are the share of a class that is right, orange ones where the rest went.",
            class_="soft",
        ),
    )


def _cell(count: int, diagonal: bool, weight: float) -> Markup:
    if count == 0:
        return element("td", "0", class_="zero")
    # Full tints would swallow the number; the root lets a single mistake be seen beside many.
    tint = 55 * weight if diagonal else 8 + 52 * math.sqrt(weight)
    return element("td", f"{count:,}", class_="right" if diagonal else "wrong", style=f"--w:{tint:.0f}%")


def _reliability(evaluation: Evaluation) -> Markup:
    """How often predictions of a certain confidence are right."""
    m, sure, right = len(evaluation.y), evaluation.sure, evaluation.right
    if sure is None:
        return Markup("")
    index = np.minimum((sure * RELIABILITY_BINS).astype(int), RELIABILITY_BINS - 1)
    columns = np.bincount(index, minlength=RELIABILITY_BINS)
    bins = [np.isin(index, group) for group in _joined(columns)]
    sizes = np.array([rows.sum() for rows in bins])
    hits = np.array([right[rows].sum() for rows in bins])
    means = np.array([sure[rows].mean() for rows in bins])
    intervals = np.array([wilson_interval(int(h), int(n)) for h, n in zip(hits, sizes, strict=True)])
    x = Axis("how sure the model is", index.min() / RELIABILITY_BINS, 1.0, kind="share")
    chart = Chart(x, Axis("how often it is right", 0.0, 1.0, kind="share"))
    # Behind, how many rows there are of each confidence.
    edges = np.linspace(0, 1, RELIABILITY_BINS + 1)[index.min() :]
    chart.columns(edges, 0.3 * columns[index.min() :] / columns.max(), "soft")
    chart.line([x.low, 1], [x.low, 1], "soft dashed")
    chart.spans(means, intervals[:, 0], intervals[:, 1], "a fine")
    chart.dots(means, hits / sizes, "a")
    gap = float(sizes @ np.abs(hits / sizes - means) / m)
    low, high = wilson_interval(int(right.sum()), m)
    verdict = "the two agree as well as so many rows can tell"
    if sure.mean() > high:
        verdict = "it is surer than it should be"
    elif sure.mean() < low:
        verdict = "it is right more often than it thinks"
    chart_of_bins = figure(
        "Sure and right",
        chart.markup(
            "Reliability of probabilities",
            "; ".join(
                f"{number(100 * s)} % sure: right in {h} of {n}"
                for s, h, n in zip(means, hits, sizes, strict=True)
            ),
        ),
        "Dots on the dashed line would be probabilities that keep their word; bars are 95 % intervals, "
        "grey columns the number of rows.",
    )
    words = element(
        "div",
        element(
            "p",
            f"The model gives its predictions a probability of {percent(float(sure.mean()), m)} on "
            f"average and is right in {percent(float(right.mean()), m)}: {verdict}.",
        ),
        element("p", f"Over the ranges of the chart the two differ by {percent(gap, m)} on average."),
        class_="stack",
    )
    return element("div", chart_of_bins, words, class_="pair")


def _joined(sizes: NDArray[Any]) -> list[list[int]]:
    """Neighbouring bins together until each group has enough rows; at least one group."""
    groups: list[list[int]] = [[]]
    for b in range(len(sizes)):
        if sizes[groups[-1]].sum() >= ROWS_PER_RELIABILITY_BIN:
            groups.append([])
        groups[-1].append(b)
    if len(groups) > 1 and sizes[groups[-1]].sum() < ROWS_PER_RELIABILITY_BIN:
        last = groups.pop()
        groups[-1] += last
    return groups


def _worst_labels(evaluation: Evaluation) -> Markup:
    wrong = np.flatnonzero(~evaluation.right)
    if not len(wrong):
        return element("p", f"None: all {len(evaluation.y):,} rows are classified rightly.")
    sure = evaluation.sure
    if sure is not None:
        wrong = wrong[np.argsort(-sure[wrong], kind="stable")]
    shown = wrong[:MOST_MISTAKES]
    rows = (
        [evaluation.rows[i], label(evaluation.y[i]), label(evaluation.predicted[i])]
        + ([] if sure is None else [percent(float(sure[i]), 1000)])
        for i in shown
    )
    heads = ["Row#", "True", "Predicted"] + ([] if sure is None else ["How sure#"])
    order = ", the surest first" if sure is not None else ""
    caption = _first_of(len(shown), len(wrong), "mistakes", order)
    stacked = any_long(*evaluation.y[shown], *evaluation.predicted[shown])
    return table(heads, rows, caption=caption, stacked=stacked)


def _worst_values(evaluation: Evaluation) -> Markup:
    residuals = evaluation.residuals
    typical = rms(residuals) or 1.0
    size = math.floor(math.log10(typical))
    shown = np.argsort(-np.abs(residuals), kind="stable")[:MOST_MISTAKES]

    def value(v: float) -> str:
        """To three digits of a typical error, so that numbers below each other can be compared."""
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
    heads = ["Row#", "True#", "Predicted#", "Off by#", "Typical errors#"]
    order = f", those furthest off; a typical error is {number(typical)}"
    caption = _first_of(len(shown), len(residuals), "rows", order)
    return table(heads, rows, caption=caption)


def _regression_charts(evaluation: Evaluation) -> Markup:
    y, predicted = evaluation.y.astype(float), evaluation.predicted.astype(float)
    residuals = evaluation.residuals
    m = len(y)
    shown = np.arange(m)
    if m > MOST_DOTS:
        shown = np.sort(np.random.default_rng(0).choice(m, MOST_DOTS, replace=False))
    of = "" if m <= MOST_DOTS else f" {MOST_DOTS:,} of {m:,} rows are drawn, taken at random."
    both = Axis.around("predicted", np.concatenate([y, predicted]))
    truth = Chart(both, Axis("true", both.low, both.high), 300)
    truth.line([both.low, both.high], [both.low, both.high], "soft dashed")
    truth.dots(predicted[shown], y[shown], "a cloud")
    left = Chart(Axis.around("predicted", predicted), Axis.around("true − predicted", residuals), 300)
    left.line([left.x.low, left.x.high], [0, 0], "soft dashed")
    left.dots(predicted[shown], residuals[shown], "a cloud")
    caption = "Around 0 everywhere, if nothing is left to be learnt."
    if m >= FEWEST_FOR_QUANTILES:
        parts = np.array_split(np.argsort(predicted), min(MOST_QUANTILES, m // ROWS_PER_QUANTILE))
        at = [float(np.median(predicted[part])) for part in parts]
        low, middle, high = np.array([np.quantile(residuals[part], [0.1, 0.5, 0.9]) for part in parts]).T
        for edge in (low, high):
            left.line(at, edge, "b fine dashed")
        left.line(at, middle, "b")
        caption = "The solid line is their median; eight of ten lie between the dashed ones."
    inside = np.quantile(np.abs(residuals), [0.5, 0.9])
    summary = facts(
        [
            ("typical error (root of the mean square)", number(rms(residuals))),
            ("mean absolute error", number(float(np.abs(residuals).mean()))),
            ("half of the rows are off by less than", number(float(inside[0]))),
            ("nine of ten by less than", number(float(inside[1]))),
            ("mean of true − predicted", number(float(residuals.mean()))),
        ]
    )
    charts = element(
        "div",
        figure(
            "Predicted against true",
            truth.markup("Predicted against true values", _ranges(true=y, predicted=predicted)),
            f"Dots on the dashed line are predicted exactly.{of}",
        ),
        figure(
            "Residuals",
            left.markup("Residuals against predicted values", _ranges(residuals=residuals)),
            caption,
        ),
        class_="pair",
    )
    return join(charts, summary)


def _ranges(**columns: NDArray[np.float64]) -> str:
    """In words, what a cloud of dots covers."""
    parts = (
        f"{k} from {number(float(v.min()))} to {number(float(v.max()))}" for k, v in columns.items()
    )
    return ", ".join(parts)


def _first_of(shown: int, total: int, what: str, order: str) -> str:
    count = f"All {total:,}" if shown == total else f"{shown:,} of {total:,}"
    return f"{count} {what}{order}."


def rms(values: NDArray[np.float64]) -> float:
    """Root of the mean square."""
    return float(np.sqrt(np.mean(np.square(values))))
