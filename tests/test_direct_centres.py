"""Few centres: the equations of the projected problem, solved in one pass over the rows."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from mercer import Callback, Checkpoint, KernelRegressor
from mercer.data.streams import RowStream, StreamedPoints
from mercer.engine import Limits, Plan, Resource, Step
from mercer.kernels import Gaussian, Laplacian
from mercer.method.normal_equations import NormalEquations
from mercer.method.preconditioner import nothing_levelled
from mercer.operators.tiled import panel_rows
from mercer.operators.workers import Workers
from mercer.planning.direct import normal_seconds, solves_centres
from mercer.report.headline import headline
from mercer.report.learning import in_words
from mercer.training.assemble import HeldOutPart, assemble_with_centres
from mercer.training.stopping import SOLVED
from tests import oracles
from tests.test_centres import waves

EXACT = Step(eta=1.0, m=1500, beta=1.0, exact=True)
FIXED = {"kernel": "laplacian", "bandwidth": 3.0, "scale": False, "random_state": 0}


def solved(x, y, p, kernel, ridge, dtype=torch.float64, weight=None, **options):
    """The outcome of a run with the first p rows as centres."""
    points = kernel.points(torch.from_numpy(x).to(dtype))
    weight = None if weight is None else torch.from_numpy(weight[:, None]).to(dtype)
    training = assemble_with_centres(
        *(kernel, points, points[:p], torch.from_numpy(y).to(dtype), EXACT, EXACT),
        nothing_levelled(points.squared_norms),
        Limits(10, 0.0, 3, 0.0),
        ridge=ridge,
        sample_weight=weight,
        **options,
    )
    return training.run()


def off(x, y, p, outcome, ridge, kernel=oracles.laplacian, sigma=3.0, weight=None):
    """Distance of predictions from those of the dense solution, relative to their size."""
    K = kernel(x, x[:p], sigma)
    expected = K @ oracles.projected_solution(K, K[:p], y, ridge, weight)
    return np.linalg.norm(K @ outcome.alpha.double().numpy() - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("ridge", [0.0, 1e-3, 1.0])
def test_one_pass_ends_at_the_dense_solution(dtype, ridge):
    x, y = waves(1500, 2)
    outcome = solved(x, y, 150, Laplacian(bandwidth=3.0), ridge, dtype)
    assert outcome.reason == SOLVED
    assert outcome.converged
    assert len(outcome.history) == 1
    assert off(x, y, 150, outcome, ridge) < (1e-9 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_smooth_kernel_reaches_it_too(dtype):
    x, y = waves(1500)
    outcome = solved(x, y, 150, Gaussian(bandwidth=2.0), 0.01, dtype)
    assert off(x, y, 150, outcome, 0.01, oracles.gaussian, 2.0) < 1e-4


def test_a_kernel_matrix_of_low_rank_is_fitted_nearly_as_well_as_by_least_squares():
    """There float64 has no digits left for the directions that least squares still uses."""
    x, y = waves(1500)
    outcome = solved(x, y, 150, Gaussian(bandwidth=20.0), 0.0)
    K = oracles.gaussian(x, x[:150], 20.0)
    errors = [
        np.square(K @ alpha - y).mean()
        for alpha in (outcome.alpha.numpy(), oracles.projected_solution(K, K[:150], y))
    ]
    assert errors[0] < 1.2 * errors[1]


def test_sample_weights_and_the_loss_are_those_of_the_dense_solution():
    x, y = waves(1500)
    weight = np.random.default_rng(1).uniform(0.1, 1.0, 1500)
    outcome = solved(x, y, 100, Laplacian(bandwidth=3.0), 3.0, weight=weight)
    assert off(x, y, 100, outcome, 3.0, weight=weight) < 1e-9
    K = oracles.laplacian(x, x[:100], 3.0)
    alpha = oracles.projected_solution(K, K[:100], y, 3.0, weight)
    loss = (weight * np.square(K @ alpha - y)[:, 0]).sum() / weight.sum()
    assert outcome.history.epochs[0].train_loss == pytest.approx(loss)


@pytest.mark.parametrize("p", [1, 1199])
def test_any_number_of_centres_can_be_solved_for(p):
    x, y = waves(1200)
    outcome = solved(x, y, p, Laplacian(bandwidth=3.0), 1.0)
    assert off(x, y, p, outcome, 1.0) < 1e-8


def test_few_centres_do_not_make_panels_short():
    x, y = waves(3000)
    kernel = Laplacian(bandwidth=3.0)
    points = kernel.points(torch.from_numpy(x))
    training = assemble_with_centres(
        *(kernel, points, points[:10], torch.from_numpy(y), EXACT, EXACT),
        nothing_levelled(points.squared_norms),
        Limits(10, 0.0, 3, 0.0),
    )
    assert len(training.schedule.panels) == math.ceil(3000 / panel_rows(points.device))


def test_duplicated_centres_do_no_harm():
    x, y = waves(1200)
    x[50:100], y[50:100] = x[:50], y[:50]
    outcome = solved(x, y, 100, Laplacian(bandwidth=3.0), 1.0)
    K = oracles.laplacian(x, x[:50], 3.0)
    expected = K @ oracles.projected_solution(K, K[:50], y, 1.0)
    found = oracles.laplacian(x, x[:100], 3.0) @ outcome.alpha.numpy()
    assert np.linalg.norm(found - expected) < 1e-8 * np.linalg.norm(expected)


def test_the_held_out_part_is_judged_by_the_solution():
    x, y = waves(1500)
    kernel = Laplacian(bandwidth=3.0)
    points = kernel.points(torch.from_numpy(x))
    part = HeldOutPart(points[1200:], torch.from_numpy(y[1200:]))
    outcome = solved(x[:1200], y[:1200], 100, kernel, 1.0, held_out=part)
    f = oracles.laplacian(x[1200:], x[:100], 3.0) @ outcome.alpha.numpy()
    np.testing.assert_allclose(outcome.validation_predictions.numpy(), f, atol=1e-12)
    assert outcome.best_loss == pytest.approx(np.square(f - y[1200:]).mean())


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_outputs", [1, 2])
def test_rows_that_were_held_out_are_added_in_the_end(weighted, n_outputs):
    x, y = waves(1500, n_outputs)
    weight = np.random.default_rng(1).uniform(0.1, 1.0, 1500) if weighted else None
    kernel = Laplacian(bandwidth=3.0)
    part = HeldOutPart(kernel.points(torch.from_numpy(x[1200:])), torch.from_numpy(y[1200:]))
    closed = solved(x, y, 100, kernel, 3.0, weight=weight, held_out=part, n_closing=300)
    assert off(x, y, 100, closed, 3.0, weight=weight) < 1e-9
    first, last = closed.history.epochs
    assert (closed.closed, first.closing, last.closing) == (True, False, True)
    f = oracles.laplacian(x, x[:100], 3.0) @ closed.alpha.numpy()
    mean = np.average(np.square(f - y).mean(1), weights=weight)
    assert last.train_loss == pytest.approx(mean)
    # What they said before stays what it was.
    known = None if weight is None else weight[:1200]
    before = solved(x[:1200], y[:1200], 100, kernel, 3.0, weight=known, held_out=part)
    np.testing.assert_array_equal(closed.validation_predictions, before.validation_predictions)
    assert (closed.best_loss, first.train_loss) == (
        before.best_loss,
        before.history.epochs[0].train_loss,
    )


@pytest.mark.parametrize("weighted", [False, True])
def test_sums_have_the_same_bits_for_any_number_of_threads(weighted):
    draws = torch.Generator().manual_seed(0)
    K = torch.randn(1300, 100, generator=draws)
    y, weight = torch.randn(100, 2, generator=draws), torch.rand(100, 1, generator=draws)
    found = []
    for count in (1, 2):
        equations = NormalEquations(1300, 2, Workers(count), K.device)
        for rows in (slice(0, 60), slice(60, 100)):
            equations.add(K[:, rows], y[rows], weight[rows] if weighted else None)
        equations.complete()
        found.append(equations)
    W = weight.double() if weighted else torch.ones(100, 1).double()
    torch.testing.assert_close(found[0].G, K.double() @ (W * K.double().T))
    torch.testing.assert_close(found[0].b, K.double() @ (W * y.double()))
    assert torch.equal(found[0].G, found[1].G)
    assert torch.equal(found[0].b, found[1].b)


def test_a_fit_has_the_same_bits_for_any_number_of_threads():
    x, y = waves(4000)
    one, two = (
        KernelRegressor(**FIXED, ridge=0.1, n_centers=200, n_jobs=n).fit(x, y[:, 0]) for n in (1, 2)
    )
    assert one.plan_.direct
    np.testing.assert_array_equal(one.dual_coef_, two.dual_coef_)


def test_few_centres_are_solved_for_and_many_are_descended_to():
    """p centres take n p² / 2 products, and an epoch n p values: the first grows faster."""
    value, feature = 2e-9, 1e-11
    memory = Resource(capacity=1e8, memory=1e11)
    found = [p for p in (500, 2_000, 20_000) if solves_centres(10**6, p, 1, value, feature, 5, memory)]
    assert found == [500, 2_000]
    assert not solves_centres(10**6, 2_000, 1, value, feature, 5, replace(memory, memory=1e8))
    small, large = (normal_seconds(10**6, p, value, feature) for p in (5_000, 10_000))
    assert 3.5 < large / small < 4.1


@pytest.mark.parametrize(
    "changes", [{"batch_size": 50}, {"step_size": 1.0}, {"subsample_size": 100}, {"ridge": 0.0}]
)
def test_what_belongs_to_descent_asks_for_it(changes):
    x, y = waves(4000)
    model = KernelRegressor(**FIXED | {"ridge": 0.1} | changes, n_centers=200, max_iter=2)
    assert not model.plan(x, y[:, 0]).direct
    assert KernelRegressor(**FIXED, ridge=0.1, n_centers=200).plan(x, y[:, 0]).direct


def test_few_rows_have_as_many_centres_as_were_asked_for():
    X = np.random.default_rng(0).normal(size=(200, 2))
    model = KernelRegressor("gaussian", bandwidth=2.0, n_centers=50, random_state=0).fit(X, X[:, 0])
    assert model.plan_.n_centers == 50
    assert len(model.dual_coef_) == 50
    assert model.score(X, X[:, 0]) > 0.99


def test_the_plan_says_that_the_equations_of_few_centres_are_solved():
    x, y = waves(4000)
    plan = KernelRegressor(**FIXED, ridge=0.1, n_centers=200).plan(x, y[:, 0])
    assert "in one pass over the rows" in " ".join(str(plan).split())
    assert "eta" not in str(plan)
    assert Plan.from_json(plan.to_json()) == plan


def test_a_pass_that_was_stopped_begins_again_and_ends_with_the_same_bits(tmp_path):
    x, y = waves(3000)
    path = tmp_path / "run.checkpoint"

    class Stop(Callback):
        panels = 0

        def on_panel_end(self, run):
            self.panels += 1
            return "enough" if self.panels == 2 else None

    options = FIXED | {"ridge": 0.5, "n_centers": 150}
    whole = KernelRegressor(**options).fit(x, y[:, 0])
    stopped = KernelRegressor(**options, callbacks=[Checkpoint(path, minutes=0), Stop()])
    stopped.fit(x, y[:, 0])
    assert stopped.stop_reason_ == "enough"
    resumed = KernelRegressor(**options).fit(x, y[:, 0], resume=path)
    np.testing.assert_array_equal(resumed.dual_coef_, whole.dual_coef_)
    assert whole.plan_.direct
    assert whole.plan_.n_closing == 300
    assert whole.n_iter_ == resumed.n_iter_ == 2


class Keep(Callback):
    """Saves a checkpoint after each epoch."""

    def __init__(self, folder):
        self.folder = folder

    def on_epoch_end(self, run):
        run.save_checkpoint(self.folder / str(run.epoch.number))


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_run_resumed_after_an_epoch_ends_with_the_same_bits(tmp_path, epoch):
    x, y = waves(3000)
    options = FIXED | {"ridge": 0.5, "n_centers": 150}
    whole = KernelRegressor(**options, callbacks=[Keep(tmp_path)]).fit(x, y[:, 0])
    resumed = KernelRegressor(**options).fit(x, y[:, 0], resume=tmp_path / str(epoch))
    np.testing.assert_array_equal(resumed.dual_coef_, whole.dual_coef_)
    assert resumed.best_loss_ == whole.best_loss_
    assert resumed.history_.epochs[-1].closing


def test_held_out_rows_are_trained_on_but_are_no_centres():
    x, y = waves(3000)
    options = FIXED | {"ridge": 0.5, "n_centers": 150}
    closed = KernelRegressor(**options).fit(x, y[:, 0])
    stay = KernelRegressor(**options, early_stopping=True).fit(x, y[:, 0])
    assert (closed.plan_.n_closing, stay.plan_.n_closing) == (300, 0)
    np.testing.assert_array_equal(closed.machine_.centres.rows, stay.machine_.centres.rows)
    assert closed.best_loss_ == stay.best_loss_
    z, offset = x[closed._training_rows], float(closed.machine_.units.offset)
    K = oracles.laplacian(x, z, 3.0)
    alpha = oracles.projected_solution(K, oracles.laplacian(z, z, 3.0), y - offset, 0.5)
    np.testing.assert_allclose(closed.predict(x), offset + (K @ alpha)[:, 0], atol=1e-4)
    assert np.abs(stay.predict(x) - closed.predict(x)).max() > 1e-2
    # Predictions of held-out rows are from before, and none of these rows is its own neighbour.
    np.testing.assert_array_equal(closed._calibration.near, stay._calibration.near)


def test_rows_of_the_user_that_judge_are_never_trained_on():
    x, y = waves(3000)
    given = {"X_val": x[2500:], "y_val": y[2500:, 0]}
    model = KernelRegressor(**FIXED, ridge=0.5, n_centers=150).fit(x[:2500], y[:2500, 0], **given)
    assert model.plan_.direct
    assert (model.plan_.n_closing, len(model.history_)) == (0, 1)


def test_report_and_plan_say_that_held_out_rows_were_added():
    x, y = waves(3000)
    model = KernelRegressor(**FIXED, ridge=0.5, n_centers=150).fit(x, y[:, 0])
    assert "held out to judge the solution, and trained on in the end" in str(model.plan_)
    assert "solved again, with the 300 held-out rows." in str(in_words(model, "data.csv", "y"))
    sentences = " ".join(headline(model, None).sentences)
    assert sentences.startswith("Measured on 300 held-out rows. After that, the model was trained")


def test_the_headline_counts_held_out_rows_whatever_the_centres_are():
    x, y = waves(3000)
    for changes in ({"ridge": 0.0, "n_centers": 150}, {"ridge": 0.5}):
        model = KernelRegressor(**FIXED | changes, early_stopping=True, max_iter=2).fit(x, y[:, 0])
        assert "Measured on 300 held-out rows, with" in headline(model, None).sentences[0]


def test_a_stream_is_solved_for_in_one_pass_with_the_bits_of_the_same_rows_in_memory():
    x, y = waves(3000)
    kernel, passes = Laplacian(bandwidth=3.0), []

    def rows():
        passes.append(1)
        return iter(np.split(x, 6))

    stream = RowStream(rows, 3000, np.array([5, 17]), 700, 0)
    like, order = torch.zeros((), dtype=torch.float64), stream.order
    streamed = StreamedPoints(stream, lambda part: kernel.points(torch.from_numpy(part)), like, 5)
    points = kernel.points(torch.from_numpy(x[order]))
    passes.clear()
    found = [
        assemble_with_centres(
            *(kernel, those, points[:200], torch.from_numpy(y[order]), EXACT, EXACT),
            nothing_levelled(points.squared_norms),
            Limits(10, 0.0, 3, 0.0),
            ridge=1.0,
        )
        .run()
        .alpha
        for those in (points, streamed)
    ]
    assert torch.equal(*found)
    assert len(passes) == 1
