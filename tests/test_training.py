from __future__ import annotations

from dataclasses import replace

import numpy as np
import oracles
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

import mercer
from mercer import Callback, DivergenceError, KernelRegressor
from mercer.engine import (
    Limits,
    Requests,
    assemble,
    choose,
    original_preconditioner,
    sgd_step,
    train,
    train_original,
    train_sgd,
)
from mercer.method.spectrum import nystrom_spectrum
from mercer.operators.tiled import TiledOperator
from mercer.training.stopping import EarlyStopping

KERNELS = [
    mercer.Gaussian(0.5),
    mercer.Laplacian(3.0),
    mercer.Cauchy(1.0),
    mercer.Matern32(2.0),
    mercer.Matern52(1.5),
    mercer.ExponentialPower(2.0, exponent=1.4),
    mercer.L1Laplacian(3.0),
    mercer.NeuralTangent(1.0, depth=2),
    mercer.Custom(lambda a, b: torch.exp(-torch.cdist(a, b) / 2) * (1 + a @ b.T / 10)),
]


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_training_to_tolerance_reaches_the_direct_solution(kernel, rng):
    X = rng.normal(size=(600, 5))
    y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2]
    fresh = rng.normal(size=(200, 5))
    model = KernelRegressor(
        kernel,
        preconditioner_rank=540,  # of 600: smooth kernels in 5 dimensions are close to singular
        precision="float64",
        early_stopping=False,
        interpolation_tol=1e-14,
        max_iter=2000,
        random_state=0,
    ).fit(X, y)
    assert model.converged_
    x, z = torch.from_numpy(X), torch.from_numpy(fresh)
    alpha = oracles.solution(kernel(x, x).numpy(), y - y.mean())
    expected = kernel(z, x).numpy() @ alpha + y.mean()
    error = np.linalg.norm(model.predict(fresh) - expected) / np.linalg.norm(expected)
    assert error < 1e-4


def test_levelled_and_plain_kernel_converge_to_the_same_function(rng, desk):
    kernel = mercer.Laplacian(1.0)
    points = kernel.points(torch.from_numpy(rng.normal(size=(150, 4))))
    y = torch.from_numpy(rng.normal(size=(150, 1)))
    requests = Requests(subsample_size=100, preconditioner_rank=40)
    plan, levelled = choose(kernel, points, 1, desk, requests=requests)
    limits = Limits(max_iter=3000, interpolation_tol=1e-13, n_iter_no_change=3, tol=0)
    ours = train(kernel, points, y, plan.step, levelled, limits)
    plain = train_sgd(kernel, points, y, sgd_step(plan), limits)
    assert ours.converged
    assert plain.converged
    K = kernel.block(points, points, same=True).numpy()
    expected = oracles.solution(K, y.numpy())
    fresh = kernel.points(torch.from_numpy(rng.normal(size=(50, 4))))
    f = kernel.block(fresh, points).numpy()
    np.testing.assert_allclose(f @ ours.alpha.numpy(), f @ expected, atol=1e-5)
    np.testing.assert_allclose(f @ plain.alpha.numpy(), f @ expected, atol=1e-5)


OUTLIERS = [5, 500, 1500, 2500]


def with_outliers(rng, n=3000):
    X = rng.normal(size=(n, 6))
    y = np.sin(X[:, 0])
    X[OUTLIERS] = rng.normal(size=(4, 6)) * 40  # far from all others and from each other
    y[OUTLIERS] = [1, -1, 1, -1]
    return X, y


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
def test_planted_outliers_train_without_help_from_the_guard(kernel, rng):
    X, y = with_outliers(rng)
    model = KernelRegressor(
        kernel,
        bandwidth=2.0,
        ridge=0.0,
        early_stopping=False,
        interpolation_tol=1e-5,
        max_iter=200,
        random_state=0,
    ).fit(X, y)
    assert model.converged_
    assert sum(e.halvings for e in model.history_.epochs) == 0
    losses = model.history_.column("train_loss")
    assert losses[-1] < 1e-5 * np.var(y)
    np.testing.assert_allclose(model.predict(X[OUTLIERS]), y[OUTLIERS], atol=0.05)


def test_outliers_with_a_ridge_reach_the_dense_solution(rng):
    X, y = with_outliers(rng, n=2600)
    model = KernelRegressor(
        "laplacian",
        bandwidth=2.0,
        ridge=0.1,
        precision="float64",
        early_stopping=False,
        interpolation_tol=1e-20,
        max_iter=300,
        random_state=0,
    ).fit(X, y)
    assert sum(e.halvings for e in model.history_.epochs) == 0
    alpha = oracles.solution(oracles.laplacian(X, X, 2.0), y - y.mean(), ridge=0.1)
    np.testing.assert_allclose(model.dual_coef_[:, 0], alpha, atol=1e-6)


