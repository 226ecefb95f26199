"""Explanations, against all contributions computed one by one."""

from __future__ import annotations

import numpy as np
import pytest
from oracles import gaussian
from sklearn.datasets import load_iris

from mercer import KernelClassifier, KernelRegressor
from mercer.estimators import explanation


@pytest.fixture
def fitted(rng):
    X = rng.normal(size=(60, 2))
    model = KernelRegressor("gaussian", bandwidth=1.0, ridge=0.1, random_state=0)
    return model.fit(X, X[:, 0] + 5), X


@pytest.mark.parametrize("at_once", [8_192, 7])
def test_contributions_are_the_terms_of_the_prediction(fitted, rng, monkeypatch, at_once):
    monkeypatch.setattr(explanation, "EXPLAINING_AT_ONCE", at_once)
    model, X = fitted
    new = rng.normal(size=(9, 2))
    found = model.explain(new, n_rows=4)
    K = gaussian(new, X, 1.0)  # (9, 60)
    terms = K * model.dual_coef_[:, 0]
    order = np.argsort(-np.abs(terms), axis=1)[:, :4]
    assert np.array_equal(found.rows, order)
    np.testing.assert_allclose(found.contributions, np.take_along_axis(terms, order, 1), rtol=1e-6)
    shares = np.abs(terms) / np.abs(terms).sum(1, keepdims=True)
    np.testing.assert_allclose(found.shares, np.take_along_axis(shares, order, 1), rtol=1e-6)
    assert np.array_equal(found.nearest, np.argsort(-K, axis=1)[:, :4])
    np.testing.assert_allclose(found.total, model.predict(new), rtol=1e-6)
    np.testing.assert_allclose(found.offset, model.predict([[1e6, 1e6]])[0])


def test_a_class_is_explained_by_the_decision_for_it():
    X, y = load_iris(return_X_y=True)
    model = KernelClassifier("gaussian", bandwidth=1.0, ridge=0.1, random_state=0).fit(X, y)
    found = model.explain(X[[0, 75, 140]], n_rows=3)
    assert np.array_equal(found.nearest[:, 0], [0, 75, 140])
    decision = model.decision_function(X[[0, 75, 140]])
    np.testing.assert_allclose(found.total, decision.max(1), rtol=1e-5)
    assert (y[found.rows[0]] == 0).all()


def test_more_rows_than_there_are_give_all_of_them(fitted):
    model, X = fitted
    assert model.explain(X[:2], n_rows=100).rows.shape == (2, 60)


@pytest.mark.parametrize("n_rows", [0, -1, 2.5, "3", True])
def test_a_number_of_rows_is_a_whole_number(fitted, n_rows):
    with pytest.raises(ValueError, match="`n_rows` must be a whole number of at least 1"):
        fitted[0].explain(fitted[1], n_rows)
