"""Fewer centres than rows, against the dense solution of the projected problem."""

from __future__ import annotations

import pickle
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

import mercer
from mercer import Callback, Checkpoint, KernelClassifier, KernelRegressor
from mercer.data.streams import RowStream, StreamedPoints
from mercer.engine import Limits, Requests, Resource, Step, choose, train
from mercer.kernels import Gaussian, Laplacian
from mercer.method.projection import Projection
from mercer.method.schedule import make_schedule
from mercer.operators.pool import Pool
from mercer.operators.tiled import TiledOperator
from mercer.operators.to_centres import CentresOperator
from mercer.planning.centres import auto_centres, choose_with_centres, value_seconds
from mercer.planning.resource import Rates
from mercer.training.assemble import WatchedPart, assemble_with_centres
from mercer.training.stopping import EarlyStopping
from tests import oracles

LIMITS = Limits(max_iter=60, interpolation_tol=0.0, n_iter_no_change=10**6, tol=0.0)
DESK = Resource(capacity=1e7, memory=1e9)


def waves(n, l=1, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 5))
    y = np.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3] + 0.3 * rng.normal(size=(n, l))
    return x, y - y.mean(0)


def run(
    x,
    y,
    p,
    *,
    kernel=None,
    ridge=1.0,
    epochs=60,
    dtype=torch.float64,
    weight=None,
    batch=None,
    **options,
):
    """A run to the end with the first p rows as centres; its training object and outcome."""
    kernel = kernel or Laplacian(bandwidth=3.0)
    points = kernel.points(torch.from_numpy(x).to(dtype))
    targets = torch.from_numpy(y).to(dtype)
    plan, levelled = choose_with_centres(
        kernel, points, p, y.shape[1], DESK, ridge, Requests(batch_size=batch), 0, False
    )
    weight = None if weight is None else torch.from_numpy(weight[:, None]).to(dtype)
    training = assemble_with_centres(
        kernel,
        points,
        points[:p],
        targets,
        plan.step,
        plan.step_on_centres,
        levelled,
        Limits(epochs, 0.0, 10**6, 0.0),
        ridge=ridge,
        n_temporary=plan.n_temporary,
        kept_memory=1e9,
        sample_weight=weight,
        **options,
    )
    training.state.progress.stalling = EarlyStopping(10**9, 0.0)  # to the last epoch
    return training, training.run()


def off(x, y, p, outcome, ridge, sigma=3.0, kernel=oracles.laplacian, weight=None):
    """Distance of predictions from those of the dense solution, relative to their size."""
    K = kernel(x, x[:p], sigma)
    expected = K @ oracles.projected_solution(K, K[:p], y, ridge, weight)
    found = K @ outcome.alpha.double().numpy()
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize("outputs", [1, 3])
def test_training_ends_at_the_dense_solution_of_the_projected_problem(outputs):
    x, y = waves(1500, outputs)
    _, outcome = run(x, y, 150)
    assert outcome.alpha.shape == (150, outputs)
    assert off(x, y, 150, outcome, 1.0) < 1e-4


def test_without_a_ridge_too():
    x, y = waves(1500)
    _, outcome = run(x, y, 100, ridge=0.0, epochs=120)
    assert off(x, y, 100, outcome, 0.0) < 1e-4


def test_sample_weights_count_as_in_the_dense_solution():
    x, y = waves(1500)
    weight = np.random.default_rng(1).uniform(0.3, 1.0, 1500)
    _, outcome = run(x, y, 100, weight=weight, ridge=3.0, epochs=80)
    assert off(x, y, 100, outcome, 3.0, weight=weight) < 1e-4
    assert off(x, y, 100, outcome, 3.0) > 1e-3  # the weights do matter


def test_float32_comes_as_near_as_it_can():
    x, y = waves(1500)
    _, outcome = run(x, y, 150, dtype=torch.float32)
    assert off(x, y, 150, outcome, 1.0) < 1e-4


