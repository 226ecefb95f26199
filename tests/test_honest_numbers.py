"""No wrong number without a word: offsets, scales, duplicates, noise, far inputs, other threads."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from joblib import Parallel, delayed
from oracles import solution
from sklearn.datasets import load_iris, load_wine, make_circles
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import r2_score

import mercer
from mercer import (
    Callback,
    Custom,
    Gaussian,
    KernelClassifier,
    KernelRegressor,
    Laplacian,
    NeuralTangent,
)
from mercer.engine import Data, Limits, SettingRequest, Settings, prepare
from mercer.operators.workers import threads as threads_of_a_fit
from mercer.training.coarseness import kernel_rounding
from mercer.training.guard import DivergenceError
from mercer.training.stopping import INTERPOLATED, NOTHING_LEARNED, SOLVED, STALLED


@pytest.fixture
def sine(rng):
    X = rng.uniform(0, 6, size=(300, 1))
    return X, np.sin(X[:, 0])


@pytest.mark.parametrize("offset", [1e7, 1e8, -1e10])
def test_a_large_mean_of_the_targets_takes_no_digits_from_them(sine, offset):
    X, y = sine
    assert KernelRegressor(random_state=0).fit(X, offset + y).score(X, offset + y) > 0.999
    model = KernelRegressor("laplacian", bandwidth=2.0, ridge=0.1, random_state=0)
    shifted = model.fit(X, offset + y).predict(X)
    np.testing.assert_allclose(shifted - offset, model.fit(X, y).predict(X), atol=1e-5)


@pytest.mark.parametrize("factor", [1e-30, 1e-8, 1e8, 1e60])
def test_the_unit_of_the_targets_does_not_matter(sine, factor):
    X, y = sine
    assert KernelRegressor(random_state=0).fit(X, factor * y).score(X, factor * y) > 0.999
    model = KernelRegressor("laplacian", bandwidth=2.0, ridge=0.1, random_state=0).fit(X, factor * y)
    plain = KernelRegressor("laplacian", bandwidth=2.0, ridge=0.1, random_state=0).fit(X, y)
    np.testing.assert_allclose(model.predict(X) / factor, plain.predict(X), atol=1e-5)
    assert model.history_[0].train_loss == pytest.approx(
        factor**2 * plain.history_[0].train_loss, rel=1e-3
    )


@pytest.mark.parametrize("settings", [{}, {"kernel": "gaussian", "bandwidth": 1.0, "ridge": 0.0}])
@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_an_output_is_not_drowned_by_noise_of_larger_spread(rng, tmp_path, settings, unit):
    X, X_new = rng.uniform(-3, 3, size=(800, 1)), np.linspace(-3, 3, 200)[:, None]
    Y = np.column_stack([np.sin(X[:, 0]), unit * rng.normal(size=800)])
    model = KernelRegressor(**settings, early_stopping=True, random_state=0).fit(X, Y)
    assert model.best_epoch_ > 0
    predicted = model.predict(X_new)
    assert r2_score(np.sin(X_new[:, 0]), predicted[:, 0]) > 0.95
    assert 0 < model.best_loss_ < 1  # 1 - R², averaged
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(mercer.load(tmp_path / "model").predict(X_new), predicted)
    same = model.to_torch()(torch.from_numpy(X_new)).numpy()
    np.testing.assert_allclose(same / [1, unit], predicted / [1, unit], atol=1e-2)


def test_an_output_that_varies_only_in_held_out_rows_changes_nothing_else(rng):
    X, X_val = rng.uniform(-3, 3, size=(300, 1)), rng.uniform(-3, 3, size=(100, 1))
    Y, Y_val = (np.column_stack([np.sin(x), np.cos(x), np.zeros(len(x))]) for x in (X, X_val))
    model = KernelRegressor("laplacian", bandwidth=1.0, ridge=0.1, random_state=0)
    expected = model.fit(X, Y, X_val=X_val, y_val=Y_val).predict(X)
    best = model.best_epoch_, model.best_loss_
    Y_val[0, 2] = 1e12
    np.testing.assert_array_equal(model.fit(X, Y, X_val=X_val, y_val=Y_val).predict(X), expected)
    assert (model.best_epoch_, model.best_loss_) == best


def test_targets_too_large_for_a_squared_error_are_refused(sine):
    X, y = sine
    with pytest.raises(ValueError, match="between -1e\\+150 and 1e\\+150"):
        KernelRegressor().fit(X, 1e200 * y)


def test_weights_are_in_the_units_of_the_targets(sine):
    X, y = sine
    model = KernelRegressor(
        "laplacian", bandwidth=1.0, ridge=0.1, interpolation_tol=1e-12, precision="float64"
    )
    model.fit(X, 1000 * y + 5)
    K = Laplacian(1.0)(torch.from_numpy(X), torch.from_numpy(X)).numpy()
    target = 1000 * y + 5
    expected = solution(K + 0.1 * np.eye(len(X)), (target - target.mean())[:, None])
    np.testing.assert_allclose(model.dual_coef_, expected, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("copies", [2, 3])
@pytest.mark.parametrize("load", [load_iris, load_wine])
def test_equal_rows_converge_as_fast_as_distinct_ones(load, copies):
    X, y = load(return_X_y=True)
    settings = {"kernel": "laplacian", "ridge": 0.0, "metric": False, "random_state": 0}
    once, repeated = KernelClassifier(**settings).fit(X, y), KernelClassifier(**settings)
    repeated.fit(np.repeat(X, copies, axis=0), np.repeat(y, copies))
    assert repeated.converged_
    assert repeated.n_iter_ <= 2 * once.n_iter_
    assert repeated.score(X, y) == once.score(X, y)


def test_a_model_is_never_worse_than_the_mean_on_the_held_out_part():
    X, y = make_circles(800, noise=0.1, random_state=0)
    for bandwidth in (0.01, 30.0):
        model = KernelClassifier(
            "gaussian", bandwidth=bandwidth, ridge=0.0, precision="float64", random_state=0
        )
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            model.fit(X, y)
        assert model.best_loss_ <= 1 + 1e-6  # of the mean, for balanced classes of -1 and 1
        if model.stop_reason_ == NOTHING_LEARNED:
            assert any("predicts the mean" in str(w.message) for w in said)


@pytest.mark.parametrize("early_stopping", [True, False])
def test_noise_that_cannot_be_predicted_gives_the_mean_and_a_warning(rng, early_stopping):
    X, y = rng.normal(size=(400, 3)), rng.normal(size=400)
    model = KernelRegressor(
        "gaussian",
        bandwidth=100.0,
        ridge=0.0,
        max_iter=3,
        early_stopping=early_stopping,
        random_state=0,
    )
    if early_stopping:
        with pytest.warns(ConvergenceWarning, match="predicts the mean of the targets"):
            model.fit(X, y)
        assert not model.converged_
        np.testing.assert_allclose(model.predict(X), model.predict(X)[0])
        assert model.best_epoch_ == 0
    else:
        model.fit(X, y)
        assert np.mean((model.predict(X) - y) ** 2) <= y.var() * (1 + 1e-6)


def test_constant_targets_are_no_failure(rng):
    X = rng.normal(size=(600, 3))
    model = KernelRegressor("laplacian", bandwidth=1.0, ridge=0.0, random_state=0)
    model.fit(X, np.full(600, 3.25))
    assert model.converged_
    np.testing.assert_array_equal(model.predict(X), 3.25)


def test_with_a_ridge_the_training_loss_is_the_error_and_the_reason_says_so(sine):
    X, y = sine
    noisy = y + 0.5 * np.random.default_rng(0).normal(size=len(y))
    model = KernelRegressor("laplacian", bandwidth=1.0, ridge=1.0, early_stopping=False, random_state=0)
    model.fit(X, noisy)
    assert model.converged_
    assert model.stop_reason_ == SOLVED
    error = np.mean((model.predict(X) - noisy) ** 2)
    assert model.history_[-1].train_loss == pytest.approx(error, rel=0.02)
    assert error > 0.1 * noisy.var()


def test_a_stall_is_not_called_the_limit_of_the_precision(rng):
    X = rng.uniform(0, 1, size=(300, 2))
    y = np.sin(40 * X[:, 0]) * np.cos(30 * X[:, 1])
    model = KernelRegressor(
        "gaussian",
        bandwidth=0.3,
        ridge=0.0,
        precision="float64",
        interpolation_tol=1e-14,
        max_iter=200,
        random_state=0,
    )
    model.fit(X, y)
    assert "limit of float64" not in model.stop_reason_
    assert model.converged_ == (model.stop_reason_ == INTERPOLATED)
    if model.stop_reason_ == STALLED:
        assert model.history_[-1].train_loss > 0


@pytest.fixture
def steep(rng):
    """Weights much larger than the targets: a smooth kernel that interpolates."""
    X = rng.normal(size=(700, 3)).astype(np.float32)
    return X, 1e5 * (np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2]) + 2e5


def test_a_prediction_does_not_depend_on_its_company(steep):
    X, y = steep
    model = KernelRegressor("gaussian", bandwidth=2.0, ridge=0.0, random_state=0, max_iter=20)
    model.fit(X, y)
    assert np.abs(model.dual_coef_).max() > 10 * y.std()
    assert model.machine_.in_double
    whole = model.predict(X)
    allowed = 1e-5 * y.std()
    alone = np.concatenate([model.predict(X[i : i + 1]) for i in range(40)])
    assert np.abs(alone - whole[:40]).max() < allowed
    assert np.abs(model.predict(X[100:]) - whole[100:]).max() < allowed
    assert np.abs(model.predict(X.astype(np.float64)) - whole).max() < allowed
    model.n_jobs = 1
    assert np.abs(model.predict(X) - whole).max() < allowed


def test_a_model_whose_sums_do_not_cancel_stays_in_float32(rng):
    X = rng.normal(size=(400, 20))
    model = KernelRegressor("laplacian", bandwidth=1.0, ridge=1.0, random_state=0).fit(X, X[:, 0])
    assert not model.machine_.in_double


@pytest.mark.parametrize("kernel", ["laplacian", "gaussian", "cauchy", "matern32", "matern52"])
@pytest.mark.parametrize("size", [1e10, 1e20, 1e38])
def test_inputs_far_from_all_data_get_the_limit_of_the_function(sine, kernel, size):
    X, y = sine
    model = KernelRegressor(kernel, random_state=0).fit(X, y + 7)
    far = model.predict(np.array([[size], [-size]]))
    np.testing.assert_allclose(far, np.mean(y[model._training_rows] + 7), atol=1e-4)


def test_an_input_whose_prediction_is_not_finite_is_refused_by_row(sine):
    X, y = sine
    model = KernelRegressor("neural_tangent", random_state=0).fit(X, y)
    with pytest.raises(ValueError, match="Row 1 of X"):
        model.predict(np.array([[0.5], [1e200], [0.1]]))


FAULTY = {
    "symmetric": lambda a, b: torch.exp(-torch.cdist(a, b)) * (1 + a.sum(1, keepdim=True).sigmoid()),
    "positive semi-definite": lambda a, b: 1 - 0.5 * torch.cdist(a, b) ** 2 / 4 + 0 * a[:, :1],
    "another block": lambda a, b: torch.exp(-torch.cdist(a, b) / (1 + torch.cdist(a, b).mean())),
}


@pytest.mark.parametrize("fault", FAULTY)
def test_a_function_that_is_no_kernel_is_said_to_be_none(rng, fault):
    X = rng.normal(size=(200, 3))
    model = KernelRegressor(FAULTY[fault], ridge=1.0, random_state=0, max_iter=2)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            model.fit(X, X[:, 0])
        except (ArithmeticError, ValueError):
            pytest.fail("the warning must come with a model")
    assert any(fault in str(w.message) for w in said)


def test_a_sound_function_of_ones_own_gets_no_warning(rng):
    X = rng.normal(size=(200, 3))
    model = KernelRegressor(lambda a, b: torch.exp(-torch.cdist(a, b)), ridge=0.1, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, X[:, 0])


def test_probabilities_are_never_0_or_1_even_if_one_class_is_held_out(rng):
    X = np.concatenate([rng.normal(size=(300, 2)), rng.normal(size=(300, 2)) + 20])
    y = np.repeat([0, 1], 300)
    model = KernelClassifier(random_state=0).fit(X, y, X_val=X[:50], y_val=y[:50])
    p = model.predict_proba(X)
    assert (p > 1e-9).all()
    assert (p < 1).all()
    np.testing.assert_allclose(p.sum(1), 1)
    assert (p.argmax(1) == y).all()


class Crash:
    """A callback that raises."""

    def __init__(self, when):
        self.when = when

    def __getattr__(self, name):
        def method(*args):
            if name == self.when:
                raise MemoryError("no memory")

        if not name.startswith("on_"):
            raise AttributeError(name)
        return method


@pytest.mark.parametrize("when", ["on_stage", "on_fit_begin", "on_panel_end", "on_epoch_end"])
def test_a_refit_that_fails_leaves_the_old_model_whole(rng, when):
    X = rng.normal(size=(120, 3))
    y = np.where(X[:, 0] > 0, "cat", "dog")
    model = KernelClassifier(random_state=0).fit(X, y)
    before, answers = copy.copy(vars(model)), model.predict_proba(X)
    model.callbacks = [Crash(when)]
    with pytest.raises(MemoryError):
        model.fit(X[:, :2], np.arange(120) % 3)
    model.callbacks = before["callbacks"]
    assert vars(model) == before
    np.testing.assert_array_equal(model.predict_proba(X), answers)
    assert set(model.predict(X)) == {"cat", "dog"}


def test_a_plan_touches_nothing(rng):
    X = rng.normal(size=(120, 3))
    draws = np.random.RandomState(0)
    model = KernelClassifier(random_state=draws).fit(X, np.where(X[:, 0] > 0, "cat", "dog"))
    before, state = copy.copy(vars(model)), draws.get_state()[1].copy()
    model.plan(X[:, :2], np.arange(120) % 3)
    assert vars(model) == before
    np.testing.assert_array_equal(draws.get_state()[1], state)


@pytest.mark.parametrize(
    ("n", "settings"),
    [
        (2_600, {"kernel": "laplacian", "bandwidth": 3.0, "ridge": 0.01}),  # by descent
        (900, {"kernel": "gaussian"}),  # chosen and solved
        pytest.param(2_600, {"kernel": "laplacian"}, marks=pytest.mark.slow),
        pytest.param(2_600, {"kernel": "gaussian"}, marks=pytest.mark.slow),
    ],
)
def test_threads_change_no_bit_of_the_weights_or_predictions(rng, n, settings):
    X = rng.normal(size=(n, 5))
    y = np.sin(X).sum(1)
    models = [
        KernelRegressor(**settings, random_state=0, max_iter=3, n_jobs=n_jobs).fit(X, y)
        for n_jobs in (1, 2, 3)
    ]
    for other in models[1:]:
        assert other.plan_.batch_size == models[0].plan_.batch_size
        np.testing.assert_array_equal(other.dual_coef_, models[0].dual_coef_)
        np.testing.assert_array_equal(other.predict(X), models[0].predict(X))


def test_a_process_forked_after_a_fit_on_two_threads_can_predict_and_fit(tmp_path):
    script = """
