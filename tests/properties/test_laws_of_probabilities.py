"""Probabilities are probabilities, and agree with the predicted class."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import SEEDS, problems

from mercer import KernelClassifier


@given(problems(classes=5), st.booleans(), st.sampled_from([1.0, 100.0]))
def test_probabilities_lie_between_0_and_1_sum_to_1_and_agree_with_predict(problem, holds_out, far):
    """With the default logit scale and one fitted to held-out rows, near the data and far from it."""
    model = problem.fitted(early_stopping=holds_out)
    X = np.vstack([problem.X, far * problem.X_new])
    probabilities = model.predict_proba(X)
    assert probabilities.shape == (len(X), len(model.classes_))
    assert probabilities.min() > 0
    assert probabilities.max() < 1
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-12)
    np.testing.assert_array_equal(model.classes_[probabilities.argmax(1)], model.predict(X))


@given(problems(classes=2))
def test_decisions_order_probabilities(problem):
    model = problem.fitted()
    decisions = model.decision_function(problem.X_new)
    positive = model.predict_proba(problem.X_new)[:, 1]
    order = decisions.argsort()
    assert (np.diff(positive[order]) >= 0).all()
    np.testing.assert_array_equal(model.predict(problem.X_new) == model.classes_[1], decisions > 0)


@given(problems(), st.integers(2, 4), SEEDS)
def test_each_of_several_labels_has_a_probability_of_its_own(problem, n_labels, seed):
    indicator = np.random.default_rng(seed).integers(0, 2, size=(len(problem.X), n_labels))
    indicator[:2] = [[0] * n_labels, [1] * n_labels]  # both values of every label
    model = KernelClassifier(**problem.parameters).fit(problem.X, indicator)
    probabilities = model.predict_proba(problem.X_new)
    assert probabilities.min() > 0
    assert probabilities.max() < 1
    np.testing.assert_array_equal(model.predict(problem.X_new), probabilities > 0.5)


@pytest.mark.parametrize("value", [0, 1])
def test_a_decision_of_exactly_zero_is_the_first_class(value):
    """A tie: both classes at the same point."""
    model = KernelClassifier("gaussian", bandwidth=1.0, ridge=0.1, random_state=value)
    model.fit(np.zeros((4, 1)), [0, 1, 0, 1])
    probabilities = model.predict_proba(np.zeros((1, 1)))
    assert model.predict(np.zeros((1, 1)))[0] == model.classes_[probabilities[0].argmax()]
