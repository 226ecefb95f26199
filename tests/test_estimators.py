from __future__ import annotations

import os
import pickle
import warnings

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris, make_classification, make_multilabel_classification
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch.utils._python_dispatch import TorchDispatchMode

import mercer
from mercer import KernelClassifier, KernelRegressor
from mercer.operators.workers import torch_threads, workers_for


@parametrize_with_checks([KernelClassifier(random_state=0), KernelRegressor(random_state=0)])
@pytest.mark.filterwarnings("ignore")  # the checks feed odd data on purpose
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        KernelClassifier(random_state=0, precision="float64"),
        KernelRegressor(random_state=0, precision="float64"),
    ]
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_checks_in_float64(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def iris():
    return load_iris(return_X_y=True)


def test_public_names_are_locked():
    assert sorted(mercer.__all__) == [
        "BatchSizeDisplay",
        "CSVLog",
        "Callback",
        "Cauchy",
        "Checkpoint",
        "Custom",
        "DivergenceError",
        "Epoch",
        "ExponentialPower",
        "FeatureImportancesDisplay",
        "Gaussian",
        "History",
        "Kernel",
        "KernelClassifier",
        "KernelRegressor",
        "L1Laplacian",
        "Laplacian",
        "LearningCurveDisplay",
        "Matern32",
        "Matern52",
        "NeuralTangent",
        "Plan",
        "RankError",
        "Resource",
        "RowShare",
        "Run",
        "Selection",
        "SpectrumDisplay",
        "TensorBoardLog",
        "TimeLimit",
        "alone",
        "explore",
        "load",
        "measure_resource",
        "release_memory",
        "to_onnx",
        "to_torch",
    ]


def test_digits_are_learnt():
    X, y = load_digits(return_X_y=True)
    model = KernelClassifier(early_stopping=True, random_state=0).fit(X[:1300], y[:1300])
    assert model.score(X[1300:], y[1300:]) > 0.95
    assert model.converged_
    assert model.plan_.n == 1170
    assert model.dual_coef_.shape == (1300, 10)
    assert (model.dual_coef_ == 0).all(1).sum() == 130  # the held-out rows


@pytest.mark.parametrize("n_classes", [2, 3])
def test_probabilities_sum_to_one_and_agree_with_predict(n_classes):
    X, y = make_classification(300, n_informative=6, n_classes=n_classes, random_state=0)
    model = KernelClassifier(random_state=0).fit(X, y)
    p = model.predict_proba(X)
    assert p.shape == (300, n_classes)
    np.testing.assert_allclose(p.sum(1), 1)
    assert (p >= 0).all()
    assert (model.classes_[p.argmax(1)] == model.predict(X)).all()


def test_decision_function_of_two_classes_is_one_column_for_the_second(iris):
    X, y = iris[0][:100], iris[1][:100]
    model = KernelClassifier(random_state=0).fit(X, y)
    decision = model.decision_function(X)
    assert decision.shape == (100,)
    assert ((decision > 0) == (model.predict(X) == 1)).all()


def test_string_labels_come_back(iris):
    names = np.array(["setosa", "versicolor", "virginica"])
    model = KernelClassifier(random_state=0).fit(iris[0], names[iris[1]])
    assert set(model.predict(iris[0])) == set(names)
    assert list(model.classes_) == sorted(names)


def test_several_labels_at_once():
    X, y = make_multilabel_classification(800, n_classes=4, random_state=0)
    model = KernelClassifier(random_state=0).fit(X[:600], y[:600])
    predicted = model.predict(X[600:])
    assert predicted.shape == (200, 4)
    assert set(np.unique(predicted)) <= {0, 1}
    assert (predicted == y[600:]).mean() > 0.8
    p = model.predict_proba(X[600:])
    assert ((p > 0.5) == (predicted == 1)).all()


def test_several_outputs_at_once(rng):
    X = rng.normal(size=(400, 3))
    Y = np.column_stack([np.sin(X[:, 0]), X[:, 1] ** 2])
    model = KernelRegressor("gaussian", bandwidth=1.5, ridge=0.0, random_state=0).fit(X, Y)
    assert model.predict(X).shape == (400, 2)
    assert model.score(X, Y) > 0.99
    single = KernelRegressor("gaussian", bandwidth=1.5, ridge=0.0, random_state=0).fit(X, Y[:, 0])
    assert single.predict(X).shape == (400,)
    np.testing.assert_allclose(single.predict(X), model.predict(X)[:, 0], atol=0.05)


def test_pandas_frames_go_in_and_their_names_are_kept(iris):
    frame = pd.DataFrame(iris[0], columns=["a", "b", "c", "d"])
    model = KernelClassifier(random_state=0).fit(frame, pd.Series(iris[1]))
    assert list(model.feature_names_in_) == ["a", "b", "c", "d"]
    assert isinstance(model.predict(frame), np.ndarray)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"a": "z"}))