def test_a_gaussian_kernel_reaches_it():
    x, y = waves(2000)
    _, outcome = run(x, y, 200, kernel=Gaussian(bandwidth=2.0), ridge=10.0, epochs=100)
    assert off(x, y, 200, outcome, 10.0, 2.0, oracles.gaussian) < 1e-4


@pytest.mark.parametrize(("p", "batch"), [(1, None), (60, 400), (1199, None), (100, 7)])
def test_any_number_of_centres_and_any_batch_work(p, batch):
    x, y = waves(1200)
    _, outcome = run(x, y, p, ridge=10.0, batch=batch, epochs=80)
    assert off(x, y, p, outcome, 10.0) < 1e-3


def test_duplicated_centres_give_the_same_function():
    x, y = waves(1200)
    x[50:100], y[50:100] = x[:50], y[:50]
    _, outcome = run(x, y, 100, ridge=1.0, epochs=80)
    K = oracles.laplacian(x, x[:50], 3.0)
    alpha = oracles.projected_solution(K, K[:50], y, 1.0)
    found = oracles.laplacian(x, x[:100], 3.0) @ outcome.alpha.numpy()
    assert np.linalg.norm(found - K @ alpha) < 1e-4 * np.linalg.norm(found)


def test_temporary_centres_never_exceed_their_budget():
    x, y = waves(1200)
    seen = []
    training, _ = run(x, y, 150, epochs=1)
    inner = training.operator.panel

    def panel(rows, weights, stop):
        found = inner(rows, weights, stop)
        seen.append(training.operator.n_temporary)
        return found

    training.operator.panel = panel
    training.limits = LIMITS
    training.run()
    assert max(seen) <= training.delayed.most
    assert len(set(seen)) > 1


def test_passes_of_a_projection_end_at_the_least_norm_projection():
    x, _ = waves(300)
    kernel, p = Laplacian(bandwidth=3.0), 120
    points = kernel.points(torch.from_numpy(x))
    plan, levelled = choose_with_centres(kernel, points, p, 1, DESK, 0.0, Requests(), 0, False)
    step = plan.step_on_centres
    schedule = make_schedule(p, len(levelled.V), step.m, 64, triangular=False)
    centres = points[:p]
    square = TiledOperator(
        kernel, centres, centres, 1, rows_at_once=schedule.longest, cuts=schedule.cuts, basis=levelled.V
    )
    alpha = torch.zeros(p, 1, dtype=torch.float64)
    projection = Projection(square, levelled, schedule, step, alpha)
    a = np.random.default_rng(2).normal(size=(180, 1))  # a function of other points
    values = torch.from_numpy(oracles.laplacian(x[:p], x[p:], 3.0) @ a)
    missing = [projection.advance(alpha, values, number) for number in range(150)]
    expected = np.linalg.solve(oracles.laplacian(x[:p], x[:p], 3.0), values.numpy())
    assert np.abs(alpha.numpy() - expected).max() < 1e-6 * np.abs(expected).max()
    assert missing[-1] < 1e-12 * missing[0]


