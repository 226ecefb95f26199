"""K shared out over processes: dense products, and the same weights for any number of ranks."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from ranks import group_of_all
from visits import visible_weights

import mercer
from mercer.data.dealt_points import DealtPoints
from mercer.data.held import Held
from mercer.data.points import ADDRESS_BYTES, byte_points
from mercer.data.rows import as_integers
from mercer.engine import HeldOutPart, Limits, Requests, Resource, assemble, choose
from mercer.method.schedule import make_schedule
from mercer.operators import deal as deal_module
from mercer.operators import sharded
from mercer.operators.deal import Deal
from mercer.operators.exact_sums import ExactSums, Lane, in_one
from mercer.operators.sharded import ShardedRectangle, ShardedSquare
from mercer.operators.workers import threads
from mercer.processes.group import Group
from mercer.training.assemble import dealing

N, S, Q = 1_300, 300, 6


def dealt_to(group, points, s, m):
    """The points, of which each rank holds those of its own columns only."""
    held = dealing(len(points), s, m, group, points.device).held
    places = torch.cat([torch.arange(rows.start, rows.stop) for rows in held.slices])
    return DealtPoints(points[places], held, group)


# Addresses and sums


def test_points_are_copied_to_where_products_round_alike():
    """Some math libraries round by the address of an operand, which differs where points are dealt."""
    points = mercer.Laplacian(1.0).points(torch.randn(70, 4))
    for first in range(16):
        found = points[first:].aligned()
        assert found.rows.data_ptr() % ADDRESS_BYTES == 0
        assert torch.equal(found.rows, points.rows[first:])
        assert torch.equal(found.squared_norms, points.squared_norms[first:])
    assert points.aligned() is points
    codes = byte_points(torch.ones(9, 3, dtype=torch.int8), torch.float32)[1:]
    assert codes.aligned() is codes  # whose products are exact


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_are_those_of_exact_arithmetic_in_any_order(rng, dtype):
    terms = torch.from_numpy(rng.normal(size=(60, 2, 5)) * 10.0 ** rng.uniform(-6, 3, (60, 2, 5)))
    terms = terms.to(dtype)
    bound = float(terms.abs().sum(0).max())
    sums = ExactSums(torch.device("cpu"), dtype, 5, 2)

    def summed(order):
        lanes = [Lane(slice(0, 5), [lambda total, _, i=i: total.add_(terms[i])]) for i in order]
        return sums.of(lanes, 5, bound)

    found = summed(range(60))
    for _ in range(5):
        assert torch.equal(summed(rng.permutation(60)), found)
    halves = [summed(range(0, 60, 2)), summed(range(1, 60, 2))]
    assert torch.equal(halves[0] + halves[1], found)
    for i, j in itertools.product(range(2), range(5)):
        exact = sum(Fraction(float(term)) for term in terms[:, i, j])
        error = abs(Fraction(float(found[:, i, j].flip(0).sum())) - exact)
        assert (
            error <= 2.0**-53 * abs(exact) + 60 * 2.0 ** (-50 if dtype == torch.float32 else -88) * bound
        )


def test_sums_of_nothing_and_of_what_is_not_finite():
    sums = ExactSums(torch.device("cpu"), torch.float32, 3, 1)
    assert not in_one(sums.of([], 3, 0.0), torch.float32).any()
    for value in (math.inf, math.nan):
        lane = Lane(slice(1, 2), [lambda total, _, value=value: total.fill_(value)])
        found = in_one(sums.of([lane], 3, value), torch.float32).T
        assert found[[0, 2]].eq(0).all()
        assert not found[1].isfinite()


# Products


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    kernel = mercer.Laplacian(2.0)
    points = kernel.points(torch.from_numpy(rng.normal(size=(N, 4))))
    V = torch.from_numpy(rng.normal(size=(S, Q)))
    return kernel, points, V, kernel.block(points, points, same=True)


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("s", [0, S])
@pytest.mark.parametrize("kept_share", [0.0, 0.01, 0.4, 1.0])
def test_panels_equal_dense_products_whatever_is_kept(problem, monkeypatch, kept_share, s, n_threads):
    kernel, points, V, K = problem
    V = V if s else V[:0, :0]
    monkeypatch.setattr(deal_module, "CPU_BLOCK_COLUMNS", 20)
    monkeypatch.setattr(sharded, "FIXED_COLUMNS", 70)
    schedule = make_schedule(N, s, 25, 90)
    budget = kept_share * 8 * N * (N + Q)
    draws = torch.Generator().manual_seed(1)
    with threads(n_threads):
        deal = Deal([p.rows for p in schedule.panels], s, Group(), torch.device("cpu"))
        operator = ShardedSquare(kernel, points, 3, deal, V, budget)
        for epoch in (1, 2, 3):
            weights = torch.randn(N, 3, generator=draws, dtype=torch.float64)
            for visit in schedule.visits(epoch):
                here, visible, stop = visible_weights(visit, epoch, weights, s)
                found = operator.panel(here, visible, stop)
                torch.testing.assert_close(found.f, K[here] @ visible, atol=1e-11, rtol=0)
                torch.testing.assert_close(found.own, K[here, here], atol=1e-13, rtol=0)
                torch.testing.assert_close(found.Z, K[here, :s] @ V, atol=1e-11, rtol=0)
    assert operator.kept_bytes <= budget
    assert (operator.kept_bytes > 0) == (kept_share > 0)


@pytest.mark.parametrize(
    ("kept_share", "told"),
    [
        (0.0, "in order"),
        (0.4, "in order"),
        (1.0, "in order"),
        (0.4, "another panel came"),
        (0.4, "weights grew"),
    ],
)
def test_sums_made_ahead_of_the_steps_equal_dense_products(problem, monkeypatch, kept_share, told):
    """Steps change the weights of a panel and of the fixed block; sums of the next one know that."""
    kernel, points, V, K = problem
    monkeypatch.setattr(deal_module, "CPU_BLOCK_COLUMNS", 40)
    schedule = make_schedule(N, S, 50, 160)
    deal = Deal([p.rows for p in schedule.panels], S, Group(), torch.device("cpu"))
    operator = ShardedSquare(kernel, points, 3, deal, V, kept_share * 8 * N * (N + Q))
    summed, made = ShardedSquare._summed_ahead, []

    def counted(operator, visited, bound):
        made.append(visited.rows)
        return summed(operator, visited, bound)

    monkeypatch.setattr(ShardedSquare, "_summed_ahead", counted)
    weights = torch.zeros(N, 3, dtype=torch.float64)
    draws = torch.Generator().manual_seed(2)
    for epoch in (1, 2, 3):
        visits = schedule.visits(epoch)
        for i, visit in enumerate(visits):
            stop = N if epoch > 1 else max(S, visit.panel.stop)
            after = visits[(i + 2 if told == "another panel came" else i + 1) % len(visits)].panel
            operator.neighbours(
                visits[i - 1].panel.rows if i else None,
                (after.rows, N if epoch > 1 else max(S, after.stop)) if i + 1 < len(visits) else None,
            )
            size = max(1.0, float(weights.abs().max()))
            found = operator.panel(visit.panel.rows, weights, stop)
            torch.testing.assert_close(found.f, K[visit.panel.rows] @ weights, atol=1e-10 * size, rtol=0)
            for changed in (visit.panel.rows, slice(0, S)):
                noise = torch.randn(weights[changed].shape, generator=draws, dtype=torch.float64)
                weights[changed] += (3.0**i if told == "weights grew" and epoch == 1 else 1.0) * noise
    visited = 3 * len(schedule.panels)
    # Ahead of each panel but the first of an epoch, and again where that was of no use.
    assert len(made) <= 1.2 * visited if told == "in order" else len(made) > 1.25 * visited


def test_what_was_kept_is_not_evaluated_again(problem, monkeypatch):
    kernel, points, V, _ = problem
    schedule = make_schedule(N, S, 100, 500)
    deal = Deal([p.rows for p in schedule.panels], S, Group(), torch.device("cpu"))
    operator = ShardedSquare(kernel, points, 1, deal, V, 1e9)
    weights = torch.ones(N, 1, dtype=torch.float64)
    for panel in schedule.panels:
        operator.panel(panel.rows, weights, panel.stop)
    monkeypatch.setattr(mercer.Laplacian, "block", None)  # any evaluation would fail
    for panel in schedule.panels:
        operator.panel(panel.rows, weights, N)


@pytest.mark.parametrize("budget", [0.0, 1e9])
def test_held_out_products_equal_the_dense_ones(problem, rng, budget):
    kernel, points, _, _ = problem
    held_out = kernel.points(torch.from_numpy(rng.normal(size=(1_100, 4))))
    schedule = make_schedule(N, S, 100, 500)
    deal = Deal([p.rows for p in schedule.panels], S, Group(), torch.device("cpu"))
    operator = ShardedRectangle(kernel, held_out, points, 2, deal, budget)
    dense = kernel.block(held_out, points)
    for _ in range(2):
        weights = torch.from_numpy(rng.normal(size=(N, 2)))
        torch.testing.assert_close(operator.times(weights), dense @ weights)
        part = slice(130, 900)
        torch.testing.assert_close(operator.times(weights, columns=part), dense[:, part] @ weights[part])
        some = operator.times(weights, slice(7, 80))
        torch.testing.assert_close(some, dense[7:80] @ weights)
        assert operator.times(weights, slice(7, 7)).shape == (0, 2)


def test_every_column_belongs_to_one_rank_and_panels_are_shared_out():
    schedule = make_schedule(60_000, 2_000, 300, 1_024)
    panels = [p.rows for p in schedule.panels]
    for size in (1, 2, 3, 5, 64):
        deals = [Deal(panels, 2_000, Group(rank, size), torch.device("cpu")) for rank in range(size)]
        own = np.zeros(60_000, dtype=int)
        for deal in deals:
            for block in deal.own:
                own[block.columns] += 1
        assert (own == 1).all()
        widths = [sum(len(block) for block in deal.own) for deal in deals]
        assert max(widths) <= 1.03 * 60_000 / size + 256
        for start in range(0, 60_000, 6_000):  # and so in each part of the triangle
            parts = [sum(len(b) for b in deal.between(start, start + 6_000)) for deal in deals]
            assert max(parts) <= 1.1 * 6_000 / size + 256
    few = Deal([slice(0, 300)], 0, Group(0, 9), torch.device("cpu"))
    assert few.busy_ranks == 2


# Runs: the same on 1, 2, 3 and 5 ranks

CASES = ("plain", "ridge", "early stopping", "bytes", "float64", "warm start", "weights", "part kept")


def run_case(case, group, dealt=False):
    """Weights, losses and predictions of a short run."""
    rng = np.random.default_rng(3)
    n, dtype = 1_500, torch.float64 if case == "float64" else torch.float32
    kernel = mercer.Laplacian(2.5)
    x = torch.from_numpy(rng.normal(size=(n + 200, 5))).to(dtype)
    y = torch.stack([x[:, 0].sin(), x[:, 1] * x[:, 2]], 1)
    y = y - y.mean(0)
    if case == "bytes":
        codes = torch.from_numpy(rng.integers(-90, 90, size=(n + 200, 70))).to(torch.int8)
        kernel, every = mercer.Gaussian(400.0), byte_points(codes, dtype)
    else:
        every = kernel.points(x)
    points, held_out = every[:n], HeldOutPart(every[n:], y[n:])
    ridge = 0.3 if case in ("ridge", "weights") else 0.0
    resource = Resource(capacity=2e8, memory=8e9, full_rate_rows=128)
    requests = Requests(subsample_size=400, preconditioner_rank=40)
    plan, preconditioner = choose(kernel, points, 2, resource, ridge, requests)
    options = {"kept_memory": plan.kept_memory * (0.4 if case == "part kept" else 1.0)}
    if case == "early stopping":
        options["held_out"] = held_out
    if case == "weights":
        options["sample_weight"] = torch.linspace(0.1, 1.0, n, dtype=dtype)[:, None]
    if case == "warm start":
        options["start_from"] = 0.01 * torch.from_numpy(rng.normal(size=(n, 2))).to(dtype)
    limits = Limits(4, 1e-12, 2, 0.01)
    if dealt:
        points = dealt_to(group, points, 400, plan.batch_size)
    run = assemble(kernel, points, y[:n], plan.step, preconditioner, limits, group=group, **options)
    outcome = run.run()
    losses = [(e.train_loss, e.validation_loss) for e in outcome.history.epochs]
    return outcome.alpha.numpy(), losses, outcome.reason


def run_cases(dealt):
    return {case: run_case(case, group_of_all(), dealt) for case in CASES}


@pytest.fixture(scope="module")
def alone():
    with threads(2):
        return {case: run_case(case, Group()) for case in CASES}


@pytest.mark.parametrize(
    ("size", "dealt"),
    [
        (1, False),
        (2, True),
        (3, False),
        (3, True),
        pytest.param(1, True, marks=pytest.mark.slow),
        pytest.param(2, False, marks=pytest.mark.slow),
        pytest.param(5, False, marks=pytest.mark.slow),
        pytest.param(5, True, marks=pytest.mark.slow),
    ],
)
def test_any_number_of_ranks_gives_the_same_weights_to_the_last_bit(pool, alone, size, dealt):
    for found in pool.run(size, run_cases, dealt):
        for case in CASES:
            np.testing.assert_array_equal(found[case][0], alone[case][0], err_msg=case)
            assert found[case][1:] == alone[case][1:], case


@pytest.mark.parametrize("case", CASES)
def test_a_group_computes_what_a_single_process_does(alone, case):
    alpha, losses, _ = run_case(case, None)
    exact = case == "float64"
    np.testing.assert_allclose(
        alone[case][0], alpha, atol=(1e-9 if exact else 2e-3) * np.abs(alpha).max()
    )
    for one, other in zip(alone[case][1], losses, strict=True):
        assert one[0] == pytest.approx(other[0], rel=1e-9 if exact else 1e-3)


def nothing_ahead(operator, before, after):
    """In place of `neighbours`: the same columns are late, and nothing is done ahead."""
    operator._before = before


def sent_ahead(case):
    """Rows of points that were sent, and those of them while another panel was worked on."""
    group, sent, ahead = group_of_all(), [], []
    sending, of_panel = DealtPoints.sending, ShardedSquare._send_ahead

    def counted(self, rows):
        sent.append(rows)
        return sending(self, rows)

    def counted_ahead(self, after):
        before = len(sent)
        of_panel(self, after)
        ahead.extend(sent[before:])

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(DealtPoints, "sending", counted)
        patched.setattr(ShardedSquare, "_send_ahead", counted_ahead)
        weights = run_case(case, group, dealt=True)[0]
        n_sent, n_ahead = len(sent), len(ahead)
        patched.setattr(ShardedSquare, "neighbours", nothing_ahead)
        plain = run_case(case, group, dealt=True)[0]
    assert len(ahead) == n_ahead
    assert len(sent) == 2 * n_sent  # as many rows, and none of them twice
    return weights, plain, n_sent, n_ahead


@pytest.mark.parametrize("case", ["plain", "part kept"])
def test_points_are_sent_a_panel_ahead_with_the_same_bits(pool, case):
    for weights, plain, sent, ahead in pool.run(2, sent_ahead, case):
        np.testing.assert_array_equal(weights, plain)
        assert ahead > 0.5 * sent


def sent_in_epochs(precision, dealt, kept):
    """Bytes that a run of one epoch and a run of two sent, and what their plan says."""
    rng = np.random.default_rng(3)
    kernel = mercer.Laplacian(2.5)
    points = kernel.points(torch.from_numpy(rng.normal(size=(1_500, 5))).to(getattr(torch, precision)))
    y = points.x[:, :2].sin()
    resource = Resource(capacity=2e8, memory=8e9, full_rate_rows=128, ranks=2)
    requests = Requests(subsample_size=400, preconditioner_rank=40)
    plan, preconditioner = choose(kernel, points, 2, resource, 0.1, requests)
    plan = replace(plan, kept_memory=kept * plan.kept_memory, dealt=dealt)
    sent, every = [], points
    for epochs in (1, 2):
        group, limits = group_of_all(), Limits(epochs, 0.0, 2, 0.01)
        if dealt:
            points = dealt_to(group, every, 400, plan.batch_size)
        options = {"kept_memory": plan.kept_memory, "group": group}
        assemble(kernel, points, y, plan.step, preconditioner, limits, **options).run()
        sent.append(group.sent)
    return sent, plan.sent_bytes, str(plan)


@pytest.mark.parametrize(
    ("precision", "dealt", "kept"),
    [
        ("float32", False, 1.0),
        ("float64", False, 1.0),
        ("float32", True, 1.0),
        ("float64", True, 0.5),
        ("float32", True, 0.0),
    ],
)
def test_a_plan_says_what_the_ranks_send(pool, precision, dealt, kept):
    for sent, (first, later), text in pool.run(2, sent_in_epochs, precision, dealt, kept):
        assert sent == [first, first + later]
        said = r"ranks 2 processes; each sends \d+ KiB in the first epoch, \d+ KiB in"
        assert re.search(said, " ".join(text.split()))


# Points that are dealt to the ranks


def slices_of_dealt_points(kind):
    """Whether slices of dealt points are those of all points, and how many of them a rank holds."""
    rng, group = np.random.default_rng(5), group_of_all()
    if kind == "bytes":
        codes = torch.from_numpy(rng.integers(-90, 90, size=(2_900, 70))).to(torch.int8)
        points = byte_points(codes, torch.float32)
    else:
        x = torch.from_numpy(rng.normal(size=(2_900, 5)))
        x[7, 2] = -0.0
        points = mercer.L1Laplacian(1.0).points(x)
    dealt = dealt_to(group, points, 400, 100)
    for rows in (slice(None), slice(0, 300), slice(350, 1_700), slice(2_800, 5_000), slice(9, 9)):
        found, wanted = dealt[rows], points[rows]
        assert torch.equal(as_integers(found.rows), as_integers(wanted.rows))
        assert torch.equal(found.squared_norms, wanted.squared_norms)
        assert (found.bound, found.absolute_bound) == (wanted.bound, wanted.absolute_bound)
        assert (found.n_absolute, found.is_bytes) == (wanted.n_absolute, wanted.is_bytes)
    assert dealt.largest(lambda p: p.x[:, 0]) == float(points.x[:, 0].max())
    assert (dealt.shape, dealt.device, dealt.dtype) == (points.shape, points.device, points.dtype)
    whole = torch.cat(list(dealt.rows.parts()))
    assert torch.equal(whole, points.rows)
    assert dealt.rows.shape == tuple(whole.shape)
    assert dealt.rows.nbytes == whole.nbytes
    return len(dealt.stored)


@pytest.mark.parametrize("kind", ["floats", "bytes"])
def test_ranks_have_any_points_together_and_their_share_of_them_alone(pool, kind):
    for size in (1, 2, 5):
        held = pool.run(size, slices_of_dealt_points, kind)
        assert sum(held) == 2_900 + (size - 1) * 400  # all have the subsample
        assert max(held) <= 400 + 1.25 * 2_500 / size + 256


def test_a_part_of_a_whole_knows_which_rows_it_has():
    held = Held(100, [slice(10, 20), slice(20, 25), slice(40, 60)])
    own = [*range(10, 25), *range(40, 60)]
    assert len(held) == len(own)
    for first, stop in itertools.combinations(range(0, 100, 7), 2):
        for place, here in held.within(slice(first, stop)):
            assert own[place] == list(range(first, stop))[here]
        count = sum(here.stop - here.start for _, here in held.within(slice(first, stop)))
        assert count == sum(first <= row < stop for row in own)
