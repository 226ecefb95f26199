"""Numbers by rank depend on their order, categories only on which rows share a value."""

from __future__ import annotations

import copy
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import FIXED, INVARIANT, SEEDS, Problem, assert_same

import mercer
from mercer import KernelRegressor

# The columns of codes follow those of numbers.
N_NUMBERS, N_CODES, N_VALUES = 2, 2, 5
CATEGORIES = [N_NUMBERS + i for i in range(N_CODES)]


@st.composite
def tables(draw: st.DrawFn, classes: int = 0) -> Problem:
    """Columns with a heavy tail, and columns of codes, which are declared; fewer rows than knots."""
    n, m = draw(st.tuples(st.integers(30, 120), st.integers(1, 40)))
    rng = np.random.default_rng(draw(SEEDS))

    def rows(count: int) -> np.ndarray:
        numbers = np.exp(1.5 * rng.normal(size=(count, N_NUMBERS)))
        return np.hstack([numbers, rng.integers(0, N_VALUES, (count, N_CODES))])

    X, X_new = rows(n), rows(m)
    y = np.sin(np.log(X[:, :N_NUMBERS]).sum(1)) + (X[:, N_NUMBERS] == 2) + 0.1 * rng.normal(size=n)
    y = (y - y.mean()) / y.std()
    if classes:
        y = np.argsort(np.argsort(y)) * classes // n
    parameters = FIXED | {
        "kernel": draw(st.sampled_from(INVARIANT)),
        "bandwidth": draw(st.floats(0.5, 4)),
        "ridge": draw(st.sampled_from([0.01, 0.1, 1.0])),
        "precision": draw(st.sampled_from(["float32", "float64"])),
        "scale": draw(st.sampled_from(["rank", True, False])),
        "categorical_features": CATEGORIES,
    }
    return Problem(X, y, X_new, parameters)


@given(tables(), st.sampled_from([1e-6, 0.3, 1e5]), st.sampled_from([0.0, -7.0, 100.0]))
def test_increasing_linear_maps_of_numbers_by_rank_change_nothing(problem, slope, offset):
    X, X_new = problem.X.copy(), problem.X_new.copy()
    for x in (X, X_new):
        x[:, 0] = slope * (x[:, 0] + offset)
    found = problem.model(scale="rank").fit(X, problem.y).predict(X_new)
    expected = problem.fitted(scale="rank").predict(problem.X_new)
    # An offset takes digits from the values between which is interpolated.
    assert_same(found, expected, 10 * problem.rounding)


@given(tables(), st.sampled_from([np.log, np.sqrt, np.cbrt, np.arctan]))
def test_any_increasing_map_of_numbers_by_rank_changes_nothing_at_values_seen(problem, increasing):
    X = problem.X.copy()
    X[:, 0] = increasing(X[:, 0])
    found = problem.model(scale="rank").fit(X, problem.y).predict(X)
    expected = problem.fitted(scale="rank").predict(problem.X)
    assert_same(found, expected, problem.rounding)


@given(tables(), SEEDS)
def test_the_codes_of_declared_categories_do_not_matter(problem, seed):
    rng = np.random.default_rng(seed)
    X, X_new = problem.X.copy(), problem.X_new.copy()
    for column in CATEGORIES:
        codes = rng.permutation(1000)[:N_VALUES] - 500
        for x in (X, X_new):
            x[:, column] = codes[x[:, column].astype(int)]
    found = problem.model().fit(X, problem.y).predict(X_new)
    assert_same(found, problem.fitted().predict(problem.X_new), problem.rounding)


@given(tables())
def test_all_values_never_seen_are_the_same_to_a_category(problem):
    model = problem.fitted()
    one, other = problem.X_new.copy(), problem.X_new.copy()
    one[:, N_NUMBERS], other[:, N_NUMBERS] = -1, 1e6
    np.testing.assert_array_equal(model.predict(one), model.predict(other))


def through_a_file(model):
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model.mercer")
        return mercer.load(Path(folder) / "model.mercer")


KEPT = pytest.mark.parametrize(
    "kept",
    [through_a_file, lambda model: pickle.loads(pickle.dumps(model)), copy.deepcopy],
    ids=["file", "pickle", "deepcopy"],
)


@KEPT
@given(st.one_of(tables(), tables(classes=3)))
def test_a_model_of_a_table_is_the_same_bit_for_bit_after_it_was_stored(kept, problem):
    model = problem.fitted()
    again = kept(model)
    never_seen = problem.X_new.copy()
    never_seen[:, N_NUMBERS] = 77
    for X in (problem.X_new, never_seen):
        np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert list(again.categorical_features) == CATEGORIES


@given(tables())
def test_the_torch_module_of_a_table_computes_the_same(problem):
    model = problem.fitted()
    never_seen = problem.X_new.copy()
    never_seen[:, N_NUMBERS] = 77
    for X in (problem.X_new, never_seen):
        f = model.to_torch()(torch.from_numpy(X))[:, 0]
        assert_same(f.double().numpy(), model.predict(X), problem.rounding)


@pytest.fixture(scope="module")
def learned():
    """A model with a learned metric."""
    rng = np.random.default_rng(0)
    X = np.column_stack([np.exp(rng.normal(size=(300, 5))), rng.integers(0, 4, 300), np.ones(300)])
    y = np.sin(2 * np.log(X[:, 0])) + (X[:, 5] == 1)
    return KernelRegressor(categorical_features=[5], random_state=0).fit(X, y), X


@KEPT
def test_a_learned_metric_is_stored_with_the_model(kept, learned):
    model, X = learned
    again = kept(model)
    shares = model.feature_importances_
    assert shares.sum() == pytest.approx(1)
    assert shares[6] == 0  # constant
    np.testing.assert_array_equal(again.feature_importances_, shares)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.left_out_score_ == model.left_out_score_
    f = again.to_torch()(torch.from_numpy(X))[:, 0]
    assert_same(f.double().numpy(), model.predict(X))
