"""The confusion matrix; for many classes, of those confused most often."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mercer.report.evaluation import Evaluation
from mercer.report.markup import (
    LONGEST_LABEL,
    Markup,
    any_long,
    element,
    join,
    label,
    shortened,
    table,
)
from mercer.report.numbers import percent
from mercer.short_labels import ShortLabels

# Most classes of a complete matrix; with more, only the most confused classes and pairs are shown.
MOST_CLASSES_SHOWN = 12
MOST_CONFUSED_CLASSES = 10
MOST_PAIRS = 8
LONGEST_IN_MATRIX = 22
# Column heads with more characters than this in all do not fit side by side on a phone.
MOST_LEVEL_CHARACTERS = 24


def confusion(classes: NDArray[Any], evaluation: Evaluation) -> Markup:
    """The confusion matrix, and for many classes the pairs confused most often."""
    y, predicted, m = evaluation.y, evaluation.predicted, len(evaluation.y)
    labels, codes = np.unique(np.concatenate([classes, y, predicted]), return_inverse=True)
    t, p = np.split(codes[len(classes) :], 2)  # (m,) each
    wrong = t != p
    n_labels = len(labels)
    # Only the pairs that occur: a matrix of all classes could be huge.
    pairs, counts = np.unique(t[wrong] * n_labels + p[wrong], return_counts=True)
    order = np.argsort(-counts, kind="stable")
    confused = [
        (int(i) // n_labels, int(i) % n_labels, int(c))
        for i, c in zip(pairs[order], counts[order], strict=True)
    ]
    whole = n_labels <= MOST_CLASSES_SHOWN
    if not confused and not whole:
        return element("p", f"All {m:,} rows are classified correctly.")
    shown = list(range(n_labels)) if whole else _most_confused(confused)
    matrix = _matrix(labels, t, p, shown, other=not whole)
    if whole:
        return matrix
    sizes = np.bincount(t, minlength=n_labels)
    worst, names = confused[:MOST_PAIRS], ShortLabels(labels)
    rows = (
        (
            label(names.at(labels[i], LONGEST_LABEL)),
            label(names.at(labels[j], LONGEST_LABEL)),
            f"{c:,}",
            percent(c / sizes[i], sizes[i]),
        )
        for i, j, c in worst
    )
    stacked = any_long(*(labels[k] for pair in worst for k in pair[:2]))
    return join(
        element("p", f"The {len(shown)} classes confused most often, of {n_labels:,}."),
        matrix,
        element("h3", "Pairs confused most often"),
        table(["True", "Predicted", "Rows#", "Share of the class#"], rows, stacked=stacked),
    )


def _most_confused(confused: Sequence[tuple[int, int, int]]) -> list[int]:
    """The classes of the pairs confused most often; those of a pair are neighbours."""
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
    counts = flat.reshape(k, k + 1)  # the last column counts predictions of classes not shown
    sizes = counts.sum(1)
    shares = counts / np.maximum(sizes, 1)[:, None]  # (k, k + 1)
    off = np.where(np.eye(k, k + 1, dtype=bool), 0, shares)
    most = off.max() or 1.0
    width = k + 1 if other else k
    names = ShortLabels(labels)
    texts = [names.at(labels[i], LONGEST_IN_MATRIX) for i in shown]
    named = [label(text) for text in texts]
    upright = k * max(map(len, texts)) > max(MOST_LEVEL_CHARACTERS, 3 * k)
    heads = [*named, element("span", "other", class_="soft")] if other else named
    columns = (
        element("th", element("div", h, class_="upright") if upright else h, scope="col") for h in heads
    )
    body = []
    for i in range(k):
        weights = [float(off[i, j] / most if i != j else shares[i, j]) for j in range(width)]
        cells = (_cell(int(counts[i, j]), i == j, weights[j]) for j in range(width))
        recall = percent(shares[i, i], int(sizes[i])) if sizes[i] else "–"
        ends = (element("td", text, class_="sum") for text in (recall, f"{sizes[i]:,}"))
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
                *(element("th", text, scope="col", class_="soft") for text in ("recall", "rows")),
            ),
        ),
        element("tbody", *body),
        class_="matrix wide" if upright else "matrix",
    )
    return join(
        # Focusable, so that the keyboard can scroll it if it is wider than the page.
        element("div", table, class_="scroll", tabindex=0, role="region", aria_label="Confusion matrix"),
        element(
            "p",
            "Blue: share of the class that is classified correctly. Orange: where the other rows went.",
            class_="soft",
        ),
    )


def _cell(count: int, diagonal: bool, weight: float) -> Markup:
    if count == 0:
        return element("td", "0", class_="zero")
    # A full tint would hide the number; the square root keeps single mistakes visible beside many.
    tint = 55 * weight if diagonal else 8 + 52 * math.sqrt(weight)
    return element("td", f"{count:,}", class_="right" if diagonal else "wrong", style=f"--w:{tint:.0f}%")
