"""The learned metric: its gradient, what it finds, and when there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mercer
from mercer import KernelClassifier, KernelRegressor
from mercer.data.inputs import fit_inputs
from mercer.data.table_map import find_categories
from mercer.selection import metric
from mercer.selection.metric import HALF_POINTS, Descent, Half, halves, loss_gradient
from mercer.selection.sample import in_even_order, row_weights
from mercer.selection.variants import Variant, with_table


def variant_of(X, coded=None):
    rows = np.arange(len(X))
    plain, _ = fit_inputs(X, rows)
    inputs = with_table(plain, X, rows, coded or {}, ranked=True)
    return Variant("", inputs, inputs.floats(torch.from_numpy(X))[0])


@pytest.mark.parametrize(
    "kernel",
    [mercer.Laplacian(2.0), mercer.Gaussian(1.5), mercer.L1Laplacian(3.0), mercer.Cauchy(2.0)],
    ids=str,
)
def test_the_gradient_is_that_of_the_leave_one_out_loss(kernel, rng, monkeypatch):
    monkeypatch.setattr(metric, "BLOCK_ROWS", 16)
    n = 60
    X = np.column_stack([rng.normal(size=(n, 3)), rng.integers(0, 4, n)])
    variant = variant_of(X, find_categories(X, np.arange(n), torch.arange(4)))
    assert (variant.n_numbers, variant.n_blocks) == (3, 4)
    y = torch.from_numpy(np.column_stack([np.sin(X[:, 0]) + X[:, 3], X[:, 1]]))
    root = torch.from_numpy(rng.uniform(0.5, 2, size=(n, 1))).sqrt()
    half = Half(slice(0, n), y - y.mean(0), root)
    weights, ridge = torch.tensor([1.0, 0.5, 2.0, 1.3], dtype=torch.float64), 0.2

    def loss(logs):
        return float(half.squares(variant, kernel, logs[:-1].exp(), [float(logs[-1].exp())])[0].mean())

    logs = torch.cat([weights.log(), torch.tensor([ridge]).log().double()])
    step = 1e-5 * torch.eye(5, dtype=torch.float64)
    expected = [(loss(logs + e) - loss(logs - e)) / 2e-5 for e in step]
    found = loss_gradient(variant, kernel, weights, ridge, half).numpy()  # in single precision
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-4 * np.abs(expected).max())


def test_a_descent_goes_on_where_it_stopped(rng):
    X = rng.normal(size=(120, 3))
    y = torch.from_numpy(np.sin(2 * X[:, :1]))
    whole, other = halves(y, torch.ones(120, dtype=torch.float64), HALF_POINTS)
    part, _ = halves(y, torch.ones(120, dtype=torch.float64), 20)
    assert (whole.rows, other.rows, part.rows) == (slice(0, 60), slice(60, 120), slice(0, 20))
    made = [Descent(variant_of(X), mercer.Gaussian(1.5), 0.1, False) for _ in range(2)]
    at_once = made[0].learn(whole, other, (2, 4))
    made[1].learn(whole, other, (2,))
    torch.testing.assert_close(made[1].learn(whole, other, (2, 4))[2].weights, at_once[2].weights)
    # A descent that began on fewer points is judged on all of the other half.
    fewer = Descent(variant_of(X), mercer.Gaussian(1.5), 0.1, False)
    fewer.learn(part, other, (2,))
    found = fewer.learn(whole, other, (2, 4))
    assert [len(one.squares) for one in found] == [60, 60, 60]
    assert not torch.equal(found[1].weights, at_once[1].weights)


@pytest.mark.parametrize(("points", "goes_on"), [(29, False), (30, True), (60, True)])
def test_a_descent_on_few_points_for_each_weight_begins_anew(points, goes_on, rng):
    X = rng.normal(size=(120, 3))
    y, ones = torch.from_numpy(X[:, :1]), torch.ones(120, dtype=torch.float64)
    descent = Descent(variant_of(X), mercer.Gaussian(1.5), 0.1, False)
    descent.learn(*halves(y, ones, points), (1,))
    assert descent.suits(halves(y, ones, HALF_POINTS)[0]) == goes_on


def test_features_that_matter_are_found(rng):
    X = rng.normal(size=(900, 15))
    y = np.sin(3 * X[:, 4]) * X[:, 9]
    model = KernelRegressor(random_state=0).fit(X[:600], y[:600])
    plain = KernelRegressor(metric=False, random_state=0).fit(X[:600], y[:600])
    assert model.selection_.best.metric_steps > 0
    assert set(np.argsort(model.feature_importances_)[-2:]) == {4, 9}
    assert model.feature_importances_.sum() == pytest.approx(1)
    assert 1 - model.score(X[600:], y[600:]) < 0.5 * (1 - plain.score(X[600:], y[600:]))
    # Without a metric, the importances are those of shuffled columns.
    assert plain.machine_.inputs.importances is None
    assert plain.feature_importances_.argmax() == 9
    assert "metric" in model.plan_.preparation


def test_a_category_has_one_importance_and_a_constant_none(rng):
    n = 600
    X = np.column_stack([rng.normal(size=(n, 4)), rng.integers(0, 5, n), np.ones(n)])
    y = rng.permutation(5)[X[:, 4].astype(int)] + 0.1 * X[:, 0]
    model = KernelRegressor(random_state=0, categorical_features=[4]).fit(X, y)
    assert model.feature_importances_.shape == (6,)
    assert model.feature_importances_.argmax() == 4
    assert model.feature_importances_[5] == 0
    model.set_params(categorical_features="auto").fit(X[:, :2], X[:, 0] + X[:, 1])
    model.set_params(metric=False).fit(X[:, :2], X[:, 0])  # none of an earlier metric are left
    assert model.machine_.inputs.importances is None
    assert model.feature_importances_[0] > 0.9


def test_noise_is_said_to_be_noise(rng):
    X = rng.normal(size=(400, 5))
    with pytest.warns(UserWarning, match="better than the mean"):
        model = KernelRegressor(random_state=0).fit(X, rng.normal(size=400))
    assert model.selection_.best.metric_steps == 0


def test_a_rare_class_is_seen_in_every_round(rng):
    """One row in a hundred is positive, and only one feature in twenty tells."""
    n = 4_000
    X = rng.normal(size=(n, 20)) * np.geomspace(1, 1e4, 20)
    y = (X[:, 3] / X[:, 3].std() > 2.3).astype(int)
    rows = rng.permutation(n)
    order = in_even_order(rows, y[rows])
    assert sorted(order) == sorted(rows)
    shares = [y[order[:count]].mean() for count in (250, 600, 2_000)]
    assert min(shares[:2]) > 0.05 > 0.02 > y.mean()
    weights = row_weights(order[:600], rows, y, None).numpy()
    assert weights.mean() == pytest.approx(1)
    assert (weights * y[order[:600]]).mean() == pytest.approx(y.mean())
    model = KernelClassifier(random_state=0).fit(X[:3000], y[:3000])
    assert model.selection_.best.loss < 0.6
    positive = y[3000:] == 1
    assert model.predict(X[3000:])[positive].mean() > 0.5


def test_even_order_keeps_rows_without_classes_as_they_are():
    rows = np.array([3, 1, 2])
    np.testing.assert_array_equal(in_even_order(rows, None), rows)


def test_weights_of_rows_count_in_the_search(rng):
    """Rows of weight 0.01 are almost ignored."""
    X = rng.normal(size=(500, 3))
    y = np.where(np.arange(500) < 250, np.sin(3 * X[:, 0]), 10 * rng.normal(size=500))
    weight = np.where(np.arange(500) < 250, 1.0, 1e-4)
    model = KernelRegressor(random_state=0).fit(X, y, sample_weight=weight)
    fresh = rng.normal(size=(300, 3))
    assert np.corrcoef(model.predict(fresh), np.sin(3 * fresh[:, 0]))[0, 1] > 0.9


def test_a_ridge_that_is_given_stays(rng):
    X = rng.normal(size=(500, 8))
    y = np.sin(3 * X[:, 1]) + 0.3 * rng.normal(size=500)
    for ridge in (0.0, 1e-5, 0.07):
        model = KernelRegressor("laplacian", ridge=ridge, early_stopping=False, random_state=0)
        model.fit(X, y)
        assert model.ridge_ == ridge
        assert model.selection_.best.ridge == ridge
        assert {c.ridge for c in model.selection_.candidates} == {ridge}


def test_a_class_that_is_never_predicted_is_warned_of(rng):
    X = rng.normal(size=(4_000, 3))
    chance = 0.05 + 0.3 * (X[:, 0] > 1.5)  # never more than a half
    y = np.where(rng.uniform(size=4_000) < chance, "rare", "common")
    with pytest.warns(UserWarning, match=r"the class rare \(\d+ rows\) is never predicted"):
        KernelClassifier("gaussian", bandwidth=1.0, ridge=100.0, random_state=0).fit(X, y)
