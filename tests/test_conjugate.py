"""Weights of several epochs, combined into better ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mercer import KernelRegressor, Laplacian
from mercer.engine import Limits, Requests
from mercer.method import conjugate
from mercer.method.conjugate import Reached, coefficients, combine_, n_watched, watched_rows
from mercer.planning.centres import choose_with_centres
from mercer.training import delayed
from mercer.training.assemble import assemble_with_centres
from tests import oracles
from tests.test_centres import DESK, waves

N, P, RIDGE = 400, 30, 0.7


def problem(n_outputs, weighted):
    """K between rows and centres, K over the centres, targets and weights."""
    x, y = waves(N, n_outputs)
    weight = np.random.default_rng(1).uniform(0.1, 1.0, (N, 1)) if weighted else None
    K = oracles.laplacian(x, x[:P], 3.0)
    return K, K[:P], y, weight


def objective(alpha, K, K_zz, y, weight):
    """J of each output."""
    squares = np.square(K @ alpha - y) * (1.0 if weight is None else weight)
    return squares.sum(0) + RIDGE * (alpha * (K_zz @ alpha)).sum(0)


def reached(alpha, K, K_zz):
    return Reached(*(torch.from_numpy(a) for a in (K @ alpha, alpha, K_zz @ alpha)))


@pytest.mark.parametrize("n_earlier", [1, 2])
@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_no_other_combination_has_a_lower_objective(n_outputs, weighted, n_earlier, monkeypatch):
    monkeypatch.setattr(conjugate, "WORTH_TAKING", 0.0)
    K, K_zz, y, weight = problem(n_outputs, weighted)
    draws = np.random.default_rng(0)
    alphas = [draws.normal(size=(P, n_outputs)) for _ in range(1 + n_earlier)]
    last, *earlier = alphas
    w = None if weight is None else torch.from_numpy(weight)
    parts = (torch.from_numpy(y), w, 1.0, RIDGE)
    found = coefficients(reached(last, K, K_zz), [reached(a, K, K_zz) for a in earlier], *parts)
    best = torch.from_numpy(last.copy())
    combine_(best, [torch.from_numpy(a) for a in earlier], found)
    lowest = objective(best.numpy(), K, K_zz, y, weight)
    assert (lowest < objective(last, K, K_zz, y, weight)).all()
    for other in earlier:  # J has no slope along any of the differences
        for step in (-1e-3, 1e-3):
            moved = objective(best.numpy() + step * (last - other), K, K_zz, y, weight)
            assert (moved > lowest).all()


def test_directions_that_fit_no_more_than_noise_are_not_taken():
    K, K_zz, y, _ = problem(1, False)
    solution = oracles.projected_solution(K, K_zz, y, RIDGE)
    draws = np.random.default_rng(2)
    sample = slice(0, 60)
    taken = 0
    for _ in range(200):
        other = solution + 0.05 * draws.normal(size=solution.shape)
        parts = [reached(a, K[sample], K_zz) for a in (solution, other)]
        [c] = coefficients(parts[0], parts[1:], torch.from_numpy(y[sample]), None, N / 60, RIDGE)
        taken += bool(c.any())
    # J of one number falls by more than twice the noise in 16 % of all samples, by chance.
    assert taken < 0.3 * 200


def test_equal_weights_are_no_direction():
    K, K_zz, y, _ = problem(2, False)
    same = reached(np.ones((P, 2)), K, K_zz)
    for c in coefficients(same, [same, same], torch.from_numpy(y), None, 1.0, RIDGE):
        assert not c.any()


@pytest.mark.parametrize(
    ("n", "p", "at_hand"),
    [(1_000, 100, None), (10**6, 20_000, None), (10**6, 5_000, 12_000), (500, 500, None)],
)
def test_centres_and_other_rows_have_their_shares_of_the_sample(n, p, at_hand):
    centres, others = watched_rows(n, p, at_hand)
    rows = range(n if at_hand is None else at_hand)
    chosen = [*rows[centres], *rows[others]]
    assert len(chosen) == len(set(chosen))
    most = len(rows) if p == n else int((len(rows) - p) / (1 - p / n))  # or there are too few others
    assert len(chosen) == min(n_watched(n), most)
    assert sum(i < p for i in chosen) == pytest.approx(len(chosen) * p / n, abs=1)


def run(epochs, *, weighted=False, l=1):
    x, y = waves(4_000, l)
    kernel = Laplacian(bandwidth=10.0)
    points, targets = kernel.points(torch.from_numpy(x)), torch.from_numpy(y)
    weight = np.random.default_rng(1).uniform(0.1, 1.0, (len(x), 1)) if weighted else None
    requests = Requests(subsample_size=200, preconditioner_rank=20, batch_size=200)
    plan, levelled = choose_with_centres(kernel, points, 400, l, DESK, 0.01, requests, 0, False)
    training = assemble_with_centres(
        *(kernel, points, points[:400], targets, plan.step, plan.step_on_centres, levelled),
        Limits(epochs, 0.0, 10**6, 0.0),
        ridge=0.01,
        n_temporary=plan.n_temporary,
        sample_weight=None if weight is None else torch.from_numpy(weight),
    )
    training.run()
    K = oracles.laplacian(x, x[:400], 10.0)
    return training, K, y, weight


def excess(epochs, **options):
    """How far J is above that of the solution."""
    training, K, y, weight = run(epochs, **options)

    def J(alpha):
        squares = np.square(K @ alpha - y) * (1.0 if weight is None else weight)
        return squares.sum() + 0.01 * (alpha * (K[:400] @ alpha)).sum()

    flat = None if weight is None else weight[:, 0]
    best = J(oracles.projected_solution(K, K[:400], y, 0.01, flat))
    return J(training.model.weights[:400].numpy()) / best - 1


@pytest.mark.parametrize("weighted", [False, True])
def test_epochs_that_are_combined_come_nearer_to_the_solution(weighted, monkeypatch):
    combined = excess(8, weighted=weighted)
    monkeypatch.setattr(delayed, "N_EARLIER", 0)  # nothing is remembered to combine with
    plain = excess(8, weighted=weighted)
    assert 0 < combined < 0.6 * plain


def test_what_is_linear_in_the_weights_is_combined_like_them():
    training, K, _, _ = run(5, l=2)
    known, alpha = training.state.remembered, training.model.weights[:400]
    assert training.state.progress.n_earlier == 2
    torch.testing.assert_close(known.values, torch.from_numpy(K[:400]) @ alpha)
    torch.testing.assert_close(known.gradient, torch.from_numpy(K).T @ known.residuals)
    for place in range(2):
        assert known.earlier_weights[place].any()
        values = torch.from_numpy(K[:400]) @ known.earlier_weights[place]
        torch.testing.assert_close(known.earlier_values[place], values)


def test_watched_rows_of_a_stream_have_the_weights_of_its_chunks(monkeypatch):
    x, y = waves(6_000)
    weight = np.random.default_rng(3).uniform(0.1, 1.0, len(x))
    parts = np.split(np.arange(len(x)), 6)
    made, begun = delayed.DelayedProjection.__init__, []

    def watching(self, *given, **options):
        made(self, *given, **options)
        begun.append(self)

    monkeypatch.setattr(delayed.DelayedProjection, "__init__", watching)
    model = KernelRegressor(
        kernel="laplacian", bandwidth=3.0, ridge=1.0, scale=False, n_centers=300, batch_size=200,
        max_iter=30, early_stopping=False, precision="float64", memory_limit="2MB", random_state=0,
    ).fit([(x[i], y[i, 0], weight[i]) for i in parts])  # fmt: skip
    [run] = begun
    mean, targets = np.average(y[:, 0], weights=weight), run.watched.y[:, 0].numpy()
    scale = float(model.machine_.units.scale[0])
    rows = [int(np.abs((y[:, 0] - mean) / scale - t).argmin()) for t in targets]
    assert len(set(rows)) == len(rows) == 2_048
    np.testing.assert_allclose(run.watched_weight[:, 0], weight[rows] / weight.max())
    z = x[model._training_rows]
    K = oracles.laplacian(x, z, 3.0)
    expected = oracles.projected_solution(
        K, oracles.laplacian(z, z, 3.0), y - mean, 1.0 / weight.max(), weight / weight.max()
    )
    f = K @ expected
    assert np.linalg.norm(model.predict(x)[:, None] - mean - f) < 0.01 * np.linalg.norm(f)
