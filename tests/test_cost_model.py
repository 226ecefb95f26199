"""The cost model against sums by hand, and the plan for devices that are not here."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import fitted_costs
from benchmarks.scaling import model_table
from mercer.cli import main
from mercer.method.preconditioner import LevelledKernel
from mercer.method.schedule import Panel, Visit
from mercer.method.step import Step, descend
from mercer.model.expansion import Expansion
from mercer.operators.base import PanelProducts
from mercer.planning.cost_model import (
    NAMED_DEVICE_MEMORY,
    NAMED_DEVICES,
    NAMED_LINKS,
    PEAK_SHARE,
    STEP_OPERATIONS,
    DeviceCosts,
    LinkCosts,
    Shape,
    estimate,
    estimate_with_centres,
    usable_memory,
)
from mercer.planning.memory import GIB, work_bytes

ROOT = Path(__file__).resolve().parent.parent
SHAPE = Shape(n=1_000, d=20, l=2, s=100, q=10, m=50)
# A second for a multiplication and addition, and for nothing else; panels of 100 rows in four blocks.
COUNTER = DeviceCosts(multiply_add=1.0, value=0.0, read=0.0, rows=100, block=25)
AT_ONCE = LinkCosts(rate=float("inf"), latency=0.0)
# Values in the products of all steps: sums of the panel and the size of the step, changes of the other
# batch for the second one of a panel, Z, and V c.
STEPS = 1_000 * (100 + 50) + 10 * 50 * 50 + 10 * (100 + 50) * 10 + 10 * 100 * 10
# The same of 200 centres, two panels.
STEPS_OF_CENTRES = 200 * (100 + 50) + 2 * 50 * 50 + 2 * (100 + 50) * 10 + 2 * 100 * 10
TRIANGLE = sum(100 * max(stop, 100) for stop in range(100, 1_001, 100))  # ten panels


def test_one_device_does_all_multiplications_of_an_epoch():
    found = estimate(SHAPE, COUNTER, 0.0, 1)
    steps = 2 * STEPS
    Z = 1_000 * 100 * 10
    assert found.first_epoch_seconds == TRIANGLE * 22 + Z + steps
    assert found.later_epoch_seconds == 1_000**2 * 22 + Z + steps
    assert found.kept == 0


def test_fewer_centres_take_the_multiplications_of_their_columns_and_of_passes_over_them():
    """200 centres in two panels of 100 rows, 400 temporary ones, and so 2.5 passes an epoch."""
    found = estimate_with_centres(SHAPE, 200, 400, COUNTER, 0.0, 1)
    values, Z, transposed = 1_000 * (200 + 200 + 100) * 22, 1_000 * 100 * 10, 1_000 * 200 * 4
    of_pass = (200 * 200 + 200 * 100) * 22 + 2 * STEPS_OF_CENTRES
    assert found.first_epoch_seconds == found.later_epoch_seconds
    expected = values + Z + transposed + 2 * STEPS + 2.5 * of_pass
    assert found.later_epoch_seconds == pytest.approx(expected)
    kept = estimate_with_centres(SHAPE, 200, 400, COUNTER, 1e9, 1)
    saved = 2.5 * ((200 * 200 + 200 * 100) * 22 - 200 * 200 * 2)
    assert found.later_epoch_seconds - kept.later_epoch_seconds == pytest.approx(saved)


def test_devices_share_out_the_columns_of_centres_but_not_the_steps():
    one, four = (
        estimate_with_centres(SHAPE, 200, 400, COUNTER, 0.0, ranks, AT_ONCE) for ranks in (1, 4)
    )
    shared = 1_000 * (400 * 22 + 100 * 10 + 200 * 4) + 2.5 * 200 * 200 * 22
    saved = one.later_epoch_seconds - four.later_epoch_seconds
    assert saved == pytest.approx(0.75 * shared)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_steps_are_counted_as_they_are_taken(order):
    """Sums of the panel, which come before the steps, are no part of what is counted here."""
    batches = tuple(slice(50 * i, 50 * i + 50) for i in range(2))
    visit = Visit(0, Panel(0, 100, batches), [batches[i] for i in order])
    products = PanelProducts(torch.ones(100, 2), torch.eye(100), torch.ones(100, 10))
    levelled = LevelledKernel(torch.ones(100, 10), torch.ones(10))
    model, y = Expansion(torch.zeros(100, 2)), torch.zeros(100, 2)
    in_place = {torch.ops.aten.addmm_: lambda _, a, b, **rest: 2 * a[0] * a[1] * b[1]}
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        for _ in descend(visit, products, levelled, model, Step(0.1, 50, 1.0), y, torch.ones(100, 1)):
            pass
    sums, of_each_step = 100 * 100 * 2, 10 * 2  # one product of q values, left out of the model
    assert 10 * (counter.get_total_flops() / 2 + sums - 2 * of_each_step) == 2 * STEPS


def test_batches_in_random_order_lie_among_more_that_changed():
    def changed(order):
        return sum(max(order[:k]) - min(order[:k]) + 1 for k in range(1, 5)) / 5

    mean = np.mean([changed(order) for order in permutations(range(5))])
    shape = replace(SHAPE, m=20)
    found = estimate(shape, COUNTER, 0.0, 1)
    others = (1_000**2 - TRIANGLE) * 22
    more = found.later_epoch_seconds - found.first_epoch_seconds - others
    assert more == pytest.approx(1_000 * 20 * (mean - 2) * 2)


def test_devices_share_the_values_but_not_the_own_blocks_and_the_steps():
    one = estimate(SHAPE, COUNTER, 0.0, 1)
    two = estimate(SHAPE, COUNTER, 0.0, 2, AT_ONCE)
    steps = 2 * STEPS
    own = 1_000 * 100 * 22
    assert two.first_epoch_seconds == (one.first_epoch_seconds - steps + own) / 2 + steps


def test_the_fixed_block_is_the_work_of_those_that_have_rows_of_the_panel():
    # Of eight devices, four have blocks of a panel.
    eight = estimate(SHAPE, COUNTER, 0.0, 8, AT_ONCE)
    steps = 2 * STEPS
    own, fixed, Z = 1_000 * 100, 900 * 100, 1_000 * 100 * 10
    others = TRIANGLE - own - fixed
    assert eight.first_epoch_seconds == (own + fixed / 4 + others / 8) * 22 + Z / 4 + steps


def test_what_is_read_transposed_is_the_work_of_those_that_have_rows_of_the_panel():
    reader = replace(COUNTER, multiply_add=0.0, read=1.0)
    found = estimate(SHAPE, reader, 1.0 * GIB, 8, AT_ONCE)
    steps = 4 * STEPS
    read = 4 * (TRIANGLE - 1_000 * 100)
    assert found.later_epoch_seconds == read / 8 + read / 4 + steps


def test_a_tile_takes_at_least_as_long_as_it_takes_to_launch():
    launching = replace(COUNTER, multiply_add=1e-6, operation=1.0)
    assert launching.evaluated(20, 2) == 6 / (100 * 25)
    assert COUNTER.evaluated(20, 2) == 22


def test_a_panel_may_take_time_whatever_its_columns():
    idle = replace(COUNTER, multiply_add=0.0, panel=1.0)
    assert estimate(SHAPE, idle, 0.0, 1).first_epoch_seconds == 10


def test_kept_values_are_read_twice_and_not_evaluated():
    reader = replace(COUNTER, multiply_add=0.0, read=1.0)
    found = estimate(SHAPE, reader, 1.0 * GIB, 1)
    assert found.kept_share == 1.0
    steps = 4 * STEPS
    assert found.later_epoch_seconds == 2 * 4 * (TRIANGLE - 1_000 * 100) + steps


def test_sums_go_round_in_a_ring():
    nothing = replace(COUNTER, multiply_add=0.0)
    by_bytes = estimate(SHAPE, nothing, 0.0, 4, LinkCosts(rate=1.0, latency=0.0))
    # f in float64 for two outputs and Z in float32; each device sends three quarters of it twice.
    assert by_bytes.first_epoch_seconds == 2 * 0.75 * 1_000 * (2 * 8 + 10 * 4)
    by_messages = estimate(SHAPE, nothing, 0.0, 4, LinkCosts(rate=float("inf"), latency=1.0))
    assert by_messages.first_epoch_seconds == 10 * 6


def test_each_device_needs_the_data_and_the_workspace():
    for ranks in (1, 4):
        found = estimate(SHAPE, COUNTER, 1.0, ranks, AT_ONCE)
        assert found.needed == 4 * 1_000 * 20 + work_bytes(1_000, 2, 100, 4)
        assert not found.fits


def test_a_device_needs_its_share_of_points_that_are_dealt_and_two_panels():
    found = estimate(SHAPE, COUNTER, 1.0, 4, AT_ONCE, dealt=True)
    points = 100 + 900 / 4  # the fixed block, and a quarter of the others
    panels = 2 * 100 * 22  # with two columns for distances
    assert found.needed == 4 * (points * 20 + panels) + work_bytes(1_000, 2, 100, 4)
    alone = estimate(SHAPE, COUNTER, 1.0, 1, dealt=True)
    assert alone == estimate(SHAPE, COUNTER, 1.0, 1)


def test_memory_that_dealt_points_leave_keeps_kernel_values():
    shape = replace(SHAPE, d=1_000_000)
    everywhere, dealt = (
        estimate(shape, COUNTER, 5 * GIB, 4, AT_ONCE, dealt=dealt) for dealt in (False, True)
    )
    assert everywhere.fits
    assert everywhere.kept == dealt.kept
    tight = [estimate(shape, COUNTER, 2 * GIB, 4, AT_ONCE, dealt=dealt) for dealt in (False, True)]
    assert [found.fits for found in tight] == [False, True]


def test_messages_take_time_only_where_the_link_is_slower_than_the_work_beside_them():
    rows, at_once = 2 * 0.75 * 1_000, estimate(SHAPE, COUNTER, 0.0, 4, AT_ONCE)
    # A quarter of all values but the fixed block and the own blocks, in 22 operations each.
    ahead = (TRIANGLE - 100 * 900 - 1_000 * 100) / 4 * 22
    for rate in (1e-6, 1e6):
        for dealt in (False, True):
            found = estimate(SHAPE, COUNTER, 0.0, 4, LinkCosts(rate, 0.0), dealt=dealt)
            sums, points = (rows * size / rate for size in (2 * 8 + 10 * 4, 4 * 22 if dealt else 0))
            # Early panels have little work beside their sums.
            waiting = sums - ahead if rate < 1 else sums**2 / (4 * ahead)
            expected = max(at_once.first_epoch_seconds + waiting, sums + points)
            assert found.first_epoch_seconds == pytest.approx(expected)


def test_several_devices_need_a_link():
    with pytest.raises(ValueError, match="2 devices need a link between them"):
        estimate(SHAPE, COUNTER, 0.0, 2)


def test_published_peaks_are_reached_in_part():
    a100 = NAMED_DEVICES["A100"]
    assert a100.multiply_add == pytest.approx(2 / (PEAK_SHARE * 19.5e12))
    assert NAMED_LINKS["InfiniBand NDR"].rate == pytest.approx(PEAK_SHARE * 50e9)


def test_fitted_costs_are_those_that_the_times_were_made_of(monkeypatch):
    true = DeviceCosts(2e-11, 1e-9, 1e-10, 5e-6, 1e-3, 1_024, 256)
    byte = 0.25  # of the time of a feature of float32

    def evaluation(as_bytes, d, n_outputs):
        return true.evaluated(d * (byte if as_bytes else 1), n_outputs), true.panel

    monkeypatch.setattr(fitted_costs, "_evaluation", evaluation)
    monkeypatch.setattr(fitted_costs, "_reading", true.kept)
    monkeypatch.setattr(fitted_costs, "_step", lambda n_outputs: STEP_OPERATIONS * true.operation)
    for as_bytes in (False, True):
        found = fitted_costs.fitted_costs(as_bytes, 10)
        assert asdict(found.costs) == pytest.approx(asdict(true))
        assert found.feature == pytest.approx(byte if as_bytes else 1.0)


def test_this_machine_has_costs():
    found = fitted_costs.fitted_costs(as_bytes=True, n_outputs=3).costs
    assert found.operation > 0
    assert 0 < found.evaluated(100, 3) < 1e-6
    assert 0 < found.kept(3) < 1e-6


def test_more_devices_are_never_slower_in_the_first_epoch_of_many_points():
    shape = Shape(n=10**7, d=100, l=10, s=12_000, q=500, m=1_000)
    memory, link = usable_memory(NAMED_DEVICE_MEMORY), NAMED_LINKS["100 Gbit Ethernet"]
    counts = (1, 2, 4, 8, 16, 32, 64)
    seconds = [
        estimate(shape, NAMED_DEVICES["H100"], memory, count, link).first_epoch_seconds
        for count in counts
    ]
    assert seconds == sorted(seconds, reverse=True)


def test_the_guide_has_the_table_of_the_model():
    assert model_table() in (ROOT / "docs/guide/scaling.md").read_text(encoding="utf-8")


# The command


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4_000, 4))
    values = np.column_stack([X, X[:, 0] * X[:, 1]])
    np.savetxt(tmp_path / "data.csv", values, delimiter=",", header="a,b,c,d,y", comments="")
    return str(tmp_path / "data.csv")


FIXED = ("--kernel", "laplacian", "--bandwidth", "3", "--ridge", "0.01")


def planned(capsys, *arguments):
    assert main(["plan", *arguments, *FIXED, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_plan_command_has_the_estimate_for_given_devices(table, capsys):
    slow = planned(capsys, table, "--ranks", "8", "--device-memory", "80GB", "--device-flops", "1e12")
    assert slow["ranks"] == 8
    assert slow["memory"] == 8 * usable_memory(80 * GIB)
    names = ("n", "d", "n_outputs", "subsample_size", "preconditioner_rank", "batch_size")
    link = NAMED_LINKS["InfiniBand NDR"]
    costs = DeviceCosts.published(1e12, 2.039e12)
    found = estimate(
        Shape(*(slow[name] for name in names)), costs, usable_memory(80 * GIB), 8, link, dealt=True
    )
    assert slow["first_epoch_seconds"] == found.first_epoch_seconds
    assert slow["later_epoch_seconds"] == found.later_epoch_seconds
    assert slow["kept_memory"] == found.kept
    assert slow["dealt"]  # as `mercer fit` does


def test_a_device_that_is_too_small_is_named_in_a_note(table, capsys):
    found = planned(capsys, table, "--device-memory", "1MB")
    assert found["ranks"] == 1
    assert any("each device needs" in note and "too little" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--ranks 4", "--ranks needs --device-memory, the memory of each device, such as 80GB."),
        ("--link-rate 1e9", "--link-rate needs --device-memory"),
        ("--device-memory lots", "--device-memory must be a size such as 80GB. Got 'lots'."),
        ("--device-memory 8GB --memory 4GB", "--memory and --device-memory cannot be used together."),
        ("--device-memory 8GB --device-flops 0", "--device-flops must be a positive number. Got 0.0."),
        ("--device-memory 8GB --link-latency -1", "--link-latency must be a positive number. Got -1.0."),
    ],
)
def test_wrong_options_are_told_in_one_sentence(table, capsys, options, message):
    assert main(["plan", table, *options.split()]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert len(told.strip().splitlines()) == 1
