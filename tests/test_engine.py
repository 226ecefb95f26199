"""The method without scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mercer
from mercer.engine import Data, Limits, Requests, SettingRequest, Settings, fit, prepare, train
from mercer.operators.base import PanelProducts

LIMITS = Limits(max_iter=3, interpolation_tol=0.0, n_iter_no_change=3, tol=0.0)


@pytest.fixture
def data(rng):
    X = rng.normal(size=(400, 4))
    return Data(X, np.sin(X[:, :2]), rng.permutation(400)[:350])


def test_fit_is_prepare_and_train(data, desk):
    settings = Settings(LIMITS, SettingRequest("laplacian", 2.0, 0.1), resource=desk)
    fitted = fit(data, settings)
    problem = prepare(data, settings)
    outcome = train(
        problem.machine.kernel,
        problem.machine.centres,
        problem.y,
        problem.plan.step,
        problem.preconditioner,
        LIMITS,
        kept_memory=problem.plan.kept_memory,
    )
    torch.testing.assert_close(fitted.outcome.alpha, outcome.alpha, rtol=0, atol=0)
    assert fitted.outcome.history.column("train_loss") == outcome.history.column("train_loss")


def test_the_estimator_adds_nothing_to_the_engine(data, on_desk):
    model = mercer.KernelRegressor(
        "laplacian",
        bandwidth=2.0,
        ridge=0.1,
        max_iter=3,
        interpolation_tol=0.0,
        early_stopping=False,
        random_state=0,
    ).fit(data.X, data.Y)
    same = Data(data.X, data.Y, model._training_rows)
    fitted = fit(same, Settings(LIMITS, SettingRequest("laplacian", 2.0, 0.1)))
    weights = fitted.outcome.alpha.double() * same.units.scale
    np.testing.assert_array_equal(model.dual_coef_[same.rows], weights.numpy())
    np.testing.assert_array_equal(model.predict(data.X), fitted.machine.predict(data.X).double())


def test_a_machine_predicts_tensors_and_arrays_alike(data, desk):
    machine = fit(data, Settings(LIMITS, SettingRequest("gaussian", 2.0, 0.1), resource=desk)).machine
    assert torch.equal(machine.predict(data.X), machine.predict(torch.from_numpy(data.X)))


def test_an_operator_of_ones_own_trains_as_the_tiles_do(data, desk):
    settings = Settings(
        LIMITS,
        SettingRequest("gaussian", 2.0, 0.0),
        Requests(100, 20, 40),
        dtype=torch.float64,
        resource=desk,
    )
    problem = prepare(data, settings)
    kernel, points, V = problem.machine.kernel, problem.machine.centres, problem.preconditioner.V
    K = kernel.block(points, points, same=True)

    class Dense:
        def times(self, weights, rows=None, columns=None):
            return K[rows or slice(None), columns or slice(None)] @ weights[columns or slice(None)]

        def block(self, rows, columns):
            return K[rows, columns]

        def diagonal(self, rows):
            return K.diagonal()[rows]

        def panel(self, rows, weights, stop):
            return PanelProducts(K[rows] @ weights, K[rows, rows], K[rows, : len(V)] @ V)

    run = (kernel, points, problem.y, problem.plan.step, problem.preconditioner, LIMITS)
    torch.testing.assert_close(
        train(*run, operator=Dense()).alpha, train(*run).alpha, rtol=0, atol=1e-10
    )
