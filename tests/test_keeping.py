"""Saving, checkpoints, warm starts, weights, callbacks, interrupts."""

from __future__ import annotations

import csv
import os
import pickle
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import oracles
import pytest
import torch
from sklearn.datasets import load_digits, load_iris
from sklearn.exceptions import ConvergenceWarning

import mercer
from mercer import Callback, Checkpoint, CSVLog, KernelClassifier, KernelRegressor, TimeLimit
from mercer.files.container import read_file, write_file


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X[:700], np.array([f"digit {label}" for label in y[:700]])


def wave(rng, n=900):
    X = rng.normal(size=(n, 3))
    return X, np.sin(X[:, 0]) + 0.3 * rng.normal(size=n)


# Files


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_saved_classifier_predicts_bit_for_bit_the_same(tmp_path, digits, precision):
    X, y = digits
    model = KernelClassifier(random_state=0, precision=precision, max_iter=3).fit(X, y)
    model.save(tmp_path / "model.mercer")
    again = mercer.load(tmp_path / "model.mercer")
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_array_equal(again.dual_coef_, model.dual_coef_)
    assert again.classes_.tolist() == model.classes_.tolist()
    assert again.classes_.dtype == model.classes_.dtype
    assert again.plan_ == model.plan_
    assert again.history_ == model.history_
    assert again.selection_ == model.selection_
    assert again.get_params()["precision"] == precision


def test_a_saved_regressor_keeps_bytes_scale_and_names(tmp_path, rng, on_byte_desk):
    pd = pytest.importorskip("pandas")
    pixels = rng.integers(0, 256, size=(300, 80)).astype(np.float32)
    model = KernelRegressor("gaussian", bandwidth=900.0, random_state=0).fit(pixels, pixels[:, :2])
    model.save(tmp_path / "a.mercer")
    again = mercer.load(tmp_path / "a.mercer")
    assert again.machine_.centres.x.dtype == torch.int8
    assert (tmp_path / "a.mercer").stat().st_size < 3 * pixels.size  # floats alone would take four times
    np.testing.assert_array_equal(again.predict(pixels + 0.5), model.predict(pixels + 0.5))
    frame = pd.DataFrame(rng.normal(size=(100, 2)) * [1, 1000], columns=["x", "y"])
    model = KernelRegressor(random_state=0).fit(frame, frame["x"])
    model.save(tmp_path / "b.mercer")
    again = mercer.load(tmp_path / "b.mercer")
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))
    assert list(again.feature_names_in_) == ["x", "y"]


def test_a_saved_model_may_be_read_by_whom_the_umask_allows(tmp_path):
    model = KernelClassifier(random_state=0).fit(*load_iris(return_X_y=True))
    model.save(tmp_path / "model.mercer")
    (tmp_path / "other").touch()
    assert (tmp_path / "model.mercer").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_damaged_foreign_newer_and_changed_files_are_refused(tmp_path):
    model = KernelClassifier(random_state=0).fit(*load_iris(return_X_y=True))
    path = tmp_path / "model.mercer"
    model.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="cut short, damaged or of another format"):
        mercer.load(path)
    path.write_bytes(b"PK\x03\x04 something else entirely")
    with pytest.raises(ValueError, match="cut short, damaged or of another format"):
        mercer.load(path)
    changed = bytearray(whole)
    changed[-3] ^= 1
    path.write_bytes(bytes(changed))
    with pytest.raises(ValueError, match="its checksum is wrong"):
        mercer.load(path)
    path.write_bytes(whole.replace(b'"version":"3"', b'"version":"9"'))
    with pytest.raises(ValueError, match="install a newer one"):
        mercer.load(path)
    path.write_bytes(whole.replace(b'"version":"3"', b'"version":"2"'))
    with pytest.raises(ValueError, match="from before the first release"):
        mercer.load(path)
    write_file(path, "checkpoint", {}, {})
    with pytest.raises(ValueError, match="Got a Mercer checkpoint instead"):
        mercer.load(path)
    from safetensors.torch import save_file

    save_file({"a": torch.ones(2)}, path)
    with pytest.raises(ValueError, match="another program"):
        mercer.load(path)
    with pytest.raises(FileNotFoundError):
        mercer.load(tmp_path / "nowhere.mercer")


