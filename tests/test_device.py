"""The whole method on a device that is not the CPU, by way of a stand-in (stand_in.py)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from stand_in import StandIn, StandInTensor
from torch import Tensor
from torch.utils._pytree import tree_leaves

import mercer
from mercer import KernelClassifier, KernelRegressor
from mercer.kernels import KERNELS

FUNCTION = mercer.Custom(lambda a, b: torch.exp(-torch.cdist(a, b) / 3))


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (8 << 30, 12 << 30))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Stand-in 3000")
    with StandIn() as stand_in:
        yield stand_in


def data(rng, n):
    X = rng.normal(size=(n, 5))
    return X, np.sin(X[:, 0]) + X[:, 1]


@pytest.mark.parametrize("kernel", [*sorted(KERNELS), FUNCTION], ids=str)
def test_every_kernel_trains_and_predicts_on_the_device_as_on_the_cpu(kernel, rng, gpu, on_desk):
    X, y = data(rng, 400)
    # A learned metric makes smooth kernels so smooth that the last digits depend on the device.
    parameters = {"random_state": 0, "max_iter": 5, "precision": "float64", "metric": False}
    there = KernelRegressor(kernel, device="cuda", **parameters).fit(X, y)
    ran = sum(gpu.operations.values())
    assert ran > 100
    assert there.machine_.device == gpu.device
    ours = there.predict(X[:50])
    assert sum(gpu.operations.values()) > ran
    here = KernelRegressor(kernel, device="cpu", **parameters).fit(X, y)
    np.testing.assert_allclose(ours, here.predict(X[:50]), atol=1e-7)


def test_classifier_with_a_subsample_and_auto_device(rng, gpu):
    X, y = data(rng, 3000)
    labels = np.digitize(y, [-1, 1])
    settings = {"kernel": "laplacian", "bandwidth": 3.0, "ridge": 0.0, "early_stopping": True}
    model = KernelClassifier(**settings, random_state=0, max_iter=4).fit(X, labels)
    assert model.machine_.device.type == "cuda"
    assert model.plan_.device_name == "Stand-in 3000"
    assert model.plan_.memory == pytest.approx(0.95 * (8 << 30))
    assert model.plan_.subsample_size == 2000
    assert model.plan_.first_epoch_seconds > 0  # rehearsed there
    assert model.score(X, labels) > 0.9


def test_tensors_on_the_device_come_back_on_the_device(rng, gpu):
    X, y = data(rng, 200)
    x = torch.from_numpy(X).to(gpu.device)
    model = KernelRegressor(random_state=0).fit(x, torch.from_numpy(y).to(gpu.device))
    predicted = model.predict(x)
    assert predicted.device == gpu.device
    np.testing.assert_allclose(predicted.cpu().numpy(), y, atol=0.1)


def test_features_on_the_device_never_visit_the_cpu(rng, gpu, monkeypatch):
    X, y = data(rng, 1_200)
    x, held_out = torch.from_numpy(X).to(gpu.device), torch.from_numpy(X[:300]).to(gpu.device)
    moved = []
    real = StandIn.run

    def watched(self, func, args, kwargs):
        result = real(self, func, args, kwargs)
        source = next((leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)), None)
        if isinstance(source, StandInTensor) and type(result) is Tensor:
            moved.append(result.numel())
        return result

    monkeypatch.setattr(StandIn, "run", watched)
    settings = {"kernel": "laplacian", "bandwidth": 3.0, "ridge": 0.0, "max_iter": 2}
    model = KernelRegressor(**settings, random_state=0).fit(x, y, X_val=held_out, y_val=y[:300])
    model.predict(x)
    model.to_torch()(x)
    # Weights and predictions, a number for each row, are the largest thing that leaves the device.
    assert 0 < max(moved) <= len(X)
    assert sum(count >= X.size for count in moved) == 0


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda x: x[0], "must be a matrix"),
        (lambda x: x[:0], "must be a matrix"),
        (lambda x: x.index_fill(0, torch.tensor([3], device=x.device), torch.nan), "must be finite"),
        (lambda x: x[:5], "as many rows"),
    ],
)
def test_features_on_the_device_are_validated_there(rng, gpu, spoil, message):
    X, y = data(rng, 60)
    with pytest.raises(ValueError, match=message):
        KernelRegressor(random_state=0).fit(spoil(torch.from_numpy(X).to(gpu.device)), y)


def test_machine_moves_between_devices(rng, gpu):
    X, y = data(rng, 100)
    machine = KernelRegressor(random_state=0, device="cuda").fit(X, y).machine_
    there, here = machine.predict(X).cpu(), machine.to("cpu").predict(X)
    torch.testing.assert_close(here, there, atol=1e-5, rtol=0)
