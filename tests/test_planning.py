from __future__ import annotations

import dataclasses
import json

import numpy as np
import oracles
import pytest
import torch

import mercer
from mercer.engine import Requests, Resource, choose
from mercer.method.critical_batch import fresh_sample, own_critical_batches, paper_components
from mercer.method.preconditioner import level
from mercer.method.spectrum import nystrom_spectrum
from mercer.method.step import best_step_size
from mercer.model.expansion import Expansion
from mercer.planning.plan import Plan


def clustered(rng, n, d=6, dtype=torch.float64):
    centres = rng.normal(size=(10, d)) * 2
    x = centres[rng.integers(10, size=n)] + rng.normal(size=(n, d)) * 0.7
    return torch.from_numpy(x).to(dtype)


@pytest.fixture
def problem(rng):
    kernel = mercer.Gaussian(2.0)
    return kernel, kernel.points(clustered(rng, 400))


def test_levelled_kernel_equals_dense_formula(problem):
    kernel, points = problem
    levelled = level(nystrom_spectrum(kernel, points[:120], 30), 30)
    K = kernel.block(points, points, same=True)
    K_q = oracles.levelled(K.numpy(), 120, 30)
    Z = K[:, :120] @ levelled.V
    np.testing.assert_allclose(
        levelled.diagonal(kernel.diagonal(points), Z).numpy(), np.diag(K_q), atol=1e-9
    )
    g = torch.from_numpy(np.random.default_rng(1).normal(size=(400, 3)))
    model = Expansion(torch.zeros(400, 3, dtype=torch.float64))
    levelled.correct(model, levelled.D[:, None] * (Z.T @ g))
    np.testing.assert_allclose((K @ (g - model.weights)).numpy(), K_q @ g.numpy(), atol=1e-8)


def test_levelled_spectrum_is_flat_up_to_q_and_as_it_was_beyond(problem):
    kernel, points = problem
    K = kernel.block(points, points, same=True)
    levelled = level(nystrom_spectrum(kernel, points, 30), 30)  # the subsample is all the data
    Z = K @ levelled.V
    after = torch.linalg.eigvalsh(K - (Z * levelled.D) @ Z.T).flip(0).numpy()
    before = torch.linalg.eigvalsh(K).flip(0).numpy()
    np.testing.assert_allclose(after[:30], before[29], rtol=1e-8)
    np.testing.assert_allclose(after[30:200], before[30:200], rtol=1e-6, atol=1e-10)


def test_paper_rule_equals_its_definition(problem):
    kernel, points = problem
    s = 150
    found = nystrom_spectrum(kernel, points[:s], 60)
    K_s = kernel.block(points[:s], points[:s], same=True).numpy()
    critical = []
    for q in range(1, 61):
        beta = np.diag(oracles.levelled(K_s, s, q)).max()
        critical.append(beta / (float(found.sigma[q - 1]) / s))
    for m_G in (5, 20, 60):
        expected = max([i + 1 for i, m in enumerate(critical) if m <= m_G], default=1)
        assert paper_components(own_critical_batches(found), m_G) == expected


def test_fresh_estimates_equal_dense_ones(problem):
    kernel, points = problem
    fresh = fresh_sample(kernel, points, 150)
    estimate = fresh.estimate(level(nystrom_spectrum(kernel, points[:150], 30), 30), 30)
    K_q = oracles.levelled(kernel.block(points, points, same=True).numpy(), 150, 30)[150:, 150:]
    assert estimate.beta == pytest.approx(np.diag(K_q).mean(), rel=1e-8)
    assert estimate.beta_max == pytest.approx(np.diag(K_q).max(), rel=1e-8)
    root = np.sqrt(np.minimum(1, np.diag(K_q).mean() / np.diag(K_q)))
    expected = np.linalg.eigvalsh(root[:, None] * K_q * root)[-1] / 250
    assert estimate.lambda_1 == pytest.approx(expected, rel=0.01)


def test_fresh_points_say_less_than_the_subsample_about_itself(rng, desk):
    kernel = mercer.Laplacian(4.0)
    plan, _ = choose(kernel, kernel.points(clustered(rng, 5000, d=20)), 3, desk)
    assert plan.paper_rule.critical_batch_size < 0.8 * plan.paper_rule_own_critical


def test_step_is_half_the_batch_over_beta_up_to_the_critical_batch():
    assert best_step_size(8, beta=0.5, lambda_1=0.05) == pytest.approx(8 / (2 * 0.5))
    assert best_step_size(30, beta=0.5, lambda_1=0.05) == pytest.approx(0.95 * 30 / (0.5 + 29 * 0.05))


@pytest.mark.parametrize(("m", "eta"), [(735, 379), (682, 343), (1687, 849)])
def test_paper_table_of_steps_comes_out_for_a_beta_below_one(m, eta):
    beta = m / (2 * eta)
    assert 0.95 < beta <= 1  # as it must be for a kernel with k(x, x) = 1
    assert best_step_size(m, beta, lambda_1=beta / m) == pytest.approx(eta)


@pytest.mark.parametrize(
    ("capacity", "memory", "n", "bound"),
    [(1e12, 1e12, 300, "data"), (1e6, 1e12, 3000, "capacity"), (1e12, 5e5, 3000, "memory")],
)
def test_plan_says_which_bound_was_active(capacity, memory, n, bound, rng):
    kernel = mercer.Laplacian(3.0)
    points = kernel.points(clustered(rng, n))
    plan, _ = choose(
        kernel,
        points,
        1,
        Resource(capacity=capacity, memory=memory),
        requests=Requests(subsample_size=min(n, 200), preconditioner_rank=150)
        if bound != "data"
        else Requests(),
    )
    assert plan.bound == bound
    assert str(plan)


