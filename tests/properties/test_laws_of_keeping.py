"""A model is the same after it was stored, and a fit that fails leaves it as it was."""

from __future__ import annotations

import copy
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import SEEDS, problems

import mercer
from mercer import Callback, Checkpoint

FITTED = ("plan_", "history_", "converged_", "stop_reason_", "best_epoch_", "best_loss_", "ridge_")


def anything():
    """A regression or a classification."""
    return st.one_of(problems(), problems(classes=4))


def through_a_file(model):
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model.mercer")
        return mercer.load(Path(folder) / "model.mercer")


def assert_identical(found, expected, X):
    np.testing.assert_array_equal(found.predict(X), expected.predict(X))
    np.testing.assert_array_equal(found.dual_coef_, expected.dual_coef_)
    assert found.dual_coef_.dtype == expected.dual_coef_.dtype
    if hasattr(expected, "classes_"):
        np.testing.assert_array_equal(found.predict_proba(X), expected.predict_proba(X))
        assert found.classes_.tolist() == expected.classes_.tolist()


@pytest.mark.parametrize(
    "kept",
    [through_a_file, lambda model: pickle.loads(pickle.dumps(model)), copy.deepcopy],
    ids=["file", "pickle", "deepcopy"],
)
@given(anything())
def test_a_model_is_the_same_bit_for_bit_after_it_was_stored(kept, problem):
    model = problem.fitted()
    again = kept(model)
    assert_identical(again, model, problem.X_new)
    assert_identical(kept(again), model, problem.X_new)
    for name in FITTED:
        assert getattr(again, name) == getattr(model, name)


class Stop(Callback):
    def __init__(self, after):
        self.after = after

    def on_epoch_end(self, run):
        return "enough" if run.epoch.number >= self.after else None


@given(anything(), st.integers(1, 7), st.booleans())
def test_a_resumed_run_ends_like_one_that_was_never_stopped(problem, after, holds_out):
    changes = {"early_stopping": holds_out, "tol": 0.0}
    whole = problem.fitted(**changes)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        problem.fitted(**changes, callbacks=[Checkpoint(path, minutes=0), Stop(after)])
        resumed = problem.model(**changes).fit(problem.X, problem.y, resume=path)
    assert_identical(resumed, whole, problem.X_new)
    assert resumed.history_.column("train_loss") == whole.history_.column("train_loss")
    assert (resumed.best_epoch_, resumed.best_loss_) == (whole.best_epoch_, whole.best_loss_)
    assert (resumed.stop_reason_, resumed.converged_) == (whole.stop_reason_, whole.converged_)


def assert_untouched(model, action, X):
    """Whatever `action` does, the model has the same attributes and predicts the same."""
    before, predicted = dict(vars(model)), model.predict(X)
    action()
    after = vars(model)
    assert after.keys() == before.keys()
    for name, value in before.items():
        assert after[name] is value or (np.isscalar(value) and after[name] == value), name
    np.testing.assert_array_equal(model.predict(X), predicted)


class Crash(Callback):
    def on_epoch_end(self, run):
        raise RuntimeError("out of coffee")


def ways_to_fail():
    """Calls of `fit` on other data that raise, from the first check to the last epoch."""

    def wider(X):
        return np.hstack([X, X])

    def fails(kind):
        return lambda model, X, y: kind(model, wider(X), y)

    return {
        "rows that are missing": fails(lambda model, X, y: model.fit(X[:-1], y)),
        "an infinite value": fails(lambda model, X, y: model.fit(X + np.inf, y)),
        "a weight below 0": fails(lambda model, X, y: model.fit(X, y, -np.ones(len(y)))),
        "half of a held-out part": fails(lambda model, X, y: model.fit(X, y, X_val=X)),
        "no such checkpoint": fails(lambda model, X, y: model.fit(X, y, resume="nowhere.checkpoint")),
        "a callback that raises": fails(lambda model, X, y: model.fit(X, y)),
        "features too large": fails(lambda model, X, y: model.fit(1e200 * X, y)),
    }


@settings(max_examples=4)
@pytest.mark.parametrize("way", ways_to_fail())
@given(anything())
def test_a_fit_that_fails_leaves_the_model_as_it_was(way, problem):
    model = problem.fitted(precision="float32")
    if way == "a callback that raises":
        model.set_params(callbacks=[Crash()])

    def failing():
        with pytest.raises((ValueError, RuntimeError, OSError)):
            ways_to_fail()[way](model, problem.X, problem.y)

    assert_untouched(model, failing, problem.X_new)


@given(anything(), SEEDS)
def test_planning_leaves_the_model_as_it_was(problem, seed):
    model = problem.fitted()
    X = np.random.default_rng(seed).normal(size=(len(problem.y), 7))
    assert_untouched(model, lambda: model.plan(X, problem.y), problem.X_new)


@given(anything())
def test_fitting_a_copy_leaves_the_original_as_it_was(problem):
    model = problem.fitted()
    twin = copy.copy(model)
    assert_untouched(model, lambda: twin.fit(problem.X[:, ::-1], problem.y), problem.X_new)


@given(anything())
def test_fitting_again_gives_the_same_model_as_fitting_once(problem):
    model = problem.fitted()
    expected = copy.deepcopy(model)
    model.fit(problem.X[:15], problem.y[np.linspace(0, len(problem.y) - 1, 15).astype(int)])
    assert_identical(model.fit(problem.X, problem.y), expected, problem.X_new)
