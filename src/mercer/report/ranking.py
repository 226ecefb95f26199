"""How well the probabilities of two classes order the rows: ROC and precision-recall curves."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import precision_recall_curve, roc_curve

from mercer.metrics import class_places, ranking
from mercer.report.charts import Axis, Chart
from mercer.report.evaluation import Evaluation
from mercer.report.markup import Markup, element, figure, shortened
from mercer.report.numbers import percent, three_decimals

# Points of a curve that are drawn: more of them only make the page larger.
MOST_CURVE_POINTS = 300
LONGEST_POSITIVE = 30


def curves(classes: NDArray[Any], evaluation: Evaluation) -> Markup:
    """Both curves for the rarer of two classes; nothing for more classes."""
    probabilities, y = evaluation.probabilities, evaluation.y
    found = None if probabilities is None else ranking(y, probabilities, classes)
    if found is None or probabilities is None:
        return Markup("")
    positive = classes.tolist().index(found.positive)
    truth, score = class_places(classes, y) == positive, probabilities[:, positive]
    name, share = shortened(found.positive, LONGEST_POSITIVE), found.share
    false, true, _ = roc_curve(truth, score)
    roc = Chart(
        Axis("share of the other rows called so", 0.0, 1.0, kind="share"),
        Axis("share of its rows found", 0.0, 1.0, kind="share"),
    )
    roc.line([0, 1], [0, 1], "soft dashed")
    roc.line(*_thinned(false, true), "a")
    precision, recall, _ = precision_recall_curve(truth, score)
    found_rows = Chart(
        Axis("share of its rows found (recall)", 0.0, 1.0, kind="share"),
        Axis("precision", 0.0, 1.0, kind="share"),
    )
    found_rows.line([0, 1], [share, share], "soft dashed")
    found_rows.line(*_thinned(recall[::-1], precision[::-1]), "a")
    auc, average = three_decimals(found.auc), three_decimals(found.average_precision)
    return element(
        "div",
        figure(
            f"ROC curve of {name}",
            roc.markup("ROC curve", f"Area under the curve {auc}."),
            f"The area under the curve (AUC) is {auc}; that of a random order, the dashed line, is 0.5.",
        ),
        figure(
            f"Precision and recall of {name}",
            found_rows.markup("Precision-recall curve", f"Average precision {average}."),
            f"The average precision is {average}; that of a random order is the share of the class, "
            f"{percent(share, len(y))}.",
        ),
        class_="pair",
    )


def _thinned(x: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Some of many points, with both ends."""
    if len(x) <= MOST_CURVE_POINTS:
        return x, y
    shown = np.unique(np.linspace(0, len(x) - 1, MOST_CURVE_POINTS).round().astype(int))
    return x[shown], y[shown]
