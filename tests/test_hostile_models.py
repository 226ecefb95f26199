"""A file that someone else wrote: what it may choose, and how all else is refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris

import mercer
from benchmarks.torture import model_files
from benchmarks.torture.damage import damaged
from mercer import KernelClassifier, KernelRegressor, NeuralTangent
from mercer.estimators.parameters import STORED
from mercer.files.container import read_file, write_file

CORPUS = sorted(path for path in (Path(__file__).parent / "corpus" / "models").iterdir())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Whole files of every kind."""
    folder = tmp_path_factory.mktemp("whole")
    model_files.write_whole_files(folder)
    return folder


@pytest.fixture
def iris(tmp_path):
    path = tmp_path / "iris.mercer"
    KernelClassifier("gaussian", bandwidth=1.0, ridge=0.1).fit(*load_iris(return_X_y=True)).save(path)
    return path


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_files_that_once_broke_the_reader_are_refused_or_work(path):
    assert model_files.verdict(path, checkpoint="checkpoint" in path.name) == ""


@pytest.mark.parametrize("name", model_files.NAMES)
def test_damaged_files_are_refused_in_one_sentence_or_work(whole, tmp_path, name):
    raw, other = (whole / name).read_bytes(), (whole / "regressor").read_bytes()
    assert model_files.verdict(whole / name, checkpoint=name == "checkpoint") == ""
    path = tmp_path / "damaged"
    for seed in range(25):
        path.write_bytes(damaged(raw, other, np.random.default_rng(seed)))
        assert model_files.verdict(path, checkpoint=name == "checkpoint") == "", f"seed {seed}"


def test_a_file_chooses_no_path_device_callback_or_number_of_threads(iris):
    tensors, data = read_file(iris, "model")
    chosen = {"device": "cuda", "n_jobs": 10**6, "memory_limit": 1, "verbose": 9, "callbacks": "x"}
    data["parameters"] |= {**chosen, "checkpoint": "/etc/hostname", "resume": "x", "max_iter": 7}
    write_file(iris, "model", tensors, data)
    model = mercer.load(iris)
    defaults = KernelClassifier().get_params()
    assert {name: getattr(model, name) for name in chosen} == {name: defaults[name] for name in chosen}
    assert not hasattr(model, "checkpoint")
    assert model.max_iter == 7


def test_every_parameter_is_kept_by_a_file_or_belongs_to_the_machine():
    machine = {"device", "n_jobs", "memory_limit", "verbose", "callbacks"}
    assert set(STORED) | machine == set(KernelClassifier().get_params())
    assert not set(STORED) & machine


def put(**changes):
    """Change fields of the data; a name with a dot is one further in."""

    def change(tensors, data):
        for name, value in changes.items():
            inner, _, last = name.rpartition("__")
            (data[inner] if inner else data)[last] = value

    return change


def tensor(name, make):
    """Change a tensor, or take it away."""

    def change(tensors, data):
        value = make(tensors.pop(name))
        if value is not None:
            tensors[name] = value

    return change