def test_products_with_centres_and_temporary_ones_are_the_dense_ones():
    x, _ = waves(400)
    kernel, p, s = Laplacian(bandwidth=3.0), 90, 40
    points = kernel.points(torch.from_numpy(x))
    V = torch.from_numpy(np.linalg.qr(np.random.default_rng(0).normal(size=(s, 6)))[0])
    K = torch.from_numpy(oracles.laplacian(x, x, 3.0))
    for kept_rows in (0, 64):
        operator = CentresOperator(
            kernel, points, points[:p], 2, basis=V, rows_at_once=64, kept_rows=kept_rows
        )
        weights = torch.randn(p + 128, 2, dtype=torch.float64)
        weights[p:] = 0
        operator.panel(slice(100, 164), weights, 0)
        weights[p : p + 64] = torch.randn(64, 2, dtype=torch.float64)
        found = operator.panel(slice(200, 250), weights, 0)
        f = K[200:250, :p] @ weights[:p] + K[200:250, 100:164] @ weights[p : p + 64]
        assert torch.allclose(found.f, f)
        assert torch.allclose(found.own, K[200:250, 200:250])
        assert torch.allclose(found.Z, K[200:250, :s] @ V)
        change = torch.randn(50, 3, dtype=torch.float64)
        assert torch.allclose(operator.transposed(change), K[:p, 200:250] @ change)
        assert operator.n_temporary == 114


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kept_values_of_rows_change_no_bit(dtype, monkeypatch):
    """All rows, some of them or none are evaluated again in later epochs."""
    x, y = waves(2500, 2)
    size = torch.finfo(dtype).bits // 8
    evaluated = []
    whole = Laplacian.block

    def counted(self, a, b, **options):
        evaluated[-1] += len(a) * len(b)
        return whole(self, a, b, **options)

    found = []
    for budget in (0.0, size * 150 * 1_300, 1e9):
        training, _ = run(x, y, 150, epochs=1, dtype=dtype, kept_rows_memory=budget)
        evaluated.append(0)
        training.limits = replace(training.limits, max_iter=5)
        monkeypatch.setattr(Laplacian, "block", counted)
        outcome = training.run()
        monkeypatch.setattr(Laplacian, "block", whole)
        found.append(outcome.alpha)
        kept = sum(values.nbytes for values in training.operator._kept.values())
        assert kept <= budget
        assert (kept > 0) == (budget > 0)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    none, some, all_ = evaluated
    assert none - all_ >= 4 * 150 * 2_500 > none - some > 0


def test_values_of_a_panel_that_failed_are_not_kept(monkeypatch):
    x, _ = waves(1_500)
    kernel = Laplacian(3.0)
    points = kernel.points(torch.from_numpy(x))
    V, weights = torch.zeros(20, 2, dtype=torch.float64), torch.ones(2_100, 1, dtype=torch.float64)
    operator = CentresOperator(
        kernel, points, points[:100], 1, basis=V, rows_at_once=500, kept_rows=500, budget=1e9
    )
    whole = Laplacian.block

    def failing(*given, **options):
        raise MemoryError

    monkeypatch.setattr(Laplacian, "block", failing)
    with pytest.raises(MemoryError):
        operator.panel(slice(0, 500), weights, 0)
    monkeypatch.setattr(Laplacian, "block", whole)
    operator.clear()
    found = operator.panel(slice(0, 500), weights[:600], 0).f
    expected = oracles.laplacian(x[:500], x[:100], 3.0).sum(1) + oracles.laplacian(
        x[:500], x[:500], 3.0
    ).sum(1)
    np.testing.assert_allclose(found[:, 0].numpy(), expected, rtol=1e-10)


def test_a_plan_counts_the_values_of_rows_that_it_keeps(monkeypatch):
    x, _ = waves(6_000)
    kernel = Laplacian(3.0)
    points = kernel.points(torch.from_numpy(x).float())
    slow = Rates(1e-9, 1e-10, 1e-10, 1e-10, 1e-10, 1e-10, 1e-10, 1e-10)

    def planned(memory, on_disk=False, most_epochs=5):
        resource = Resource(capacity=1e7, memory=memory, rates=slow)
        given = (kernel, points, 500, 1, resource, 1.0, Requests(), 0, on_disk)
        return choose_with_centres(*given, value=1e-6, most_epochs=most_epochs)[0]

    plan = planned(4e9)
    little = planned(plan.peak_memory - plan.kept_rows_memory / 2)
    assert plan.kept_rows_memory == 4 * 6_000 * 500
    assert plan.kept_rows_share == 1
    assert plan.later_epoch_seconds < plan.first_epoch_seconds
    assert "100% of those of rows with the centres" in " ".join(str(plan).split())
    assert 0 < little.kept_rows_memory < plan.kept_rows_memory
    for one in (plan, little):
        assert one.peak_memory <= one.memory
    halved = plan.within(plan.peak_memory - plan.kept_rows_memory / 2, 0)
    assert halved.kept_rows_memory == pytest.approx(plan.kept_rows_memory / 2)
    assert planned(4e9, on_disk=True).kept_rows_memory == 0
    # Gigabytes of fresh memory are not written for a single epoch.
    monkeypatch.setattr("mercer.planning.keeping.SMALL_BYTES", 0)
    monkeypatch.setattr("mercer.planning.centres.POOL", Pool())
    assert planned(4e9, most_epochs=1).kept_rows_memory == 0
    assert planned(4e9, most_epochs=5).kept_rows_memory > 0


