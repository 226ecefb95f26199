"""Shares and dealt points on a device that is not the CPU, by way of a stand-in (stand_in.py)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import on_the_desk
from stand_in import StandIn, StandInTensor

from mercer import KernelRegressor, RowShare
from mercer.data.dealt_points import DealtPoints

FIXED = {"kernel": "laplacian", "bandwidth": 3.0, "ridge": 0.01, "random_state": 0, "max_iter": 2}
N = 3_600


def numbers_behind(tensor):
    """NCCL adds tensors on their device; here, gloo adds the numbers of the stand-in's."""
    return tensor.held if isinstance(tensor, StandInTensor) else tensor


def on_the_device():
    """Called on a rank: what is sent between devices is carried by gloo."""
    on_the_desk()
    whole_reduce, whole_group = dist.all_reduce, dist.new_group
    if not hasattr(dist, "of_the_stand_in"):
        dist.of_the_stand_in = True
        dist.all_reduce = lambda t, **given: whole_reduce(numbers_behind(t), **given)
        dist.new_group = lambda **given: whole_group(**{**given, "backend": "gloo"})


def fitted(kind, device):
    """Weights, own predictions, whether points are dealt and where they are."""
    on_the_device()
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 5))
    y = X[:, 0] - X[:, 1]
    model = KernelRegressor(**FIXED, device=device)
    if kind == "stopped":
        model.set_params(early_stopping=True, precision="float64")
    if kind.startswith("centres"):
        model.set_params(n_centers=700, batch_size=100, subsample_size=300)
    if kind == "centres, solved":
        mine = {"batch_size": "auto", "subsample_size": "auto", "n_centers": 150}
        model.set_params(**mine)
    rank, size = dist.get_rank(), dist.get_world_size()
    ends = [0, *[100 + 40 * i for i in range(size - 1)], N]  # uneven
    mine = slice(ends[rank], ends[rank + 1])
    with StandIn() as stand_in:
        own = torch.from_numpy(X[mine]).to(device) if kind == "tensors" else X[mine]
        model.fit(RowShare(own), y[mine])
        predictions = model.predict(RowShare(own))
        if isinstance(predictions, torch.Tensor):
            predictions = predictions.cpu().numpy()
        centres = model.machine_.centres
        ran = stand_in.operations["exp2_"]
        return (
            model.dual_coef_,
            predictions,
            isinstance(centres, DealtPoints),
            str(centres.device),
            ran,
        )


@pytest.mark.parametrize(
    "kind",
    ["tensors", *(pytest.param(k, marks=pytest.mark.slow) for k in ("arrays", "stopped"))],
)
def test_shares_train_on_a_device_with_the_bits_of_one_rank_that_has_all_rows(pool, kind):
    ((weights, predictions, dealt, device, _),) = pool.run(1, fitted, kind, "cuda:0")
    assert (dealt, device) == (False, "cuda:0")
    for size in (2, 3):
        found = pool.run(size, fitted, kind, "cuda:0")
        for again, _, dealt, device, ran in found:
            assert (dealt, device) == (True, "cuda:0")
            assert ran > 0  # kernel values on the device
            np.testing.assert_array_equal(again, weights, err_msg=f"{size} ranks")
        own = np.concatenate([rank[1] for rank in found])
        np.testing.assert_allclose(own, predictions, atol=2e-5 * predictions.std())


@pytest.mark.parametrize("kind", ["centres, solved", pytest.param("centres", marks=pytest.mark.slow)])
def test_fewer_centres_train_on_a_device_with_the_bits_of_one_rank(pool, kind):
    ((weights, predictions, *_),) = pool.run(1, fitted, kind, "cuda:0")
    found = pool.run(3, fitted, kind, "cuda:0")
    for again, _, dealt, device, ran in found:
        assert (dealt, device) == (False, "cuda:0")  # all ranks have the centres
        assert ran > 0
        np.testing.assert_array_equal(again, weights)
    own = np.concatenate([rank[1] for rank in found])
    np.testing.assert_allclose(own, predictions, atol=2e-5 * predictions.std())