@pytest.mark.parametrize("budget", [0.0, 6e5, 1e9])
@pytest.mark.parametrize("panel_rows", [60, 1000])
@pytest.mark.parametrize("warm", [0, 200, 500])
def test_fast_paths_equal_the_plain_computation(rng, desk, budget, panel_rows, warm):
    kernel = mercer.Gaussian(2.0)
    points = kernel.points(torch.from_numpy(rng.normal(size=(500, 4))))
    y = torch.from_numpy(rng.normal(size=(500, 2)))
    plan, levelled = choose(kernel, points, 2, desk, requests=Requests(120, 30, 50))
    limits = Limits(max_iter=3, interpolation_tol=0, n_iter_no_change=3, tol=0)
    start = torch.zeros_like(y)
    start[:warm] = torch.from_numpy(rng.normal(scale=0.01, size=(warm, 2)))
    # Triangular first epoch, several batches a panel, tiles kept in part or whole ...
    options = {"start_from": start, "shuffled": False}
    problem = (kernel, points, y, plan.step, levelled, limits)
    fast = train(*problem, kept_memory=budget, rows_at_once=panel_rows, **options)
    # ... against every kernel value computed anew for every batch.
    plain = train(*problem, rows_at_once=1, triangular=False, **options)
    torch.testing.assert_close(fast.alpha, plain.alpha, rtol=0, atol=1e-10)


@pytest.mark.parametrize("budget", [0.0, 6e5, 1e9])
def test_shuffled_epochs_equal_dense_steps_in_the_order_of_their_visits(rng, desk, budget):
    kernel = mercer.Gaussian(2.0)
    points = kernel.points(torch.from_numpy(rng.normal(size=(500, 4))))
    y = points.x[:, :2].sin()
    plan, levelled = choose(kernel, points, 2, desk, requests=Requests(120, 30, 50))
    limits = Limits(3, 0.0, 9, 0.0)
    run = assemble(kernel, points, y, plan.step, levelled, limits, kept_memory=budget, rows_at_once=150)
    found = run.run().alpha
    K = kernel.block(points, points, same=True)
    Phi, gamma = K[:, :120], plan.step.gamma
    K_q = K - Phi @ levelled.V @ (levelled.D[:, None] * (levelled.V.T @ Phi.T))
    alpha = torch.zeros_like(y)
    for epoch in (1, 2, 3):
        for batch in (batch for visit in run.schedule.visits(epoch) for batch in visit.batches):
            g = K[batch] @ alpha - y[batch]
            p = run.state.safe[batch] * g
            rate = ((g * p).sum(0) / (p * (K_q[batch, batch] @ p)).sum(0)).clamp(max=gamma)
            alpha[batch] -= rate * p
            c = levelled.D[:, None] * (levelled.V.T @ (Phi[batch].T @ p))
            alpha[:120] += rate * (levelled.V @ c)
    torch.testing.assert_close(found, alpha, rtol=0, atol=1e-10)


def test_another_order_in_each_epoch_converges_sooner(rng, desk):
    kernel = mercer.Laplacian(3.0)
    points = kernel.points(torch.from_numpy(rng.normal(size=(1_000, 6))))
    y = torch.from_numpy(np.sin(2 * rng.normal(size=(1_000, 1))))
    plan, levelled = choose(kernel, points, 1, desk, requests=Requests(200, 20, 20))
    limits = Limits(25, 0.0, 99, 0.0)

    def last_loss(shuffled):
        options = {"kept_memory": 1e9, "rows_at_once": 20, "shuffled": shuffled}
        return train(kernel, points, y, plan.step, levelled, limits, **options).history[-1].train_loss

    assert last_loss(True) < 0.2 * last_loss(False)


def epochs_to(loss, trainer, limit=400):
    outcome = trainer(Limits(max_iter=limit, interpolation_tol=loss, n_iter_no_change=3, tol=0))
    return len(outcome.history)


@pytest.mark.slow
def test_linear_scaling_holds_up_to_the_critical_batch_size_and_ends_beyond(rng):
    # A spectrum that falls like a power: five slow directions and many small ones.
    X = rng.normal(size=(2000, 8)) / np.arange(1, 9)
    kernel = mercer.Laplacian(1.0)
    points = kernel.points(torch.from_numpy(X))
    y = torch.from_numpy(np.sin(3 * X[:, :1]) + X[:, 1:2])
    resource = mercer.Resource(capacity=2.7e8, memory=8e9, full_rate_rows=256)

    def levelled_epochs(m):
        plan, levelled = choose(kernel, points, 1, resource, requests=Requests(1000, 250, m))
        problem = (kernel, points, y, plan.step, levelled)
        return epochs_to(1e-3, lambda limits: train(*problem, limits)), plan

    def plain_epochs(m, plan):
        step = sgd_step(plan, m)
        return epochs_to(1e-3, lambda limits: train_sgd(kernel, points, y, step, limits))

    small, plan = levelled_epochs(8)
    critical, plain_critical = plan.critical_batch_size, plan.critical_batch_size_plain
    assert plain_critical < 10 < 60 < critical
    at_critical, _ = levelled_epochs(int(critical))
    beyond, _ = levelled_epochs(2000)
    assert at_critical <= 1.5 * small + 1
    assert beyond >= 2 * at_critical

    plain_small = plain_epochs(1, plan)
    plain_at = plain_epochs(max(1, int(plain_critical)), plan)
    plain_beyond = plain_epochs(int(critical), plan)
    assert plain_at <= 1.5 * plain_small + 1
    assert plain_beyond >= 4 * plain_at


