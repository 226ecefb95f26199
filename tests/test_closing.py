"""Rows that were held out are trained on in the end, and what they said before stays what it was."""

from __future__ import annotations

import copy
import signal
from dataclasses import replace

import numpy as np
import oracles
import pytest
import torch
import torch.distributed as dist
from ranks import on_the_desk
from sklearn.exceptions import ConvergenceWarning

import mercer
from mercer import Callback, KernelClassifier, KernelRegressor, RowShare
from mercer.cli import main
from mercer.data.dealt_points import DealtPoints
from mercer.engine import HeldOutPart, Limits, Requests, Resource, assemble, choose
from mercer.files.container import read_file, write_file
from mercer.operators.fixed_point import FixedPoint
from mercer.planning.plan import Plan
from mercer.report.headline import headline
from mercer.report.learning import in_words
from mercer.training.closing import TrainingAndClosing
from mercer.training.guard import Guard
from mercer.training.loop import Watcher
from mercer.training.state import State

SETTINGS = {"kernel": "laplacian", "bandwidth": 3.0, "ridge": 0.3, "scale": False, "random_state": 0}
SETTINGS |= {"subsample_size": 200, "batch_size": 150}


def some_data(n=800, noise=0.3):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 4))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + noise * rng.normal(size=n)


def closing_epochs(model):
    return [epoch for epoch in model.history_.epochs if epoch.closing]


@pytest.fixture(scope="module", autouse=True)
def _same_device():
    """All fits plan for the device that ranks plan for."""
    device = Resource(capacity=2.7e8, memory=8 * 1024**3, full_rate_rows=256)
    measure = "mercer.preparation.settings.measure_resource"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(measure, lambda _, dtype: replace(device, element_size=dtype.itemsize))
        yield


@pytest.fixture(scope="module")
def both():
    """The same fit, with rows that are trained on in the end and with rows that stay held out."""
    X, y = some_data()
    closed = KernelRegressor(**SETTINGS).fit(X, y)
    return closed, KernelRegressor(**SETTINGS, early_stopping=True).fit(X, y)


# The solution


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_outputs", [1, 2])
def test_closing_epochs_lead_to_the_dense_solution_on_all_rows(weighted, n_outputs):
    X, y = some_data()
    Y = np.stack([y, X[:, 3]], 1)[:, :n_outputs]
    weight = np.linspace(1, 2, len(X)) if weighted else np.ones(len(X))
    exact = {"precision": "float64", "interpolation_tol": 1e-22, "n_iter_no_change": 1000}
    model = KernelRegressor(**SETTINGS, **exact, max_iter=1000)
    model.fit(X, Y.squeeze(), weight if weighted else None)
    assert closing_epochs(model)
    scale, offset = (part.numpy() for part in (model.machine_.units.scale, model.machine_.units.offset))
    K = oracles.laplacian(X, X, 3.0) + np.diag(0.3 / weight)
    expected = oracles.solution(K, (Y - offset) / scale) * scale
    np.testing.assert_allclose(model.dual_coef_, expected, atol=1e-8 * np.abs(expected).max())


def test_the_error_on_new_rows_falls(both):
    fresh = np.random.default_rng(1).normal(size=(4_000, 4))
    truth = np.sin(2 * fresh[:, 0]) + fresh[:, 1] * fresh[:, 2]
    closed, held_out = both
    assert closed.score(fresh, truth) > held_out.score(fresh, truth)


# What it costs


def counted(monkeypatch):
    """The kernel values that are evaluated from here on, in the first entry."""
    count, block = [0], mercer.Laplacian.block

    def counting(self, a, b, **options):
        count[0] += len(a) * len(b)
        return block(self, a, b, **options)

    monkeypatch.setattr(mercer.Laplacian, "block", counting)
    return count


N, HELD_OUT, S = 900, 200, 150
LONG = {"interpolation_tol": 1e-9, "n_iter_no_change": 1000}  # many epochs


