"""What a plan says about time must count what training does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

import mercer
from mercer.engine import HeldOutPart, Limits, Requests, Watcher, choose, train
from mercer.kernels import Gaussian
from mercer.planning import calibration, keeping
from mercer.planning.calibration import fresh_byte_seconds
from mercer.planning.epochs import Goal, expected_epochs
from mercer.planning.rehearsal import with_predicted_seconds
from mercer.planning.resource import Rates

FREE = Rates(**dict.fromkeys((field.name for field in fields(Rates)), 0.0))
VALUE = 1e-9


class Clock:
    """A time that passes by kernel values only."""

    def __init__(self) -> None:
        self.values = 0
        self._lock = threading.Lock()

    def perf_counter(self) -> float:
        return VALUE * self.values

    def count(self, values: int) -> None:
        with self._lock:
            self.values += values


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock, block = Clock(), Gaussian.block

    def counted(self, a, b, *args, **options):
        clock.count(len(a) * len(b))
        return block(self, a, b, *args, **options)

    monkeypatch.setattr(Gaussian, "block", counted)
    monkeypatch.setattr("time.perf_counter", clock.perf_counter)
    return clock


class Ends(Watcher):
    """Kernel values evaluated up to the end of each epoch."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.values = clock, [clock.values]

    def on_epoch(self, epoch, training):
        self.values.append(self.clock.values)


@pytest.mark.parametrize(
    ("n", "s", "memory"), [(9_000, 600, 0.0), (9_000, 600, 0.4), (9_000, 600, 1.0), (1_500, 1_500, 1.0)]
)
def test_the_values_predicted_are_those_that_training_evaluates(clock, rng, desk, n, s, memory):
    kernel, n_held_out, requests = Gaussian(3.0), 300, Requests(s, 50, 100)
    x = torch.from_numpy(rng.normal(size=(n + n_held_out, 5))).float()
    points, held_out = kernel.points(x[:n]), kernel.points(x[n:])
    y = x[:, :2].sin()
    plan, levelled = choose(kernel, points, 2, desk, requests=requests, n_held_out=n_held_out)
    budget = memory * plan.kept_memory
    plan = replace(plan, kept_memory=budget)
    predicted = with_predicted_seconds(plan, FREE, kernel, points, levelled, y[:n], n_held_out)

    ends = Ends(clock)
    train(
        kernel,
        points,
        y[:n],
        plan.step,
        levelled,
        Limits(2, 0.0, 9, 0.0),
        kept_memory=budget,
        held_out=HeldOutPart(held_out, y[n:]),
        watcher=ends,
    )
    first, later = np.diff(ends.values) * VALUE
    assert predicted.first_epoch_seconds == pytest.approx(first, rel=0.05)
    assert predicted.later_epoch_seconds == pytest.approx(later, rel=0.25, abs=0.02 * first)


def test_a_rehearsal_is_short_whatever_the_batch(clock, rng, desk):
    kernel = Gaussian(3.0)
    points = kernel.points(torch.from_numpy(rng.normal(size=(12_000, 5))).float())
    y = torch.ones(12_000, 1)
    plan, levelled = choose(kernel, points, 1, desk, requests=Requests(500, 20, 12_000))
    before = clock.values
    predicted = with_predicted_seconds(plan, FREE, kernel, points, levelled, y)
    assert clock.values - before < 0.2 * 12_000**2
    assert predicted.first_epoch_seconds == pytest.approx(VALUE * 12_000**2, rel=0.05)


def test_memory_counts_by_the_rates_of_the_device(clock, rng, desk):
    mercer.release_memory()
    kernel = Gaussian(3.0)
    points = kernel.points(torch.from_numpy(rng.normal(size=(1_000, 5))).float())
    y = torch.ones(1_000, 3)
    plan, levelled = choose(kernel, points, 3, desk)
    free = with_predicted_seconds(plan, FREE, kernel, points, levelled, y)
    rates = replace(FREE, write=2e-9, read=7.0, read_two=1e-9, read_output=1e-10)
    costly = with_predicted_seconds(plan, rates, kernel, points, levelled, y)
    assert costly.first_epoch_seconds - free.first_epoch_seconds == pytest.approx(
        2e-9 * plan.kept_memory
    )
    assert costly.later_epoch_seconds - free.later_epoch_seconds == pytest.approx(
        2 * 1.1e-9 * plan.kept_memory
    )


