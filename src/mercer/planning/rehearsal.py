"""How long a run will take: a few panels are timed on the run's own points, and the rest is counted.

What a kernel value costs depends on the kernel, the number of features and outputs, and their type; what
a step costs, on the batch and q.  So the code that will run is timed where it will run: the values of a
short panel and of a long one, the short one with what levelling adds, and its steps.  Only what needs
more memory than a rehearsal may take, keeping values and reading them again, comes from rates: that at
which the system hands out memory now, and the device's for reading.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from mercer.data.dealt_points import AnyPoints
from mercer.kernels.base import Kernel
from mercer.method.preconditioner import LevelledKernel
from mercer.method.schedule import first_epoch_values, make_schedule
from mercer.method.step import descend
from mercer.model.expansion import Expansion
from mercer.operators.pool import POOL
from mercer.operators.storage import value_bytes
from mercer.operators.tiled import TiledOperator, panel_rows
from mercer.operators.workers import small_operations
from mercer.planning.calibration import fresh_byte_seconds
from mercer.planning.keeping import pays, wanted_bytes
from mercer.planning.plan import Plan
from mercer.planning.resource import Rates
from mercer.planning.together import beside
from mercer.stopwatch import Stopwatch

# Panels after the subsample of which the last is timed, and how often; the fastest counts.
PANELS = 3
TIMINGS = 2


def with_predicted_seconds(
    plan: Plan,
    rates: Rates,
    kernel: Kernel,
    points: AnyPoints,
    levelled: LevelledKernel,
    y: Tensor,
    n_held_out: int = 0,
    epochs: int | None = None,
    exchange: float = 0.0,
    points_exchange: float = 0.0,
) -> Plan:
    """The plan with the seconds that its first epoch and each later one will take.

    With the number of `epochs` that are expected, it keeps kernel values only if that saves time.
    Of several ranks, each has an equal share of the values, evaluates the own block of every panel, and
    takes all steps.  `exchange` are the seconds in which they add up the sums of a panel, and
    `points_exchange` those in which they send its points, where these are dealt to the ranks.  Sums are
    sent while the next panel is multiplied with all columns but the fixed block, and points at any time.
    """
    n, l = y.shape
    s, q = levelled.V.shape
    most, V = panel_rows(points.device), levelled.V
    m = min(plan.batch_size, most)  # a larger one takes as long a row
    rows = m * (most // m)
    few = points[: s + PANELS * rows]
    schedule = make_schedule(len(few), s, m, most)
    values = [len(panel) * max(panel.stop, s) for panel in schedule.panels]
    short, long = 0, max(range(len(values)), key=values.__getitem__)
    visit = schedule.visits(1)[short]
    model = Expansion(y.new_zeros(len(few), l))
    # A step of 0 does all the arithmetic and cannot diverge.
    still, safe = replace(plan.step, eta=0.0), y.new_ones(len(few), 1)

    levelling, plain = (
        TiledOperator(
            kernel, few, few, l, rows_at_once=schedule.longest, cuts=schedule.cuts, basis=basis
        )
        for basis in (V, V[:, :0])
    )

    def evaluate(operator: TiledOperator, index: int) -> float:
        rows = schedule.panels[index].rows
        return float(operator.panel(rows, model.weights, 0).f[0, 0])  # waits for the device

    def step() -> float:
        steps = descend(visit, known, levelled, model, still, y, safe)
        return sum(float(losses.error) for _, losses in steps)

    with small_operations(points.device):
        known = levelling.panel(visit.panel.rows, model.weights, 0)
        of_short, of_long, with_levelling, with_steps = _seconds(
            lambda: evaluate(plain, short),
            lambda: evaluate(plain, long),
            lambda: evaluate(levelling, short),
            step,
        )
    value = of_long / values[long]
    if values[long] > 2 * values[short]:
        value = max(0.0, of_long - of_short) / (values[long] - values[short])
    n_panels = n / len(visit.panel)
    overhead = n_panels * max(0.0, with_levelling - values[short] * value)
    steps = n_panels * with_steps

    triangle = first_epoch_values(n, s, max(rows, plan.batch_size))
    ranks = plan.ranks
    points_sent = n_panels * points_exchange
    sums = l * (8 if plan.precision == "float32" else 16)  # bytes a row
    z_exchange = n_panels * exchange * q * points.dtype.itemsize / sums  # as long a byte
    messages = n_panels * exchange + z_exchange
    repeated = (1 - 1 / ranks) * n * len(visit.panel) * value
    fixed = min(triangle, n * s)  # values of the fixed block
    first = ((fixed + n * n_held_out) * value + overhead) / ranks + repeated + steps
    first += beside((triangle - fixed) * value / ranks, messages, growing=True)
    first = max(first, messages + points_sent)
    # Of a later epoch that evaluates all n of each row.
    again = (n * (n + n_held_out) * value + overhead) / ranks
    size = points.dtype.itemsize
    whole = wanted_bytes(n, triangle, q + n_held_out, size, plan.kept_as)
    # Kept values are read as they are and transposed.
    read = 2 * rates.reading(l, value_bytes(plan.kept_as, size)) / ranks
    used_before = min(plan.kept_memory, ranks * POOL.free_bytes if points.device.type == "cpu" else 0)
    fresh = plan.kept_memory - used_before
    write = fresh_byte_seconds(fresh // ranks, points.device, rates) / ranks
    if epochs is not None and not pays(fresh, write, again / whole - read, epochs - 1):
        plan, fresh = replace(plan, kept_memory=used_before), 0
    first += write * fresh
    later = read * plan.kept_memory + (1 - min(1.0, plan.kept_memory / whole)) * again
    messages = n_panels * exchange
    later = beside(later, messages) + steps
    later = max(later, messages + (0.0 if plan.keeps_all else points_sent))
    return replace(plan, first_epoch_seconds=first, later_epoch_seconds=later, expected_epochs=epochs)


def _seconds(*runs: Callable[[], float]) -> list[float]:
    """Of the fastest of each, in turn, so that one slow moment does not affect all repeats of one."""
    best = [math.inf] * len(runs)
    for _ in range(TIMINGS):
        for i, run in enumerate(runs):
            with Stopwatch() as watch:
                run()
            best[i] = min(best[i], watch.seconds)
    return best