def spoilt(value):
    def spoil(values):
        values.view(-1)[1] = value
        return values

    return spoil


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (tensor("alpha", spoilt(torch.nan)), "`alpha` must be finite"),
        (tensor("alpha", lambda a: None), "`alpha` is missing"),
        (tensor("alpha", lambda a: a[:0]), "`alpha` must have a weight"),
        (tensor("alpha", lambda a: a.int()), "`alpha` must be any × any numbers in float32 or float64"),
        (tensor("alpha", lambda a: a[:, 0].clone()), "`alpha` must be any × any numbers"),
        (tensor("alpha", lambda a: a[1:].clone()), "`extended_centres` must be 149 × 6 numbers"),
        (tensor("offset", lambda a: a[:1].clone()), "`offset` must be 3 numbers"),
        (tensor("extended_centres", lambda a: a[:, 1:].clone()), "`extended_centres` must be 150 × 6"),
        (tensor("extended_centres", spoilt(torch.inf)), "`extended_centres` must be finite"),
        (
            tensor("extended_centres", lambda a: a.fill_(3e38)),
            "squared lengths of centres must be finite",
        ),
        (tensor("inputs.shift", lambda a: a[1:].clone()), "`inputs.shift` must be 4 numbers"),
        (tensor("training_rows", lambda a: a.fill_(3)), "`training_rows` must be different rows"),
        (tensor("training_rows", lambda a: a + 1), "`training_rows` must be different rows"),
        (tensor("training_rows", lambda a: a - 1), "`training_rows` must be different rows"),
        (put(n_rows=10), "`training_rows` must be different rows"),
        (put(n_rows=10**15), "must fit into the memory"),
        (put(n_rows=10**30), "`n_rows` must be a number of a sensible size"),
        (put(n_features_in=5), "must be for 4 features"),
        (put(feature_names=["a"]), "must name all of its 4 features"),
        (put(ridge=-1.0), "ridge must be a finite number"),
        (put(logit_scale="NaN"), "`logit_scale` must be a number. Got NaN"),
        (put(logit_scale=0), "`logit_scale` must be positive"),
        (put(classes=None), "a classifier must have classes"),
        (put(classes__values=[0, 1]), "2 classes must have 1 outputs. Got 3"),
        (put(classes__values=[0, 1, [2]]), "Labels must be numbers, texts or booleans"),
        (put(classes__values=[0, 1, 2**70]), "Labels must fit into"),
        (put(classes__values=[0, 1, 1]), "Labels must be different"),
        (put(classes__dtype="i4,i4"), "Labels must be numbers, texts or booleans"),
        (put(classes__dtype="V9999999999"), "Labels must be numbers, texts or booleans"),
        (put(estimator="KernelRegressor"), "a regressor has no classes"),
        (put(kernel__bandwidth=1e-200), "`bandwidth` must lie between"),
        (put(kernel__bandwidth="NaN"), "`bandwidth` must be a positive, finite number"),
        (put(kernel__bandwidth=[1]), "Expected `float`, got `array`"),
        (put(kernel__name=["gaussian"]), "A stored kernel must be one of"),
        (put(kernel={"name": "neural_tangent", "depth": 10**12}), "`depth` must be a whole number"),
        (put(machine__n_features=10**12), "`inputs.shift` must be 1000000000000 numbers"),
        (put(machine__grid={"offset": 0.0, "scale": 0.0}), "must have a finite grid"),
        (put(machine__target_scale=0.0), "`target_scale` must be a positive number"),
        (put(machine__target_scale=[1.0, -1.0, 1.0]), "`target_scale` must be a positive number"),
        (put(machine__target_scale=[1.0, 2.0]), "or one for each output"),
        (put(machine__target_scale=[1e300, 1.0, 1.0]), "its function must be finite"),
        (put(machine__kernel=3), "Expected `object`, got `int`"),
        (put(plan__n=3), "the plan must be for 150 centres"),
        (put(plan__precision="float64"), "the plan must be for 150 centres and 3 outputs in float32"),
        (put(plan__lambda_1=0.0), "lambda_1 of the plan must be positive"),
        (put(plan__beta="NaN"), "`plan.beta` must be a number. Got NaN"),
        (put(history=[{"number": 1}]), "missing required field `train_loss`"),
        (put(parameters__bandwidth=[1]), "parameters must be numbers or texts"),
        (put(parameters__bandwidth=-1), "`bandwidth` must be a positive, finite number"),
    ],
)
def test_contents_that_make_no_sense_are_refused_by_name(iris, change, message):
    tensors, data = read_file(iris, "model")
    change(tensors, data)
    write_file(iris, "model", tensors, data)
    with pytest.raises(ValueError, match=message) as caught:
        mercer.load(iris)
    assert type(caught.value) is ValueError
    assert repr(str(iris)) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    path = tmp_path_factory.mktemp("calibrated") / "iris.mercer"
    KernelClassifier("gaussian", random_state=0).fit(*load_iris(return_X_y=True)).save(path)
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put(calibration="guessed"), "calibration cannot be from rows 'guessed'"),
        (tensor("calibration.scores", spoilt(torch.nan)), "`calibration.scores` must be finite"),
        (tensor("calibration.codes", spoilt(3)), "calibration must be on known classes"),
        (tensor("calibration.weights", spoilt(-1.0)), "weights of calibration must be finite and not"),
        (tensor("calibration.near", lambda a: None), "`calibration.near` is missing"),
    ],
)
def test_calibration_that_makes_no_sense_is_refused_by_name(calibrated, tmp_path, change, message):
    tensors, data = read_file(calibrated, "model")
    change(tensors, data)
    write_file(tmp_path / "iris.mercer", "model", tensors, data)
    with pytest.raises(ValueError, match=message):
        mercer.load(tmp_path / "iris.mercer")


def test_norms_that_a_file_gets_wrong_are_computed_again(iris):
    X, _ = load_iris(return_X_y=True)
    before = mercer.load(iris).predict_proba(X)
    tensors, data = read_file(iris, "model")
    tensors["extended_centres"][:, -2:] = 7.0
    write_file(iris, "model", tensors, data)
    np.testing.assert_array_equal(mercer.load(iris).predict_proba(X), before)


def test_metadata_that_is_nested_too_deeply_is_refused_when_it_is_saved(iris):
    deep = []
    for _ in range(150):
        deep = [deep]
    before = iris.read_bytes()
    with pytest.raises(ValueError, match="nested at most 100 levels"):
        mercer.load(iris).save(iris, {"deep": deep})
    assert iris.read_bytes() == before


