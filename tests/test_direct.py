"""Few rows: the equations are solved at once."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, make_classification, make_friedman1

import mercer
from mercer import Checkpoint, KernelClassifier, KernelRegressor
from mercer.method.direct import solve
from mercer.planning import direct
from mercer.planning.plan import Plan
from mercer.training.stopping import SOLVED


@pytest.fixture(scope="module")
def friedman():
    return make_friedman1(400, n_features=6, noise=1.0, random_state=0)


def dense(model, X, y, weight=None):
    """Decisions of the dense solution in NumPy with the kernel and inputs that the model chose."""
    points = model.machine_.inputs.points(X, None, torch.zeros((), dtype=torch.float64))
    K = model.machine_.kernel.block(points, points, same=True).numpy()
    w = np.ones(len(X)) if weight is None else weight
    offset = np.average(y, weights=w)
    return offset + K @ np.linalg.solve(K + model.ridge_ * np.diag(1 / w), y - offset)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_small_fit_is_the_dense_solution(friedman, rng, weighted):
    X, y = friedman
    weight = rng.uniform(0.01, 100, size=len(X)) if weighted else None
    model = KernelRegressor(random_state=0).fit(X, y, sample_weight=weight)
    assert model.plan_.direct
    assert model.plan_.precision == "float64"
    expected = dense(model, X, y, weight)
    np.testing.assert_allclose(model.predict(X), expected, rtol=1e-9, atol=1e-9)
    assert (model.n_iter_, model.converged_, model.stop_reason_) == (1, True, SOLVED)
    error = np.average((expected - y) ** 2, weights=weight)
    assert model.history_.epochs[0].train_loss == pytest.approx(error, rel=1e-6)


def test_descent_goes_to_the_direct_solution(friedman, monkeypatch):
    X, y = friedman
    exact = KernelRegressor(random_state=0, precision="float64").fit(X, y)
    monkeypatch.setattr(direct, "MOST_DIRECT_ROWS", 0)
    descended = KernelRegressor(
        exact.kernel_.name, bandwidth=exact.bandwidth_, precision="float64", interpolation_tol=1e-12
    )
    descended.set_params(random_state=0, max_iter=2_000, scale=False, early_stopping=False)
    inputs = exact.machine_.inputs.points(X, None, exact.machine_.alpha).x.numpy()
    descended.set_params(ridge=exact.ridge_).fit(inputs, y)
    assert not descended.plan_.direct
    np.testing.assert_allclose(descended.predict(inputs), exact.predict(X), atol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"ridge": 0.1},
        {"early_stopping": True},
        {"batch_size": 50},
        {"step_size": 1.0},
        {"subsample_size": 100},
        {"preconditioner_rank": 5},
        {"kernel": lambda a, b: torch.exp(-torch.cdist(a, b))},
    ],
)
def test_what_belongs_to_descent_asks_for_it(friedman, changes):
    model = KernelRegressor(random_state=0, max_iter=2, **changes)
    assert not model.plan(*friedman).direct


def test_a_held_out_part_asks_for_descent(friedman):
    X, y = friedman
    model = KernelRegressor(random_state=0).fit(X[:300], y[:300], X_val=X[300:], y_val=y[300:])
    assert not model.plan_.direct


def test_more_rows_than_memory_holds_matrices_of_are_descended_on(friedman):
    assert KernelRegressor(random_state=0).plan(*friedman).direct
    assert not KernelRegressor(random_state=0, memory_limit="70MB").plan(*friedman).direct


def test_bytes_are_descended_on():
    """Their products are exact and fast, in training and in prediction."""
    X, y = load_digits(return_X_y=True)
    plan = KernelClassifier(random_state=0).plan(X[:600], y[:600])
    assert plan.direct == ("bytes" not in plan.preparation)


def test_rows_given_twice_are_rows_of_weight_two(rng):
    X, y = make_classification(300, 8, n_informative=4, flip_y=0.1, random_state=1)
    weight = rng.integers(0, 4, size=300)
    repeated = rng.permutation(np.repeat(np.arange(300), weight))
    one = KernelClassifier(random_state=0).fit(X, y, sample_weight=weight)
    two = KernelClassifier(random_state=5).fit(X[repeated], y[repeated])
    np.testing.assert_allclose(one.predict_proba(X), two.predict_proba(X), rtol=1e-6)
    assert one.kernel_.name == two.kernel_.name
    assert one.left_out_score_ == pytest.approx(two.left_out_score_)


def test_the_same_bits_for_any_number_of_threads(friedman):
    one, two = (KernelRegressor(random_state=0, n_jobs=n).fit(*friedman) for n in (1, 2))
    np.testing.assert_array_equal(one.dual_coef_, two.dual_coef_)


def test_solutions_are_saved_and_resumed(friedman, tmp_path):
    X, y = friedman
    path, place = tmp_path / "model.mercer", tmp_path / "run.ckpt"
    model = KernelRegressor(random_state=0, callbacks=[Checkpoint(place, minutes=0)]).fit(X, y)
    model.save(path)
    np.testing.assert_array_equal(mercer.load(path).predict(X), model.predict(X))
    assert Plan.from_json(model.plan_.to_json()) == model.plan_
    again = KernelRegressor(random_state=0).fit(X, y, resume=place)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_the_plan_says_that_the_equations_are_solved(friedman):
    text = str(KernelRegressor(random_state=0).plan(*friedman))
    assert "direct" in text
    assert "eta" not in text


@pytest.mark.parametrize("l", [1, 3])
def test_the_solution_of_a_weighted_system(rng, l):
    A = rng.normal(size=(40, 60))
    K, y = torch.from_numpy(A @ A.T), torch.from_numpy(rng.normal(size=(40, l)))
    weight = torch.from_numpy(10.0 ** rng.uniform(-6, 6, size=(40, 1)))
    alpha = solve(K, y, 0.3, weight)
    torch.testing.assert_close(K @ alpha + 0.3 * alpha / weight, y, rtol=1e-8, atol=1e-8)


def test_a_matrix_that_is_not_positive_definite_is_solved_where_it_can_be(rng):
    U = np.linalg.qr(rng.normal(size=(20, 20)))[0]
    K = torch.from_numpy(U @ np.diag([3.0, 2.0, 1.0, *[0.0] * 16, -1e-3]) @ U.T)
    y = K @ torch.ones(20, 1, dtype=torch.float64)
    alpha = solve(K, y, 0.0)
    assert float((K @ alpha - y).norm()) < 0.01 * float(y.norm())
    assert bool(torch.isfinite(alpha).all())