def test_original_equals_improved_where_the_subsample_is_all_the_data(rng, desk):
    kernel = mercer.Gaussian(2.0)
    points = kernel.points(torch.from_numpy(rng.normal(size=(200, 4))))
    y = torch.from_numpy(rng.normal(size=(200, 2)))
    plan, levelled = choose(kernel, points, 2, desk, requests=Requests(200, 20, 40))
    sigma = nystrom_spectrum(kernel, points, 20).sigma
    limits = Limits(max_iter=3, interpolation_tol=0, n_iter_no_change=3, tol=0)
    improved = train(kernel, points, y, plan.step, levelled, limits)
    preconditioner = original_preconditioner(kernel, points, levelled, sigma)
    original = train_original(kernel, points, y, plan.step, preconditioner, limits)
    torch.testing.assert_close(original.alpha, improved.alpha, rtol=0, atol=1e-8)


def test_original_converges_to_the_same_function_with_a_small_subsample(rng, desk):
    kernel = mercer.Laplacian(2.0)
    points = kernel.points(torch.from_numpy(rng.normal(size=(300, 4))))
    y = torch.from_numpy(rng.normal(size=(300, 1)))
    plan, levelled = choose(kernel, points, 1, desk, requests=Requests(100, 10, 20))
    sigma = nystrom_spectrum(kernel, points[:100], 10).sigma
    preconditioner = original_preconditioner(kernel, points, levelled, sigma)
    limits = Limits(2000, 1e-14, 3, 0)
    outcome = train_original(kernel, points, y, plan.step, preconditioner, limits)
    assert outcome.converged
    expected = oracles.solution(kernel.block(points, points, same=True).numpy(), y.numpy())
    np.testing.assert_allclose(outcome.alpha.numpy(), expected, atol=1e-4)


class WithoutOwnBlock(TiledOperator):
    """A faulty operator: it hides K[panel, panel], which bounds the step."""

    def panel(self, rows, weights, stop):
        products = super().panel(rows, weights, stop)
        return replace(products, own=torch.zeros_like(products.own))


def train_at(factor, rng, desk, max_iter=100):
    """Training with a step that nothing bounds, so many times the planned one."""
    kernel = mercer.Laplacian(2.0)
    points = kernel.points(torch.from_numpy(rng.normal(size=(300, 4))))
    y = points.x[:, :1].sin()
    plan, levelled = choose(kernel, points, 1, desk)
    step = replace(plan.step, eta=factor * plan.step.eta)
    operator = WithoutOwnBlock(kernel, points, points, 1, rows_at_once=300, cuts=[0], basis=levelled.V)
    limits = Limits(max_iter=max_iter, interpolation_tol=1e-4, n_iter_no_change=3, tol=0.0)
    options = {"operator": operator, "rows_at_once": 1}  # one batch a panel
    outcome = train(kernel, points, y, step, levelled, limits, **options)
    return step, outcome, kernel.block(points, points) @ outcome.alpha - y


def test_guard_halves_a_step_that_diverges_and_records_it(rng, desk):
    step, outcome, error = train_at(5.0, rng, desk)
    assert sum(e.halvings for e in outcome.history.epochs) >= 1
    assert outcome.history[-1].step_size < step.eta
    assert outcome.converged
    assert float(error.abs().max()) < 0.1


def test_a_step_beyond_repair_ends_in_one_clear_error(rng, desk):
    message = r"diverged at every step size tried.*the kernel is not positive definite"
    with pytest.raises(DivergenceError, match=message):
        train_at(1e12, rng, desk)


def test_weights_that_overflow_in_the_last_epoch_are_not_returned(rng, desk):
    # One epoch of few batches: no later loss shows what the last step did.
    with pytest.raises(DivergenceError, match="diverged at every step size tried"):
        train_at(1e307, rng, desk, max_iter=1)


