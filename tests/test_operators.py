"""Every operator equals the dense kernel matrix, however it cuts, keeps and shares out its work."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from visits import visible_weights

import mercer
from mercer.method.schedule import make_schedule
from mercer.model.machine import reproducible_product
from mercer.operators.kept import KeptRectangle, KeptSquare
from mercer.operators.tiled import TiledOperator
from mercer.operators.workers import (
    Workers,
    may_go_on,
    small_operations,
    threads,
    torch_threads,
    watched,
    workers_for,
)
from mercer.training.assemble import tiled_square

N, S, Q = 200, 60, 15


@pytest.fixture
def kernel():
    return mercer.Laplacian(3.0)


@pytest.fixture
def points(kernel, rng):
    return kernel.points(torch.from_numpy(rng.normal(size=(N, 4))))


@pytest.fixture
def K(kernel, points):
    return kernel.block(points, points, same=True).numpy()


@pytest.fixture
def V(rng):
    return torch.from_numpy(rng.normal(size=(S, Q)))


@pytest.mark.parametrize("tile_size", [64, 1 << 18])
@pytest.mark.parametrize("panel_rows", [1, 50, 1000])
@pytest.mark.parametrize("kept_share", [0.0, 0.01, 0.5, 2.0])
def test_panels_equal_the_dense_product(kernel, points, K, V, rng, tile_size, panel_rows, kept_share):
    schedule = make_schedule(N, S, 12, panel_rows)
    budget = kept_share * 8 * N * N / 2
    tiled = tiled_square(kernel, points, 3, schedule, V, tile_size)
    operator = KeptSquare(tiled, budget) if kept_share else tiled
    for epoch in range(1, 4):
        weights = torch.from_numpy(rng.normal(size=(N, 3)))
        for visit in schedule.visits(epoch):
            here, visible, stop = visible_weights(visit, epoch, weights, S)
            found = operator.panel(here, visible, stop)
            np.testing.assert_allclose(found.f.numpy(), K[here] @ visible.numpy(), atol=1e-12)
            np.testing.assert_allclose(found.Z.numpy(), K[here, :S] @ V.numpy(), atol=1e-12)
            np.testing.assert_allclose(found.own.numpy(), K[here, here], atol=1e-12)
    if kept_share:
        assert operator.kept_bytes <= budget
        assert (operator.kept_bytes > 0) == (kept_share > 0.01)


def test_what_was_kept_is_not_evaluated_again(kernel, points, V, rng, monkeypatch):
    schedule = make_schedule(N, S, 20, 50)
    operator = KeptSquare(tiled_square(kernel, points, 2, schedule, V), 1e9)
    weights = torch.from_numpy(rng.normal(size=(N, 2)))
    for panel in schedule.panels:
        operator.panel(panel.rows, weights, panel.stop)
    monkeypatch.setattr(mercer.Laplacian, "block", None)  # any evaluation would fail
    for panel in schedule.panels:
        operator.panel(panel.rows, weights, N)


@pytest.mark.parametrize("keep", [False, True])
def test_the_plain_interface_is_the_same_for_all(kernel, points, K, rng, keep):
    operator = TiledOperator(kernel, points, points, 2, rows_at_once=32, tile_size=512)
    operators = [operator, KeptSquare(operator, 1e9)] if keep else [operator]
    weights = torch.from_numpy(rng.normal(size=(N, 2)))
    for each in operators:
        np.testing.assert_allclose(each.times(weights).numpy(), K @ weights.numpy(), atol=1e-12)
        part = each.times(weights, slice(10, 90), slice(30, 130)).numpy()
        np.testing.assert_allclose(part, K[10:90, 30:130] @ weights[30:130].numpy(), atol=1e-12)
        np.testing.assert_allclose(each.block(slice(5, 9), slice(40, 60)), K[5:9, 40:60], atol=1e-12)
        np.testing.assert_allclose(each.diagonal(slice(5, 9)), np.diag(K)[5:9], atol=1e-12)
        assert each.times(weights, slice(7, 7)).shape == (0, 2)


def test_sums_do_not_depend_on_which_worker_did_what(kernel, points, V, rng):
    weights = torch.from_numpy(rng.normal(size=(N, 2))).float()
    points = kernel.points(points.x.float())
    schedule = make_schedule(N, S, 12, 50)
    results = []
    with threads(3):
        for _ in range(20):
            operator = tiled_square(kernel, points, 2, schedule, V.float(), tile_size=512)
            parts = [operator.panel(panel.rows, weights, N).f for panel in schedule.panels]
            results.append(torch.cat(parts))
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("budget", [0.0, 1e9])
def test_held_out_products_equal_the_dense_ones_kept_or_not(kernel, points, rng, budget):
    held_out = kernel.points(torch.from_numpy(rng.normal(size=(30, 4))))
    operator = KeptRectangle(TiledOperator(kernel, held_out, points, 2), budget)
    assert (operator.kept_bytes > 0) == (budget > 0)
    dense = kernel.block(held_out, points)
    for _ in range(2):
        weights = torch.from_numpy(rng.normal(size=(N, 2)))
        torch.testing.assert_close(operator.times(weights), dense @ weights)
        part = slice(30, 90)
        torch.testing.assert_close(operator.times(weights, columns=part), dense[:, part] @ weights[part])


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_prediction_by_tiles_equals_the_dense_product_and_reports_progress(rng, n_outputs):
    kernel = mercer.Gaussian(1.0)
    a = kernel.points(torch.from_numpy(rng.normal(size=(2_500, 3))))
    c = kernel.points(torch.from_numpy(rng.normal(size=(700, 3))))
    w = torch.from_numpy(rng.normal(size=(700, n_outputs)))
    reports = []
    result = reproducible_product(kernel, a, c, w, lambda *counts: reports.append(counts))
    torch.testing.assert_close(result, kernel.block(a, c) @ w)
    assert reports == [(1_024, 2_500), (2_048, 2_500), (2_500, 2_500)]


def test_rows_alike_are_predicted_alike_wherever_they_stand(rng):
    kernel = mercer.Gaussian(1.0)
    x = torch.from_numpy(rng.normal(size=(1_500, 3))).float()
    c = kernel.points(torch.from_numpy(rng.normal(size=(700, 3))).float())
    w = torch.from_numpy(rng.normal(size=(700, 1))).float()
    order = torch.from_numpy(rng.permutation(1_500))
    found = reproducible_product(kernel, kernel.points(x), c, w)
    assert torch.equal(reproducible_product(kernel, kernel.points(x[order]), c, w), found[order])


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


class Enough(Exception):
    pass


def raises_at(call):
    calls = iter(range(1, 10**6))

    def check():
        if next(calls) >= call:
            raise Enough

    return check


@pytest.mark.parametrize("count", [1, 2])
def test_a_check_ends_tasks_that_wait_and_long_ones_between_their_parts(count):
    begun, ended = [], []

    def long(i, worker):
        begun.append(i)
        try:
            while True:
                may_go_on()
                time.sleep(0.001)
        finally:
            ended.append(i)

    workers = Workers(count)
    with watched(raises_at(3)), pytest.raises(Enough):
        workers.run(long, 50)
    assert 0 < len(begun) <= count
    assert sorted(begun) == sorted(ended)
    workers.run(lambda i, worker: begun.append(i), 4)  # and nobody is watched any longer
    assert len(begun) >= 5


def test_errors_of_watched_tasks_are_passed_on_and_checks_can_be_left_out():
    def fails(i, worker):
        raise RuntimeError(f"task {i}")

    with watched(lambda: None), pytest.raises(RuntimeError, match="task"):
        Workers(2).run(fails, 4)
    with watched(raises_at(1)), watched(None):
        Workers(2).run(lambda i, worker: may_go_on(), 4)


def test_workers_leave_the_number_of_threads_as_it_was():
    before = torch.get_num_threads()
    Workers(2).run(lambda i, worker: None, 4)
    assert torch.get_num_threads() == before
    with small_operations(torch.device("cpu")):
        assert torch.get_num_threads() == 1
        assert workers_for(torch.device("cpu")).count == min(before, 8)
    assert torch.get_num_threads() == before


def test_a_prediction_within_a_fit_leaves_it_its_workers():
    cpu = torch.device("cpu")
    with torch_threads(3), small_operations(cpu):
        with torch_threads(2), small_operations(cpu):
            assert workers_for(cpu).count == 2
        assert workers_for(cpu).count == 3
        with threads(None), small_operations(cpu):
            assert workers_for(cpu).count == 3
