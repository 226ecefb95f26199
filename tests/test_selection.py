from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

import mercer
from mercer import KernelClassifier, KernelRegressor
from mercer.data.inputs import fit_inputs
from mercer.method.direct import JITTER
from mercer.operators.workers import Workers
from mercer.selection import search, trials
from mercer.selection.candidates import Candidate, Selection
from mercer.selection.leave_one_out import FACTOR_COLUMNS, leave_one_out, leave_one_out_once
from mercer.selection.search import select
from mercer.selection.trials import Setting, Trials, _down_from
from mercer.selection.variants import Variant


def as_given(X):
    inputs, _ = fit_inputs(X, np.arange(len(X)))
    return {"as given": Variant("as given", inputs, torch.from_numpy(X))}


def makers(*names):
    return {name: lambda width, name=name: mercer.kernels.as_kernel(name, width) for name in names}


@pytest.mark.parametrize("ridge", [1e-3, 0.1, 1.0])
def test_leave_one_out_equals_leaving_each_point_out(rng, ridge):
    kernel = mercer.Laplacian(1.5)
    x = torch.from_numpy(rng.normal(size=(40, 3)))
    y = torch.from_numpy(rng.normal(size=(40, 2)))
    K = kernel(x, x)
    errors = []
    for i in range(40):
        rest = [j for j in range(40) if j != i]
        A = K[rest][:, rest] + ridge * torch.eye(39, dtype=torch.float64)
        alpha = torch.linalg.solve(A, y[rest])
        errors.append(y[i] - K[i, rest] @ alpha)
    expected = float(torch.stack(errors).square().mean())
    assert leave_one_out(K, y, (ridge,))[0].loss == pytest.approx(expected, rel=1e-8)
    assert leave_one_out_once(K, y, ridge).loss == pytest.approx(expected, rel=1e-8)
    alpha = torch.linalg.solve(K + ridge * torch.eye(40, dtype=torch.float64), y)
    assert leave_one_out_once(K, y, ridge).size == pytest.approx(float(alpha.square().mean().sqrt()))