import os, signal, warnings
import numpy as np
from mercer import KernelRegressor
warnings.simplefilter("ignore")
X = np.random.default_rng(0).normal(size=(600, 3))
model = KernelRegressor(random_state=0, max_iter=2, n_jobs=2).fit(X, X[:, 0])
expected = model.predict(X)
if os.fork() == 0:
    signal.alarm(60)  # ends a child that hangs
    again = KernelRegressor(random_state=0, max_iter=2, n_jobs=2).fit(X, X[:, 0])
    same = np.array_equal(model.predict(X), expected) and np.array_equal(again.predict(X), expected)
    os._exit(0 if same else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path)


def test_processes_of_a_pool_take_no_more_threads_than_they_were_given():
    threads = Parallel(n_jobs=2)(delayed(_threads_within)(2) for _ in range(2))
    assert threads == [1, 1]


def _threads_within(n_jobs):
    with threads_of_a_fit(n_jobs):
        return torch.get_num_threads()


@pytest.mark.parametrize("offset", [1e4, 1e8])
@pytest.mark.filterwarnings("ignore:No kernel, bandwidth and ridge")
def test_rows_that_float32_cannot_tell_apart_are_trained_on_in_float64(rng, offset):
    """Kernel values of rows far from 0 differ by less than float32 shows."""
    X = rng.normal(size=(300, 2))
    model = KernelRegressor("neural_tangent", max_iter=20, early_stopping=False, random_state=0)
    model.set_params(batch_size=300)  # by descent
    with pytest.warns(UserWarning, match="float32 is too coarse here: training was run in float64"):
        model.fit(offset + X, X[:, 0])
    assert model.plan_.precision == "float64"
    if offset == 1e4:
        assert model.score(offset + X, X[:, 0]) > 0.9