def test_a_model_file_of_another_version_is_read(tmp_path, digits):
    X, y = digits
    model = KernelClassifier(random_state=0).fit(X, y)
    path = tmp_path / "model.mercer"
    model.save(path)
    tensors, data = read_file(path, "model")
    newer = {**data, "mood": "sunny", "plan": {**data["plan"], "colour": "blue"}}
    newer["parameters"] = {**data["parameters"], "shoe_size": 43}
    newer["kernel"] = {**data["kernel"], "taste": "sweet"}
    newer["machine"] = {**data["machine"], "kernel": newer["kernel"], "shape": "round"}
    write_file(path, "model", tensors | {"inputs.shadow": torch.ones(3)}, newer)
    np.testing.assert_array_equal(mercer.load(path).predict_proba(X), model.predict_proba(X))
    optional = ("metadata", "best_epoch", "best_loss", "selection", "feature_names")
    older = {name: value for name, value in data.items() if name not in optional}
    write_file(path, "model", tensors, older)
    np.testing.assert_array_equal(mercer.load(path).predict_proba(X), model.predict_proba(X))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"estimator": "Oracle"}, "must hold one of KernelClassifier, KernelRegressor"),
        ({"n_rows": "many"}, "invalid contents: Expected `int`, got `str`"),
        ({"plan": {}}, "invalid contents: Object missing required field"),
    ],
)
def test_a_file_with_contents_that_make_no_sense_is_refused(tmp_path, change, message):
    model = KernelClassifier(random_state=0).fit(*load_iris(return_X_y=True))
    path = tmp_path / "model.mercer"
    model.save(path)
    tensors, data = read_file(path, "model")
    write_file(path, "model", tensors, {**data, **change})
    with pytest.raises(ValueError, match=message):
        mercer.load(path)


FILES = Path(__file__).parent / "files"


@pytest.mark.parametrize("version", sorted(path.name for path in FILES.iterdir()))
def test_files_written_by_every_release_are_read(version):
    """Written by tests/files/write.py of that release, with what it predicted then."""
    folder = FILES / version
    with np.load(folder / "expected.npz") as expected:
        X, y = expected["X"], expected["y"]
        for name in ("classifier", "regressor"):
            model = mercer.load(folder / f"{name}.mercer")
            found = model.predict_proba(X) if name == "classifier" else model.predict(X)
            np.testing.assert_allclose(found, expected[name], rtol=1e-4, atol=1e-5)
        settings = {"early_stopping": True, "interpolation_tol": 0.0, "tol": 0.0, "max_iter": 6}
        resumed = KernelRegressor(**settings).fit(X, y, resume=folder / "regressor.checkpoint")
        np.testing.assert_allclose(resumed.predict(X), expected["resumed"], rtol=1e-3, atol=1e-3)


