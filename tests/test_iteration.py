from __future__ import annotations

import numpy as np
import oracles
import pytest
import torch

import mercer
from mercer.adaptive import level
from mercer.iteration import descend, residual, safe_weights
from mercer.products import HeldOutProducts, Panel, TrainingProducts, batches, kernel_times
from mercer.spectrum import nystrom_spectrum
from mercer.training import visits

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
    # Batches of 10 in panels of the batch's own length, so that one panel is the batch.
    products = TrainingProducts(kernel, points, S, m=10, panel_rows=batch.stop - batch.start)
    products.panels = [Panel(batch.start, batch.stop, (batch,)), Panel(batch.stop, N, ())]
    rows = products.rows(0, weights, batch.stop)
    f, phi = rows.f, rows.phi
    if batch.stop < N:
        f = f + torch.from_numpy(K[batch, max(batch.stop, S) :]) @ weights[max(batch.stop, S) :]
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
@pytest.mark.parametrize("panel_rows", [1, 50, 1000])
@pytest.mark.parametrize("kept_share", [0.0, 0.5, 2.0])
def test_rows_by_tiles_equal_the_dense_product(problem, rng, monkeypatch, tile, panel_rows, kept_share):
    kernel, points, _, K = problem
    monkeypatch.setattr("mercer.products.CPU_TILE_ELEMENTS", tile)
    budget = kept_share * 8 * N * N / 2
    products = TrainingProducts(kernel, points, S, 12, budget, panel_rows)
    assert [i for p in products.panels for i in range(p.start, p.stop)] == list(range(N))
    for epoch in range(3):
        alpha = torch.from_numpy(rng.normal(size=(N, 3)))
        for index, panel in enumerate(products.panels):
            seen = max(panel.stop, S) if epoch == 0 else N
            visible = alpha.clone()
            visible[seen:] = 0
            rows = products.rows(index, visible, seen)
            here = slice(panel.start, panel.stop)
            np.testing.assert_allclose(rows.f.numpy(), K[here] @ visible.numpy(), atol=1e-12)
            np.testing.assert_allclose(rows.phi.numpy(), K[here, :S], atol=1e-12)
            np.testing.assert_allclose(rows.own.numpy(), K[here, here], atol=1e-12)
    assert products.kept_bytes <= budget
    assert (products.kept_bytes > 0) == (kept_share > 0)


@pytest.mark.parametrize("triangular", [True, False])
@pytest.mark.parametrize("panel_rows", [1, 70, 1000])
def test_visits_see_every_change_made_since(problem, rng, triangular, panel_rows):
    kernel, points, _, K = problem
    products = TrainingProducts(kernel, points, S, 25, 1e9, panel_rows)
    alpha = torch.zeros(N, 2, dtype=torch.float64)
    for _ in range(2):
        for f, phi, batch in visits(products, alpha, triangular):
            np.testing.assert_allclose(f.numpy(), K[batch] @ alpha.numpy(), atol=1e-10)
            np.testing.assert_allclose(phi.numpy(), K[batch, :S], atol=1e-12)
            alpha[batch] += torch.from_numpy(rng.normal(size=(batch.stop - batch.start, 2)))
            alpha[:S] += torch.from_numpy(rng.normal(size=(S, 2)))
        triangular = False


@pytest.mark.parametrize("budget", [0.0, 1e9])
def test_held_out_products_equal_the_dense_ones_kept_or_not(problem, rng, budget):
    kernel, points, _, _ = problem
    held_out = kernel.points(torch.from_numpy(rng.normal(size=(30, 4))))
    products = HeldOutProducts(kernel, held_out, points, budget)
    assert (products.kept_bytes > 0) == (budget > 0)
    for _ in range(2):
        alpha = torch.from_numpy(rng.normal(size=(N, 2)))
        torch.testing.assert_close(products.times(alpha), kernel.block(held_out, points) @ alpha)


def test_prediction_by_tiles_equals_the_dense_product_and_reports_progress(rng, monkeypatch):
    monkeypatch.setattr("mercer.products.PANEL_ROWS", 16)
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
