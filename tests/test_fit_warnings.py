"""Warnings after a fit."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from mercer import KernelRegressor
from mercer.estimators.fit_warnings import warn_after_fit
from mercer.training.events.dispatch import INTERRUPTED
from mercer.training.stopping import INTERPOLATED, NOTHING_LEARNED, STALLED


def warned(reason, n_iter=3, notes=(), converged=False, max_iter=10):
    with pytest.warns() as found:
        warn_after_fit(
            reason, n_iter, notes, converged=converged, max_iter=max_iter, interpolation_tol=0.5
        )
    return [(warning.category, str(warning.message)) for warning in found]


@pytest.mark.parametrize(
    ("reason", "n_iter", "part"),
    [
        (INTERRUPTED, 3, "after 3 whole epochs; the model has the best weights so far."),
        (INTERRUPTED, 0, "after 0 whole epochs; the model has the weights as they were."),
        (INTERRUPTED, 10, "after 10 whole epochs"),
        (NOTHING_LEARNED, 10, "The model predicts the mean of the targets"),
        (
            STALLED,
            10,
            "Training stopped because its loss has almost stopped falling, above "
            "`interpolation_tol`=0.5.",
        ),
        ("a callback has seen enough", 10, "Training stopped at `max_iter`=10 before it converged."),
    ],
)
def test_each_way_to_end_without_converging_has_its_sentence(reason, n_iter, part):
    [(category, text)] = warned(reason, n_iter)
    assert category is ConvergenceWarning
    assert part in text


@pytest.mark.parametrize(
    ("reason", "n_iter", "converged"),
    [(INTERPOLATED, 10, True), ("a callback has seen enough", 3, False)],
)
def test_nothing_is_said_of_training_that_ended_as_it_should(reason, n_iter, converged, recwarn):
    warn_after_fit(reason, n_iter, (), converged=converged, max_iter=10, interpolation_tol=0.5)
    assert not recwarn


def test_each_note_of_the_plan_is_a_sentence_after_how_training_ended():
    texts = [text for _, text in warned(STALLED, notes=("the sky fell", "it rained"))]
    assert texts[1:] == ["The sky fell.", "It rained."]


def test_warnings_point_at_the_line_that_called_fit():
    x = np.linspace(0, 6, 50)[:, None]
    model = KernelRegressor("gaussian", bandwidth=0.1, ridge=0.0, max_iter=1, early_stopping=False)
    with pytest.warns(ConvergenceWarning) as found:
        model.fit(x, np.sin(5 * x[:, 0]))
    assert found[0].filename == __file__
