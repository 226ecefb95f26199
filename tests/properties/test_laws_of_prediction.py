"""A row's prediction depends on the row and the model, and on nothing else."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import INVARIANT, assert_same, problems


@given(problems(), st.randoms(use_true_random=False))
def test_permuted_rows_have_permuted_predictions(problem, random):
    model = problem.fitted()
    order = list(range(len(problem.X_new)))
    random.shuffle(order)
    assert_same(model.predict(problem.X_new[order]), model.predict(problem.X_new)[order])


@given(problems(), st.integers(1, 40))
def test_rows_may_be_predicted_one_by_one_in_blocks_or_all_at_once(problem, block):
    model, X = problem.fitted(), problem.X_new
    expected = model.predict(X)
    for step in (1, block):
        parts = [model.predict(X[i : i + step]) for i in range(0, len(X), step)]
        assert_same(np.concatenate(parts), expected)


@given(problems(INVARIANT), st.sampled_from([0.0, 30.0, -1e3, 1e4]))
def test_inputs_may_be_float32_or_float64(problem, offset):
    """The same values, which float32 can represent, near the origin or far from it."""
    model = problem.model().fit(problem.X + offset, problem.y)
    X = (problem.X_new + offset).astype(np.float32)
    assert_same(model.predict(X), model.predict(X.astype(np.float64)))


@given(problems())
def test_a_training_row_is_predicted_like_an_equal_new_one(problem):
    model = problem.fitted()
    both = np.vstack([problem.X, problem.X_new])
    assert_same(model.predict(both)[: len(problem.X)], model.predict(problem.X))


@given(problems())
def test_arrays_lists_and_tensors_are_predicted_alike(problem):
    model, X = problem.fitted(), problem.X_new
    expected = model.predict(X)
    np.testing.assert_array_equal(model.predict(X.tolist()), expected)
    np.testing.assert_array_equal(model.predict(np.asfortranarray(X)), expected)
    np.testing.assert_array_equal(model.predict(torch.from_numpy(X)).numpy(), expected)


@given(problems())
def test_any_number_of_threads_gives_the_same_model(problem):
    expected = problem.fitted(n_jobs=1).predict(problem.X_new)
    assert_same(problem.fitted(n_jobs=2).predict(problem.X_new), expected)


@given(problems())
def test_the_same_seed_gives_the_same_bits(problem):
    first, second = problem.fitted(), problem.fitted()
    np.testing.assert_array_equal(first.dual_coef_, second.dual_coef_)
    np.testing.assert_array_equal(first.predict(problem.X_new), second.predict(problem.X_new))