def test_reading_is_counted_by_outputs():
    rates = replace(FREE, feature=4.0, read=10.0, read_two=20.0, read_output=2.0)
    assert [rates.reading(l, 4) for l in (1, 2, 3, 16, 18)] == [10.0, 20.0, 22.0, 48.0, 50.0]
    rates = replace(rates, code=1.0, code_two=2.0, code_output=0.5)
    assert [rates.reading(l, 2) for l in (1, 2, 3, 16, 18)] == [1.0, 2.0, 2.5, 9.0, 13.0]


def test_the_plan_of_an_estimator_is_that_of_its_fit(rng):
    X = rng.normal(size=(2_500, 6))
    y = np.sin(X[:, 0])
    model = mercer.KernelRegressor("laplacian", bandwidth=3.0, ridge=0.0, random_state=3, max_iter=2)
    plan = model.plan(X, y)
    with pytest.warns(ConvergenceWarning):
        model.fit(X, y)
    seconds = {"first_epoch_seconds": None, "later_epoch_seconds": None}
    # How much memory is free is another number each time, and with it only what it allows.
    memory = dict.fromkeys(("memory", "memory_batch_size"), 0)
    assert plan.n == 2_250
    assert replace(plan, **seconds, **memory) == replace(model.plan_, **seconds, **memory)
    assert plan.first_epoch_seconds > 0
    assert plan.later_epoch_seconds > 0


def test_a_rehearsal_changes_nothing(rng, desk):
    kernel = Gaussian(3.0)
    points = kernel.points(torch.from_numpy(rng.normal(size=(900, 5))).float())
    y = torch.from_numpy(rng.normal(size=(900, 2))).float()
    plan, levelled = choose(kernel, points, 2, desk, requests=Requests(300, 20, 64))
    before = [tensor.clone() for tensor in (points.rows, y, levelled.V, levelled.D)]
    found = with_predicted_seconds(plan, FREE, kernel, points, levelled, y)
    assert replace(found, first_epoch_seconds=None, later_epoch_seconds=None) == plan
    for old, new in zip(before, (points.rows, y, levelled.V, levelled.D), strict=True):
        torch.testing.assert_close(new, old, rtol=0, atol=0)


def test_a_single_epoch_keeps_nothing(rng):
    X = rng.normal(size=(300, 4))
    once, twice = (
        mercer.KernelRegressor("laplacian", bandwidth=2.0, ridge=0.0, max_iter=count).plan(X, X[:, 0])
        for count in (1, 2)
    )
    assert once.kept_memory == 0 < twice.kept_memory
    assert once.peak_memory < twice.peak_memory


def test_much_is_kept_only_if_the_epochs_expected_gain_from_it(clock, rng, desk, monkeypatch):
    mercer.release_memory()
    kernel = Gaussian(3.0)
    points = kernel.points(torch.from_numpy(rng.normal(size=(1_000, 5))).float())
    y = torch.ones(1_000, 3)
    plan, levelled = choose(kernel, points, 3, desk, requests=Requests(200, 20, 100))

    def kept(write, epochs, plan=plan):
        rates = replace(FREE, write=write)
        return with_predicted_seconds(plan, rates, kernel, points, levelled, y, 0, epochs)

    slow = 1.0  # a second a byte, where values take nanoseconds
    assert kept(slow, 2).kept_memory == plan.kept_memory  # little memory is not worth a thought
    monkeypatch.setattr(keeping, "SMALL_BYTES", 0)
    monkeypatch.setattr(calibration, "SMALL_BYTES", 1 << 40)  # the rates above are those of now
    whole = kept(0.0, 2)
    assert whole.kept_memory == plan.kept_memory
    assert whole.expected_epochs == 2
    none = kept(slow, 2)
    assert none.kept_memory == 0
    assert none.later_epoch_seconds == pytest.approx(VALUE * 1_000**2, rel=0.3)
    assert none.expected_seconds == none.first_epoch_seconds + none.later_epoch_seconds
    byte = VALUE * 1_000**2 / plan.kept_memory  # what a kept byte saves in an epoch
    assert kept(10 * byte, 2).kept_memory == 0 < kept(10 * byte, 20).kept_memory
    monkeypatch.setattr("mercer.operators.pool.Pool.free_bytes", plan.kept_memory / 2)
    assert kept(slow, 2).kept_memory == plan.kept_memory / 2  # that much was used before