def a_run(desk, kept_memory, kept_as=None, **limits):
    X, y = (torch.from_numpy(part).float() for part in some_data(N + HELD_OUT))
    kernel, y = mercer.Laplacian(3.0), y[:, None]
    points = kernel.points(X)
    requests = Requests(subsample_size=S, batch_size=50)
    plan, levelled = choose(kernel, points[:N], 1, desk, 0.3, requests, HELD_OUT, n_closing=HELD_OUT)
    part = HeldOutPart(points[N:], y[N:])
    # The loss of so few held-out rows changes by more than a hundredth from epoch to epoch.
    limits = {"max_iter": 50, "interpolation_tol": 1e-4, "n_iter_no_change": 3, "tol": 0.05, **limits}
    ends = Limits(**limits)
    return assemble(
        *(kernel, points, y, plan.step, levelled, ends),
        kept_memory=kept_memory,
        kept_as=kept_as,
        rows_at_once=100,
        held_out=part,
        n_closing=HELD_OUT,
    )


def test_where_values_are_kept_only_those_of_the_new_rows_are_evaluated_and_once(desk, monkeypatch):
    run = a_run(desk, 1e9)
    count, begun = counted(monkeypatch), []
    close = TrainingAndClosing._close
    monkeypatch.setattr(
        TrainingAndClosing, "_close", lambda *given: begun.append(count[0]) or close(*given)
    )
    outcome = run.run()
    assert outcome.closed
    assert len([epoch for epoch in outcome.history.epochs if epoch.closing]) >= 3
    new = [panel for panel in run.schedule.panels if panel.start >= N]
    assert (
        count[0] - begun[0] == sum(len(panel) * panel.stop for panel in new) < HELD_OUT * (N + HELD_OUT)
    )


def test_where_nothing_is_kept_closing_epochs_are_at_most_a_third_of_the_others(desk, monkeypatch):
    run = a_run(desk, 0.0, **LONG)
    count, begun = counted(monkeypatch), []
    close = TrainingAndClosing._close
    monkeypatch.setattr(
        TrainingAndClosing, "_close", lambda *given: begun.append(count[0]) or close(*given)
    )
    outcome = run.run()
    n_closing = sum(epoch.closing for epoch in outcome.history.epochs)
    assert outcome.closed
    assert 3 <= n_closing <= (len(outcome.history) - n_closing) / 3
    assert count[0] - begun[0] <= n_closing * (N + HELD_OUT) ** 2


def test_what_is_kept_does_not_matter(desk):
    """All values, some of them, or none: the epochs are the same, but for how many closing ones."""
    runs = [a_run(desk, memory, **LONG) for memory in (1e9, 2e6, 0.0)]
    found = [run.run() for run in runs]
    assert all(outcome.closed for outcome in found)
    n_epochs = min(len(outcome.history) for outcome in found)
    for outcome in found[1:]:
        for a, b in zip(outcome.history.epochs[:n_epochs], found[0].history.epochs, strict=False):
            assert a.train_loss == pytest.approx(b.train_loss, rel=1e-4)


# What stays as it was


def test_what_held_out_rows_said_is_that_of_the_model_that_had_not_seen_them(both):
    closed, held_out = both
    assert closed.best_loss_ == held_out.best_loss_
    assert closed.best_epoch_ == held_out.best_epoch_
    before = [replace(epoch, seconds=0.0) for epoch in closed.history_.epochs if not epoch.closing]
    assert before == [replace(epoch, seconds=0.0) for epoch in held_out.history_.epochs]
    np.testing.assert_array_equal(closed._calibration.scores, held_out._calibration.scores)
    assert closed._calibration.source == "held out"
    for epoch in closing_epochs(closed):
        assert epoch.validation_loss is None
        assert epoch.validation_score is None
    assert (held_out.dual_coef_ == 0).sum() == 80
    assert (closed.dual_coef_ != 0).all()