def test_texts_that_look_like_numbers_and_infinite_metadata_come_back_as_they_were(tmp_path, rng):
    X = rng.normal(size=(40, 2))
    labels = np.array(["Infinity", "NaN", "null"])[np.arange(40) % 3]
    model = KernelClassifier("gaussian", bandwidth=1.0, ridge=0.1).fit(X, labels)
    told = {"text": "Infinity", "number": float("inf"), "none": None}
    model.save(tmp_path / "m", told)
    again = mercer.load(tmp_path / "m")
    assert again.metadata_ == told
    assert again.classes_.tolist() == ["Infinity", "NaN", "null"]


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["a", "bc"]),
        np.array(["a", "bc"], dtype=object),
        np.array([2, 1], dtype=np.uint8),
        np.array([2**60, -1]),
        np.array([1.0, 3.0], dtype=np.float32),
        np.array([True, False]),
    ],
    ids=lambda labels: labels.dtype.str,
)
def test_labels_come_back_as_they_were(tmp_path, rng, labels):
    X, y = rng.normal(size=(30, 2)), labels[np.arange(30) % 2]
    model = KernelClassifier("gaussian", bandwidth=1.0, ridge=0.1).fit(X, y)
    model.save(tmp_path / "m")
    again = mercer.load(tmp_path / "m")
    assert again.classes_.tolist() == model.classes_.tolist()
    assert again.classes_.dtype == model.classes_.dtype


def test_missing_and_unreadable_files_are_errors_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        mercer.load(tmp_path / "absent")
    with pytest.raises(IsADirectoryError):
        mercer.load(tmp_path)
    for resume, error in [(tmp_path / "absent", FileNotFoundError), (tmp_path, IsADirectoryError)]:
        with pytest.raises(error):
            KernelRegressor().fit(np.eye(5), np.arange(5.0), resume=resume)


@pytest.fixture
def pipe(tmp_path):
    """A named pipe that nobody writes to: who opens it waits."""
    if not hasattr(os, "mkfifo"):
        pytest.skip("the system has no named pipes")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_a_folder_is_refused_by_a_sentence_that_says_so(tmp_path):
    message = (
        f"{str(tmp_path)!r} must be a file that holds a Mercer model. Got a folder: name a file in it."
    )
    with pytest.raises(IsADirectoryError, match=f"^{re.escape(message)}$"):
        mercer.load(tmp_path)


def test_a_pipe_is_refused_at_once_and_not_waited_for(pipe):
    message = "holds a Mercer model. Got a pipe: copy the model to a file first."
    with pytest.raises(OSError, match=re.escape(message)):
        mercer.load(pipe)
    with pytest.raises(OSError, match=re.escape(message.replace("model", "checkpoint"))):
        KernelRegressor().fit(np.eye(5), np.arange(5.0), resume=pipe)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device_is_refused(device):
    if not os.path.exists(device):
        pytest.skip("the system has no such device")
    with pytest.raises(OSError, match=r"Got a device: copy the model to a file first\."):
        mercer.load(device)


CHANGED_MEANWHILE = """
import os, sys
import numpy as np
import mercer

path, how = sys.argv[1:]
model = mercer.load(path)
assert model.plan_.data_on_disk
X = np.random.default_rng(0).normal(size=(64, 5))
before = model.predict(X)
if how == "cut":
    os.truncate(path, 100)
else:
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) // 2)
        file.write(b"\\xff" * (os.path.getsize(path) // 2))
assert (model.predict(X) == before).all()
assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]
print("same")
"""


@pytest.mark.parametrize("how", ["cut", pytest.param("overwritten", marks=pytest.mark.slow)])
def test_a_model_on_disk_does_not_change_with_its_file(tmp_path, rng, how):
    X = rng.normal(size=(3_000, 5))
    model = KernelRegressor("gaussian", bandwidth=2.0, ridge=0.1, memory_limit=1e5, max_iter=1)
    model.fit(X, X[:, 0])
    assert model.plan_.data_on_disk
    path = tmp_path / "model.mercer"
    model.save(path)
    command = [sys.executable, "-c", CHANGED_MEANWHILE, str(path), how]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("same\n", 0), done.stderr[-500:]


def test_a_kernel_of_thousands_of_layers_is_refused():
    with pytest.raises(ValueError, match="from 1 to 1000"):
        NeuralTangent(1.0, depth=1_001)


def test_files_are_those_that_the_safetensors_library_reads(iris):
    from safetensors import safe_open

    tensors, _ = read_file(iris, "model")
    with safe_open(os.fspath(iris), framework="pt") as file:
        assert file.metadata()["format"] == "mercer"
        assert set(file.keys()) == set(tensors)
        assert all(torch.equal(file.get_tensor(name), tensors[name]) for name in tensors)
