"""What is done to all rows of X alike changes nothing."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from problems import INVARIANT, assert_same, problems

OFFSETS = st.sampled_from([1e4, -1e4, 300.0, -7.0])


@given(problems(), st.sampled_from([1.0, -1e6, 1e6]), st.data())
def test_a_constant_column_changes_nothing(problem, value, data):
    if problem.parameters["kernel"] not in INVARIANT:
        value = 0.0  # the neural tangent kernel sees the length of a row
    column = data.draw(st.integers(0, problem.X.shape[1]))
    X, X_new = (np.insert(x, column, value, axis=1) for x in (problem.X, problem.X_new))
    found = problem.model().fit(X, problem.y).predict(X_new)
    assert_same(found, problem.fitted().predict(problem.X_new), problem.rounding)


@given(problems(INVARIANT), OFFSETS)
def test_translating_all_rows_changes_nothing(problem, offset):
    found = problem.model().fit(problem.X + offset, problem.y).predict(problem.X_new + offset)
    assert_same(found, problem.fitted().predict(problem.X_new), problem.rounding)


@given(problems(INVARIANT), st.sampled_from([1e-6, 3e-3, 7e3, 1e6]))
def test_the_unit_of_features_and_bandwidth_does_not_matter(problem, factor):
    model = problem.model(bandwidth=factor * problem.parameters["bandwidth"])
    found = model.fit(factor * problem.X, problem.y).predict(factor * problem.X_new)
    assert_same(found, problem.fitted().predict(problem.X_new), problem.rounding)


@given(problems(), st.data())
def test_the_order_of_columns_does_not_matter(problem, data):
    order = data.draw(st.permutations(range(problem.X.shape[1])))
    found = problem.model().fit(problem.X[:, order], problem.y).predict(problem.X_new[:, order])
    assert_same(found, problem.fitted().predict(problem.X_new), problem.rounding)


@given(problems(INVARIANT), OFFSETS)
def test_training_rows_may_be_float32_or_float64(problem, offset):
    """The same values, which float32 can represent."""
    X = (problem.X + offset).astype(np.float32)
    X_new = (problem.X_new + offset).astype(np.float32).astype(np.float64)
    single = problem.model().fit(X, problem.y).predict(X_new)
    double = problem.model().fit(X.astype(np.float64), problem.y).predict(X_new)
    assert_same(single, double)


@given(problems(INVARIANT))
def test_integers_are_the_numbers_they_are(problem):
    """Seconds since 1970, for example, have more digits than float32."""
    X, X_new = (np.round(100 * x).astype(np.int64) + 1_700_000_000 for x in (problem.X, problem.X_new))
    model = problem.model(bandwidth=100 * problem.parameters["bandwidth"])
    expected = model.fit(X.astype(np.float64), problem.y).predict(X_new.astype(np.float64))
    assert_same(model.fit(X, problem.y).predict(X_new), expected)