def test_probabilities_are_calibrated_on_predictions_from_before():
    X, y = some_data()
    labels = np.digitize(y, [-0.5, 0.5])
    closed = KernelClassifier(**SETTINGS).fit(X, labels)
    held_out = KernelClassifier(**SETTINGS, early_stopping=True).fit(X, labels)
    assert closing_epochs(closed)
    assert closed.logit_scale_ == held_out.logit_scale_
    np.testing.assert_array_equal(closed._calibration.scores, held_out._calibration.scores)


def test_a_held_out_row_is_not_its_own_neighbour(both):
    """Otherwise ordinary rows would seem far from the training data."""
    closed, _ = both
    assert (closed._calibration.near < 1).all()
    fresh = np.random.default_rng(1).normal(size=(1_000, 4))
    assert closed.is_far(fresh, 0.1).mean() < 0.2


@pytest.mark.parametrize(
    "given",
    [
        {"early_stopping": True},
        {"ridge": 0.0},
        {"warm_start": True},
        {"n_centers": 300},
        {"max_iter": 1},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_held_out_rows_stay_held_out(given):
    X, y = some_data()
    model = KernelRegressor(**{**SETTINGS, **given}).fit(X, y)
    assert not closing_epochs(model)
    assert model.plan_.n_closing == 0
    assert len(model.machine_.alpha) == given.get("n_centers", 720)


def test_held_out_rows_of_the_user_are_never_trained_on():
    X, y = some_data()
    model = KernelRegressor(**SETTINGS).fit(X[:700], y[:700], X_val=X[700:], y_val=y[700:])
    assert not closing_epochs(model)
    assert len(model.dual_coef_) == 700


def test_where_more_epochs_did_harm_there_are_no_closing_ones():
    X, y = some_data(noise=3.0)
    model = KernelRegressor(**{**SETTINGS, "ridge": 1e-6, "kernel": "gaussian", "bandwidth": 1.0}).fit(
        X, y
    )
    last = model.history_[-1].validation_loss
    assert last > 1.01 * model.best_loss_
    assert not closing_epochs(model)


# Ended, failed, interrupted and resumed


N_BEFORE = 8  # epochs that are not closing ones, here
N_PANELS = 3  # of an epoch: the new rows, the subsample, the others


class End(Callback):
    """End training after so many panels, or epochs, of closing; save a checkpoint if there is a path."""

    def __init__(self, panels=None, epochs=None, path=None, n_before=N_BEFORE):
        self.panels, self.epochs, self.path, self.n_before = panels, epochs, path, n_before

    def on_fit_begin(self, plan):
        self.seen = 0

    def on_panel_end(self, run):
        self.seen += len(run.history) >= self.n_before
        if self.seen != self.panels:
            return None
        if self.path is not None:
            run.save_checkpoint(self.path)
        return "enough"

    def on_epoch_end(self, run):
        return "enough" if sum(e.closing for e in run.history.epochs) == self.epochs else None


def test_these_numbers_are_right(both):
    assert len(both[1].history_) == N_BEFORE
    assert len(both[0].history_) == N_BEFORE + 3


@pytest.mark.parametrize("end", [{"panels": 1}, {"panels": N_PANELS + 1}, {"epochs": 2}], ids=str)
def test_closing_that_is_ended_after_few_epochs_leaves_the_weights_before(both, end):
    model = KernelRegressor(**SETTINGS, callbacks=[End(**end)]).fit(*some_data())
    assert model.stop_reason_ == "enough"
    assert model.plan_.n_closing == 0
    np.testing.assert_array_equal(model.dual_coef_, both[1].dual_coef_)


def test_closing_that_is_ended_later_has_the_weights_of_the_last_whole_epoch():
    settings = {**SETTINGS, "n_iter_no_change": 6}  # four closing epochs
    ends = ({"epochs": 3}, {"panels": 3 * N_PANELS + 1, "n_before": 11})
    whole, part = (KernelRegressor(**settings, callbacks=[End(**end)]).fit(*some_data()) for end in ends)
    assert part.stop_reason_ == whole.stop_reason_ == "enough"
    assert len(closing_epochs(part)) == 3
    assert part.plan_.n_closing == 80
    np.testing.assert_array_equal(part.dual_coef_, whole.dual_coef_)


@pytest.mark.parametrize("panels", [1, 2, N_PANELS + 2])
@pytest.mark.parametrize("given", [{}, {"precision": "float64"}, {"memory_limit": "60MB"}], ids=str)
def test_a_run_resumed_within_closing_epochs_ends_with_the_same_bits(given, panels, tmp_path):
    settings, path = {**SETTINGS, **given}, tmp_path / "run"
    X, y = some_data()
    weight = np.linspace(1, 2, len(X))
    whole = KernelRegressor(**settings).fit(X, y, weight)
    n_before = len(whole.history_) - len(closing_epochs(whole))
    KernelRegressor(**settings, callbacks=[End(panels, None, path, n_before)]).fit(X, y, weight)
    resumed = KernelRegressor(**settings).fit(X, y, weight, resume=path)
    assert closing_epochs(resumed)
    np.testing.assert_array_equal(resumed.dual_coef_, whole.dual_coef_)
    assert resumed.stop_reason_ == whole.stop_reason_
    assert resumed.best_loss_ == whole.best_loss_
    np.testing.assert_array_equal(resumed._calibration.scores, whole._calibration.scores)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"first": 99}, "closing epochs must follow others"),
        ({"most": 0}, "closing epochs must follow others"),
        ({"level": -1.0}, "residuals of closing epochs must not be negative"),
        ("best", "it must have best, best_predictions"),
        ("n_closing", "closing epochs must train on the rows held out"),
    ],
)
def test_a_checkpoint_with_impossible_closing_epochs_is_refused(tmp_path, change, message):
    path = tmp_path / "run"
    KernelRegressor(**SETTINGS, callbacks=[End(2, path=path)]).fit(*some_data())
    tensors, data = read_file(path, "checkpoint")
    if change == "best":
        del tensors["training.best"], tensors["training.best_predictions"]
    elif change == "n_closing":
        data["plan"]["n_closing"] = 7
    else:
        data["training"]["closing"] |= change
    write_file(path, "checkpoint", tensors, data)
    with pytest.raises(ValueError, match=message):
        KernelRegressor(**SETTINGS).fit(*some_data(), resume=path)


