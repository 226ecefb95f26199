"""Bandwidth and ridge for many rows, against the projected problem solved densely."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mercer
from mercer import KernelRegressor
from mercer.data.inputs import fit_inputs
from mercer.method.normal_equations import NormalEquations
from mercer.operators.workers import Workers
from mercer.planning.memory import scale_points
from mercer.selection import at_scale, search
from mercer.selection.at_scale import judge_on_others, refined_at_scale
from mercer.selection.candidates import Candidate, Selection
from mercer.selection.trials import Trials
from mercer.selection.variants import Variant


def trials_of(X, y, weights=None, rounding=0.0):
    inputs, _ = fit_inputs(X, np.arange(len(X)))
    weights = torch.ones(len(X), dtype=torch.float64) if weights is None else weights
    variants = {"as given": Variant("as given", inputs, torch.from_numpy(X))}
    kernels = {"laplacian": mercer.Laplacian}
    return Trials(
        variants, y, lambda count: weights[:count], kernels, rounding, lambda n: None, Workers(1)
    )


def setting(bandwidth, ridge):
    return Candidate("laplacian", bandwidth, ridge, 0.5, True, 100)


def test_a_setting_is_judged_by_the_projected_problem(rng, monkeypatch):
    monkeypatch.setattr(at_scale, "CENTRES", 30)
    monkeypatch.setattr(at_scale, "CHUNK", 64)
    X, y = rng.normal(size=(200, 2)), torch.from_numpy(rng.normal(size=(200, 2)))
    w = torch.from_numpy(rng.uniform(0.5, 2, size=200))
    metric = torch.tensor([1.0, 3.0], dtype=torch.float64)
    found = judge_on_others(trials_of(X, y, w), setting(1.5, 0.3), metric, any_ridge=True)
    x = torch.from_numpy(X * metric.numpy())
    K, n, p = mercer.Laplacian(1.5)(x, x), 150, 30
    centred = y - (w[:n, None] * y[:n]).sum(0) / w[:n].sum()
    for one in found:
        G = K[:p, :n] @ (w[:n, None] * K[:n, :p])
        alpha = torch.linalg.solve(G + one.ridge * K[:p, :p], K[:p, :n] @ (w[:n, None] * centred[:n]))
        errors = w[n:, None] * (K[n:, :p] @ alpha - centred[n:]).square()
        expected = errors.mean() / (w[n:, None] * centred[n:].square()).mean()
        assert one.loss == pytest.approx(float(expected), rel=1e-4)
        assert (one.n_points, one.left_out, one.bandwidth) == (150, "rows", 1.5)
    assert [one.ridge / 0.3 for one in found] == pytest.approx(at_scale.RIDGE_FACTORS)


def test_without_a_ridge_the_smallest_are_tried_and_a_given_one_stays(rng):
    X, y = rng.normal(size=(80, 2)), torch.from_numpy(rng.normal(size=(80, 1)))
    trials = trials_of(X, y)
    open_ = judge_on_others(trials, setting(1.0, 0.0), None, any_ridge=True)
    assert [one.ridge for one in open_] == pytest.approx([0.0, 1e-4, 1e-3])
    given = judge_on_others(trials, setting(1.0, 0.0), None, any_ridge=False)
    assert [one.ridge for one in given] == [0.0]


def test_each_ridge_of_shared_factors_equals_a_solution_of_its_own(rng):
    z, x = torch.from_numpy(rng.normal(size=(40, 3))), torch.from_numpy(rng.normal(size=(300, 3)))
    kernel, y = mercer.Laplacian(2.0), torch.from_numpy(rng.normal(size=(300, 2)))
    equations = NormalEquations(40, 2, Workers(1), torch.device("cpu"))
    equations.add(kernel(z, x), y)
    equations.complete()
    K, ridges, eps = kernel(z, z), (1e-3, 0.1, 3.0), torch.finfo(torch.float64).eps
    for ridge, alpha in zip(ridges, equations.solve_each(K, ridges, eps), strict=True):
        alone = equations.solve(K, ridge, equations.factors(K, ridge, eps))
        torch.testing.assert_close(alpha, alone, rtol=1e-5, atol=1e-7)


def wiggly(rng, n):
    """A function with more detail than a wide kernel shows, and some noise."""
    X = rng.uniform(-1, 1, size=(n, 1))
    return X, torch.from_numpy(np.sin(40 * X) + 0.1 * rng.normal(size=(n, 1)))


def test_the_bandwidth_goes_on_as_long_as_narrower_is_better(rng):
    X, y = wiggly(rng, 4_800)
    trials = trials_of(X, y)
    wide = setting(8.0, 0.3)
    found = refined_at_scale(trials, wide, None, any_width=True, any_ridge=True)
    rivals = [judge_on_others(trials, setting(8.0, r), None, False)[0].loss for r in (0.01, 0.3)]
    assert found.bandwidth < 4.0
    assert found.loss < min(rivals)
    assert found.loss == min(c.loss for c in trials.tried if c.left_out == "rows")


def test_a_given_bandwidth_and_a_given_ridge_stay(rng):
    X, y = wiggly(rng, 4_800)
    found = refined_at_scale(trials_of(X, y), setting(8.0, 0.3), None, any_width=False, any_ridge=True)
    assert found.bandwidth == 8.0
    assert found.ridge < 0.3
    found = refined_at_scale(trials_of(X, y), setting(8.0, 0.3), None, any_width=True, any_ridge=False)
    assert found.ridge == 0.3
    assert found.bandwidth < 8.0


def test_weights_that_training_cannot_carry_are_passed_over(rng):
    X, y = wiggly(rng, 4_800)
    free = refined_at_scale(trials_of(X, y), setting(8.0, 0.3), None, any_width=False, any_ridge=True)
    # A rounding error that only the larger ridges survive.
    trials = trials_of(X, y, rounding=1e-4)
    found = refined_at_scale(trials, setting(8.0, 0.3), None, any_width=False, any_ridge=True)
    assert found.ridge > free.ridge
    assert found in trials.errors


@pytest.mark.parametrize(
    ("options", "used"),
    [
        ({"early_stopping": True}, True),
        ({"n_centers": 500}, True),
        ({}, False),  # below 20,000 rows, only the ridge keeps the model from following noise
    ],
)
def test_it_is_used_where_something_else_than_the_ridge_keeps_from_noise(
    rng, monkeypatch, options, used
):
    X, y = wiggly(rng, 6_500)
    seen = []

    def recorded(trials, best, metric, any_width, any_ridge):
        seen.append(len(trials.all_y))
        return best

    monkeypatch.setattr(search, "refined_at_scale", recorded)
    KernelRegressor("laplacian", random_state=0, max_iter=1, **options).plan(X, y.numpy()[:, 0])
    assert bool(seen) == used
    assert all(count > 4_500 for count in seen)


def test_the_table_shows_the_rows_that_judged_and_the_chosen_one_first():
    one = Candidate("laplacian", 2.0, 0.1, 0.3, True, 2_000)
    many = Candidate("laplacian", 1.0, 0.03, 0.25, True, 10_000, left_out="rows")
    shown = Selection(many, (one, many))
    lines = str(shown).splitlines()[2:]
    assert lines[0].endswith("rows   chosen")
    assert lines[1].endswith("one")
    assert shown.points_left_out == 2_000


def test_points_that_fit_in_memory():
    few = scale_points(1e9, 100, 4, 2, 800, 2_048)
    assert 0 < few < scale_points(2e9, 100, 4, 2, 800, 2_048)
    assert scale_points(1e7, 100, 4, 2, 800, 2_048) == 0