def test_a_crash_while_saving_leaves_the_old_file_whole(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_file(path, "model", {"a": torch.ones(3)}, {"old": True})

    def crash(*args):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", crash)
    with pytest.raises(OSError, match="disk full"):
        write_file(path, "model", {"a": torch.zeros(3)}, {"old": False})
    monkeypatch.undo()
    assert read_file(path, "model")[1] == {"old": True}
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_function_of_ones_own_cannot_be_saved_and_that_is_said(tmp_path):
    model = KernelRegressor(lambda a, b: torch.exp(-torch.cdist(a, b)), ridge=0.1, random_state=0)
    model.fit(np.eye(5), np.arange(5.0))
    with pytest.raises(ValueError, match="function of your own"):
        model.save(tmp_path / "model.mercer")
    assert not list(tmp_path.iterdir())


def test_the_module_has_the_same_outputs(digits, rng, on_byte_desk):
    X, y = digits
    model = KernelClassifier(random_state=0, max_iter=3).fit(X[:600], y[:600])
    other = X[600:700].copy()
    other[:, 0] = 3.0  # constant in training
    module = model.to_torch()
    decision = module(torch.from_numpy(other))
    np.testing.assert_allclose(decision.numpy(), model.decision_function(other), atol=1e-5)
    pixels = rng.integers(0, 256, size=(300, 80)).astype(np.float32)
    model = KernelRegressor("gaussian", bandwidth=900.0, random_state=0).fit(pixels, pixels[:, 0])
    found = model.to_torch()(torch.from_numpy(pixels))[:, 0]
    np.testing.assert_allclose(found, model.predict(pixels), rtol=1e-4, atol=1e-2)


# Checkpoints


class Stop(Callback):
    def __init__(self, after):
        self.after = after

    def on_epoch_end(self, run):
        return "enough" if run.epoch.number >= self.after else None


@pytest.mark.parametrize(
    ("panel", "memory"),
    [
        (2, "auto"),
        (6, 2e7),
        (9, "auto"),
        (16, 2e7),
        pytest.param(2, 2e7, marks=pytest.mark.slow),
        pytest.param(6, "auto", marks=pytest.mark.slow),
        pytest.param(9, 2e7, marks=pytest.mark.slow),
        pytest.param(16, "auto", marks=pytest.mark.slow),
    ],
)
def test_a_resumed_run_ends_with_the_same_weights_bit_for_bit(tmp_path, rng, memory, panel):
    X = rng.normal(size=(6_000, 5))
    y = np.digitize(np.sin(X[:, 0]) + X[:, 1], [-1, 0, 1])
    path = tmp_path / "run"
    parameters = {"kernel": "laplacian", "bandwidth": 3.0, "ridge": 0.0, "random_state": 0}
    parameters |= {"max_iter": 4, "memory_limit": memory, "subsample_size": 300}
    whole = KernelClassifier(**parameters).fit(X, y)

    class CtrlC(Callback):
        panels = 0

        def on_panel_end(self, run):
            self.panels += 1
            if self.panels == panel - 1:  # seen at the next panel's end
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.warns(ConvergenceWarning, match="interrupted from the keyboard"):
        part = KernelClassifier(**parameters, callbacks=[CtrlC(), Checkpoint(path)]).fit(X, y)
    assert part.n_iter_ < whole.n_iter_
    assert part.score(X, y) > 0.4  # a usable model
    resumed = KernelClassifier(**parameters).fit(X, y, resume=path)
    np.testing.assert_array_equal(resumed.dual_coef_, whole.dual_coef_)
    assert resumed.history_.column("train_loss") == whole.history_.column("train_loss")
    assert resumed.logit_scale_ == whole.logit_scale_


def test_a_checkpoint_of_another_version_is_read(tmp_path, digits):
    X, y = digits
    path = tmp_path / "run"
    settings = {"random_state": 0, "max_iter": 3}
    KernelClassifier(**settings, callbacks=[Checkpoint(path, minutes=0)]).fit(X, y)
    tensors, data = read_file(path, "checkpoint")
    data["training"] |= {"mood": "sunny", "step": {**data["training"]["step"], "shoe": 43}}
    data["plan"]["colour"] = "blue"
    del data["training"]["best_epoch"], data["plan"]["notes"]
    write_file(path, "checkpoint", tensors | {"training.shadow": torch.ones(2)}, data)
    resumed = KernelClassifier(**settings).fit(X, y, resume=path)
    np.testing.assert_array_equal(resumed.dual_coef_, KernelClassifier(**settings).fit(X, y).dual_coef_)
    data["training"]["version"] = 99
    write_file(path, "checkpoint", tensors, data)
    with pytest.raises(ValueError, match="version 99"):
        KernelClassifier(**settings).fit(X, y, resume=path)


def test_a_checkpoint_of_other_data_is_refused(tmp_path, digits):
    X, y = digits
    path = tmp_path / "run"
    KernelClassifier(random_state=0, callbacks=[Checkpoint(path, minutes=0)], max_iter=1).fit(X, y)
    with pytest.raises(ValueError, match="the data it was made with"):
        KernelClassifier(random_state=0).fit(X[::-1], y[::-1], resume=path)


SCRIPT = """
import sys, warnings, numpy as np
from mercer import KernelRegressor
rng = np.random.default_rng(0)
X = rng.normal(size=(3000, 5)); y = np.sin(X[:, 0])
print("ready", flush=True)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    model = KernelRegressor(
        "laplacian", bandwidth=3.0, ridge=0.0, batch_size=4, preconditioner_rank=1, max_iter=10**6,
        interpolation_tol=0.0, early_stopping=False, random_state=0, verbose=1,
    ).fit(X, y)
print(any("interrupted" in str(w.message) for w in told), model.score(X, y) > 0.1, model.stop_reason_)
"""


def test_ctrl_c_ends_fit_with_a_usable_model():
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    line = process.stderr.readline()  # the first epoch is over
    assert line.startswith("epoch   1")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out == "True True interrupted from the keyboard\n"


def test_the_keyboard_is_given_back_and_other_threads_are_left_alone():
    before = signal.getsignal(signal.SIGINT)
    model = KernelRegressor(random_state=0)
    thread = threading.Thread(target=model.fit, args=(np.eye(6), np.arange(6.0)))
    thread.start()
    thread.join()
    assert model.n_iter_ >= 1
    assert signal.getsignal(signal.SIGINT) is before


# Warm starts and weights


def test_a_warm_start_goes_on_from_the_last_weights(rng):
    X, y = wave(rng)
    settings = {"kernel": "laplacian", "bandwidth": 2.0, "ridge": 0.0, "early_stopping": False}
    model = KernelRegressor(**settings, max_iter=3, warm_start=True, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        first = model.fit(X, y).history_[0].train_loss
        last = model.history_[-1].train_loss
        again = model.fit(X, y).history_[0].train_loss
    assert again < last < first


def test_a_warm_start_on_more_points_keeps_the_weights_of_the_old_ones(rng):
    X, y = wave(rng, 1200)
    settings = {"kernel": "laplacian", "bandwidth": 2.0, "ridge": 0.1, "early_stopping": False}
    model = KernelRegressor(**settings, warm_start=True, random_state=0).fit(X[:1000], y[:1000])
    warm = model.fit(X, y)
    cold = KernelRegressor(**settings, random_state=0).fit(X, y)
    assert warm.n_iter_ <= cold.n_iter_
    assert warm.history_[0].train_loss < 0.5 * cold.history_[0].train_loss
    np.testing.assert_allclose(warm.predict(X), cold.predict(X), atol=0.05)
    with pytest.raises(ValueError, match="must begin with the 1200 rows"):
        warm.fit(X[:10], y[:10])


def test_a_warm_start_keeps_what_the_first_fit_chose(rng):
    X, y = wave(rng, 600)
    X *= [1, 100, 0.01]
    model = KernelRegressor(warm_start=True, early_stopping=False, random_state=0).fit(X[:450], y[:450])
    chosen = (model.kernel_, model.ridge_, model.plan_.preparation)
    model.fit(X, y)
    assert (model.kernel_, model.ridge_, model.plan_.preparation) == chosen
    assert model.selection_ is None
    with pytest.raises(ValueError, match="Got 600 rows and 2 outputs"):
        model.fit(X, np.column_stack([y, y]))


@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_sample_weights_solve_the_dense_weighted_problem(rng, scale):
    X, y = wave(rng, 150)
    w = scale * rng.uniform(0.1, 1, size=150)
    w[:20] = 0
    model = KernelRegressor(
        "laplacian",
        bandwidth=2.0,
        ridge=0.2,
        precision="float64",
        interpolation_tol=1e-22,
        max_iter=5000,
        random_state=0,
    ).fit(X, y, sample_weight=w)
    kept = w > 0
    K = oracles.laplacian(X[kept], X[kept], 2.0)
    mean = np.average(y[kept], weights=w[kept])
    alpha = np.linalg.solve(K + 0.2 * np.diag(1 / w[kept]), y[kept] - mean)
    np.testing.assert_allclose(model.dual_coef_[kept, 0], alpha, atol=1e-6)
    assert (model.dual_coef_[~kept] == 0).all()
    assert model.ridge_ == 0.2


def test_class_weights_move_the_boundary_to_the_lighter_class(rng):
    X = np.concatenate([rng.normal(size=(950, 2)), rng.normal(size=(50, 2)) + 1])
    y = np.repeat([0, 1], [950, 50])
    settings = {"kernel": "gaussian", "metric": False, "random_state": 0}
    plain = KernelClassifier(**settings).fit(X, y)
    balanced = KernelClassifier(**settings, class_weight="balanced").fit(X, y)
    assert (balanced.predict(X) == 1).sum() > 2 * (plain.predict(X) == 1).sum()


@pytest.mark.parametrize("weight", [[-1, 1, 1], [0, 0, 0]])
def test_wrong_weights_are_refused(weight):
    with pytest.raises(ValueError, match=r"[Ss]ample.weight"):
        KernelRegressor().fit(np.eye(3), [1.0, 2.0, 3.0], sample_weight=weight)


# Callbacks


def test_callbacks_see_the_live_model_and_can_stop_it(digits, tmp_path):
    X, y = digits
    seen = []

    class Look(Callback):
        def on_epoch_end(self, run):
            seen.append((run.epoch.number, run.model.score(X, y), len(run.history)))

        def on_fit_end(self, run):
            seen.append(run.model)

    log = CSVLog(tmp_path / "log.csv")
    model = KernelClassifier(batch_size=256, random_state=0, callbacks=[Look(), Stop(2), log]).fit(X, y)
    assert model.stop_reason_ == "enough"
    assert [entry[0] for entry in seen[:-1]] == [1, 2]
    assert all(entry[1] > 0.9 for entry in seen[:-1])
    assert seen[-1] is model
    with (tmp_path / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["train_loss"]) for row in rows] == model.history_.column("train_loss")
    pickle.loads(pickle.dumps(model))  # open files and the like do not stand in the way


class Blocks(Callback):
    """A folder in the place of a file, from the end of one epoch to that of another."""

    def __init__(self, path, first, last):
        self.path, self.first, self.last = path, first, last

    def on_epoch_end(self, run):
        if run.epoch.number == self.first:
            self.path.unlink()
            self.path.mkdir()
        elif run.epoch.number == self.last:
            self.path.rmdir()


def test_a_log_that_cannot_be_written_warns_once_and_has_all_epochs_once_it_can(rng, tmp_path):
    X, path = rng.normal(size=(60, 2)), tmp_path / "log.csv"
    model = KernelRegressor("gaussian", bandwidth=1.0, ridge=0.1, interpolation_tol=0.0, max_iter=6)
    model.set_params(batch_size=10, early_stopping=False, callbacks=[Blocks(path, 2, 5), CSVLog(path)])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.fit(X, X[:, 0])
    found = [str(each.message) for each in told if "could not be written" in str(each.message)]
    assert len(found) == 1
    assert found[0].startswith(f"The log {str(path)!r} could not be written: ")
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["number"]) for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [float(row["train_loss"]) for row in rows] == model.history_.column("train_loss")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
def test_a_log_on_a_full_disk_does_not_end_training():
    model = KernelRegressor("gaussian", bandwidth=1.0, ridge=0.1, callbacks=[CSVLog("/dev/full")])
    with pytest.warns(UserWarning, match="could not be written: No space left on device"):
        model.fit(np.eye(5), np.arange(5.0))
    assert model.n_iter_ >= 1


def test_a_time_limit_ends_training(digits):
    model = KernelClassifier(batch_size=256, random_state=0, callbacks=[TimeLimit(0.0)]).fit(*digits)
    assert model.n_iter_ == 1
    assert "time limit" in model.stop_reason_


def test_tensorboard_is_asked_for_by_name_where_it_is_missing(tmp_path):
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match="pip install tensorboard"):
            mercer.TensorBoardLog(tmp_path)
        return
    model = KernelRegressor(random_state=0, callbacks=[mercer.TensorBoardLog(tmp_path)])
    model.fit(np.eye(5), np.arange(5.0))
    assert any("tfevents" in name for name in os.listdir(tmp_path))


# Early stopping within the first epoch


def test_data_that_overfits_within_an_epoch_is_caught(rng):
    X = rng.normal(size=(6000, 2))
    y = rng.normal(size=6000)
    model = KernelRegressor(
        "laplacian", bandwidth=0.3, ridge=0.0, subsample_size=200, batch_size=20, random_state=0
    ).fit(X, y)
    ended = model.history_[0].validation_loss
    held_out = np.flatnonzero((model.dual_coef_ == 0).all(1))
    kept = np.square(model.predict(X[held_out]) - y[held_out]).mean()
    assert kept < ended