class Look(Callback):
    """Uses the model as it is after each epoch; presses Ctrl-C in the last."""

    def __init__(self):
        self.scores = []

    def on_epoch_end(self, run):
        X, y = some_data()
        self.scores.append(run.model.score(X, y))
        assert run.model.dual_coef_.shape == (800, 1)

    def on_panel_end(self, run):
        if len(run.history) == N_BEFORE + 2 and not run.interrupted:
            signal.raise_signal(signal.SIGINT)


def test_callbacks_see_closing_models_and_ctrl_c_ends_them(both):
    look = Look()
    with pytest.warns(ConvergenceWarning, match="interrupted from the keyboard after 10 whole epochs"):
        model = KernelRegressor(**SETTINGS, callbacks=[look]).fit(*some_data())
    assert len(look.scores) == N_BEFORE + 2
    assert min(look.scores[N_BEFORE:]) > 0.9
    np.testing.assert_array_equal(model.dual_coef_, both[1].dual_coef_)


def test_values_in_16_bits_are_refined_and_resumed(desk):
    """Closing epochs that go on until the residual is far below the error of kept values."""
    run = a_run(desk, 1e9, FixedPoint(0.0, 1.0), **LONG)
    states: list[State] = []
    whole = run.run(Keep(states))
    assert whole.closed
    refined = [i for i, state in enumerate(states) if state.refined is not None]
    assert refined
    K = oracles.laplacian(*(2 * [some_data(N + HELD_OUT)[0]]), 3.0) + 0.3 * np.eye(N + HELD_OUT)
    expected = oracles.solution(K, some_data(N + HELD_OUT)[1][:, None])
    np.testing.assert_allclose(whole.alpha.numpy(), expected, atol=1e-3 * np.abs(expected).max())
    for i in (refined[0], len(states) - 2):
        again = a_run(desk, 1e9, FixedPoint(0.0, 1.0), **LONG)
        again.resume(states[i])
        np.testing.assert_array_equal(again.run().alpha, whole.alpha)


