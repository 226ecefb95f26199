"""How good a model is, on a screen: the score, a table of the classes, intervals and worst rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.table import Table

from mercer.cli.labels import LABEL_WIDTH, short, short_labels
from mercer.cli.printing import screen_width, text
from mercer.cli.worst_rows import worst_data, worst_lines
from mercer.metrics import ClassificationMeasures, Measures
from mercer.report import Coverage, Evaluation
from mercer.report.numbers import number

# Classes listed on a screen; of more, those with the most mistakes.
MOST_CLASSES_LISTED = 20
# Classes in a sentence.
MOST_IN_SENTENCE = 6
# Columns of a screen that the figures between two labels take.
FIGURES_WIDTH = 32


def evaluation_data(evaluation: Evaluation | None) -> dict[str, Any]:
    """What JSON says of the rows measured on, besides the measures."""
    coverage = None if evaluation is None else evaluation.coverage
    return {
        "measured_on": None if evaluation is None else evaluation.source,
        "intervals": None if coverage is None else coverage.to_dict(),
        "linear": None if evaluation is None else evaluation.linear,
        "worst": [] if evaluation is None else worst_data(evaluation),
    }


def measured_lines(measures: Measures, evaluation: Evaluation) -> list[Any]:
    """The score, intervals and the worst mistakes."""
    return [
        *score_lines(measures, evaluation.source, evaluation.linear),
        *coverage_lines(evaluation.coverage, measures),
        *worst_lines(evaluation),
    ]


def score_lines(measures: Measures, source: str, linear: float | None = None) -> list[Any]:
    """The score and what to compare it with; for classes also a table."""
    rows = f"{measures.rows:,} {'row' if measures.rows == 1 else 'rows'} ({source})"
    if not isinstance(measures, ClassificationMeasures):
        return [
            text(("R² ", "bold"), (f"{measures.r2:.4f}", "bold green"), f" on {rows}"),
            f"Mean absolute error {number(measures.mae)}, root mean square error "
            f"{number(measures.rmse)}; predicting the mean would give {number(measures.deviation)}"
            + (f", a linear model {number(linear)}." if linear is not None else "."),
        ]
    low, high = (f"{100 * bound:.2g} %" for bound in measures.interval)
    name, figure = "Error", percent_of(measures.error)
    compared = (
        f"95 % confidence interval {low} to {high}; "
        f"predicting the most frequent class would give {percent_of(measures.baseline_error)}"
        + (f", a linear model {percent_of(linear)}." if linear is not None else ".")
    )
    if measures.lopsided:
        # With 1 % of one class, an error of 1 % is no achievement.
        name, figure = "Balanced error", percent_of(1 - measures.balanced_accuracy)
        compared = (
            "The mean error of the classes, 50 % for a guess between two. Over all rows, the error is "
            f"{percent_of(measures.error)}; predicting the most frequent class would give "
            f"{percent_of(measures.baseline_error)}."
        )
    return [
        text((f"{name} ", "bold"), (figure, "bold green"), f" on {rows}"),
        compared,
        *_probability_lines(measures),
        *_never_predicted(measures),
        "",
        *_class_table(measures),
    ]


def _probability_lines(measures: ClassificationMeasures) -> list[str]:
    """How good the probabilities are."""
    if measures.log_loss is None:
        return []
    order = measures.ranking
    if order is None:
        return [f"Log-loss {measures.log_loss:.3g}, balanced accuracy {measures.balanced_accuracy:.3f}."]
    return [
        f"AUC {order.auc:.3f}, average precision {order.average_precision:.3f} for "
        f"{short(order.positive)} ({percent_of(order.share)} of the rows), log-loss "
        f"{measures.log_loss:.3g}, balanced accuracy {measures.balanced_accuracy:.3f}."
    ]


def _never_predicted(measures: ClassificationMeasures) -> list[str]:
    missing = measures.never_predicted
    if not missing:
        return []
    named = ", ".join(f"{short(one.label)} ({one.rows:,} rows)" for one in missing[:MOST_IN_SENTENCE])
    more = f" and {len(missing) - MOST_IN_SENTENCE:,} more" if len(missing) > MOST_IN_SENTENCE else ""
    return [f"Never predicted: {named}{more}."]


def coverage_lines(coverage: Coverage | None, measures: Measures) -> list[str]:
    """How often the true values are inside the intervals or sets, and how wide these are."""
    if coverage is None:
        return []
    asked, share = f"{100 * coverage.asked:.3g} %", f"{100 * coverage.share:.3g} %"
    if isinstance(measures, ClassificationMeasures):
        size = f"{coverage.widths.mean():.3g}"
        size = "1 class" if size == "1" else f"{size} classes"
        return ["", f"Sets of {asked}: {share} have the true class, and {size} on average."]
    width = number(float(np.median(coverage.widths)))
    return [f"Intervals of {asked}: {share} have the true value, and half are narrower than {width}."]


def percent_of(share: float) -> str:
    return f"{100 * share:.3g} %"


def _class_table(measures: ClassificationMeasures) -> list[Any]:
    """How often each class is right, on one line each; of many classes, those with most mistakes."""
    shown = list(measures.classes)
    if len(shown) > MOST_CLASSES_LISTED:
        worst = sorted(shown, key=lambda one: one.rows * (1 - (one.recall or 0)), reverse=True)
        shown = worst[:MOST_CLASSES_LISTED]
    room = (screen_width() - FIGURES_WIDTH) // 2
    names = short_labels(one.label for one in measures.classes)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("class", no_wrap=True)
    for name in ("rows", "recall", "precision"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("most often confused with", no_wrap=True)
    for one in shown:
        times = f" ({one.mistakes:,} ×)"
        instead = names.at(one.mistaken_for, min(LABEL_WIDTH, room - len(times))) + times
        rates = ("–" if v is None else f"{100 * v:.1f} %" for v in (one.recall, one.precision))
        label = text(names.at(one.label, min(LABEL_WIDTH, room)))
        table.add_row(label, f"{one.rows:,}", *rates, text(instead if one.mistakes else ""))
    rest = len(measures.classes) - len(shown)
    if not rest:
        return [table]
    return [table, text(f"… and {rest:,} classes with fewer mistakes; --json lists all", style="dim")]