def test_as_many_centres_as_rows_is_the_method_without_projections():
    x, y = waves(4000)
    options = {"kernel": "laplacian", "bandwidth": 3.0, "random_state": 0, "max_iter": 3, "ridge": 0.1}
    every = KernelRegressor(n_centers=None, **options).fit(x, y[:, 0])
    same = KernelRegressor(n_centers=4000, **options).fit(x, y[:, 0])
    assert np.array_equal(every.dual_coef_, same.dual_coef_)


@pytest.mark.parametrize("ridge", [0.0, 1.0])
@pytest.mark.parametrize("outputs", [1, 2])
def test_delayed_projections_with_every_row_a_centre_end_where_the_method_without_them_does(
    ridge, outputs
):
    x, y = waves(300, outputs)
    kernel = Laplacian(bandwidth=3.0)
    _, outcome = run(x, y, 300, ridge=ridge, epochs=80)
    points, targets = kernel.points(torch.from_numpy(x)), torch.from_numpy(y)
    plan, levelled = choose(kernel, points, outputs, DESK, ridge)
    plain = train(kernel, points, targets, plan.step, levelled, Limits(300, 1e-14, 10**6, 0.0))
    K = oracles.laplacian(x, x, 3.0)
    exact = K @ oracles.solution(K, y, ridge)
    for alpha in (outcome.alpha, plain.alpha):
        assert np.linalg.norm(K @ alpha.numpy() - exact) < 1e-4 * np.linalg.norm(exact)


def test_a_model_of_few_centres_holds_and_evaluates_only_these(tmp_path):
    x, y = waves(6000)
    model = KernelRegressor(**STREAM, n_centers=300).fit(x, y[:, 0])
    assert model.plan_.n_centers == 300
    assert len(model.machine_.centres) == 300
    assert model.score(x, y[:, 0]) > 0.6
    model.save(tmp_path / "few.mercer")
    again = mercer.load(tmp_path / "few.mercer")
    assert np.array_equal(again.predict(x), model.predict(x))
    assert len(again.machine_.centres) == len(again.dual_coef_) == 300


def test_classes_are_predicted_with_few_centres():
    x, y = waves(6000)
    labels = np.digitize(y[:, 0], [-1, 1])
    model = KernelClassifier(n_centers=500, random_state=0).fit(x[:5000], labels[:5000])
    assert model.score(x[5000:], labels[5000:]) > 0.75
    assert np.allclose(model.predict_proba(x[:10]).sum(1), 1)


def test_byte_images_stay_bytes(monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (6000, 80)).astype(np.uint8)
    y = x[:, :8].astype(float).sum(1)
    model = KernelRegressor("gaussian", n_centers=400, random_state=0, max_iter=3).fit(x, y)
    assert model.machine_.centres.is_bytes == (model.plan_.products.startswith("exact"))
    assert model.score(x, y) > 0.2


def test_auto_takes_all_rows_where_that_is_quick_and_fewer_where_it_is_not():
    device = Resource(capacity=1e8, memory=1e10)
    assert auto_centres(50_000, 1e-9, device) is None
    found = auto_centres(10**6, 1e-9, device)
    assert found is not None
    assert 8_000 <= found <= 16_000
    assert auto_centres(10**7, 1e-9, device) < found
    assert auto_centres(10**7, None, device) is None  # a device that is not here


def test_a_busy_machine_does_not_make_a_kernel_value_look_slow(monkeypatch):
    kernel = Laplacian(bandwidth=3.0)
    points = kernel.points(torch.from_numpy(waves(5000)[0]).float())
    rates = Rates(1e-11, 1e-9, 1e-10, 1e-10, 1e-11, 1e-10, 1e-10, 1e-11)
    device = Resource(capacity=1e8, memory=1e10, rates=rates)
    block = Laplacian.block

    def after_others(self, *points, **options):
        time.sleep(0.05)  # another process has the core
        return block(self, *points, **options)

    monkeypatch.setattr(Laplacian, "block", after_others)
    assert value_seconds(kernel, points, 1, device) < 0.05 / (1_024 * 4_096)


