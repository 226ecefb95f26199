"""Kernel values kept in 16 bits: within their bound, and no hindrance to the exact solution."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import oracles
import pytest
import torch
from stand_in import stand_in_device
from visits import visible_weights

import mercer
from mercer import Callback, Checkpoint, KernelRegressor, Plan
from mercer.engine import HeldOutPart, Limits, Requests, assemble, choose, train
from mercer.method.schedule import make_schedule
from mercer.operators.fixed_point import FixedPoint
from mercer.operators.kept import KeptSquare
from mercer.operators.refined import Refined
from mercer.planning import keeping
from mercer.training.assemble import tiled_square

N, S, Q = 200, 60, 15
UNIT = FixedPoint(0.0, 1.0)


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-3.7, 3.7), (0.0, 5e-3), (-1.0, 2.7), (1e6, 3e6)])
def test_a_value_is_within_half_a_step_of_what_its_code_stands_for(rng, bounds):
    code = FixedPoint(*bounds)
    values = torch.from_numpy(rng.uniform(*bounds, size=(300, 200))).float()
    values[0, :2] = torch.tensor(bounds)
    codes, scratch = torch.empty(300, 200, dtype=torch.int16), torch.empty(300, 200)
    code.encode(values, codes, scratch)
    found = code.step * codes.double() + code.middle
    assert float((found - values).abs().max()) <= code.error
    decoded = code.decode(codes, scratch).double()
    rounding = torch.finfo(torch.float32).eps * max(map(abs, bounds))
    assert float((decoded - found).abs().max()) <= 2 * rounding
    assert code.error < 0.51 * (bounds[1] - bounds[0]) / 65_000


def test_rounding_error_beyond_the_bounds_does_not_wrap_around():
    values = torch.tensor([[-5e-4, -1e-6, 1 + 1e-6, 1 + 5e-4]])
    codes = torch.empty(1, 4, dtype=torch.int16)
    UNIT.encode(values, codes, torch.empty(1, 4))
    torch.testing.assert_close(UNIT.decode(codes, torch.empty(1, 4)), values, rtol=0, atol=UNIT.error)


def coded(kernel, points, V, n_outputs, schedule, budget, tile_size=None):
    tiled = tiled_square(kernel, points, n_outputs, schedule, V, tile_size)
    return KeptSquare(tiled, budget, FixedPoint(*kernel.bounds(points)))


@pytest.mark.parametrize("kernel", [mercer.Laplacian(3.0), mercer.NeuralTangent(1.0)], ids=str)
@pytest.mark.parametrize("panel_rows", [7, 50, 1000])
@pytest.mark.parametrize("kept_share", [0.4, 2.0])
@pytest.mark.parametrize("read_codes", [64, 1 << 18])
def test_panels_are_products_with_one_symmetric_matrix_close_to_the_kernel(
    kernel, rng, panel_rows, kept_share, read_codes, monkeypatch
):
    monkeypatch.setattr("mercer.operators.storage.CPU_READ_CODES", read_codes)
    points = kernel.points(torch.from_numpy(rng.normal(size=(N, 4))).float())
    K = kernel.block(points, points, same=True).double().numpy()
    V = torch.from_numpy(rng.normal(size=(S, Q))).float()
    schedule = make_schedule(N, S, 7, panel_rows)
    budget = kept_share * 2 * N * N / 2 + 4 * N * Q
    operator = coded(kernel, points, V, N, schedule, budget, tile_size=1024)
    error = operator._storage.code.error
    identity, rounding = torch.eye(N), 1e-5 * np.abs(K).max()
    for epoch in range(1, 4):
        found = np.zeros((N, N))
        for visit in schedule.visits(epoch):
            here, visible, stop = visible_weights(visit, epoch, identity, S)
            products = operator.panel(here, visible, stop)
            found[here, :stop] = products.f[:, :stop].numpy()
            assert not products.f[:, stop:].any()
            np.testing.assert_allclose(products.Z, K[here, :S] @ V.numpy(), atol=20 * rounding)
            np.testing.assert_allclose(products.own, K[here, here], atol=error + rounding)
        if epoch == 1:  # evaluated
            np.testing.assert_allclose(np.tril(found), np.tril(K), atol=rounding)
        else:
            np.testing.assert_allclose(found, K, atol=error + rounding)
            panel = np.repeat(np.arange(len(schedule.panels)), [len(p) for p in schedule.panels])
            evaluated_once = (panel[:, None] != panel) & (np.arange(N) >= S)
            once = evaluated_once & evaluated_once.T
            np.testing.assert_allclose(found[once], found.T[once], atol=rounding)
            assert np.abs(found - K).max() > 0.5 * error  # they were read
    assert 4 * N * Q < operator.kept_bytes <= budget
    if kept_share == 2:
        assert operator.kept_bytes - 4 * N * Q < 2 * (N * N + S * S + max(panel_rows, 7) * N)


def test_codes_are_read_on_a_device_as_on_the_cpu(rng):
    x, w = (torch.from_numpy(rng.normal(size=(N, k))).float() for k in (4, 3))
    V = torch.from_numpy(rng.normal(size=(S, Q))).float()
    kernel, schedule, found = mercer.Gaussian(2.0), make_schedule(N, S, 20, 50), []
    with stand_in_device() as device:
        for where in (torch.device("cpu"), device):
            operator = coded(kernel, kernel.points(x.to(where)), V.to(where), 3, schedule, 1e9)
            for _ in range(2):
                parts = [operator.panel(p.rows, w.to(where), N).f.cpu() for p in schedule.panels]
            found.append(torch.cat(parts))
    torch.testing.assert_close(*found)


def test_a_refined_product_has_the_error_of_what_has_changed_since(rng):
    kernel, schedule = mercer.Gaussian(2.0), make_schedule(N, S, 20, 50)
    points = kernel.points(torch.from_numpy(rng.normal(size=(N, 4))).float())
    V = torch.from_numpy(rng.normal(size=(S, Q))).float()
    operator = Refined(coded(kernel, points, V, 2, schedule, 1e9))
    base = torch.from_numpy(rng.normal(size=(N, 2))).float()
    rows = schedule.panels[0].rows
    for panel in schedule.panels:
        operator.panel(panel.rows, base, N)
    # Errors of rounding to steps are spread evenly over half a step to either side.
    expected = UNIT.step**2 / 12 * float(base.square().sum(0).mean())
    assert operator.error(rows, base, N) == pytest.approx(expected, rel=0.5)
    operator.refine(base, N)
    assert operator.error(rows, base, N) < 2e-3 * expected
    moved = base + 0.1 * torch.from_numpy(rng.normal(size=(N, 2))).float()
    assert operator.error(rows, moved, N) == pytest.approx(1e-2 * expected, rel=0.5)
    K = kernel.block(points, points, same=True)
    for panel in schedule.panels:
        found = operator.panel(panel.rows, moved, N).f
        most = UNIT.error * float((moved - base).abs().sum(0).max()) + 1e-5
        torch.testing.assert_close(found, K[panel.rows] @ moved, rtol=0, atol=most)


@pytest.fixture
def ill_conditioned(rng, desk):
    """Weights of ten and more for targets of one, to which the error of kept values matters."""
    kernel = mercer.Laplacian(4.0)
    x = torch.from_numpy(rng.normal(size=(800, 4))).float()
    points = kernel.points(x)
    y = torch.from_numpy(rng.normal(size=(800, 2))).float()
    ridge = 1e-3
    plan, levelled = choose(kernel, points, 2, desk, ridge, Requests(400, 100, 100))
    K = oracles.laplacian(x.double().numpy(), x.double().numpy(), 4.0)
    alpha = oracles.solution(K, y.double().numpy(), ridge)
    return (kernel, points, y, plan.step, levelled), K, alpha, ridge


def test_training_reaches_the_dense_solution_that_kept_values_alone_would_miss(
    ill_conditioned, monkeypatch
):
    problem, K, alpha, ridge = ill_conditioned
    limits = Limits(max_iter=400, interpolation_tol=5e-8, n_iter_no_change=3, tol=0)
    options = {"kept_memory": 1e9, "kept_as": UNIT, "rows_at_once": 100}
    y = problem[2].double().numpy()

    def true_residual(outcome):
        found = outcome.alpha.double().numpy()
        g = K @ found + ridge * found - y
        return float(np.square(g).mean() / np.square(y).mean())

    run = assemble(*problem, limits, **options)
    outcome = run.run()
    assert outcome.converged
    assert run.state.refined is not None
    assert true_residual(outcome) <= 1.05 * limits.interpolation_tol
    exact = train(*problem, limits, kept_memory=1e9, rows_at_once=100)
    size = np.linalg.norm(K @ alpha)
    for each in (outcome, exact):
        assert np.linalg.norm(K @ (each.alpha.double().numpy() - alpha)) < 1e-3 * size
    # Without refinements training would end far from the solution, and not know it.
    monkeypatch.setattr(Refined, "error", lambda *_: 0.0)
    assert true_residual(train(*problem, limits, **options)) > 10 * limits.interpolation_tol


def test_interpolation_is_reached_without_a_ridge(rng, desk):
    kernel = mercer.Laplacian(4.0)
    x = torch.from_numpy(rng.normal(size=(800, 4))).float()
    points, y = kernel.points(x), torch.from_numpy(rng.normal(size=(800, 1))).float()
    plan, levelled = choose(kernel, points, 1, desk, requests=Requests(400, 100, 100))
    limits = Limits(max_iter=500, interpolation_tol=1e-8, n_iter_no_change=3, tol=0)
    options = {"kept_memory": 1e9, "kept_as": UNIT, "rows_at_once": 200}
    outcome = train(kernel, points, y, plan.step, levelled, limits, **options)
    assert outcome.converged
    K = oracles.laplacian(x.double().numpy(), x.double().numpy(), 4.0)
    f = K @ outcome.alpha.double().numpy()
    assert np.square(f - y.numpy()).mean() <= 1.05e-8 * float(y.square().mean())


def test_where_the_error_does_not_show_nothing_is_evaluated_again(rng, desk):
    kernel = mercer.Laplacian(3.0)
    x = torch.from_numpy(rng.normal(size=(600, 5))).float()
    points, y = kernel.points(x), x[:, :2].sin()
    plan, levelled = choose(kernel, points, 2, desk, requests=Requests(200, 50, 100))
    limits = Limits(max_iter=100, interpolation_tol=1e-4, n_iter_no_change=3, tol=0)
    part = HeldOutPart(kernel.points(x[:50]), y[:50])
    options = {"kept_memory": 1e9, "rows_at_once": 100, "held_out": part}
    run = assemble(kernel, points, y, plan.step, levelled, limits, kept_as=UNIT, **options)
    outcome = run.run()
    assert run.state.refined is None
    exact = train(kernel, points, y, plan.step, levelled, limits, **options)
    assert len(outcome.history) == len(exact.history)
    torch.testing.assert_close(outcome.alpha, exact.alpha, rtol=0, atol=1e-3)


@pytest.fixture
def always_coded(monkeypatch):
    monkeypatch.setattr(keeping, "SMALL_BYTES", 0)
    monkeypatch.setattr("mercer.planning.rehearsal.pays", lambda *_: True)  # however slow memory is now


def test_values_are_kept_in_16_bits_where_their_bounds_allow_it(rng, desk, always_coded, monkeypatch):
    x = torch.from_numpy(rng.normal(size=(500, 4))).float()
    far = x.clone()
    far[3] *= 100  # its own value of a kernel without bounds is ten thousand times the others'

    def planned(kernel, x):
        return choose(kernel, kernel.points(x), 2, desk, requests=Requests(100, 20, 50))[0]

    product = mercer.Custom(lambda a, b: 1 + a @ b.T)
    laplacian, tangent = mercer.Laplacian(2.0), mercer.NeuralTangent(1.0)
    assert planned(laplacian, x).kept_as == UNIT == planned(laplacian, far).kept_as
    assert planned(laplacian, x.double()).kept_as is None
    assert planned(product, x).kept_as is None
    assert planned(tangent, x).kept_as == FixedPoint(*tangent.bounds(tangent.points(x)))
    assert planned(tangent, far).kept_as is None
    small = planned(laplacian, x)
    monkeypatch.setattr(keeping, "SMALL_BYTES", 1 << 28)
    plain = planned(laplacian, x)
    assert plain.kept_as is None
    Z = 4 * 500 * small.preconditioner_rank
    assert small.kept_memory - Z == (plain.kept_memory - Z) / 2


def test_the_plan_says_how_values_are_kept(rng, always_coded, on_desk):
    X = rng.normal(size=(400, 3))
    plan = KernelRegressor("gaussian", bandwidth=2.0, ridge=0.01).plan(X, X[:, 0])
    assert "kernel values kept in 16 bits, each within 7.8e-06" in " ".join(str(plan).split())
    assert Plan.from_json(plan.to_json()) == plan
    none = replace(plan, kept_memory=0.0)
    assert "16 bits" not in str(none)


def test_a_resumed_run_ends_with_the_same_bits_after_a_refinement(rng, always_coded, tmp_path):
    X = rng.uniform(-2, 2, size=(900, 3))
    y = rng.normal(size=900)
    settings = {"kernel": "gaussian", "bandwidth": 1.0, "ridge": 1e-3, "interpolation_tol": 1e-9}
    settings |= {"subsample_size": 400, "preconditioner_rank": 200, "batch_size": 64}
    settings |= {"max_iter": 12, "early_stopping": False, "random_state": 0}
    path = tmp_path / "run"

    class Stop(Callback):
        def __init__(self, epochs):
            self.epochs = epochs

        def on_epoch_end(self, run):
            return "enough" if len(run.history) == self.epochs else None

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = KernelRegressor(**settings).fit(X, y)
        for epochs in (2, 6):
            callbacks = [Checkpoint(path, minutes=0), Stop(epochs)]
            KernelRegressor(**settings, callbacks=callbacks).fit(X, y)
            resumed = KernelRegressor(**settings).fit(X, y, resume=path)
            np.testing.assert_array_equal(resumed.dual_coef_, whole.dual_coef_)
    assert whole.plan_.kept_as == UNIT
    assert "training.refined" in mercer.files.container.read_file(path, "checkpoint")[0]
