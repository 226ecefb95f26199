"""A checkpoint is resumed with what it was made with; one that cannot be written costs no training."""

from __future__ import annotations

import errno
import os
import warnings

import numpy as np
import pytest
import torch

from mercer import Callback, Checkpoint, Gaussian, KernelClassifier, KernelRegressor
from mercer.files import origin
from mercer.files.container import read_file, write_file
from mercer.files.origin import Mark
from mercer.operators.kept import KeptRectangle, KeptSquare
from mercer.training import assemble

SETTINGS = {"kernel": "gaussian", "bandwidth": 2.0, "ridge": 0.01, "random_state": 0, "max_iter": 3}
SETTINGS |= {"early_stopping": False, "interpolation_tol": 0.0}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3_000, 3))
    return X, np.sin(X[:, 0])


@pytest.fixture(scope="module")
def few(data):
    return data[0][:300], data[1][:300]


@pytest.fixture(scope="module")
def made(data, tmp_path_factory):
    """A checkpoint of two epochs of three, with sample weights and a held-out part."""
    path = tmp_path_factory.mktemp("run") / "run.checkpoint"
    X, y = data
    weight = np.linspace(1, 2, len(X))

    class Two(Callback):
        def on_epoch_end(self, run):
            return "enough" if len(run.history) == 2 else None

    callbacks = [Checkpoint(path, minutes=0), Two()]
    KernelRegressor(**SETTINGS, callbacks=callbacks).fit(X, y, weight, X_val=X[:50], y_val=y[:50])
    return path


def resumed(made, data, settings=None, **changed):
    X, y = data
    given = {"X": X, "y": y, "sample_weight": np.linspace(1, 2, len(X))}
    given |= {"X_val": X[:50], "y_val": y[:50], **changed}
    return KernelRegressor(**{**SETTINGS, **(settings or {})}).fit(**given, resume=made)


@pytest.mark.parametrize(
    ("parameter", "value", "before"),
    [
        ("kernel", "laplacian", "'gaussian'"),
        ("kernel", Gaussian(2.0), "'gaussian'"),
        ("bandwidth", 3.0, "2.0"),
        ("bandwidth", "auto", "2.0"),
        ("ridge", 0.02, "0.01"),
        ("scale", True, "'auto'"),
        ("n_pca_components", 2, "None"),
        ("subsample_size", 100, "'auto'"),
        ("preconditioner_rank", 3, "'auto'"),
        ("batch_size", 10, "'auto'"),
        ("step_size", 1.0, "'auto'"),
        ("precision", "float64", "'float32'"),
        ("validation_fraction", 0.2, "0.1"),
        ("early_stopping", True, "False"),
    ],
)
def test_another_parameter_is_refused_by_its_name(made, data, parameter, value, before):
    message = rf"run\.checkpoint' was made with {parameter}={before}, and this model has {parameter}="
    with pytest.raises(ValueError, match=message):
        resumed(made, data, {parameter: value})


def changed_row(values, row=1234):
    values = values.copy()
    values[row] += 1e-6
    return values


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("X", changed_row, "other values in `X`"),
        ("y", changed_row, "other values in `y`"),
        ("X", lambda x: x[::-1], "other values in `X`, or in another order"),
        ("X", lambda x: x.astype(np.float32), r"`X` of shape \(3000, 3\) in float64, and this one is"),
        ("sample_weight", lambda w: None, "with `sample_weight`, and this fit has none"),
        ("X_val", lambda x: changed_row(x, 30), "other values in `X_val`"),
        ("y_val", lambda y: changed_row(y, 30), "other values in `y_val`"),
    ],
)
def test_other_data_is_refused_by_its_name_even_if_one_value_differs(made, data, name, change, message):
    X, y = data
    given = {"X": X, "y": y, "sample_weight": np.ones(len(X)), "X_val": X[:50], "y_val": y[:50]}
    with pytest.raises(ValueError, match=message):
        resumed(made, data, **{name: change(given[name])})


def test_other_sample_weights_are_refused(made, data):
    with pytest.raises(ValueError, match="other values in `sample_weight`"):
        resumed(made, data, sample_weight=changed_row(np.linspace(1, 2, 3_000)))


