"""The function leaves Mercer: gradients, `torch.export` and ONNX agree with `predict`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mercer import KernelClassifier, KernelRegressor
from mercer.kernels import KERNELS

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
    for kernel in ("laplacian", "matern32", "exponential_power"):
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