def test_a_kernel_value_is_timed_on_the_points():
    kernel = Laplacian(bandwidth=3.0)
    points = kernel.points(torch.from_numpy(waves(5000)[0]).float())
    rates = Rates(1e-11, 1e-9, 1e-10, 1e-10, 1e-11, 1e-10, 1e-10, 1e-11)
    device = Resource(capacity=1e8, memory=1e10, rates=rates)
    value = value_seconds(kernel, points, 1, device)
    assert 1e-11 < value < 1e-6
    assert float(np.log2(value)).is_integer()
    assert value_seconds(kernel, points, 1, replace(device, rates=None)) is None


def test_the_subsample_must_be_a_part_of_the_centres():
    x, y = waves(5000)
    model = KernelRegressor("laplacian", bandwidth=3.0, n_centers=100, subsample_size=200)
    with pytest.raises(ValueError, match="at most the number of centres, 100"):
        model.fit(x, y[:, 0])


def test_a_step_that_is_far_too_long_does_no_harm():
    x, y = waves(1500)
    kernel = Laplacian(bandwidth=3.0)
    points = kernel.points(torch.from_numpy(x))
    plan, levelled = choose_with_centres(kernel, points, 150, 1, DESK, 1.0, Requests(), 0, False)
    long = Step(100 * plan.step.eta, plan.step.m, plan.step.beta)
    training = assemble_with_centres(
        kernel,
        points,
        points[:150],
        torch.from_numpy(y),
        long,
        plan.step_on_centres,
        levelled,
        LIMITS,
        ridge=1.0,
    )
    outcome = training.run()
    assert off(x, y, 150, outcome, 1.0) < 0.3


@pytest.mark.parametrize("as_stream", [False, True])
def test_weights_that_run_away_within_an_epoch_are_given_up_for_the_best_and_shorter_steps(as_stream):
    x, y = waves(1500)
    kernel, like = Laplacian(bandwidth=3.0), torch.zeros((), dtype=torch.float64)
    stream = RowStream(lambda: iter(np.split(x, 6)), len(x), np.zeros(0, int), 700, 0)
    points = kernel.points(torch.from_numpy(x[stream.order]))
    targets = torch.from_numpy(y[stream.order])
    plan, levelled = choose_with_centres(kernel, points, 150, 1, DESK, 1.0, Requests(), 0, False)
    rows = points
    if as_stream:
        rows = StreamedPoints(stream, lambda part: kernel.points(torch.from_numpy(part)), like, 5)
    training = assemble_with_centres(
        *(kernel, rows, points[:150], targets, plan.step, plan.step_on_centres, levelled),
        Limits(2, 0.0, 10**6, 0.0),
        ridge=1.0,
        watched=WatchedPart(points[-300:], targets[-300:]) if as_stream else None,
    )
    training.run()
    state, alpha = training.state, training.model.weights[:150]
    best, eta = state.remembered.best.clone(), state.progress.step.eta
    assert bool(best.any())
    alpha *= 3
    training.delayed.end_epoch(state)
    assert torch.equal(alpha, best)
    assert state.progress.step.eta == eta / 4
    assert state.progress.error_now == state.progress.lowest


def test_points_of_a_stream_cannot_be_descended_on_without_rows_to_watch():
    x, y = waves(600)
    kernel, like = Laplacian(bandwidth=3.0), torch.zeros((), dtype=torch.float64)
    points = kernel.points(torch.from_numpy(x))
    plan, levelled = choose_with_centres(kernel, points, 50, 1, DESK, 1.0, Requests(), 0, False)
    stream = RowStream(lambda: iter([x]), 600, np.zeros(0, int), 600, 0)
    rows = StreamedPoints(stream, lambda part: kernel.points(torch.from_numpy(part)), like, 5)
    with pytest.raises(ValueError, match="need a sample that is watched"):
        assemble_with_centres(
            *(kernel, rows, points[:50], torch.from_numpy(y), plan.step, plan.step_on_centres),
            *(levelled, LIMITS),
        )


