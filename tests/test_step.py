from __future__ import annotations

from itertools import pairwise

import numpy as np
import oracles
import pytest
import torch

import mercer
from mercer.method.preconditioner import level, nothing_levelled
from mercer.method.schedule import make_schedule
from mercer.method.spectrum import nystrom_spectrum
from mercer.method.step import PanelDescent, Step, descend, safe_weights
from mercer.model.expansion import Expansion
from mercer.training.assemble import tiled_square

S, Q, N = 60, 15, 200


@pytest.fixture
def problem(rng):
    kernel = mercer.Laplacian(3.0)
    points = kernel.points(torch.from_numpy(rng.normal(size=(N, 4))))
    levelled = level(nystrom_spectrum(kernel, points[:S], Q), Q)
    K = kernel.block(points, points, same=True).numpy()
    return kernel, points, levelled, K


@pytest.mark.parametrize("ridge", [0.0, 0.3])
@pytest.mark.parametrize("rows_at_once", [30, 60, 1000])
def test_every_step_equals_the_dense_preconditioned_gradient(problem, rng, rows_at_once, ridge):
    kernel, points, levelled, K = problem
    y = rng.normal(size=(N, 2))
    alpha = torch.from_numpy(rng.normal(size=(N, 2)))
    gamma = 0.7  # bounded in some batches, not in others
    K_q = oracles.levelled(K, S, Q)
    beta = float(np.median(np.diag(K_q))) + ridge
    w = np.minimum(1, beta / (np.diag(K_q) + ridge))[:, None]
    schedule = make_schedule(N, S, 15, rows_at_once)
    operator = tiled_square(kernel, points, 2, schedule, levelled.V)
    model = Expansion(alpha)
    dense = alpha.numpy().copy()
    for panel in schedule.panels:
        rows = operator.panel(panel.rows, model.weights, N)
        k_diag = operator.diagonal(panel.rows)
        weights = safe_weights(levelled, k_diag, rows.Z, beta, ridge)
        np.testing.assert_allclose(weights.numpy(), w[panel.rows], atol=1e-9)
        descent = PanelDescent(panel, rows, levelled, model, ridge)
        before = model.weights.numpy().copy()
        for batch in panel.batches:
            # In function space: f <- f - gamma sum_i w_i g_i k_q(x_i, .), at every training point.
            g = (K @ dense + ridge * dense - y)[batch]
            error = descent.error(batch, torch.from_numpy(y)[batch])
            np.testing.assert_allclose(error.numpy(), (K @ dense - y)[batch], atol=1e-8)
            ours = descent.residual(batch, error)
            np.testing.assert_allclose(ours.numpy(), g, atol=1e-8)
            local = slice(batch.start - panel.start, batch.stop - panel.start)
            descent.step(batch, ours, weights[local], gamma)
            p = w[batch] * g
            curvature = (p * (K_q[batch, batch] @ p)).sum(0) + ridge * (p * p).sum(0)
            rate = np.minimum(gamma, (g * p).sum(0) / curvature)
            expected = K @ dense - K_q[:, batch] @ (p * rate)
            dense = oracles.solution(K, expected)
        descent.finish()
        np.testing.assert_allclose(K @ model.weights.numpy(), K @ dense, atol=1e-8)
        changed = np.flatnonzero((model.weights.numpy() != before).any(1))
        assert set(changed) <= set(range(S)) | set(range(panel.start, panel.stop))
        dense = model.weights.numpy().copy()


def test_weights_are_one_for_ordinary_points_and_bounded_for_rare_ones(problem):
    kernel, points, levelled, K = problem
    Z = torch.from_numpy(K[:, :S].copy()) @ levelled.V
    beta = 0.3
    w = safe_weights(levelled, kernel.diagonal(points), Z, beta, 0.0)[:, 0].numpy()
    k_q = np.diag(oracles.levelled(K, S, Q))
    assert (w[k_q <= beta] == 1).all()
    np.testing.assert_allclose(w[k_q > beta] * k_q[k_q > beta], beta)


@pytest.mark.parametrize("copies", [2, 5])
def test_a_step_never_leads_away_from_the_solution_whatever_the_batch_holds(rng, copies):
    """Equal rows have an eigenvalue of `copies` times beta, where the step 1 / beta would diverge."""
    x = np.repeat(rng.normal(size=(12, 3)), copies, axis=0)
    kernel = mercer.Laplacian(1.0)
    points = kernel.points(torch.from_numpy(x))
    K = kernel.block(points, points, same=True).numpy()
    n = len(x)
    y = np.repeat(rng.normal(size=(12, 1)), copies, axis=0)
    exact = np.linalg.lstsq(K, y, rcond=None)[0]
    schedule = make_schedule(n, 0, n, n)
    levelled = nothing_levelled(torch.zeros(0, dtype=torch.float64))
    operator = tiled_square(kernel, points, 1, schedule, levelled.V)
    model = Expansion(torch.zeros(n, 1, dtype=torch.float64))
    distances = []
    for _ in range(30):
        away = model.weights.numpy() - exact
        distances.append((away.T @ K @ away).item())
        products = operator.panel(slice(0, n), model.weights, n)
        ones = torch.ones(n, 1, dtype=torch.float64)
        step = Step(eta=n / 2, m=n, beta=1.0)  # gamma = 1 / beta
        for _ in descend(
            schedule.visits(1)[0], products, levelled, model, step, torch.from_numpy(y), ones
        ):
            pass
    assert all(after < before for before, after in pairwise(distances))
    assert distances[-1] < 1e-3 * distances[0]