@pytest.mark.parametrize("step_size", [1e3, 1e12])
def test_a_step_size_far_too_large_is_bounded_and_still_converges(rng, step_size):
    X = rng.normal(size=(300, 3))
    model = KernelRegressor("laplacian", ridge=0.0, step_size=step_size, random_state=0)
    model.fit(X, np.sin(X[:, 0]))
    assert model.converged_
    assert sum(e.halvings for e in model.history_.epochs) == 0
    np.testing.assert_allclose(model.predict(X), np.sin(X[:, 0]), atol=0.1)


def test_fitting_noise_batch_by_batch_does_not_leave_the_points_worse_than_the_mean(rng, desk):
    """The kernel cannot tell the points apart, so fitting one batch spoils the others."""
    kernel = mercer.Gaussian(2.0)
    points = kernel.points(torch.from_numpy(rng.normal(size=(500, 2))))
    y = torch.from_numpy(rng.normal(size=(500, 1)))
    plan, levelled = choose(kernel, points, 1, desk, requests=Requests(120, 20, 64))
    limits = Limits(max_iter=15, interpolation_tol=0.0, n_iter_no_change=99, tol=0.0)
    outcome = train(kernel, points, y, plan.step, levelled, limits)
    assert outcome.history[1].train_loss > 1.05 * float(y.square().mean())  # at the full step
    error = kernel.block(points, points) @ outcome.alpha - y
    assert float(error.square().mean()) < float((y - y.mean()).square().mean())


def test_a_kernel_that_is_not_positive_definite_is_said_to_be_none(rng):
    X = rng.normal(size=(60, 3))
    indefinite = mercer.Custom(lambda a, b: torch.cdist(a, b) + 0.1)
    with pytest.warns(UserWarning, match="The kernel function is not positive semi-definite"):
        model = KernelRegressor(indefinite, random_state=0).fit(X, rng.normal(size=60))
    assert np.isfinite(model.predict(X)).all()


def test_not_converged_at_max_epochs_warns(rng):
    X = rng.normal(size=(100, 3))
    with pytest.warns(ConvergenceWarning, match="stopped at `max_iter`=1 before it converged"):
        model = KernelRegressor(ridge=0.1, interpolation_tol=1e-12, max_iter=1, random_state=0).fit(
            X, rng.normal(size=100)
        )
    assert not model.converged_
    assert model.n_iter_ == 1


def test_early_stopping_keeps_the_best_weights_on_noise(rng):
    X = rng.normal(size=(1500, 3))
    y = np.sin(X[:, 0]) + rng.normal(size=1500)
    model = KernelRegressor("laplacian", bandwidth=1.0, ridge=0.0, random_state=0, tol=0.0).fit(X, y)
    losses = model.history_.column("validation_loss")
    assert model.converged_
    assert len(losses) - (int(np.argmin(losses)) + 1) == 3  # patience
    assert losses[-1] > min(losses)
    assert "held-out loss has not improved" in model.stop_reason_


def test_stopping_rule_counts_only_improvements_worth_having():
    rule = EarlyStopping(patience=2, tolerance=0.1)
    verdicts = [rule.update(loss) for loss in (1.0, 0.8, 0.79, 0.78)]
    assert [v.best for v in verdicts] == [True, True, True, True]
    assert [v.stop for v in verdicts] == [False, False, False, True]


def test_history_is_data(rng):
    X = rng.normal(size=(600, 3))
    model = KernelRegressor(early_stopping=True, random_state=0, max_iter=3).fit(X, X[:, 0])
    rows = model.history_.to_dicts()
    assert len(rows) == len(model.history_) == model.n_iter_
    assert rows[0]["number"] == 1
    assert rows[-1]["seconds"] > 0
    assert rows[0]["train_loss"] > rows[-1]["train_loss"]


def test_divergence_in_single_precision_is_retried_in_double_and_told(rng):
    X = rng.normal(size=(50, 2))

    class Coarse(Callback):
        """Stands in for features whose range is too large for float32."""

        def on_epoch_end(self, run):
            if run.plan.precision == "float32":
                raise DivergenceError("too coarse")

    with pytest.warns(UserWarning, match="diverged in float32 and was run again in float64"):
        model = KernelRegressor(ridge=0.1, random_state=0, callbacks=[Coarse()]).fit(X, X[:, 0])
    assert model.plan_.precision == "float64"
    assert model.dual_coef_.dtype == np.float64


def test_a_loss_held_up_by_rounding_error_ends_training(on_desk):
    X = np.linspace(0, 6, 200)[:, None]
    model = KernelRegressor(
        "gaussian",
        bandwidth=0.5,
        ridge=0.0,
        preconditioner_rank=18,
        interpolation_tol=1e-9,
        random_state=0,
    ).fit(X, np.sin(X[:, 0]))
    assert model.converged_
    assert "limit of float32" in model.stop_reason_
    np.testing.assert_allclose(model.predict(X), np.sin(X[:, 0]), atol=0.05)
