"""The sections on the errors of a model, on rows that it was not trained on.

Classes: the confusion matrix, the ranking of two classes, the calibration of the probabilities, the sets
and the most confident mistakes.
Numbers: predicted against true values, residuals, and the rows with the largest ones.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from mercer.report.calibration import calibration
from mercer.report.confusion import confusion
from mercer.report.coverage import coverage
from mercer.report.evaluation import Evaluation
from mercer.report.markup import Markup, join, section
from mercer.report.ranking import curves
from mercer.report.residuals import residuals
from mercer.report.worst import worst_labels, worst_values


def errors(evaluation: Evaluation, classes: NDArray[Any] | None) -> Markup:
    """The sections; `classes` are those of the model, None for a regression."""
    if classes is not None:
        return join(
            section("Errors", confusion(classes, evaluation)),
            section("Ranking", curves(classes, evaluation)),
            section("Calibration", calibration(evaluation)),
            section("Prediction sets", coverage(evaluation)),
            section("Worst mistakes", worst_labels(evaluation)),
        )
    return join(
        section("Errors", residuals(evaluation)),
        section("Prediction intervals", coverage(evaluation)),
        section("Worst predictions", worst_values(evaluation)),
    )