def test_polars_frames_go_in(iris):
    frame = pl.DataFrame(iris[0], schema=["a", "b", "c", "d"], orient="row")
    model = KernelClassifier(random_state=0).fit(frame, pl.Series(iris[1]))
    assert list(model.feature_names_in_) == ["a", "b", "c", "d"]
    assert model.score(frame, iris[1]) > 0.95


def test_tensors_in_tensors_out(iris):
    X, y = torch.tensor(iris[0], dtype=torch.float32), torch.tensor(iris[1])
    model = KernelClassifier(random_state=0).fit(X, y)
    for values in (model.predict(X), model.predict_proba(X), model.decision_function(X)):
        assert isinstance(values, torch.Tensor)
    assert model.score(X, y) > 0.95
    regressor = KernelRegressor(random_state=0).fit(X, X[:, 0])
    assert isinstance(regressor.predict(X), torch.Tensor)


def test_a_plain_function_serves_as_kernel(iris):
    model = KernelClassifier(lambda a, b: torch.exp(-torch.cdist(a, b)), random_state=0).fit(*iris)
    assert model.score(*iris) > 0.95
    assert model.plan_.kernel.startswith("custom")


def test_same_seed_same_model(iris):
    a, b = (KernelClassifier(random_state=3).fit(*iris) for _ in range(2))
    assert (a.dual_coef_ == b.dual_coef_).all()


def test_clone_pipeline_and_grid_search_work(iris):
    pipeline = make_pipeline(StandardScaler(), KernelClassifier(random_state=0))
    assert cross_val_score(pipeline, *iris, cv=3).mean() > 0.9
    search = GridSearchCV(
        KernelClassifier(random_state=0),
        {"bandwidth": [0.5, 2.0], "kernel": ["gaussian", mercer.Laplacian(2.0)]},
        cv=2,
        n_jobs=2,
    ).fit(*iris)
    assert search.best_score_ > 0.9
    assert clone(search.best_estimator_).get_params()["bandwidth"] in (0.5, 2.0)


def test_pickle_and_joblib_keep_predictions(iris, tmp_path):
    model = KernelClassifier(random_state=0).fit(*iris)
    expected = model.decision_function(iris[0])
    assert (pickle.loads(pickle.dumps(model)).decision_function(iris[0]) == expected).all()
    joblib.dump(model, tmp_path / "model.joblib")
    assert (joblib.load(tmp_path / "model.joblib").decision_function(iris[0]) == expected).all()


def test_validation_set_can_be_given(iris):
    X, y = iris
    model = KernelClassifier(random_state=0).fit(X[::2], y[::2], X_val=X[1::2], y_val=y[1::2])
    assert model.plan_.n == 75
    assert model.history_[-1].validation_score > 0.9


def test_the_third_argument_of_fit_is_the_sample_weight(iris):
    X, y = iris
    weight = np.ones(150)
    weight[:20] = 0
    model = KernelClassifier(random_state=0).fit(X, y, weight)
    assert model.plan_.n == 130
    with pytest.raises(TypeError, match="positional"):
        model.fit(X, y, weight, X)


def test_rbf_is_the_gaussian(iris):
    settings = {"bandwidth": 2.0, "ridge": 0.01, "random_state": 0}
    here, there = (KernelClassifier(kernel, **settings).fit(*iris) for kernel in ("rbf", "gaussian"))
    assert here.kernel_ == there.kernel_ == mercer.Gaussian(2.0)
    np.testing.assert_array_equal(here.dual_coef_, there.dual_coef_)
    assert KernelClassifier("rbf", random_state=0).fit(*iris).kernel_.name == "gaussian"