class Keep(Watcher):
    """Keeps the states after panels of closing epochs."""

    def __init__(self, states):
        self.states = states

    def on_panel(self, training):
        if training.state.progress.closing is not None:
            self.states.append(copy.deepcopy(training.state))


def test_closing_that_fails_leaves_the_weights_before(both, monkeypatch):
    X, y = some_data()
    diverged = Guard.epoch_diverged
    monkeypatch.setattr(
        Guard,
        "epoch_diverged",
        lambda self, state: state.progress.closing is not None or diverged(self, state),
    )
    model = KernelRegressor(**SETTINGS).fit(X, y)
    assert model.plan_.n_closing == 0
    assert model.stop_reason_ == both[1].stop_reason_
    np.testing.assert_array_equal(model.dual_coef_, both[1].dual_coef_)


# What uses all rows


def test_files_and_explanations_have_all_rows(both, tmp_path):
    closed, held_out = both
    X, _ = some_data()
    closed.save(tmp_path / "model.mercer")
    loaded = mercer.load(tmp_path / "model.mercer")
    np.testing.assert_array_equal(loaded.predict(X), closed.predict(X))
    assert loaded.plan_.n_closing == 80
    assert [e.closing for e in loaded.history_.epochs] == [e.closing for e in closed.history_.epochs]
    rows = np.flatnonzero(held_out.dual_coef_[:, 0] == 0)
    np.testing.assert_array_equal(loaded.explain(X[rows], n_rows=1).nearest[:, 0], rows)


def test_rows_with_values_that_only_they_have_are_trained_on(tmp_path):
    X, y = some_data()
    X[:, 3] = np.arange(len(X)) % 3
    kept = KernelRegressor(**SETTINGS, early_stopping=True).fit(X, y)
    X[np.flatnonzero(kept.dual_coef_[:, 0] == 0)[:2], 3] = [7, 8]  # categories of one held-out row each
    model = KernelRegressor(**SETTINGS, categorical_features=[3]).fit(X, y)
    assert closing_epochs(model)
    assert (model.dual_coef_ != 0).all()
    assert model.score(X, y) > 0.9
    model.save(tmp_path / "model.mercer")
    np.testing.assert_array_equal(mercer.load(tmp_path / "model.mercer").predict(X), model.predict(X))


def test_bytes_that_only_held_out_rows_have_are_trained_on(tmp_path, on_byte_desk):
    rng = np.random.default_rng(0)
    t = rng.uniform(size=(800, 2))
    X = (127 + 127 * np.sin(3 * t @ rng.normal(size=(2, 80)))).astype(np.uint8)
    X[:, 0], y = 0, np.sin(6 * t[:, 0]) + t[:, 1]
    settings = {**SETTINGS, "bandwidth": 500.0}
    kept = KernelRegressor(**settings, early_stopping=True).fit(X, y)
    X[np.flatnonzero(kept.dual_coef_[:, 0] == 0)[:2], 0] = 9
    model = KernelRegressor(**settings).fit(X, y)
    assert model.machine_.centres.is_bytes
    assert closing_epochs(model)
    model.save(tmp_path / "model.mercer")
    np.testing.assert_array_equal(mercer.load(tmp_path / "model.mercer").predict(X), model.predict(X))


# Several ranks


