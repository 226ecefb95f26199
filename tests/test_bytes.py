from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
import torch

import mercer
from mercer import KernelClassifier, KernelRegressor
from mercer.data.bytes import Grid, recognise
from mercer.data.points import byte_points
from mercer.kernels import in_units


@pytest.fixture
def pixels(rng):
    images = rng.integers(0, 256, size=(700, 80))
    images[0, :2] = 0, 255
    return images


@pytest.mark.parametrize(
    "scaled",
    [
        lambda p: p.astype(np.float32),
        lambda p: p.astype(np.float32) / 255,
        lambda p: p / 255,
        lambda p: (p / 127.5 - 1).astype(np.float32),
        lambda p: p.astype(np.float64) - 128,
        lambda p: (p % 2).astype(np.float32),
    ],
    ids=["bytes", "unit float32", "unit float64", "minus one to one", "signed", "two values"],
)
def test_eight_bit_data_is_recognised_and_comes_back(pixels, scaled):
    x = scaled(pixels)
    x = torch.from_numpy(x)
    grid = recognise(x[:256], float(x.min()))
    codes = grid.encode(x)
    assert codes.dtype == torch.int8
    torch.testing.assert_close(grid.origin + grid.scale * codes.double(), x.double(), rtol=0, atol=1e-5)


def test_other_data_is_not(rng, pixels):
    assert recognise(torch.from_numpy(rng.normal(size=(300, 5))), -9.0) is None
    spoiled = torch.from_numpy(pixels).double()
    spoiled[650, 3] += 0.5
    assert recognise(spoiled[:256], 0.0).encode(spoiled) is None
    odd = torch.from_numpy(pixels * 2 + (pixels % 2) * 200.0)
    assert recognise(odd, 0.0) is None
    assert recognise(torch.ones(10, 3), 1.0) is None


def test_data_that_only_begins_as_bytes_is_kept_as_floats(rng):
    X = rng.integers(0, 256, size=(900, 70)).astype(np.float64)
    X[300:] += rng.normal(size=(600, 70))
    y = X[:, 0] / 255
    model = KernelRegressor("gaussian", bandwidth=700.0, ridge=0.01, random_state=0).fit(X, y)
    assert model.machine_.centres.x.dtype == torch.float32
    assert "bytes" not in model.plan_.preparation


def test_values_off_the_grid_are_not_encoded():
    grid = Grid(offset=0.0, scale=1.0)
    assert grid.encode(torch.tensor([[0.0, 255.0]])).tolist() == [[-128, 127]]
    for value in (-1.0, 256.0, 0.5, np.nan):
        assert grid.encode(torch.tensor([[value, 1.0]])) is None


@pytest.mark.parametrize("d", [3, 80, 2000])
def test_integer_distances_equal_float64_ones(rng, d):
    codes = torch.from_numpy(rng.integers(-128, 128, size=(60, d)).astype(np.int8))
    kernel = mercer.Laplacian(100.0 * d**0.5)
    a = byte_points(codes, torch.float32)
    block = kernel.block(a[:40], a[20:])
    wide = codes.double()
    expected = kernel.block(kernel.points(wide[:40]), kernel.points(wide[20:]))
    torch.testing.assert_close(block.double(), expected, rtol=1e-5, atol=1e-6)
    mixed = kernel.block(kernel.points(codes[:40].float()), a[20:])
    torch.testing.assert_close(mixed.double(), expected, rtol=1e-4, atol=1e-4)


def test_training_on_bytes_equals_training_on_floats(pixels, on_desk, monkeypatch):
    y = (pixels[:, :40].sum(1) > pixels[:, 40:].sum(1)).astype(int)
    X = (pixels / 255).astype(np.float32)
    fast_device = dataclasses.replace(on_desk, integer_gain=4.0)
    parameters = {"kernel": "gaussian", "bandwidth": 5.0, "random_state": 0, "max_iter": 3}
    parameters["batch_size"] = len(X)  # by descent, both
    in_floats = KernelClassifier(**parameters).fit(X, y)
    monkeypatch.setattr("mercer.preparation.settings.measure_resource", lambda *_: fast_device)
    in_bytes = KernelClassifier(**parameters).fit(X, y)
    assert in_bytes.machine_.centres.x.dtype == torch.int8
    assert in_floats.machine_.centres.x.dtype == torch.float32
    assert "8-bit" in in_bytes.plan_.products
    assert in_bytes.bandwidth_ == in_floats.bandwidth_ == 5.0
    assert in_bytes.plan_.kernel == in_floats.plan_.kernel
    expected = in_floats.decision_function(X)
    np.testing.assert_allclose(in_bytes.decision_function(X), expected, atol=2e-3)
    # Inputs that are not on the grid are compared as floats.
    np.testing.assert_allclose(
        in_bytes.decision_function(X + 1e-4), in_floats.decision_function(X + 1e-4), atol=2e-3
    )
    again = pickle.loads(pickle.dumps(in_bytes))
    assert again.machine_.centres.x.dtype == torch.int8
    np.testing.assert_array_equal(again.decision_function(X), in_bytes.decision_function(X))


def test_a_kernel_without_bandwidth_keeps_its_units():
    with pytest.raises(ValueError, match="Only a kernel with a bandwidth"):
        in_units(mercer.Custom(torch.cdist), 2.0)
