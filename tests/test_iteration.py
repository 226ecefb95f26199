from __future__ import annotations

import numpy as np
import oracles
import pytest
import torch

import mercer
from mercer.method.spectrum import nystrom_spectrum
from mercer.method.step import PanelDescent, safe_weights
from mercer.operators.tiled import HeldOutProducts, TrainingProducts, batches, kernel_times
from mercer.operators.workers import Workers, small_operations, torch_threads, workers_for
from mercer.planning.choose import level

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
    gamma = 0.7
    K_q = oracles.levelled(K, S, Q)
    beta = float(np.median(np.diag(K_q))) + ridge
    w = np.minimum(1, beta / (np.diag(K_q) + ridge))[:, None]
    products = TrainingProducts(kernel, points, levelled.V, 15, 2, rows_at_once=rows_at_once)
    dense = alpha.numpy().copy()
    for index, panel in enumerate(products.panels):
        rows = products.rows(index, alpha, N)
        k_diag = kernel.diagonal(points[panel.rows])
        weights = safe_weights(levelled, k_diag, rows.Z, beta, ridge)
        np.testing.assert_allclose(weights.numpy(), w[panel.rows], atol=1e-9)
        descent = PanelDescent(panel, rows, levelled, alpha, ridge)
        before = alpha.numpy().copy()
        for batch in panel.batches:
            # In function space: f <- f - gamma sum_i w_i g_i k_q(x_i, .), at every training point.
            g = (K @ dense + ridge * dense - y)[batch]
            ours = descent.residual(batch, torch.from_numpy(y)[batch])
            np.testing.assert_allclose(ours.numpy(), g, atol=1e-8)
            local = slice(batch.start - panel.start, batch.stop - panel.start)
            descent.step(batch, ours * weights[local], gamma)
            expected = K @ dense - gamma * K_q[:, batch] @ (w[batch] * g)
            dense = oracles.solution(K, expected)
        descent.finish()
        np.testing.assert_allclose(K @ alpha.numpy(), K @ dense, atol=1e-8)
        changed = np.flatnonzero((alpha.numpy() != before).any(1))
        assert set(changed) <= set(range(S)) | set(range(panel.start, panel.stop))
        dense = alpha.numpy().copy()


def test_weights_are_one_for_ordinary_points_and_bounded_for_rare_ones(problem):
    kernel, points, levelled, K = problem
    Z = torch.from_numpy(K[:, :S].copy()) @ levelled.V
    beta = 0.3
    w = safe_weights(levelled, kernel.diagonal(points), Z, beta, 0.0)[:, 0].numpy()
    k_q = np.diag(oracles.levelled(K, S, Q))
    assert (w[k_q <= beta] == 1).all()
    np.testing.assert_allclose(w[k_q > beta] * k_q[k_q > beta], beta)


@pytest.mark.parametrize("tile", [64, 1 << 18])
@pytest.mark.parametrize("panel_rows", [1, 50, 1000])
@pytest.mark.parametrize("kept_share", [0.0, 0.5, 2.0])
def test_rows_by_tiles_equal_the_dense_product(problem, rng, monkeypatch, tile, panel_rows, kept_share):
    kernel, points, levelled, K = problem
    monkeypatch.setattr("mercer.operators.tiled.CPU_TILE_ELEMENTS", tile)
    budget = kept_share * 8 * N * N / 2
    products = TrainingProducts(kernel, points, levelled.V, 12, 3, budget, panel_rows)
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
            np.testing.assert_allclose(rows.Z.numpy(), K[here, :S] @ levelled.V.numpy(), atol=1e-12)
            np.testing.assert_allclose(rows.own.numpy(), K[here, here], atol=1e-12)
    assert products.kept_bytes <= budget
    assert (products.kept_bytes > 0) == (kept_share > 0)


def test_sums_do_not_depend_on_which_worker_did_what(problem, rng, monkeypatch):
    kernel, points, levelled, _ = problem
    monkeypatch.setattr("mercer.operators.tiled.CPU_TILE_ELEMENTS", 512)
    monkeypatch.setattr("mercer.operators.tiled.workers_for", lambda device: Workers(3))
    alpha = torch.from_numpy(rng.normal(size=(N, 2))).float()
    points = kernel.points(points.x.float())
    V = levelled.V.float()
    results = []
    for _ in range(20):
        products = TrainingProducts(kernel, points, V, 12, 2, rows_at_once=50)
        results.append(torch.cat([products.rows(i, alpha, N).f for i in range(len(products.panels))]))
    assert all(torch.equal(result, results[0]) for result in results)


def test_workers_keep_to_one_core_each_outside_training_too():
    a, b = torch.randn(9, 6), torch.randn(48, 6)
    with torch_threads(1):
        alone = a @ b.T
    before = torch.get_num_threads()
    found = []
    Workers(2).run(lambda i, worker: found.append((torch.get_num_threads(), a @ b.T)), 8)
    assert [threads for threads, _ in found] == [1] * 8
    assert all(torch.equal(product, alone) for _, product in found)
    assert torch.get_num_threads() == before


def test_workers_run_every_task_once_and_pass_errors_on():
    workers = Workers(3)
    seen = []
    workers.run(lambda i, worker: seen.append((i, worker)), 100)
    assert sorted(i for i, _ in seen) == list(range(100))
    assert {worker for _, worker in seen} <= {0, 1, 2}

    def fails(i, worker):
        if i == 5:
            raise RuntimeError("task 5")

    with pytest.raises(RuntimeError, match="task 5"):
        workers.run(fails, 10)
    workers.run(lambda i, worker: seen.append((i, worker)), 1)  # and go on working


def test_workers_leave_the_number_of_threads_as_it_was():
    before = torch.get_num_threads()
    Workers(2).run(lambda i, worker: None, 4)
    assert torch.get_num_threads() == before
    with small_operations(torch.device("cpu")):
        assert torch.get_num_threads() == 1
        assert workers_for(torch.device("cpu")).count == min(before, 8)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("budget", [0.0, 1e9])
def test_held_out_products_equal_the_dense_ones_kept_or_not(problem, rng, budget):
    kernel, points, _, _ = problem
    held_out = kernel.points(torch.from_numpy(rng.normal(size=(30, 4))))
    products = HeldOutProducts(kernel, held_out, points, 2, budget)
    assert (products.kept_bytes > 0) == (budget > 0)
    for _ in range(2):
        alpha = torch.from_numpy(rng.normal(size=(N, 2)))
        dense = kernel.block(held_out, points)
        torch.testing.assert_close(products.times(alpha), dense @ alpha)
        part = slice(30, 90)
        torch.testing.assert_close(products.times(alpha, part), dense[:, part] @ alpha[part])


def test_prediction_by_tiles_equals_the_dense_product_and_reports_progress(rng, monkeypatch):
    monkeypatch.setattr("mercer.operators.tiled.CPU_PANEL_ROWS", 16)
    monkeypatch.setattr("mercer.operators.tiled.CPU_TILE_ELEMENTS", 256)
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