def test_class_weights_count_as_sample_weights(tmp_path, few):
    X, y = few
    path = tmp_path / "run"
    settings = {**SETTINGS, "max_iter": 1}
    KernelClassifier(**settings, callbacks=[Checkpoint(path, minutes=0)]).fit(X, y > 0)
    with pytest.raises(ValueError, match="without `sample_weight`, and this fit has one"):
        KernelClassifier(**settings, class_weight={0: 1, 1: 2}).fit(X, y > 0, resume=path)


def test_what_does_not_change_the_computation_may_differ(made, data):
    X, _ = data
    whole = resumed(made, data, {"max_iter": 4, "tol": 0.0, "n_iter_no_change": 60})
    others = {"kernel": "rbf", "bandwidth": 2, "tol": 1e-9, "interpolation_tol": 1e-30, "n_jobs": 1}
    others |= {"random_state": 7, "memory_limit": "2GB", "n_iter_no_change": 50, "max_iter": 4}
    again = resumed(made, data, others, X=np.asfortranarray(X))
    np.testing.assert_array_equal(again.dual_coef_, whole.dual_coef_)
    assert again.n_iter_ == 4


def test_a_smaller_memory_limit_keeps_fewer_kernel_values(made, data, monkeypatch):
    operators = []
    for kind in (KeptRectangle, KeptSquare):
        make = lambda *given, kind=kind: operators.append(kind(*given)) or operators[-1]  # noqa: E731
        monkeypatch.setattr(assemble, kind.__name__, make)

    def kept(memory_limit):
        operators.clear()
        model = resumed(made, data, {"memory_limit": memory_limit})
        return model, sum(operator.kept_bytes for operator in operators)

    whole, all_values = kept("auto")
    rest = whole.plan_.peak_memory - whole.plan_.kept_memory  # data and work
    half, fewer = kept(rest + 0.5 * all_values)
    assert 0 < fewer <= 0.5 * all_values
    assert half.plan_.kept_memory <= 0.5 * all_values
    none, nothing = kept("1MB")
    assert nothing == 0 == none.plan_.kept_memory
    largest = np.abs(whole.dual_coef_).max()
    for model in (half, none):
        assert (model.plan_.batch_size, model.n_iter_) == (whole.plan_.batch_size, 3)
        np.testing.assert_allclose(model.dual_coef_, whole.dual_coef_, atol=1e-3 * largest)


def test_rows_larger_than_half_of_a_smaller_memory_limit_are_memory_mapped(made, data):
    assert resumed(made, data, {"memory_limit": "10KB"}).plan_.data_on_disk
    assert not resumed(made, data, {"memory_limit": "1GB"}).plan_.data_on_disk


def test_when_to_stop_is_that_of_the_model_that_resumes(made, data):
    stopped = resumed(made, data, {"max_iter": 20, "tol": 1e6, "n_iter_no_change": 1})
    assert stopped.n_iter_ == 2  # the epoch that the checkpoint is at the end of


def test_a_mark_depends_on_values_and_type_and_not_on_layout(rng, tmp_path):
    x = rng.normal(size=(2_000, 7))
    mark = Mark.of(x)
    np.save(tmp_path / "x.npy", x)
    same = [np.asfortranarray(x), np.repeat(x, 2, 0)[::2], torch.from_numpy(x)]
    same += [np.load(tmp_path / "x.npy", mmap_mode="r"), torch.from_numpy(x.T.copy()).T]
    assert all(Mark.of(other) == mark for other in same)
    different = [x.astype(np.float32), x.reshape(7, 2_000), x[::-1], changed_row(x), x[:-1]]
    assert all(Mark.of(other) != mark for other in different)


def test_data_is_read_once_however_many_checkpoints_are_written(tmp_path, few, monkeypatch):
    read = []
    real = Mark.of
    monkeypatch.setattr(origin.Mark, "of", lambda values: (read.append(values.shape), real(values))[1])
    KernelRegressor(**SETTINGS).fit(*few)
    assert read == []
    KernelRegressor(**SETTINGS, callbacks=[Checkpoint(tmp_path / "run", minutes=0)]).fit(*few)
    assert read == [(300, 3), (300, 1)]


