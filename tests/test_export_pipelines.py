"""Pipelines around a model are exported as they predict, or the step that cannot be is named."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA, IncrementalPCA, TruncatedSVD
from sklearn.feature_selection import SelectKBest, VarianceThreshold, f_regression
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    PolynomialFeatures,
    PowerTransformer,
    RobustScaler,
    StandardScaler,
)
from test_export import run

import mercer
from mercer import KernelClassifier, KernelRegressor
from mercer.estimators.pipeline_steps import as_module

SETTINGS = {"bandwidth": 2.0, "ridge": 0.05, "metric": False, "random_state": 0}


def regressor(**options):
    return KernelRegressor("gaussian", **{**SETTINGS, **options})


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4))
    X[:, 1] = rng.integers(0, 3, 60)
    return X, X[:, 0] + np.sin(X[:, 1])


def with_gaps(X, value=np.nan):
    X = X.copy()
    X[::5, 2] = X[1::7, 0] = value
    return X


def dense(A):
    return A.toarray() if hasattr(A, "toarray") else np.asarray(A)


CODES = OneHotEncoder(handle_unknown="ignore")


@pytest.mark.parametrize(
    "step",
    [
        StandardScaler(),
        StandardScaler(with_mean=False),
        StandardScaler(with_std=False),
        MinMaxScaler((-1, 2)),
        MinMaxScaler(clip=True),
        MaxAbsScaler(),
        RobustScaler(),
        RobustScaler(with_centering=False, with_scaling=False),
        Normalizer("l1"),
        Normalizer("l2"),
        Normalizer("max"),
        PCA(2),
        PCA(3, whiten=True),
        IncrementalPCA(2),
        TruncatedSVD(2),
        VarianceThreshold(0.7),
        SelectKBest(f_regression, k=2),
        PolynomialFeatures(3),
        PolynomialFeatures(2, interaction_only=True, include_bias=False),
        KBinsDiscretizer(3, quantile_method="averaged_inverted_cdf"),
        KBinsDiscretizer([2, 3, 4, 2], encode="ordinal", strategy="uniform"),
        FunctionTransformer(),
        FeatureUnion(
            [("a", PCA(1)), ("b", StandardScaler()), ("c", "drop")], transformer_weights={"a": 3}
        ),
        ColumnTransformer([("codes", CODES, [1])], remainder="passthrough"),
        ColumnTransformer(
            [
                ("codes", OneHotEncoder(handle_unknown="ignore", drop="first"), [-3]),
                ("scaled", make_pipeline(StandardScaler(), PCA(1)), slice(2, 4)),
                ("nothing", StandardScaler(), []),
                ("masked", "passthrough", [True, False, False, False]),
            ],
            transformer_weights={"scaled": 0.5},
        ),
    ],
    ids=lambda step: type(step).__name__,
)
@pytest.mark.filterwarnings("ignore:Bins whose width", "ignore:Found unknown categories")
def test_the_module_of_a_transformer_computes_what_it_does(data, step):
    X, y = data
    step.fit(X, y)
    new = 2 * np.random.default_rng(1).normal(size=(9, 4))
    new[0] = 0
    for rows in (X, new):
        found = as_module(step)(torch.from_numpy(rows))
        np.testing.assert_allclose(found, dense(step.transform(rows)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("missing", [np.nan, -9.0])
@pytest.mark.parametrize("options", [{}, {"strategy": "median", "add_indicator": True}], ids=str)
def test_missing_values_are_replaced_and_marked(data, missing, options):
    X = with_gaps(data[0], missing)
    step = SimpleImputer(missing_values=missing, **options).fit(X)
    np.testing.assert_allclose(as_module(step)(torch.from_numpy(X)), step.transform(X), rtol=1e-12)


@pytest.mark.parametrize("keep", [False, True])
def test_columns_without_values_are_left_out_or_kept_as_the_imputer_does(data, keep):
    X = data[0].copy()
    X[:, 2] = np.nan
    step = SimpleImputer(keep_empty_features=keep).fit(X)
    found = as_module(step)(torch.from_numpy(X))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a column was left out
        expected = step.transform(X)
    np.testing.assert_allclose(found, expected)


def test_missing_values_pass_scalers_on_their_way_to_the_model(data):
    X, y = with_gaps(data[0]), data[1]
    pipeline = make_pipeline(MinMaxScaler(clip=True), regressor()).fit(X, y)
    found = mercer.to_torch(pipeline)(torch.from_numpy(X))[:, 0]
    np.testing.assert_allclose(found, pipeline.predict(X), atol=2e-5)


def test_the_module_of_a_pipeline_passes_gradients_and_moves_between_precisions(data):
    X, y = data
    pipeline = make_pipeline(StandardScaler(), PCA(3), regressor()).fit(X, y)
    module = mercer.to_torch(pipeline)
    x = torch.from_numpy(X).requires_grad_()
    found = module(x)
    np.testing.assert_allclose(found.detach()[:, 0], pipeline.predict(X), atol=2e-5)
    (gradient,) = torch.autograd.grad(found.sum(), x)
    step = np.zeros(4)
    step[0] = 1e-5
    slope = (pipeline.predict(X + step) - pipeline.predict(X - step)) / 2e-5
    np.testing.assert_allclose(gradient[:, 0], slope, atol=0.05)
    assert torch.allclose(module.float()(x.detach().float()), found.detach().float(), atol=1e-3)
    rows = torch.export.Dim("rows", min=1)
    program = torch.export.export(module, (x.detach()[:3].float(),), dynamic_shapes=({0: rows},))
    again = program.module()(x.detach().float())
    assert torch.allclose(again.double(), found.detach().double(), atol=1e-3)


def test_a_search_is_exported_as_its_best_pipeline(data):
    X, y = data
    pipeline = Pipeline([("scale", StandardScaler()), ("model", regressor())])
    search = GridSearchCV(pipeline, {"model__ridge": [0.1, 10.0]}, cv=2).fit(X, y)
    found = mercer.to_torch(search)(torch.from_numpy(X))[:, 0]
    np.testing.assert_allclose(found, search.predict(X), atol=2e-5)


@pytest.mark.parametrize(
    "labels", [["no", "yes"], pytest.param([2, 5, 7], marks=pytest.mark.slow)], ids=str
)
def test_onnxruntime_predicts_as_the_pipeline(data, labels, tmp_path):
    X, y = with_gaps(data[0]), data[1]
    frame = pd.DataFrame(X, columns=["a", "code", "b", "c"])
    classes = np.array(labels)[np.digitize(y, [0.0, 1.0][: len(labels) - 1])]
    numbers = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler(), PCA(3))
    columns = ColumnTransformer(
        [("numbers", numbers, slice("b", "c")), ("code", CODES, ["code"])], remainder=MinMaxScaler()
    )
    model = KernelClassifier("laplacian", **SETTINGS)
    pipeline = make_pipeline(columns, model).fit(frame, classes)
    mercer.to_onnx(pipeline, tmp_path / "p.onnx")
    new = X.copy()
    new[:5, 1] = 17.0  # a category that training had not
    found = run(tmp_path / "p.onnx", new)
    rows = pd.DataFrame(new, columns=frame.columns)
    assert found["label"].tolist() == pipeline.predict(rows).tolist()
    np.testing.assert_allclose(found["probabilities"], pipeline.predict_proba(rows), atol=1e-5)


def squared(X):
    return X**2


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            [("square", FunctionTransformer(squared))],
            "'square' .FunctionTransformer. .* Python function",
        ),
        ([("power", PowerTransformer())], "'power' .PowerTransformer. cannot be exported"),
        ([("fill", KNNImputer())], "'fill' .KNNImputer."),
        ([("codes", OneHotEncoder())], "'codes' .OneHotEncoder. .*handle_unknown='ignore'"),
        ([("rare", OneHotEncoder(handle_unknown="ignore", min_frequency=30))], "joins rare categories"),
        (
            [("all", ColumnTransformer([("deep", make_pipeline(PowerTransformer()), [0])]))],
            "'powertransformer' .PowerTransformer.",
        ),
    ],
)
def test_a_step_that_cannot_be_exported_is_named(data, steps, message, tmp_path):
    X, y = data
    pipeline = Pipeline([*steps, ("model", regressor())]).fit(X, y)
    for attempt in (
        lambda: mercer.to_onnx(pipeline, tmp_path / "p.onnx"),
        lambda: mercer.to_torch(pipeline),
    ):
        with pytest.raises(ValueError, match=message):
            attempt()
    assert not list(tmp_path.iterdir())


def test_text_and_other_estimators_are_refused_in_a_sentence(data, tmp_path):
    X, y = data
    frame = pd.DataFrame(X, columns=list("abcd")).assign(colour=np.array(["red", "blue"] * 30, object))
    encoder = ColumnTransformer([("text", OneHotEncoder(handle_unknown="ignore"), ["colour"])])
    with pytest.raises(ValueError, match=r"'text' \(OneHotEncoder\).*columns of text"):
        mercer.to_torch(make_pipeline(encoder, regressor()).fit(frame, y))
    with pytest.raises(ValueError, match=r"Only a Mercer estimator.*Got LinearRegression"):
        mercer.to_onnx(make_pipeline(LinearRegression()).fit(X, y), tmp_path / "p.onnx")