@pytest.mark.slow
def test_subsample_grows_when_it_is_too_small_for_the_device(rng):
    kernel = mercer.Gaussian(3.0)
    x = torch.from_numpy(rng.normal(size=(60_000, 200), scale=0.3)).float()
    hungry = Resource(capacity=float("inf"), memory=1e12)
    plan, _ = choose(kernel, kernel.points(x), 1, hungry)
    assert plan.subsample_size > 2000
    assert plan.bound == "spectrum"


def test_numbers_set_by_the_user_are_kept(problem, desk):
    kernel, points = problem
    requests = Requests(subsample_size=100, preconditioner_rank=20, batch_size=17, step_size=3.5)
    plan, levelled = choose(kernel, points, 2, desk, requests=requests)
    assert (plan.subsample_size, plan.preconditioner_rank, plan.batch_size, plan.step_size) == (
        100,
        20,
        17,
        3.5,
    )
    assert plan.bound == "set by the user"
    assert levelled.V.shape == (100, 20)


def test_with_a_ridge_the_spectrum_of_the_ridged_operator_is_level(problem):
    kernel, points = problem
    K = kernel.block(points, points, same=True).numpy()
    n, q, ridge = len(K), 30, 0.5
    spectrum = nystrom_spectrum(kernel, points, q)  # the subsample is all the data
    levelled = level(spectrum, q, rho=ridge)
    V, D = levelled.V.numpy(), levelled.D.numpy()
    step = np.eye(n) - V @ np.diag(D) @ V.T @ K  # what a step applies to K + r I
    found = np.sort(np.linalg.eigvals(step @ (K + ridge * np.eye(n))).real)[::-1]
    expected = np.sort(np.linalg.eigvalsh(K))[::-1] + ridge
    np.testing.assert_allclose(found[:q], expected[q - 1], rtol=1e-6)
    np.testing.assert_allclose(found[q:], expected[q:], rtol=1e-6)


def test_a_heavy_ridge_takes_few_epochs(rng, on_desk):
    X = rng.normal(size=(600, 3))
    y = np.sin(X[:, 0]) + rng.normal(size=600)
    model = mercer.KernelRegressor(
        "laplacian", bandwidth=1.0, ridge=9.0, early_stopping=False, random_state=0
    ).fit(X, y)
    assert model.converged_
    assert model.n_iter_ <= 10


def test_ridge_enters_beta_and_lambda(problem, desk):
    kernel, points = problem
    plain, _ = choose(kernel, points, 1, desk)
    ridged, _ = choose(kernel, points, 1, desk, ridge=0.5)
    assert plain.beta + 0.5 <= ridged.beta <= 1.5
    assert ridged.lambda_1 >= plain.lambda_1 + 0.5 / 400


def test_plan_survives_json(problem, desk):
    kernel, points = problem
    plan, _ = choose(kernel, points, 1, dataclasses.replace(desk, capacity=float("inf")))
    text = plan.to_json()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert Plan.from_json(text) == plan


def test_a_plan_of_another_version_is_read(problem, desk):
    kernel, points = problem
    plan, _ = choose(kernel, points, 1, desk)
    data = json.loads(plan.to_json())
    newer = {**data, "colour": "blue", "paper_rule": {**data["paper_rule"], "taste": 3}}
    assert Plan.from_json(json.dumps(newer)) == plan
    older = {name: value for name, value in data.items() if name not in ("notes", "data_on_disk")}
    assert Plan.from_json(json.dumps(older)) == plan


@pytest.mark.parametrize("text", ['{"n": 3}', "[]", '{"n": "many"}'])
def test_plan_from_other_json_is_refused(text):
    with pytest.raises(ValueError, match="A plan has invalid contents"):
        Plan.from_json(text)


def test_plan_reads_as_a_table_and_escapes_html(problem, desk):
    kernel, points = problem
    plan, _ = choose(kernel, points, 1, dataclasses.replace(desk, name="<b>fast</b> & loose"))
    lines = str(plan).splitlines()
    for symbol in ("C_G", "S_G", "m_C", "m_S", "m_G", "m*(k)", "q", "m*(k_G)", "eta", "acceleration"):
        assert any(line.startswith(symbol + " ") for line in lines)
    page = plan._repr_html_()
    assert "&lt;b&gt;fast&lt;/b&gt; &amp; loose" in page
    assert "<b>" not in page


def test_long_lines_of_a_plan_are_wrapped_below_their_column(problem, desk):
    kernel, points = problem
    plan, _ = choose(kernel, points, 1, desk)
    long = dataclasses.replace(plan, notes=("word " * 60,))
    lines = str(long).splitlines()
    assert max(map(len, lines)) <= 96
    column = lines[0].index("points ×")
    first = next(i for i, line in enumerate(lines) if line.startswith("note"))
    assert len(lines[first:]) > 2
    for line in lines[first + 1 :]:
        assert line.startswith(" " * column + "word")
    assert " ".join(" ".join(lines[first:]).split()) == " ".join(["note", *["word"] * 60])


def test_subsample_larger_than_the_data_is_refused(problem, desk):
    kernel, points = problem
    with pytest.raises(ValueError, match=r"`subsample_size` must be between 1 and .* 400 .*Got 401"):
        choose(kernel, points, 1, desk, requests=Requests(subsample_size=401))