def test_a_plan_that_takes_long_says_what_would_be_faster(rng, desk):
    kernel = Gaussian(3.0)
    points = kernel.points(torch.from_numpy(rng.normal(size=(1_000, 5))).float())
    plan, _ = choose(kernel, points, 3, desk, requests=Requests(200, 20, 100))
    timed = replace(plan, first_epoch_seconds=5.0, later_epoch_seconds=1.0, expected_epochs=20)
    assert "24 s  predicted until training stops, after about 20 epochs\n" in f"{timed}\n"
    long = replace(timed, first_epoch_seconds=5_000.0)
    advice = "fewer centres (n_centers), a sample of the rows or more ranks would be faster"
    assert advice in unwrapped(long)
    assert f"{advice}, and more memory for later epochs" in unwrapped(replace(long, kept_memory=0.0))


def test_the_rate_of_fresh_memory_is_that_of_now_if_there_is_much_of_it():
    cpu, rates = torch.device("cpu"), replace(FREE, write=7.0)
    assert fresh_byte_seconds(1 << 20, cpu, rates) == 7.0
    assert 1e-12 < fresh_byte_seconds(1 << 30, cpu, rates) < 1e-6
    assert fresh_byte_seconds(1 << 30, torch.device("meta"), rates) == 7.0


@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_the_epochs_expected_are_about_those_taken(rng, desk, ridge):
    kernel = mercer.Laplacian(3.0)
    x = torch.from_numpy(rng.normal(size=(3_000, 5))).float()
    noise = torch.from_numpy(rng.normal(scale=0.3, size=(3_000, 2))).float()
    points, y = kernel.points(x), x[:, :2].sin() + noise
    plan, levelled = choose(kernel, points, 2, desk, ridge, Requests(600, 60, 100))
    for tolerance in (1e-2, 1e-4):
        limits = Limits(max_iter=100, interpolation_tol=tolerance, n_iter_no_change=3, tol=0)
        taken = len(train(kernel, points, y, plan.step, levelled, limits, kept_memory=1e9).history)
        expected = expected_epochs(plan, levelled, Goal(y, tolerance, 100))
        assert taken / 2 <= expected <= 2 * taken
    assert expected_epochs(plan, levelled, Goal(y, tolerance, 2)) == 2
    assert expected_epochs(plan, levelled, Goal(y, 1e-30, 100, 3)) == 5


def unwrapped(plan):
    return " ".join(str(plan).split())


def test_the_plan_says_how_long_training_takes_and_advises_where_that_is_long(rng):
    X = rng.normal(size=(400, 3))
    plan = mercer.KernelRegressor("laplacian", bandwidth=2.0, ridge=0.1).plan(X, X[:, 0])
    assert f"predicted until training stops, after about {plan.expected_epochs} epochs" in unwrapped(
        plan
    )
    assert "fewer centres" not in unwrapped(plan)
    long = replace(plan, first_epoch_seconds=5_000.0, later_epoch_seconds=5_000.0, expected_epochs=3)
    assert "4.2 h predicted until training stops, after about 3 epochs; fewer centres" in unwrapped(long)
    assert "more memory for later epochs" not in unwrapped(long)
    assert "more memory for later epochs" in unwrapped(replace(long, kept_memory=0.0))
    assert "after about 1 epoch;" in unwrapped(replace(long, expected_epochs=1))