@pytest.mark.parametrize("after", [1, 5, 9])
def test_a_run_that_was_stopped_ends_with_the_same_bits(tmp_path, after):
    x, y = waves(4000)
    options = {"kernel": "laplacian", "bandwidth": 3.0, "ridge": 0.1, "n_centers": 500, "max_iter": 3}
    options |= {"random_state": 0, "interpolation_tol": 0.0, "batch_size": 100}
    whole = KernelRegressor(**options).fit(x, y[:, 0])
    path = tmp_path / "run.checkpoint"

    class Stop(Callback):
        panels = 0

        def on_panel_end(self, run):
            self.panels += 1
            return "enough" if self.panels == after else None

    stopped = KernelRegressor(**options, callbacks=[Checkpoint(path, minutes=0), Stop()])
    stopped.fit(x, y[:, 0])
    assert stopped.stop_reason_ == "enough"
    resumed = KernelRegressor(**options).fit(x, y[:, 0], resume=path)
    assert np.array_equal(resumed.dual_coef_, whole.dual_coef_)
    assert len(resumed.history_) == 3


def test_weights_of_few_centres_cannot_be_started_from():
    x, y = waves(4000)
    model = KernelRegressor("laplacian", bandwidth=3.0, ridge=0.1, n_centers=300, warm_start=True)
    model.fit(x, y[:, 0])
    with pytest.raises(ValueError, match="every row is a centre"):
        model.fit(x, y[:, 0])


def chunked(x, y, size=500):
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]


STREAM = {"kernel": "laplacian", "bandwidth": 3.0, "ridge": 0.1, "scale": False, "random_state": 0}


def test_a_small_stream_is_fitted_as_its_rows_would_be():
    x, y = waves(1500)
    model = KernelRegressor(**STREAM).fit(chunked(x, y[:, 0]))
    assert model.plan_.n_centers is None
    assert model.score(x, y[:, 0]) > 0.8


@pytest.mark.parametrize("kind", ["function", "object"])
def test_a_stream_larger_than_memory_is_trained_on_in_passes(kind):
    x, y = waves(20_000)
    chunks = chunked(x, y[:, 0], 700)

    class Again:
        def __iter__(self):
            return iter(chunks)

    rows = {"list": chunks, "function": lambda: iter(chunks), "object": Again()}[kind]
    model = KernelRegressor(**STREAM, n_centers=400, memory_limit="2MB").fit(rows)
    assert 19_000 < model.plan_.n < 20_000  # a few are held out
    assert model.plan_.n_centers == 400
    assert len(model.machine_.centres) == 400
    assert model.score(x, y[:, 0]) > 0.75


def test_rows_sorted_by_class_are_learned_from_a_stream():
    x, y = waves(20_000)
    labels = np.where(y[:, 0] > 0, "high", "low")
    order = np.argsort(labels, kind="stable")
    chunks = chunked(x[order], labels[order], 1000)
    model = KernelClassifier(**STREAM, n_centers=400, memory_limit="2MB").fit(chunks)
    assert list(model.classes_) == ["high", "low"]
    assert model.score(x, labels) > 0.85


def test_a_stream_trains_as_the_same_rows_in_memory_would():
    x, y = waves(3000)
    kernel = Laplacian(bandwidth=3.0)
    stream = RowStream(lambda: iter(np.split(x, 6)), 3000, np.array([5, 17]), 700, 0)
    like = torch.zeros((), dtype=torch.float64)
    streamed = StreamedPoints(stream, lambda rows: kernel.points(torch.from_numpy(rows)), like, 5)
    order = stream.order
    assert sorted(order) == sorted(set(range(3000)) - {5, 17})
    points = kernel.points(torch.from_numpy(x[order]))
    plan, levelled = choose_with_centres(kernel, points, 200, 1, DESK, 1.0, Requests(), 0, False)
    found = []
    for rows in (points, streamed):
        training = assemble_with_centres(
            kernel,
            rows,
            points[:200],
            torch.from_numpy(y[order]),
            plan.step,
            plan.step_on_centres,
            levelled,
            Limits(2, 0.0, 10, 0.0),
            ridge=1.0,
            watched=WatchedPart(points[-500:], torch.from_numpy(y[order[-500:]])),
        )
        training.schedule = replace(training.schedule, shuffled=False)
        found.append(training.run().alpha)
    assert torch.equal(*found)


