"""Importances of features by permutation."""

from __future__ import annotations

import numpy as np
import pytest

import mercer
from mercer import KernelClassifier, KernelRegressor
from mercer.estimators import permutation

FIXED = {"kernel": "gaussian", "bandwidth": 2.0, "ridge": 1e-3, "random_state": 0}


def test_a_feature_counts_as_much_as_shuffling_it_changes_predictions(rng):
    X = rng.normal(size=(200, 3))
    model = KernelRegressor(**FIXED).fit(X, 3 * X[:, 0] + X[:, 1])
    rows, changes = X, []
    for j in range(3):  # over all pairs of rows, by the definition
        f, total = model.predict(rows), 0.0
        for shift in range(1, 200, 20):
            shuffled = rows.copy()
            shuffled[:, j] = np.roll(rows[:, j], shift)
            total += np.mean((model.predict(shuffled) - f) ** 2)
        changes.append(total)
    np.testing.assert_allclose(model.feature_importances_, np.array(changes) / sum(changes), atol=0.05)
    assert model.feature_importances_.sum() == pytest.approx(1)
    assert model.feature_importances_[2] < 0.01


def test_importances_by_permutation_survive_a_file_and_are_those_of_columns(rng, tmp_path):
    frame = {"size": rng.normal(size=90), "city": rng.choice(["a", "b", "c"], 90)}
    import polars as pl

    frame = pl.DataFrame(frame)
    model = KernelClassifier(**FIXED).fit(frame, frame["city"].to_numpy())
    assert model.feature_importances_[1] > 0.9
    model.save(tmp_path / "m.mercer")
    again = mercer.load(tmp_path / "m.mercer")
    np.testing.assert_array_equal(again.feature_importances_, model.feature_importances_)


def test_where_shuffling_would_take_long_there_are_no_importances(rng, monkeypatch):
    X = rng.normal(size=(60, 5))
    model = KernelRegressor(**FIXED).fit(X, X[:, 0])
    assert hasattr(model, "feature_importances_")
    monkeypatch.setattr(permutation, "MOST_SHUFFLED_VALUES", 60 * 5 * 31)
    assert not hasattr(model.fit(X, X[:, 0]), "feature_importances_")


def test_a_model_that_learned_nothing_has_no_importances(rng):
    X = rng.normal(size=(60, 2))
    model = KernelRegressor(**FIXED).fit(X, np.ones(60))
    assert not hasattr(model, "feature_importances_")
