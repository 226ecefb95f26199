"""Fewer centres than rows on several processes: dense products, and the same bits on any number."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from ranks import group_of_all

import mercer
from mercer.data.dealt_points import DealtPoints
from mercer.data.points import byte_points
from mercer.engine import HeldOutPart, Limits, Requests, Resource, Step
from mercer.method import projection
from mercer.method.normal_equations import NormalEquations
from mercer.method.preconditioner import nothing_levelled
from mercer.method.schedule import make_schedule
from mercer.method.shared_equations import SharedEquations
from mercer.operators import deal as deal_module
from mercer.operators.deal import Deal
from mercer.operators.exact_sums import ExactSums
from mercer.operators.sharded_centres import ShardedCentres
from mercer.operators.workers import Workers, threads
from mercer.planning.centres import choose_with_centres
from mercer.processes.group import Group
from mercer.training import delayed
from mercer.training.assemble import assemble_with_centres, dealing_anyhow
from mercer.training.stopping import EarlyStopping
from tests import oracles
from tests.test_centres import waves

N, P, S = 1_900, 560, 150
CPU = torch.device("cpu")
DESK = Resource(capacity=1e8, memory=8e9, full_rate_rows=128)


def dealt_to(group, points):
    """The points, of which each rank holds only some."""
    held = dealing_anyhow(len(points), group, points.device).held
    places = [torch.arange(rows.start, rows.stop) for rows in held.slices]
    return DealtPoints(points[torch.cat([torch.arange(0), *places])], held, group)


# Products


@pytest.mark.parametrize("n_threads", [1, 3])
def test_products_with_centres_and_temporary_ones_are_the_dense_ones(rng, monkeypatch, n_threads):
    monkeypatch.setattr(deal_module, "CPU_BLOCK_COLUMNS", 16)
    x, (p, s) = rng.normal(size=(400, 5)), (90, 40)
    kernel = mercer.Laplacian(3.0)
    points = kernel.points(torch.from_numpy(x))
    V = torch.from_numpy(np.linalg.qr(rng.normal(size=(s, 6)))[0])
    K = torch.from_numpy(oracles.laplacian(x, x, 3.0))
    panels = [panel.rows for panel in make_schedule(p, s, 30, 64).panels]
    with threads(n_threads):
        operator = ShardedCentres(
            *(kernel, points, points[:p], 2, Deal(panels, s, Group(), CPU)),
            dealing_anyhow(400, Group(), CPU),
            basis=V,
            rows_at_once=64,
        )
        weights = torch.zeros(p + 128, 2, dtype=torch.float64)
        weights[:p] = torch.randn(p, 2, dtype=torch.float64)
        operator.panel(slice(100, 164), weights, 0)
        weights[p : p + 64] = torch.randn(64, 2, dtype=torch.float64)
        found = operator.panel(slice(200, 250), weights, 0)
        change = torch.randn(50, 3, dtype=torch.float64)
        transposed = operator.transposed(change)
        every = operator.times(weights)
    f = K[200:250, :p] @ weights[:p] + K[200:250, 100:164] @ weights[p : p + 64]
    torch.testing.assert_close(found.f, f, atol=1e-12, rtol=0)
    torch.testing.assert_close(found.own, K[200:250, 200:250], atol=1e-13, rtol=0)
    torch.testing.assert_close(found.Z, K[200:250, :s] @ V, atol=1e-12, rtol=0)
    torch.testing.assert_close(transposed, K[:p, 200:250] @ change, atol=1e-12, rtol=0)
    torch.testing.assert_close(every, K[:, :p] @ weights[:p], atol=1e-12, rtol=0)
    torch.testing.assert_close(operator.diagonal(slice(200, 250)), torch.ones(50).double())
    torch.testing.assert_close(operator.block(slice(3, 5), slice(0, 9)), K[3:5, :9])
    assert operator.n_temporary == 114
    operator.clear()
    again = operator.panel(slice(300, 310), weights, 0).f
    torch.testing.assert_close(again, K[300:310, :p] @ weights[:p], atol=1e-12, rtol=0)


def test_units_of_sums_do_not_remember_panels_before_the_last_projection(rng, monkeypatch):
    """A run that is resumed after it has not seen them."""
    kernel = mercer.kernels.Custom(lambda a, b: a @ b.T)
    x = torch.from_numpy(rng.normal(size=(60, 5)))
    x[30:40] *= 100
    points, V = kernel.points(x), torch.zeros(0, 0, dtype=torch.float64)
    deal = Deal([slice(0, 20)], 0, Group(), CPU)
    weights, bounds, inner = torch.ones(60, 1, dtype=torch.float64), [], ExactSums.of

    def of(self, lanes, rows, bound):
        bounds.append(bound)
        return inner(self, lanes, rows, bound)

    monkeypatch.setattr(ExactSums, "of", of)
    operator = ShardedCentres(*(kernel, points, points[:20], 1, deal, deal), basis=V, rows_at_once=10)
    for rows in (slice(40, 50), slice(30, 40), slice(50, 60)):
        operator.panel(rows, weights, 0)
    operator.clear()
    operator.panel(slice(40, 50), weights, 0)
    assert bounds[0] == bounds[3] < bounds[1] == bounds[2]  # temporary centres are columns, too


@pytest.mark.parametrize("n_terms", [4, 1 << 20])
def test_equations_added_up_in_any_order_are_those_of_one_process(rng, n_terms):
    K, y = torch.from_numpy(rng.normal(size=(300, 400))), torch.from_numpy(rng.normal(size=(400, 2)))
    weight = torch.from_numpy(rng.uniform(0.1, 1, size=(400, 1)))
    plain = NormalEquations(300, 2, Workers(1), CPU)
    plain.add(K, y, weight)
    plain.complete()
    parts = [slice(i, i + 100) for i in range(0, 400, 100)]
    found = []
    for order in (parts, parts[::-1]):
        shared = SharedEquations(300, y, weight, 4.5, n_terms, Workers(2), Group())
        for rows in order:
            shared.add(K[:, rows], y[rows], weight[rows])
        shared.complete()
        found.append(shared)
    assert torch.equal(found[0].G, found[1].G)
    assert torch.equal(found[0].b, found[1].b)
    torch.testing.assert_close(found[0].G, plain.G, atol=1e-12, rtol=0)
    torch.testing.assert_close(found[0].b, plain.b, atol=1e-12, rtol=0)
    assert found[0].squares == pytest.approx(plain.squares)


# Runs: the same on 1, 2, 3 and 5 ranks

CASES = (
    *("ridge", "early stopping", "bytes", "float64", "weights", "passes", "part kept", "few centres"),
    *("solved", "solved in float64"),
)


def a_run(case, group, dealt=False, epochs=3):
    """A run that has not begun."""
    rng = np.random.default_rng(3)
    dtype = torch.float64 if "float64" in case else torch.float32
    kernel, p = mercer.Laplacian(3.0), 60 if case == "few centres" else P
    x, targets = waves(N + 200, 2)
    y = torch.from_numpy(targets).to(dtype)
    every = kernel.points(torch.from_numpy(x).to(dtype))
    if case == "bytes":
        codes = torch.from_numpy(rng.integers(-90, 90, size=(N + 200, 70))).to(torch.int8)
        kernel, every = mercer.Gaussian(400.0), byte_points(codes, dtype)
    points, ridge = every[:N], 0.0 if case == "early stopping" else 0.5
    options = {"n_temporary": 600, "kept_memory": 4e5 if case == "part kept" else 1e8}
    if case == "early stopping":
        options["held_out"] = HeldOutPart(every[N:], y[N:])
    if case in ("weights", "solved"):
        options["sample_weight"] = torch.linspace(0.1, 1.0, N, dtype=dtype)[:, None]
    if case.startswith("solved"):
        step = step_on_centres = Step(eta=1.0, m=N, beta=1.0, exact=True)
        levelled = nothing_levelled(points.squared_norms)
    else:
        requests = Requests(subsample_size=min(p, S), preconditioner_rank=30, batch_size=100)
        plan, levelled = choose_with_centres(kernel, points, p, 2, DESK, ridge, requests, 0, False)
        step, step_on_centres = plan.step, plan.step_on_centres
    centres = points[:p]
    if dealt:
        points = dealt_to(group, points)
    return assemble_with_centres(
        *(kernel, points, centres, y[:N], step, step_on_centres, levelled),
        Limits(epochs, 0.0, 5, 0.0),
        ridge=ridge,
        group=group,
        **options,
    )


def run_case(case, group, dealt=False):
    """Weights, losses and the reason to stop."""
    with pytest.MonkeyPatch.context() as patched:
        if case in ("passes", "part kept"):  # over the centres, whose K is not factorised
            patched.setattr(projection, "MOST_FACTORISED", 0)
        outcome = a_run(case, group, dealt).run()
    losses = [(e.train_loss, e.validation_loss) for e in outcome.history.epochs]
    return outcome.alpha.numpy(), losses, outcome.reason


FEW = ("early stopping", "passes", "solved")


def run_cases(dealt, cases):
    return {case: run_case(case, group_of_all(), dealt) for case in cases}


@pytest.fixture(scope="module")
def alone():
    with threads(2):
        return {case: run_case(case, Group()) for case in CASES}


@pytest.mark.parametrize(
    ("size", "dealt", "cases"),
    [
        (2, True, CASES),
        (3, False, FEW),
        pytest.param(1, False, CASES, marks=pytest.mark.slow),
        pytest.param(3, False, CASES, marks=pytest.mark.slow),
        pytest.param(3, True, CASES, marks=pytest.mark.slow),
        pytest.param(5, False, CASES, marks=pytest.mark.slow),
        pytest.param(5, True, CASES, marks=pytest.mark.slow),
    ],
)
def test_any_number_of_ranks_gives_the_same_weights_to_the_last_bit(pool, alone, size, dealt, cases):
    for found in pool.run(size, run_cases, dealt, cases):
        for case in cases:
            np.testing.assert_array_equal(found[case][0], alone[case][0], err_msg=case)
            assert found[case][1:] == alone[case][1:], case


@pytest.mark.parametrize("case", CASES)
def test_a_group_computes_what_a_single_process_does(alone, case):
    alpha, losses, _ = run_case(case, None)
    exact = "float64" in case
    np.testing.assert_allclose(
        alone[case][0], alpha, atol=(1e-9 if exact else 5e-3) * np.abs(alpha).max()
    )
    for one, other in zip(alone[case][1], losses, strict=True):
        assert one[0] == pytest.approx(other[0], rel=1e-9 if exact else 1e-3)


def to_the_end(case):
    run = a_run(case, group_of_all(), dealt=True, epochs=60)
    run.state.progress.stalling = EarlyStopping(10**9, 0.0)  # to the last epoch
    return run.run().alpha.numpy()


@pytest.mark.parametrize(("case", "tolerance"), [("float64", 1e-4), ("solved in float64", 1e-9)])
def test_two_ranks_end_at_the_dense_solution_of_the_projected_problem(pool, case, tolerance):
    x, y = waves(N + 200, 2)
    K = oracles.laplacian(x[:N], x[:P], 3.0)
    expected = K @ oracles.projected_solution(K, K[:P], y[:N], 0.5)
    for alpha in pool.run(2, to_the_end, case):
        assert np.linalg.norm(K @ alpha - expected) < tolerance * np.linalg.norm(expected)


def sent_in_epochs(precision, dealt, passes):
    """Bytes that a run of one epoch and a run of two sent, what their plan says, and how it reads."""
    kernel, (x, y) = mercer.Laplacian(3.0), waves(N, 2)
    every = kernel.points(torch.from_numpy(x).to(getattr(torch, precision)))
    requests = Requests(subsample_size=S, preconditioner_rank=30, batch_size=100)
    resource = Resource(capacity=1e8, memory=8e9, full_rate_rows=128, ranks=2)
    plan, levelled = choose_with_centres(kernel, every, P, 2, resource, 0.5, requests, 0, False)
    plan, sent = replace(plan, dealt=dealt, n_temporary=1_200), []
    with pytest.MonkeyPatch.context() as patched:
        if passes:
            patched.setattr(projection, "MOST_FACTORISED", 0)
            patched.setattr(delayed, "MOST_PASSES", 1)
        for epochs in (1, 2):
            group = group_of_all()
            points = dealt_to(group, every) if dealt else every
            assemble_with_centres(
                *(kernel, points, every[:P], torch.from_numpy(y).to(every.dtype)),
                *(plan.step, plan.step_on_centres, levelled, Limits(epochs, 0.0, 5, 0.0)),
                ridge=0.5,
                n_temporary=plan.n_temporary,
                kept_memory=plan.kept_memory,
                group=group,
            ).run()
            sent.append(group.sent)
        return sent, plan.sent_bytes, str(plan)


@pytest.mark.parametrize(
    ("precision", "dealt", "passes"),
    [("float32", False, False), ("float64", True, False), ("float32", True, True)],
)
def test_a_plan_says_what_the_ranks_send(pool, precision, dealt, passes):
    for sent, (first, later), text in pool.run(2, sent_in_epochs, precision, dealt, passes):
        assert sent == [first, first + later]
        assert re.search(
            r"ranks 2 processes; each sends \d+ .iB in the first epoch, \d+ .iB in",
            " ".join(text.split()),
        )


def sent_to_solve(n):
    group = group_of_all()
    x, y = waves(n, 2)
    kernel = mercer.Laplacian(3.0)
    points = kernel.points(torch.from_numpy(x))
    resource = Resource(capacity=1e8, memory=8e9, ranks=2)
    parts = (resource, 0.5, Requests(), 0, False)
    plan, nothing = choose_with_centres(kernel, points, 300, 2, *parts, solves=True)
    assert plan.direct
    targets, limits = torch.from_numpy(y), Limits(1, 0.0, 5, 0.0)
    run = assemble_with_centres(
        *(kernel, points, points[:300], targets, plan.step, plan.step_on_centres, nothing, limits),
        ridge=0.5,
        group=group,
    )
    run.run()
    return group.sent, plan.sent_bytes, str(plan)


def test_ranks_that_solve_at_once_send_the_equations_once(pool):
    for sent, found, text in pool.run(2, sent_to_solve, 12_000):
        assert (sent, 0.0) == found
        assert re.search(r"ranks +2  processes; each sends 1 MiB$", text)
