"""A metric learned from many rows: its gradient, and when it is taken."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mercer
from mercer import KernelRegressor
from mercer.data.inputs import fit_inputs
from mercer.data.table_map import find_categories
from mercer.operators.workers import Workers, small_operations
from mercer.selection import metric_at_scale
from mercer.selection.candidates import Candidate
from mercer.selection.metric_at_scale import (
    learn_from_many,
    projected_gradient,
    with_metric_of_many,
)
from mercer.selection.trials import Trials
from mercer.selection.variants import Variant, with_table


def variant_of(X, coded=None):
    rows = np.arange(len(X))
    plain, _ = fit_inputs(X, rows)
    inputs = with_table(plain, X, rows, coded or {}, ranked=True)
    return Variant("by rank", inputs, inputs.floats(torch.from_numpy(X))[0])


def loss(variant, kernel, logs, rows, y, w, p, jitter):
    """The error of a model with the first p rows as centres on the second half of the rows, densely."""
    weights, ridge, n = logs[:-1].exp(), float(logs[-1].exp()), len(rows) // 2
    points = variant.points(kernel, rows, weights)
    K = kernel.block(points, points[:p])
    K_zz = kernel.block(points[:p], points[:p], same=True)
    y = y - (w[:n] * y[:n]).sum(0) / w[:n].sum()
    A = K[:n].T @ (w[:n] * K[:n]) + ridge * K_zz + jitter * torch.eye(p, dtype=torch.float64)
    alpha = torch.linalg.solve(A, K[:n].T @ (w[:n] * y[:n]))
    return float((w[n:] * (K[n:] @ alpha - y[n:]).square()).mean())


@pytest.mark.parametrize(
    "kernel",
    [mercer.Laplacian(2.0), mercer.Gaussian(1.5), mercer.L1Laplacian(3.0), mercer.Cauchy(2.0)],
    ids=str,
)
@pytest.mark.parametrize("workers", [1, 2])
def test_the_gradient_is_that_of_the_error_on_other_rows(kernel, workers, rng, monkeypatch):
    monkeypatch.setattr(metric_at_scale, "PIECE", 16)
    monkeypatch.setattr(metric_at_scale, "STEP_CENTRES", 20)
    n = 120
    X = np.column_stack([rng.normal(size=(n, 3)), rng.integers(0, 4, n)])
    variant = variant_of(X, find_categories(X, np.arange(n), torch.arange(4)))
    y = torch.from_numpy(np.column_stack([np.sin(X[:, 0]) + X[:, 3], X[:, 1]]))
    w = torch.from_numpy(rng.uniform(0.5, 2, size=(n, 1)))
    rows = torch.from_numpy(rng.permutation(n))
    weights, ridge = torch.tensor([1.0, 0.5, 2.0, 1.3], dtype=torch.float64), 0.2
    y, w = y[rows], w[rows]

    def at(logs):
        return loss(variant, kernel, logs, rows, y, w, 20, 0.0)

    logs = torch.cat([weights.log(), torch.tensor([ridge]).log().double()])
    step = 1e-5 * torch.eye(5, dtype=torch.float64)
    expected = [(at(logs + e) - at(logs - e)) / 2e-5 for e in step]
    found = projected_gradient(variant, kernel, weights, ridge, rows, y, w, Workers(workers)).numpy()
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-3 * np.abs(expected).max())


def trials_of(X, y, workers=1, kernel=mercer.Gaussian):
    ones = torch.ones(len(X), dtype=torch.float64)
    return Trials(
        {"by rank": variant_of(X)},
        torch.from_numpy(y),
        lambda count: ones[:count],
        {"gaussian": kernel},
        0.0,
        lambda n: None,
        Workers(workers),
    )


SETTING = Candidate("gaussian", 4.0, 0.3, 0.9, True, 2_000, features="by rank")


def two_of_ten(rng, n, noise):
    """Two of ten features matter."""
    X = rng.normal(size=(n, 10))
    return X, np.sin(2 * X[:, 3:4]) * X[:, 7:8] + noise * rng.normal(size=(n, 1))


def test_features_that_matter_are_found_whatever_the_number_of_workers(rng, monkeypatch):
    monkeypatch.setattr(metric_at_scale, "STEP_ROWS", 600)
    monkeypatch.setattr(metric_at_scale, "STEP_CENTRES", 200)
    X, y = two_of_ten(rng, 4_600, 1.0)
    with small_operations(torch.device("cpu")):  # as in the search
        found = [learn_from_many(trials_of(X, y, k), SETTING, None, False) for k in (1, 2)]
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1] != SETTING.ridge
    weights = found[0][0]
    assert set(weights.argsort()[-2:].tolist()) == {3, 7}
    assert weights[[3, 7]].min() > 2 * weights[[0, 1, 2, 4, 5, 6, 8, 9]].max()
    assert learn_from_many(trials_of(X, y), SETTING, None, True)[1] == SETTING.ridge


def test_rows_that_made_no_step_judge_the_metric(rng, monkeypatch):
    monkeypatch.setattr(metric_at_scale, "STEP_ROWS", 600)
    monkeypatch.setattr(metric_at_scale, "STEP_CENTRES", 200)
    X, y = two_of_ten(rng, 4_600, 0.5)
    trials = trials_of(X, y)
    found, weights = with_metric_of_many(trials, SETTING, None, False)
    assert found.metric_steps == metric_at_scale.STEPS
    assert (found.bandwidth, found.ridge) == (SETTING.bandwidth, SETTING.ridge)
    before, after = trials.tried
    assert (before.metric_steps, before.left_out) == (0, "rows")
    assert found.loss == after.loss < 0.9 * before.loss
    assert set(weights.argsort()[-2:].tolist()) == {3, 7}
    # One that ignores a feature that matters is taken neither instead of none nor of a better one.
    poor = weights.clone()
    poor[3] = 1e-3
    monkeypatch.setattr(metric_at_scale, "learn_from_many", lambda *given: (poor, 0.3))
    assert with_metric_of_many(trials_of(X, y), SETTING, None, False) == (SETTING, None)
    assert with_metric_of_many(trials_of(X, y), SETTING, weights, False) == (SETTING, weights)


def test_there_are_many_rows_few_features_and_a_known_slope_or_no_metric(rng, monkeypatch):
    """With 256 pixels of USPS as features, it made the error larger by a tenth."""
    learned = []

    def recorded(trials, *given):
        learned.append(len(trials.all_y))
        return torch.ones(10, dtype=torch.float64), 0.3

    monkeypatch.setattr(metric_at_scale, "learn_from_many", recorded)
    X, y = two_of_ten(rng, 4_500, 0.5)
    with_metric_of_many(trials_of(X, y), SETTING, None, False)
    assert learned == [4_500]
    for trials in (
        trials_of(X[:4_499], y[:4_499]),
        trials_of(X, y, kernel=mercer.Matern32),
        trials_of(X[:, :1], y),
        trials_of(rng.normal(size=(4_500, 81)), y),
    ):
        assert with_metric_of_many(trials, SETTING, None, False) == (SETTING, None)
    assert learned == [4_500]


def test_an_estimator_with_many_rows_tries_it(rng):
    X, y = two_of_ten(rng, 6_000, 1.0)
    y = y[:, 0]
    model = KernelRegressor("gaussian", random_state=0).fit(X[:5_000], y[:5_000])
    tried = model.selection_.candidates
    assert any(c.metric_steps >= metric_at_scale.STEPS and c.left_out == "rows" for c in tried)
    assert set(np.argsort(model.feature_importances_)[-2:]) == {3, 7}
    fixed = KernelRegressor("gaussian", ridge=0.7, random_state=0).fit(X[:5_000], y[:5_000])
    assert {c.ridge for c in fixed.selection_.candidates} == {0.7}