class Fails(Callback):
    """Makes the disk full for some panels, as a write would find it."""

    def __init__(self, monkeypatch, errors):
        self.monkeypatch = monkeypatch
        self.errors = errors

    def on_panel_end(self, run):
        error = self.errors.pop(0) if self.errors else None

        def fsync(descriptor):
            if error is not None:
                raise OSError(error, os.strerror(error))

        self.monkeypatch.setattr(os, "fsync", fsync)


def test_a_checkpoint_that_cannot_be_written_warns_once_and_training_goes_on(tmp_path, few, monkeypatch):
    settings = {**SETTINGS, "max_iter": 6}
    path = tmp_path / "run.checkpoint"
    full, read_only = errno.ENOSPC, errno.EROFS
    fails = Fails(monkeypatch, [full, full, read_only, full])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = KernelRegressor(**settings, callbacks=[fails, Checkpoint(path, minutes=0)]).fit(*few)
    found = [str(each.message) for each in told if "could not be written" in str(each.message)]
    assert len(found) == 2
    assert f"{str(path)!r} could not be written: No space left on device." in found[0]
    assert "Read-only file system" in found[1]
    np.testing.assert_array_equal(model.dual_coef_, KernelRegressor(**settings).fit(*few).dual_coef_)
    again = KernelRegressor(**settings).fit(*few, resume=path)  # a later attempt succeeded
    np.testing.assert_array_equal(again.dual_coef_, model.dual_coef_)
    assert os.listdir(tmp_path) == [path.name]


def test_a_checkpoint_in_a_missing_folder_does_not_end_training(tmp_path, few):
    path = tmp_path / "absent" / "run.checkpoint"
    with pytest.warns(UserWarning, match=r"absent.*No such file or directory"):
        KernelRegressor(**SETTINGS, callbacks=[Checkpoint(path, minutes=0)]).fit(*few)


def test_a_checkpoint_of_a_kernel_function_warns_and_training_goes_on(tmp_path, rng):
    X = rng.normal(size=(50, 2))
    callbacks = [Checkpoint(tmp_path / "run", minutes=0)]
    model = KernelRegressor(lambda a, b: torch.exp(-torch.cdist(a, b)), ridge=0.1, callbacks=callbacks)
    with pytest.warns(UserWarning, match="function of your own"):
        model.fit(X, X[:, 0])
    assert model.score(X, X[:, 0]) > 0.9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, d: t.pop("training.good"), "good, safe, settled"),
        (lambda t, d: t.update({"training.started": torch.ones(5)}), "`started` must be"),
        (lambda t, d: t["training.good"].fill_(torch.nan), "`good` must be finite"),
        (lambda t, d: t["rows"].fill_(0), "`rows` must be different rows"),
        (lambda t, d: t.update(rows=t["rows"] + 10), "`rows` must be different rows"),
        (lambda t, d: t.update(offset=torch.ones(4)), "`offset` must be 1 numbers"),
        (lambda t, d: d["training"].update(panel=10**6), "must be at a panel"),
        (lambda t, d: d["training"]["step"].update(eta=1e300), "its step must be that of its plan"),
        (lambda t, d: d["plan"].update(batch_size=0), "the batch must have between one row and all"),
        (lambda t, d: d["plan"].update(precision="int8"), "precision must be float32 or float64"),
        (lambda t, d: d.update(ridge=-1.0), "none of them negative"),
        (lambda t, d: d["kernel"].update(name=[1]), "A stored kernel must be one of"),
        (lambda t, d: d.pop("origin"), "missing required field `origin`"),
    ],
)
def test_a_checkpoint_whose_parts_do_not_fit_is_refused(made, data, tmp_path, change, message):
    tensors, contents = read_file(made, "checkpoint")
    change(tensors, contents)
    path = tmp_path / "changed"
    write_file(path, "checkpoint", tensors, contents)
    with pytest.raises(ValueError, match=message) as caught:
        resumed(path, data)
    assert repr(str(path)) in str(caught.value)
