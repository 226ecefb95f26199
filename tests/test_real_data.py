"""What the method must do on real data; skips where it is not there."""

from __future__ import annotations

import numpy as np
import pytest

import mercer
from mercer import KernelClassifier


@pytest.fixture
def mnist(data_directory):
    with np.load(data_directory / "mnist.npz") as file:
        return tuple(
            file[f"X_{part}"].reshape(-1, 784).astype(np.float32) / 255
            if name == "X"
            else file[f"y_{part}"]
            for part in ("train", "test")
            for name in ("X", "y")
        )


def test_mnist_plan_agrees_with_the_paper(mnist):
    X, y, _, _ = mnist
    titan = mercer.Resource(capacity=float("inf"), memory=12e9, name="the paper's 12 GB device")
    model = KernelClassifier("gaussian", bandwidth=5, batch_size=735, subsample_size=2000)
    plan = model.plan(X, y, resource=titan)
    assert 5 < plan.critical_batch_size_plain < 8
    assert 60 <= plan.paper_rule.q <= 150
    # The subsample believes that this q supports the batch; fresh points say otherwise.
    assert plan.paper_rule_own_critical > 650
    assert plan.paper_rule.critical_batch_size < 0.6 * plan.paper_rule_own_critical


@pytest.mark.slow
def test_full_mnist_reaches_its_error_within_five_epochs(mnist):
    X, y, X_test, y_test = mnist
    model = KernelClassifier("gaussian", bandwidth=5, max_iter=5, random_state=0).fit(X, y)
    assert sum(e.halvings for e in model.history_.epochs) == 0
    assert 1 - model.score(X_test, y_test) <= 0.0135