def fitted_on_ranks(shared):
    """On a rank: the weights, and what the model says of new rows."""
    on_the_desk()
    X, y = some_data(2_600)
    model = KernelRegressor(**{**SETTINGS, "subsample_size": 300, "validation_fraction": 0.5})
    size, rank = (dist.get_world_size(), dist.get_rank()) if shared else (1, 0)
    own = np.array_split(np.arange(len(X)), size)[rank]
    model.fit(RowShare(X[own]) if shared else X, y[own] if shared else y)
    assert isinstance(model.machine_.centres, DealtPoints) == (shared and size > 1)
    far = model.is_far(X[:50], 0.1)
    return model.dual_coef_, len(closing_epochs(model)), model.predict(X[:50]), far


@pytest.mark.parametrize("shared", [False, True])
def test_one_two_and_three_ranks_have_the_same_bits(pool, shared):
    (weights, n_closing, predicted, far), *_ = pool.run(1, fitted_on_ranks, False)
    assert n_closing >= 3
    assert (weights != 0).all()
    for size in (2, 3):
        for found in pool.run(size, fitted_on_ranks, shared):
            np.testing.assert_array_equal(found[0], weights)
            assert found[1] == n_closing
            np.testing.assert_allclose(found[2], predicted, atol=1e-5)
            np.testing.assert_array_equal(found[3], far)


def ended_on_ranks(epochs):
    on_the_desk()
    X, y = some_data(2_600)
    model = KernelRegressor(**{**SETTINGS, "subsample_size": 300}, callbacks=[End(epochs=epochs)])
    own = np.array_split(np.arange(len(X)), dist.get_world_size())[dist.get_rank()]
    model.fit(RowShare(X[own]), y[own])
    return model.dual_coef_, model.predict(X[:9]), len(model.machine_.centres)


def test_points_of_rows_that_stay_held_out_are_no_centres_of_any_rank(pool):
    for weights, predicted, n_centres in pool.run(2, ended_on_ranks, 1):
        assert n_centres == (weights[:, 0] != 0).sum() == 2_340
        assert np.isfinite(predicted).all()


# What people see


def test_progress_report_and_plan_say_that_rows_were_added(both, capsys):
    X, y = some_data()
    model = KernelRegressor(**SETTINGS, verbose=1).fit(X, y)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("epoch")]
    assert [("on all rows" in line) for line in lines] == [False] * N_BEFORE + [True] * 3
    assert [("held-out loss" in line) for line in lines] == [True] * N_BEFORE + [False] * 3
    assert "held out" in {name: text for name, text, _ in model.plan_.rows()}
    assert "closing" in model.history_._repr_html_()
    assert "closing" not in both[1].history_._repr_html_()
    text = str(in_words(model, "data.csv", "y"))
    assert "training went on with the 80 held-out rows as well." in text
    sentences = " ".join(headline(model, None).sentences)
    assert "Measured on 80 held-out rows" in sentences
    assert "After that, the model was trained on these rows as well" in sentences


def test_a_plan_counts_rows_that_may_be_added():
    plan = KernelRegressor(**SETTINGS).plan(*some_data())
    assert (plan.n, plan.n_held_out, plan.n_closing) == (720, 80, 80)
    assert Plan.from_json(plan.to_json()) == plan


def test_a_refitted_model_has_all_rows_of_the_table(tmp_path):
    X, y = some_data()
    table, path = tmp_path / "table.csv", str(tmp_path / "model.mercer")
    np.savetxt(table, np.column_stack([X, y]), delimiter=",", header="a,b,c,d,y", comments="")
    options = ["--kernel", "laplacian", "--bandwidth", "3", "--ridge", "0.3", "--no-metric", "-q"]
    assert main(["fit", str(table), "--target", "y", "-o", path, *options, "--refit"]) == 0
    model = mercer.load(path)
    assert sorted(model._training_rows) == list(range(len(X)))
    assert closing_epochs(model)
