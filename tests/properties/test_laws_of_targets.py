"""Predictions follow the targets: their unit, their origin, their columns."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import assert_same, problems

from mercer import KernelRegressor

# Hypothesis prefers small numbers, and large ones are what is hard.
OFFSETS = st.sampled_from([-98_765_432.1, 1e8, 3e6, -4e4, 7e2])
FACTORS = st.sampled_from([1e-8, 1e8, -1e8, 3e-5, -7e3])


@given(problems(), OFFSETS)
def test_shifting_targets_shifts_predictions(problem, offset):
    expected = problem.fitted().predict(problem.X_new)
    shifted = problem.model().fit(problem.X, problem.y + offset).predict(problem.X_new)
    assert_same(shifted - offset, expected, problem.rounding)


@given(problems(), FACTORS)
def test_scaling_targets_scales_predictions(problem, factor):
    expected = problem.fitted().predict(problem.X_new)
    scaled = problem.model().fit(problem.X, factor * problem.y).predict(problem.X_new)
    assert_same(scaled / factor, expected, problem.rounding)


@given(problems(), OFFSETS, FACTORS)
def test_the_unit_and_origin_of_targets_do_not_matter_together(problem, offset, factor):
    expected = problem.fitted().predict(problem.X_new)
    moved = problem.model().fit(problem.X, factor * (problem.y + offset)).predict(problem.X_new)
    assert_same(moved / factor - offset, expected, problem.rounding)


@settings(max_examples=3)
@given(problems(), OFFSETS, FACTORS)
def test_the_unit_and_origin_of_targets_do_not_change_what_is_chosen(problem, offset, factor):
    chosen = KernelRegressor(random_state=0).fit(problem.X, problem.y)
    moved = KernelRegressor(random_state=0).fit(problem.X, factor * (problem.y + offset))
    assert moved.kernel_ == chosen.kernel_
    assert moved.ridge_ == chosen.ridge_


@given(problems(), OFFSETS)
def test_a_constant_is_predicted_exactly(problem, offset):
    predicted = problem.model().fit(problem.X, np.full(len(problem.X), offset)).predict(problem.X_new)
    np.testing.assert_allclose(predicted, offset, rtol=1e-14)


@given(problems())
def test_outputs_do_not_affect_one_another(problem):
    """Every number that could depend on how many there are is given."""
    Y = np.column_stack([problem.y, np.cos(problem.X).sum(1)])
    n = len(Y)
    steps = {"batch_size": n // 3, "subsample_size": n // 2, "preconditioner_rank": max(1, n // 10)}
    model = problem.model(**steps)
    together = model.fit(problem.X, Y).predict(problem.X_new)
    apart = [model.fit(problem.X, y).predict(problem.X_new) for y in Y.T]
    assert_same(together, np.column_stack(apart), problem.rounding)


@given(problems(), FACTORS, st.integers(0, 2))
def test_the_unit_of_an_output_changes_nothing_else(problem, factor, which):
    """Early stopping weighs outputs against one another: noise, and two that can be learned."""
    noise = np.random.default_rng(len(problem.X)).normal(size=len(problem.X))
    Y = np.column_stack([problem.y, noise, np.cos(problem.X).sum(1)])
    factors = np.where(np.arange(3) == which, factor, 1.0)
    model = problem.model(early_stopping=True, max_iter=20, interpolation_tol=1e-4)
    expected = model.fit(problem.X, Y).predict(problem.X_new)
    stopped = (model.best_epoch_, model.n_iter_, model.stop_reason_)
    found = model.fit(problem.X, factors * Y).predict(problem.X_new)
    assert (model.best_epoch_, model.n_iter_, model.stop_reason_) == stopped
    assert_same(found / factors, expected, problem.rounding)


@settings(max_examples=3)
@given(problems(), FACTORS)
def test_the_unit_of_an_output_does_not_change_what_is_chosen(problem, factor):
    Y = np.column_stack([problem.y, np.random.default_rng(0).normal(size=len(problem.X))])
    chosen = KernelRegressor(random_state=0).fit(problem.X, Y)
    moved = KernelRegressor(random_state=0).fit(problem.X, Y * [1.0, factor])
    assert moved.kernel_ == chosen.kernel_
    assert moved.ridge_ == chosen.ridge_


@given(problems(classes=4))
def test_names_of_classes_do_not_matter(problem):
    names = np.array(["ant", "bee", "cat", "dog"])
    expected = problem.fitted()
    renamed = problem.model().fit(problem.X, names[problem.y])
    np.testing.assert_array_equal(renamed.predict(problem.X_new), names[expected.predict(problem.X_new)])
    np.testing.assert_array_equal(
        renamed.predict_proba(problem.X_new), expected.predict_proba(problem.X_new)
    )