class OneThread(TorchDispatchMode):
    """Torch's own operations, which would spin on cores that others need if they had several threads."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        assert torch.get_num_threads() == 1, operation
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_all_of_fit_and_predict_runs_on_workers_of_one_thread_each(rng, n_jobs):
    X = rng.normal(size=(300, 3))
    y = (X[:, 0] > 0).astype(int)
    model = KernelClassifier(random_state=0, n_jobs=n_jobs, early_stopping=True, max_iter=3)
    with torch_threads(2):
        with OneThread(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.plan(X, y)
            model.fit(X, y)
            model.predict_proba(X)
        assert torch.get_num_threads() == 2


@pytest.mark.parametrize("n_jobs", [1, 2, -1])
def test_n_jobs_sets_the_threads_of_fit_and_predict_only(iris, n_jobs):
    before = torch.get_num_threads()
    seen = []

    class Look(mercer.Callback):
        def on_epoch_end(self, run):
            seen.append(workers_for(torch.device("cpu")).count)

    model = KernelClassifier(random_state=0, n_jobs=n_jobs, callbacks=[Look()]).fit(*iris)
    assert set(seen) == {min(8, n_jobs if n_jobs > 0 else os.cpu_count())}
    model.predict(iris[0])
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("n_jobs", [0, -2, 1.5, "all", True])
def test_a_wrong_number_of_threads_is_refused(iris, n_jobs):
    with pytest.raises(ValueError, match=r"`n_jobs` must be a whole number of threads"):
        KernelClassifier(n_jobs=n_jobs).fit(*iris)


def test_a_plan_changes_nothing(iris):
    X, y = iris
    model = KernelClassifier(random_state=0).fit(X, y)
    before, known = model.predict(X), set(vars(model))
    model.plan(X[:, :2], np.where(y == 0, "cat", "dog"))
    assert set(vars(model)) == known
    np.testing.assert_array_equal(model.predict(X), before)


def test_a_plan_can_be_made_without_training(iris):
    model = KernelClassifier(random_state=0)
    plan = model.plan(*iris)
    assert plan.n == 150
    assert not hasattr(model, "dual_coef_")


def test_a_plan_can_be_made_for_a_device_one_does_not_have(iris):
    titan = mercer.Resource(capacity=1e11, memory=12e9, name="a device far away")
    plan = KernelClassifier(random_state=0).plan(*iris, resource=titan)
    assert plan.device_name == "a device far away"
    assert plan.capacity == 1e11


def test_notes_of_fallbacks_are_told(iris, monkeypatch):
    real = mercer.preparation.all_rows.direct_plan

    def with_note(*args, **kwargs):
        plan, levelled = real(*args, **kwargs)
        return __import__("dataclasses").replace(plan, notes=("the sky fell",)), levelled

    monkeypatch.setattr("mercer.preparation.all_rows.direct_plan", with_note)
    with pytest.warns(UserWarning, match=r"^The sky fell\.$"):
        KernelClassifier(random_state=0).fit(*iris)


def calibration_error(probabilities, labels, bins=10):
    """Mean gap between confidence and accuracy over bins of confidence."""
    confidence, hit = probabilities.max(1), probabilities.argmax(1) == labels
    bin_of = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = [
        (bin_of == b).mean() * abs(hit[bin_of == b].mean() - confidence[bin_of == b].mean())
        for b in np.unique(bin_of)
    ]
    return sum(gaps)


def test_probabilities_are_reliable_on_digits():
    X, y = load_digits(return_X_y=True)
    model = KernelClassifier(random_state=0).fit(X[:900], y[:900])
    assert calibration_error(model.predict_proba(X[900:]), y[900:]) < 0.05


@pytest.mark.slow
def test_probabilities_are_reliable_on_a_table(data_directory):
    with np.load(data_directory / "magic.npz") as file:
        order = np.random.default_rng(0).permutation(len(file["X"]))
        X, y = file["X"][order], np.unique(file["y"], return_inverse=True)[1][order]
    model = KernelClassifier(random_state=0).fit(X[:2000], y[:2000])
    assert calibration_error(model.predict_proba(X[2000:7000]), y[2000:7000]) < 0.05


def test_a_fit_is_the_same_each_time(rng):
    X = rng.normal(size=(1500, 4))
    y = np.sin(X[:, 0])
    fits = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        fits.append(KernelRegressor("laplacian", random_state=0).fit(X, y).dual_coef_)
    np.testing.assert_array_equal(*fits)


def test_data_given_is_not_changed(rng):
    X = rng.normal(size=(50, 3)).astype(np.float32) + 5
    before = X.copy()
    KernelRegressor(random_state=0).fit(X, X[:, 0])
    np.testing.assert_array_equal(X, before)
