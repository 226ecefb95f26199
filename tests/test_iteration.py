from __future__ import annotations

import numpy as np
import oracles
import pytest
import torch

import mercer
from mercer.adaptive import level
from mercer.iteration import descend, residual, safe_weights
from mercer.products import TrainingProducts, batches, kernel_times
from mercer.spectrum import nystrom_spectrum

S, Q, N = 60, 15, 200


@pytest.fixture
def problem(rng):
    kernel = mercer.Laplacian(3.0)
    points = kernel.points(torch.from_numpy(rng.normal(size=(N, 4))))
    levelled = level(nystrom_spectrum(kernel, points[:S], Q), Q)
    K = kernel.block(points, points, same=True).numpy()
    return kernel, points, levelled, K


@pytest.mark.parametrize("ridge", [0.0, 0.3])
@pytest.mark.parametrize("batch", [slice(0, 40), slice(20, 60), slice(60, 90), slice(170, 200)])
def test_step_equals_dense_preconditioned_gradient(problem, rng, batch, ridge):
    kernel, points, levelled, K = problem
    y = rng.normal(size=(N, 2))
    alpha = rng.normal(size=(N, 2))
    gamma = 0.7
    # In function space: f <- f - gamma sum_i w_i g_i k_q(x_i, .), at every training point.
    g = (K @ alpha + ridge * alpha - y)[batch]
    K_q = oracles.levelled(K, S, Q)
    beta = float(np.median(np.diag(K_q))) + ridge
    w = np.minimum(1, beta / (np.diag(K_q)[batch] + ridge))[:, None]
    expected = K @ alpha - gamma * K_q[:, batch] @ (w * g)

    weights = torch.from_numpy(alpha.copy())
    f, phi = TrainingProducts(kernel, points, S).rows(batch, weights, N)
    ours = residual(f, weights[batch], torch.from_numpy(y)[batch], ridge)
    np.testing.assert_allclose(ours.numpy(), g, atol=1e-10)
    ours *= safe_weights(levelled, kernel.diagonal(points[batch]), phi, beta, ridge)
    descend(weights, batch, levelled, phi, ours, gamma)
    np.testing.assert_allclose(K @ weights.numpy(), expected, atol=1e-8)
    changed = np.flatnonzero((weights.numpy() != alpha).any(1))
    assert set(changed) <= set(range(S)) | set(range(batch.start, batch.stop))


def test_weights_are_one_for_ordinary_points_and_bounded_for_rare_ones(problem):
    kernel, points, levelled, K = problem
    phi = torch.from_numpy(K[:, :S].copy())
    beta = 0.3
    w = safe_weights(levelled, kernel.diagonal(points), phi, beta, 0.0)[:, 0].numpy()
    k_q = np.diag(oracles.levelled(K, S, Q))
    assert (w[k_q <= beta] == 1).all()
    np.testing.assert_allclose(w[k_q > beta] * k_q[k_q > beta], beta)


@pytest.mark.parametrize("tile", [64, 1 << 18])
@pytest.mark.parametrize("seen", [100, N])
def test_rows_by_tiles_equal_the_dense_product(problem, rng, monkeypatch, tile, seen):
    kernel, points, _, K = problem
    monkeypatch.setattr("mercer.products.CPU_TILE_ELEMENTS", tile)
    products = TrainingProducts(kernel, points, S)
    alpha = torch.from_numpy(rng.normal(size=(N, 3)))
    alpha[seen:] = 0
    for batch in (slice(0, 30), slice(30, 60), slice(60, 100)):
        f, phi = products.rows(batch, alpha, seen)
        np.testing.assert_allclose(f.numpy(), K[batch] @ alpha.numpy(), atol=1e-12)
        np.testing.assert_allclose(phi.numpy(), K[batch, :S], atol=1e-12)


def test_prediction_by_tiles_equals_the_dense_product_and_reports_progress(rng, monkeypatch):
    monkeypatch.setattr("mercer.products.PREDICTION_ROWS", 16)
    monkeypatch.setattr("mercer.products.CPU_TILE_ELEMENTS", 256)
    kernel = mercer.Gaussian(1.0)
    a = kernel.points(torch.from_numpy(rng.normal(size=(50, 3))))
    c = kernel.points(torch.from_numpy(rng.normal(size=(70, 3))))
    w = torch.from_numpy(rng.normal(size=(70, 2)))
    reports = []
    result = kernel_times(kernel, a, c, w, lambda done, total: reports.append((done, total)))
    torch.testing.assert_close(result, kernel.block(a, c) @ w)
    assert reports == [(16, 50), (32, 50), (48, 50), (50, 50)]


@pytest.mark.parametrize(("n", "s", "m"), [(100, 30, 7), (100, 100, 40), (10, 3, 50), (5, 0, 2)])
def test_batches_cover_every_point_once_and_respect_the_subsample(n, s, m):
    found = batches(n, s, m)
    assert [i for b in found for i in range(b.start, b.stop)] == list(range(n))
    assert all(b.stop - b.start <= m for b in found)
    assert all(b.stop <= s or b.start >= s for b in found)