def test_an_iterator_that_can_be_read_once_only_is_refused():
    x, y = waves(1000)
    with pytest.raises(ValueError, match="partial_fit"):
        KernelRegressor(**STREAM).fit(iter(chunked(x, y[:, 0])))


@pytest.mark.parametrize(("second", "message"), [(15_000, "only 15,000"), (21_000, "more")])
def test_a_stream_of_another_length_in_a_later_pass_is_refused(second, message):
    x, y = waves(21_000)
    count = iter([20_000] + [second] * 10)

    def rows():
        n = next(count)
        return iter(chunked(x[:n], y[:n, 0], 1000))

    with pytest.raises(ValueError, match=f"first pass had 20,000 rows, and a later one has {message}"):
        KernelRegressor(**STREAM, n_centers=300, memory_limit="2MB").fit(rows)


def test_chunks_that_are_no_pairs_are_named():
    x, y = waves(1000)
    with pytest.raises(ValueError, match="Chunk 1 is a ndarray"):
        KernelRegressor(**STREAM).fit(lambda: iter([(x, y[:, 0]), x]))


def test_weights_of_a_stream_come_with_its_chunks():
    x, y = waves(20_000)
    noisy = np.arange(20_000) % 2 == 0
    wrong = np.where(noisy, 100.0, y[:, 0])
    weight = np.where(noisy, 0.0, 1.0)
    size = 1000
    chunks = [
        (x[i : i + size], wrong[i : i + size], weight[i : i + size]) for i in range(0, len(x), size)
    ]
    model = KernelRegressor(**STREAM, n_centers=300, memory_limit="2MB").fit(chunks)
    assert model.score(x[1::2], y[1::2, 0]) > 0.7


def test_the_users_own_centres_are_those_of_the_model(tmp_path):
    x, y = waves(5000)
    centres = np.random.default_rng(5).normal(size=(300, 5))
    options = {**STREAM, "max_iter": 30, "early_stopping": False, "ridge": 1.0, "precision": "float64"}
    model = KernelRegressor(**options).fit(x, y[:, 0], centers=centres)
    assert model.plan_.n_centers == 300
    K = oracles.laplacian(x, centres, 3.0)
    target = y - y.mean()
    alpha = oracles.projected_solution(K, oracles.laplacian(centres, centres, 3.0), target, 1.0)
    found = model.predict(x)[:, None] - y.mean()
    assert np.linalg.norm(found - K @ alpha) < 0.01 * np.linalg.norm(K @ alpha)
    path = tmp_path / "run.checkpoint"

    class Stop(Callback):
        def on_epoch_end(self, run):
            return "enough" if len(run.history) == 2 else None

    callbacks = [Checkpoint(path, minutes=0), Stop()]
    KernelRegressor(**options, callbacks=callbacks).fit(x, y[:, 0], centers=centres)
    resumed = KernelRegressor(**options).fit(x, y[:, 0], centers=centres, resume=path)
    assert np.array_equal(resumed.dual_coef_, model.dual_coef_)
    with pytest.raises(ValueError, match="centers"):
        KernelRegressor(**options).fit(x, y[:, 0], centers=centres + 1, resume=path)