def test_leave_one_out_by_blocks_of_columns_equals_that_by_the_inverse(rng):
    x = torch.from_numpy(rng.normal(size=(2 * FACTOR_COLUMNS + 30, 3)))
    y = torch.from_numpy(rng.normal(size=(len(x), 2)))
    K = mercer.Laplacian(1.5)(x, x)
    B = torch.linalg.inv(K + 0.1 * torch.eye(len(x), dtype=torch.float64))
    found = leave_one_out_once(K, y, 0.1)
    torch.testing.assert_close(found.errors, (B @ y) / B.diagonal()[:, None], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("near", [0.0, 1e-3, 3.0])
@pytest.mark.parametrize("noise", [0.0, 0.3, 3.0])
def test_ridges_beside_the_last_one_lead_to_the_best_of_all(rng, noise, near):
    X = rng.uniform(-2, 2, size=(200, 2))
    y = torch.from_numpy(np.sin(2 * X[:, :1]) + noise * rng.normal(size=(200, 1)))
    trial = Trials(as_given(X), y, torch.ones, makers("laplacian"), 0.0, lambda tried: None, Workers(1))
    settings = [Setting("laplacian", "as given", 2.0, None, start) for start in (None, near)]
    everything, walked = (trial.measure([setting], 200)[0] for setting in settings)
    assert walked.ridge == everything.ridge
    assert walked.loss == pytest.approx(everything.loss, rel=1e-6)


def test_a_ridge_too_small_for_training_is_left_for_larger_ones():
    def candidate(i):
        return Candidate("laplacian", 1.0, float(i), 1.0 - 0.1 * (i == 0), i >= 3, 10)

    found = _down_from(1, [partial(candidate, i) for i in range(6)])
    assert min(found, key=lambda c: c.rank).ridge == 3


def test_the_search_finds_the_bandwidth_of_the_function_and_the_noise(rng):
    X = rng.uniform(-1, 1, size=(1200, 1))
    clean = np.sin(40 * X)  # far shorter than the median distance
    noisy = np.sin(20 * X) + 2 * rng.normal(size=X.shape)
    found = [
        select(as_given(X), torch.from_numpy(y), makers("gaussian")).selection.best
        for y in (clean, noisy)
    ]
    assert max(candidate.bandwidth for candidate in found) < 0.2
    assert found[0].ridge <= 1e-3 < 0.1 <= found[1].ridge
    assert found[0].loss < 0.01
    assert 0.8 < found[1].loss < 1


def test_what_is_given_is_not_searched(rng):
    X = rng.normal(size=(700, 3))
    model = KernelRegressor("cauchy", bandwidth=2.0, random_state=0).fit(X, X[:, 0])
    tried = model.selection_.to_dicts()
    assert {row["kernel"] for row in tried} == {"cauchy"}
    assert {row["bandwidth"] for row in tried} == {2.0}
    assert model.ridge_ == max(model.selection_.best.ridge, JITTER)
    fixed = KernelRegressor("cauchy", bandwidth=2.0, ridge=0.5, random_state=0).fit(X, X[:, 0])
    assert fixed.selection_ is None
    assert fixed.ridge_ == 0.5
    own = KernelRegressor(mercer.Gaussian(2.0), ridge=0.0, random_state=0).fit(X, X[:, 0])
    assert (own.bandwidth_, own.ridge_) == (2.0, 0.0)


def test_the_rough_kernel_is_taken_for_rough_functions(rng):
    X = rng.uniform(-1, 1, size=(600, 2))
    rough = np.abs(X).max(1) + np.sign(X[:, 0] * X[:, 1])
    smooth = np.sin(2 * X[:, 0]) * X[:, 1]
    assert KernelRegressor(random_state=0).fit(X, rough).kernel_.name in ("laplacian", "l1_laplacian")
    assert KernelRegressor(random_state=0).fit(X, smooth).kernel_.name == "gaussian"


def test_settings_that_single_precision_cannot_carry_are_not_taken(rng):
    X = rng.normal(size=(300, 5))
    y = X @ rng.normal(size=5) + 0.1 * rng.normal(size=300)  # a plane: the wider the better
    # In double precision, any can be.
    assert all(c.reachable for c in KernelRegressor(random_state=0).fit(X, y).selection_.candidates)
    model = KernelRegressor(random_state=0, batch_size=300).fit(X, y)
    assert model.selection_.best.reachable
    assert not all(candidate.reachable for candidate in model.selection_.candidates)
    assert model.score(X, y) > 0.97


def test_noise_is_not_fitted(rng):
    X = rng.normal(size=(2000, 5))
    y = np.sign(X[:, 0])
    flipped = rng.uniform(size=2000) < 0.3
    noisy = np.where(flipped, -y, y)
    model = KernelClassifier(random_state=0).fit(X[:1500], noisy[:1500])
    assert model.score(X[1500:], y[1500:]) > 0.9


def test_a_setting_that_few_noisy_points_cannot_tell_from_the_best_goes_on(rng):
    """In the race every kernel and scale that may be the best is compared on all points."""
    X = rng.normal(size=(1500, 4))
    y = X[:, :1] + 4 * rng.normal(size=(1500, 1))
    kernels = makers("gaussian", "laplacian")
    noisy = select(as_given(X), torch.from_numpy(y), kernels, metric=False).selection
    assert {c.kernel for c in noisy.candidates if c.n_points == 1500} == {"gaussian", "laplacian"}
    smooth = np.sin(2 * X[:, :1])
    clear = select(as_given(X), torch.from_numpy(smooth), kernels, metric=False).selection
    assert {c.kernel for c in clear.candidates if c.n_points == 1500} == {"gaussian"}


def test_a_selection_reads_as_a_short_table(rng):
    X = rng.normal(size=(700, 3)) * [1, 1, 100]
    chosen = KernelRegressor(random_state=0, metric=False).fit(X, np.sin(X[:, 0])).selection_
    lines = str(chosen).splitlines()
    assert len(lines) == 2 + 9  # three kernels, features as given, standardised and by rank
    assert sum(line.endswith("chosen") for line in lines) == 1
    assert lines[2].endswith("chosen")
    assert f"{len(chosen.candidates)} tried" in repr(chosen)
    assert len(repr(chosen)) < 300


def test_the_chosen_setting_is_shown_where_it_was_tried_twice():
    first = Candidate("gaussian", 1.0, 0.1, 0.25, True, 100)
    again = replace(first, loss=0.25 + 1e-15)  # on the same points, by another decomposition
    shown = str(Selection(again, (first, again, replace(first, kernel="laplacian", loss=0.5))))
    assert [line.endswith("chosen") for line in shown.splitlines()[2:]] == [True, False]


def test_the_last_comparison_trains_on_some_points_and_judges_on_others(rng, monkeypatch):
    for name, value in (("FINE_POINTS", 40), ("JUDGED_ON", 20)):
        monkeypatch.setattr(trials, name, value)
    X, y = rng.normal(size=(80, 2)), torch.from_numpy(rng.normal(size=(80, 1)))
    w = torch.from_numpy(rng.uniform(0.5, 2, size=80))
    found = Trials(as_given(X), y, lambda n: w[:n], makers("laplacian"), 0.0, lambda n: None, Workers(1))
    metric = torch.tensor([1.0, 3.0], dtype=torch.float64)
    candidate = Candidate("laplacian", 1.5, 0.2, 0.5, True, 60)
    losses = found.last_comparison([(candidate, metric), (candidate, None)])
    for loss, scales in zip(losses, (metric.numpy(), np.ones(2)), strict=True):
        x = torch.from_numpy(X * scales)
        K = mercer.Laplacian(1.5)(x, x)
        centred = y - (w[:40, None] * y[:40]).sum() / w[:40].sum()
        alpha = torch.linalg.solve(K[:40, :40] + 0.2 * torch.diag(1 / w[:40]), centred[:40])
        errors = K[60:, :40] @ alpha - centred[60:]
        assert loss == pytest.approx(float((w[60:, None] * errors.square()).mean()), rel=1e-8)


def test_with_many_rows_the_kernels_are_compared_on_many_points(rng, monkeypatch):
    """What is best on a few points may not be on many."""
    X = rng.normal(size=(5_000, 4))
    y = np.sin(X[:, 0]) + rng.normal(size=5_000)  # noise makes kernels alike
    seen = []

    def last_comparison(self, settings):
        seen.append([candidate.kernel for candidate, _ in settings])
        return [float(kernel != "gaussian") for kernel in seen[-1]]

    monkeypatch.setattr(Trials, "last_comparison", last_comparison)
    model = KernelRegressor(random_state=0, max_iter=1).plan(X, y)
    assert len(set(seen[0])) == len(seen[0]) > 1
    assert ("gaussian" in seen[0]) == ("gaussian" in model.kernel)


def test_with_many_rows_the_bandwidth_is_followed_until_both_sides_are_worse(monkeypatch):
    """The best one on few points, which show a slope only, is far from the best on more."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(600, 2))
    y = X[:, :1] + np.sin(7 * X[:, :1]) * np.sin(7 * X[:, 1:]) + 0.1 * rng.normal(size=(600, 1))
    monkeypatch.setattr(search, "ROUGH_POINTS", 40)
    monkeypatch.setattr(search, "MOST_CONTENDERS", 1)
    monkeypatch.setattr(trials, "MANY_POINTS", 600)
    found = select(as_given(X), torch.from_numpy(y), makers("gaussian"), metric=False).selection
    widths = [c.bandwidth for c in found.candidates if c.n_points == 600]
    assert min(widths) < found.best.bandwidth < max(widths) / 8
    assert found.best.loss < 0.05