def test_a_model_is_in_float32_where_that_is_too_coarse_and_float64_diverges(rng):
    class Diverges(Callback):
        def on_epoch_end(self, run):
            if run.plan.precision == "float64":
                raise DivergenceError("at every step size")

    X = 1e8 + rng.normal(size=(50, 2))
    model = KernelRegressor("neural_tangent", bandwidth=1.0, ridge=0.1, max_iter=2, random_state=0)
    model.set_params(callbacks=[Diverges()])
    with pytest.warns(UserWarning, match="float32 is too coarse here, and training diverged in float64"):
        model.fit(X, X[:, 0] - 1e8)
    assert model.plan_.precision == "float32"
    assert np.isfinite(model.predict(X)).all()


@pytest.mark.parametrize(
    ("kernel", "offset", "low", "high"),
    [
        (NeuralTangent(1.0), 0.0, 0.0, 1e-5),
        (NeuralTangent(1.0), 1e3, 0.01, 1.0),
        (NeuralTangent(1.0), 1e8, 0.9, np.inf),
        (Laplacian(1.0), 1e8, 0.0, 1e-5),  # centred before it is rounded
        (Gaussian(1e5), 0.0, 0.9, np.inf),  # all values are 1 in float32
        (Custom(lambda a, b: a @ b.T), 1e8, 0.0, 0.0),
    ],
)
def test_rounding_of_kernel_values_is_measured_by_their_variation(rng, desk, kernel, offset, low, high):
    X = offset + rng.normal(size=(100, 2))
    data = Data(X, X[:, :1] - offset, np.arange(100))
    for dtype, smallest, largest in ((torch.float32, low, high), (torch.float64, 0.0, 0.0)):
        settings = Settings(
            Limits(1, 0.0, 1, 0.0), SettingRequest(kernel, ridge=0.1), dtype=dtype, resource=desk
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            machine = prepare(data, settings).machine
        assert smallest <= kernel_rounding(machine, data) <= largest


@pytest.mark.parametrize("p", [1, 2, 20, 63])
@pytest.mark.parametrize("own", [False, True])
def test_rounding_is_measured_on_the_centres_where_there_are_few(rng, desk, p, own):
    """The values in float64 must be those of the same rows."""
    X = rng.normal(size=(3_000, 2))
    centres = rng.normal(size=(p, 2)) if own else None
    data = Data(X, X[:, :1], np.arange(3_000)[::-1].copy(), centers=centres)
    for kernel, low, high in ((Laplacian(1.0), 0.0, 1e-5), (Gaussian(1e5), 0.9, np.inf)):
        settings = Settings(
            Limits(1, 0.0, 1, 0.0), SettingRequest(kernel, ridge=0.1), resource=desk, n_centers=p
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            machine = prepare(data, settings).machine
        assert len(machine.centres) == p
        found = kernel_rounding(machine, data)
        assert found == 0 if p == 1 else low <= found <= high


def test_equal_rows_are_not_taken_for_rows_that_rounding_made_equal(desk):
    data = Data(np.full((50, 2), 1e8), np.arange(50.0)[:, None], np.arange(50))
    setting = SettingRequest(NeuralTangent(1.0), ridge=0.1)
    machine = prepare(data, Settings(Limits(1, 0.0, 1, 0.0), setting, resource=desk)).machine
    assert kernel_rounding(machine, data) == 0


def test_a_fit_for_which_float32_is_too_coarse_is_run_again_in_float64(rng):
    """A kernel that grows with the length of its inputs, and features far from 0."""
    X = 100 + rng.normal(size=(300, 3))
    model = KernelRegressor("neural_tangent", bandwidth=1.0, ridge=0.0, scale=False, random_state=0)
    with pytest.warns(
        UserWarning, match="float32 is too coarse here: training was run again in float64"
    ):
        model.fit(X, X[:, 0] - 100)
    assert model.plan_.precision == "float64"


def test_a_model_says_no_more_than_its_predictions_hold(rng):
    """Distances of large features cancel in float32, and training would interpolate another kernel."""
    large = 1e5 * np.exp(rng.normal(size=169))
    X = np.column_stack([large, rng.integers(0, 5, size=(169, 6))])
    y = np.sign(rng.normal(size=169))
    model = KernelRegressor(
        "cauchy",
        bandwidth=6250.0,
        ridge=0.0,
        interpolation_tol=0.01,
        early_stopping=False,
        random_state=0,
    )
    with pytest.warns(UserWarning, match="run again in float64"):
        model.fit(X, y)
    assert model.stop_reason_ == INTERPOLATED
    assert np.mean((model.predict(X) - y) ** 2) < 0.01 * y.var()


def test_targets_that_look_like_noise_at_first_are_fitted_in_the_end(rng):
    X = rng.normal(size=(20, 1))
    y = rng.permutation(np.sin(X[:, 0]) + 0.3 * rng.normal(size=20))
    settings = {"batch_size": 6, "subsample_size": 10, "preconditioner_rank": 2, "max_iter": 100}
    model = KernelRegressor(
        "laplacian", bandwidth=0.5, ridge=0.01, interpolation_tol=0.0, random_state=0, **settings
    )
    model.fit(X, y)
    assert np.mean((model.predict(X) - y) ** 2) < 0.2 * y.var()