def test_partial_fit_comes_near_one_epoch_on_all_rows():
    x, y = waves(24_000)
    test = slice(20_000, None)
    model = KernelRegressor(**STREAM, n_centers=500)
    scores = []
    for i in range(0, 20_000, 2_000):
        model.partial_fit(x[i : i + 2_000], y[i : i + 2_000, 0])
        scores.append(model.score(x[test], y[test, 0]))
    whole = KernelRegressor(**STREAM, n_centers=500, max_iter=1).fit(x[:20_000], y[:20_000, 0])
    assert model.n_samples_seen_ == 20_000
    assert len(model.machine_.centres) == 500
    assert scores[-1] > scores[0]
    assert 1 - scores[-1] < 1.2 * (1 - whole.score(x[test], y[test, 0]))


def test_partial_fit_needs_all_classes_once(tmp_path):
    x, y = waves(6_000)
    labels = np.digitize(y[:, 0], [-1, 1])
    first = labels[:2_000] < 2
    model = KernelClassifier(**STREAM, n_centers=300)
    model.partial_fit(x[:2_000][first], labels[:2_000][first], classes=[0, 1, 2])
    assert not (model.predict(x) == 2).any()
    for part in (slice(2_000, 4_000), slice(4_000, 6_000)):
        model = pickle.loads(pickle.dumps(model)).partial_fit(x[part], labels[part])
    assert (model.predict(x) == 2).any()
    assert model.score(x, labels) > 0.7
    model.save(tmp_path / "model.mercer")
    assert np.array_equal(mercer.load(tmp_path / "model.mercer").predict(x), model.predict(x))
    with pytest.raises(ValueError, match="`classes` must name all"):
        KernelClassifier(**STREAM).partial_fit(x, labels, classes=[0, 1])


def test_explanations_name_rows_of_the_data(tmp_path):
    x, y = waves(6000)
    model = KernelRegressor(**STREAM, n_centers=300).fit(x, y[:, 0])
    nearest = model.explain(x[:50]).nearest[:, 0]
    distance = np.linalg.norm(x[:50, None] - x[None, nearest].reshape(50, 1, 5)[:, :, :], axis=2)[:, 0]
    centres = x[model._training_rows]
    assert np.allclose(distance, np.linalg.norm(x[:50, None] - centres[None], axis=2).min(1))
    model.save(tmp_path / "m.mercer")
    assert np.array_equal(mercer.load(tmp_path / "m.mercer").explain(x[:50]).nearest[:, 0], nearest)
    own = np.random.default_rng(1).normal(size=(200, 5))
    model = KernelRegressor(**STREAM).fit(x, y[:, 0], centers=own)
    assert np.array_equal(model.explain(own[:20]).nearest[:, 0], np.arange(20))
    chunks = chunked(x, y[:, 0])
    model = KernelRegressor(**STREAM, n_centers=100, memory_limit="500KB").fit(chunks)
    rows = model._training_rows
    assert np.array_equal(model.explain(x[rows[:20]]).nearest[:, 0], rows[:20])


@pytest.mark.parametrize(
    ("given", "terms"),
    [
        ({"n_centers": 100}, 200),
        ({"n_centers": None}, 4_600),
        ({"n_centers": "auto"}, 4_600),  # which are few
        ({"n_centers": "auto", "few": 4_000}, 2_000),
    ],
)
def test_the_search_counts_the_rounding_of_sums_over_the_centres(rng, monkeypatch, given, terms):
    """With as many terms as rows, settings would be refused that few centres allow."""
    seen = []
    few = given.pop("few", None)
    if few is not None:
        for place in ("choice.FEWEST_TIMED", "centres.FEWEST_TIMED"):
            monkeypatch.setattr(f"mercer.preparation.{place}", few)
        monkeypatch.setattr("mercer.planning.centres.SHORT_SECONDS", 1e-9)

    def select(*arguments, rounding, **others):
        seen.append(rounding)
        return real(*arguments, rounding=rounding, **others)

    real = mercer.selection.setting.select
    monkeypatch.setattr("mercer.selection.setting.select", select)
    X = rng.normal(size=(4_600, 2))
    KernelRegressor("gaussian", early_stopping=False, random_state=0, metric=False, **given).plan(
        X, X[:, 0]
    )
    assert seen == [pytest.approx(np.finfo(np.float32).eps * np.sqrt(terms))]
