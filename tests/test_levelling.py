"""How many eigenvalues are levelled: as many as save more than they cost."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import mercer
from mercer.engine import Requests, choose, train
from mercer.method.critical_batch import fresh_sample
from mercer.method.preconditioner import level
from mercer.method.spectrum import nystrom_spectrum
from mercer.operators.workers import small_operations
from mercer.planning.epochs import Goal, Spectrum, epochs_until
from mercer.planning.levelling import SAVING_SHARE, Levelling, _while_it_pays
from mercer.planning.work import Work, decomposition, fresh_estimate
from mercer.training.stopping import Limits

N, S = 1_000, 300


@pytest.fixture
def one_thread():
    with small_operations(torch.device("cpu")):  # as plans are made
        yield


@pytest.fixture
def problem(rng, one_thread):
    kernel = mercer.Laplacian(3.0)
    x = torch.from_numpy(rng.normal(size=(N, 6))).float()
    return kernel, kernel.points(x), x[:, :2].sin()


def test_beta_alone_is_that_of_the_estimate(problem):
    kernel, points, _ = problem
    fresh, levelled = (
        fresh_sample(kernel, points, S),
        level(nystrom_spectrum(kernel, points[:S], 40), 40),
    )
    assert fresh.beta(levelled) == fresh.estimate(levelled, 40).beta


def test_levelling_more_is_expected_to_take_fewer_epochs_and_does(problem, desk):
    kernel, points, y = problem
    spectrum, fresh = nystrom_spectrum(kernel, points[:S], 128), fresh_sample(kernel, points, S)
    known, goal = (spectrum.sigma / S).double(), Goal(y, 1e-4, 100)

    def expected(q):
        levelled = level(spectrum, q)
        beta = fresh.beta(levelled)
        return epochs_until(Spectrum(N, q, known, beta, 0.0, 1 / beta), levelled, goal)

    def taken(q):
        plan, levelled = choose(kernel, points, 2, desk, requests=Requests(S, q, 32))
        limits = Limits(max_iter=100, interpolation_tol=1e-4, n_iter_no_change=3, tol=0)
        return len(train(kernel, points, y, plan.step, levelled, limits, kept_memory=1e9).history)

    assert expected(8) > expected(16) > expected(32) > expected(64)
    assert taken(8) > taken(64)


@pytest.mark.parametrize("n", [3_000, 8_000, 60_000])
def test_q_is_doubled_while_it_saves_twice_what_it_costs(problem, n):
    kernel, points, _ = problem
    spectrum, fresh = nystrom_spectrum(kernel, points[:S], 128), fresh_sample(kernel, points, S)
    estimate = fresh.estimate(level(spectrum, 8), 8)
    found = Levelling(spectrum, fresh, estimate, 8, paper_own_critical=0.0, batch=None, reason="")
    work = Work(n, l=2, value=60.0, kept=True)

    def epochs(spectrum, q):
        return 2 + 40 / min(q, 64)

    chosen = _while_it_pays(kernel, points, found, work, epochs, rho=0.0)
    expected = 8
    while True:
        cost = work.levelling(S, expected) + fresh_estimate(len(fresh.K), S, 2 * expected)
        saved = work.later_epochs(epochs(None, expected), S, expected)
        saved -= work.later_epochs(epochs(None, 2 * expected), S, 2 * expected)
        if cost > SAVING_SHARE * saved:
            break
        expected *= 2
    assert chosen.q == expected
    assert chosen.estimate == fresh.estimate(level(spectrum, chosen.q), chosen.q)
    assert "longer than the epochs" in chosen.reason


def test_more_of_the_spectrum_is_computed_only_if_that_pays(problem):
    kernel, points, _ = problem
    spectrum, fresh = nystrom_spectrum(kernel, points[:S], 20), fresh_sample(kernel, points, S)
    estimate = fresh.estimate(level(spectrum, 20), 20)
    found = Levelling(spectrum, fresh, estimate, 20, paper_own_critical=0.0, batch=None, reason="")

    def chosen(n):
        work = Work(n, l=2, value=60.0, kept=True)
        return _while_it_pays(kernel, points, found, work, lambda _, q: 2 + 400 / min(q, 40), rho=0.0)

    assert chosen(500).q == 20
    assert len(chosen(500).spectrum.sigma) == 20
    assert chosen(60_000).q == 40
    assert decomposition(S, 40) > decomposition(S, 20)


def test_a_goal_that_takes_many_epochs_has_more_levelled_and_one_epoch_does_not(problem, desk):
    kernel, points, y = problem
    small = replace(desk, capacity=1e5, full_rate_rows=16)  # m* reaches its batch with few eigenvalues
    requests = Requests(subsample_size=S)

    def plan(goal):
        return choose(kernel, points, 2, small, requests=requests, goal=goal)[0]

    plain, once, often = plan(None), plan(Goal(y, 1e-8, 1)), plan(Goal(y, 1e-8, 100))
    assert plain.preconditioner_rank == once.preconditioner_rank
    assert often.preconditioner_rank >= once.preconditioner_rank
    assert often.critical_batch_size >= often.batch_size
    held_out = plan(Goal(y, 1e-8, 100, patience=3))
    assert held_out.preconditioner_rank == plain.preconditioner_rank
    assert held_out.rank_reason == plain.rank_reason != ""
    assert f"eigenvalues levelled; {once.rank_reason}" in " ".join(str(once).split())
    given = choose(kernel, points, 2, small, requests=Requests(S, 10), goal=Goal(y, 1e-8, 100))[0]
    assert (given.preconditioner_rank, given.rank_reason) == (10, "set by the user")


def test_what_is_kept_and_who_shares_the_work_is_counted():
    kept, anew = Work(1_000, 2, 60.0, kept=True), Work(1_000, 2, 60.0, kept=False)
    assert kept.later_epoch(100, 10) == 1_000**2 * 32 + 2 * 1_000 * 10 * 2
    assert anew.later_epoch(100, 10) == 1_000**2 * 60 + 1_000 * 100 * 10 + 2 * 1_000 * 10 * 2
    assert replace(anew, ranks=2).levelling(100, 10) == anew.levelling(100, 10) / 2
    assert kept.later_epochs(1, 100, 10) == 0
