"""The function leaves Mercer: gradients, `torch.export` and ONNX agree with `predict`."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import torch

from mercer import KernelClassifier, KernelRegressor, NeuralTangent
from mercer.cli import main
from mercer.kernels import KERNELS
from mercer.model.plain_function import _neural_tangent as plain_neural_tangent

RANKED = {"scale": "rank", "categorical_features": [1]}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 4))
    X[:, 1] = rng.integers(0, 4, 80)
    X[:, 3] = 2.0  # constant in training
    return X, np.sin(X[:, 0]) + X[:, 1]


def fitted(data, kernel="gaussian", **options):
    X, y = data
    settings = {"bandwidth": 2.0, "ridge": 0.01, "metric": False, "random_state": 0} | options
    return KernelRegressor(kernel, **settings).fit(X, y)


def new_rows(n=7):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, 4))
    X[:, 1] = rng.integers(0, 5, n)  # a category that training had not
    return X


@pytest.mark.parametrize("kernel", sorted(KERNELS))
@pytest.mark.parametrize(
    "options", [{}, {"scale": "rank", "categorical_features": [1]}], ids=["", "table"]
)
def test_gradients_pass_and_are_those_of_finite_differences(data, kernel, options):
    if kernel == "neural_tangent" and options:
        options = {}
    model = fitted(data, kernel, **options)
    module = model.to_torch().double()
    X = new_rows()
    x = torch.from_numpy(X).requires_grad_()
    found = module(x)
    np.testing.assert_allclose(found.detach()[:, 0], model.predict(X), atol=2e-5)
    (gradient,) = torch.autograd.grad(found.sum(), x)
    step = 1e-6
    for j in (0, 2):
        up, down = X.copy(), X.copy()
        up[:, j] += step
        down[:, j] -= step
        with torch.no_grad():
            both = [module._plain(torch.from_numpy(rows))[:, 0] for rows in (up, down)]
        slope = (both[0] - both[1]) / (2 * step)
        np.testing.assert_allclose(gradient[:, j], slope, rtol=1e-4, atol=1e-5)


def test_gradients_at_a_centre_are_finite(data):
    for kernel in ("laplacian", "matern32", "exponential_power", "neural_tangent"):
        x = torch.from_numpy(data[0][:5]).requires_grad_()
        fitted(data, kernel).to_torch()(x).sum().backward()
        assert torch.isfinite(x.grad).all()


def test_gradients_pass_through_to_layers_before_the_module(data):
    layer = torch.nn.Linear(4, 4).double()
    module = fitted(data).to_torch().double()
    module(layer(torch.from_numpy(new_rows()))).square().mean().backward()
    assert layer.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("kernel", ["gaussian", "l1_laplacian", "neural_tangent"])
def test_an_exported_program_takes_any_number_of_rows(data, kernel):
    model = fitted(data, kernel)
    rows = torch.export.Dim("rows", min=1)
    example = (torch.from_numpy(new_rows(3)),)
    program = torch.export.export(model.to_torch(), example, dynamic_shapes=({0: rows},))
    for n in (2, 9):
        X = new_rows(n)
        found = program.module()(torch.from_numpy(X))[:, 0]
        np.testing.assert_allclose(found, model.predict(X), atol=2e-5)


def test_classes_come_from_the_exported_decisions(data):
    X, y = data
    model = KernelClassifier("laplacian", bandwidth=2.0, ridge=0.1, metric=False, random_state=0)
    model.fit(X, np.digitize(y, [0.5, 1.5]))
    x = torch.from_numpy(new_rows()).requires_grad_()
    found = model.classes_[model.to_torch()(x).argmax(1).numpy()]
    assert (found == model.predict(new_rows())).all()


def test_a_function_of_ones_own_says_that_it_has_no_gradient(data):
    X, y = data
    model = KernelRegressor(lambda a, b: torch.exp(-torch.cdist(a, b)), ridge=0.1, random_state=0)
    x = torch.from_numpy(X[:2]).requires_grad_()
    with pytest.raises(ValueError, match="function of your own"):
        model.fit(X, y).to_torch()(x)


# ONNX


def run(path, X):
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(path)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"X": X}), strict=True))


@pytest.mark.parametrize("depth", [1, 3])
def test_the_plain_neural_tangent_kernel_is_the_kernel_in_double_precision(depth):
    chord = torch.linspace(0, 1, 201, dtype=torch.float64)
    kernel, one = NeuralTangent(1.0, depth=depth), torch.ones(1, dtype=torch.float64)
    oracle = kernel.from_distances(4 * chord, one, one)  # two points of the unit sphere
    torch.testing.assert_close(plain_neural_tangent(kernel, chord), oracle, rtol=0, atol=1e-13)


@pytest.mark.parametrize("kernel", sorted(KERNELS))
def test_onnxruntime_predicts_as_the_model(data, kernel, tmp_path):
    model = fitted(data, kernel, **(RANKED if kernel in ("gaussian", "l1_laplacian") else {}))
    path = tmp_path / "m.onnx"
    model.to_onnx(path)
    for n in (1, 9):
        X = new_rows(n)
        np.testing.assert_allclose(run(path, X)["prediction"], model.predict(X), atol=2e-5)
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]  # weights are inside


@pytest.mark.parametrize("labels", [["no", "yes"], ["a", "b", "c"], [3, 7, 9]], ids=str)
def test_onnx_has_labels_and_probabilities(data, labels, tmp_path):
    X, y = data
    X = X.copy()
    X[::7, 2] = np.nan  # with an indicator of missing values
    classes = np.array(labels)[np.digitize(y, [0.5, 1.5][: len(labels) - 1])]
    model = KernelClassifier("laplacian", bandwidth=2.0, ridge=0.1, metric=False, random_state=0)
    model.fit(X, classes).save(tmp_path / "m.mercer")
    assert main(["export", str(tmp_path / "m.mercer"), str(tmp_path / "m.onnx")]) == 0
    found = run(tmp_path / "m.onnx", X)
    assert found["label"].tolist() == model.predict(X).tolist()
    np.testing.assert_allclose(found["probabilities"], model.predict_proba(X), atol=1e-5)


def test_what_onnx_cannot_have_is_said(data, tmp_path):
    X, y = data
    own = KernelRegressor(lambda a, b: torch.exp(-torch.cdist(a, b)), ridge=0.1, random_state=0)
    with pytest.raises(ValueError, match="function of your own"):
        own.fit(X, y).to_onnx(tmp_path / "m.onnx")
    table = pl.DataFrame({"a": X[:, 0], "colour": ["red", "blue"] * 40})
    model = KernelRegressor("gaussian", bandwidth=1.0, ridge=0.1, metric=False, random_state=0)
    with pytest.raises(ValueError, match="'colour' holds text"):
        model.fit(table, y).to_onnx(tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())
