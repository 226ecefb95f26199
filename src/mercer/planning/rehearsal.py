"""How long a run will take: a few panels are timed on the run's own points, and the rest is counted.

What a kernel value costs depends on the kernel, the number of features and outputs, and their type; what
a step costs, on the batch and q.  So the code that will run is timed where it will run: the values of a
short panel and of a long one, the short one with what levelling adds, and its steps.  Only what needs
more memory than a rehearsal may take, keeping values and reading them again, comes from the device's
measured rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from mercer.data.points import Points
from mercer.kernels.base import Kernel
from mercer.method.preconditioner import LevelledKernel
from mercer.method.schedule import first_epoch_values, make_schedule
from mercer.method.step import descend
from mercer.model.expansion import Expansion
from mercer.operators.storage import value_bytes
from mercer.operators.tiled import TiledOperator, panel_rows
from mercer.operators.workers import small_operations
from mercer.planning.keeping import wanted_bytes
from mercer.planning.plan import Plan
from mercer.planning.resource import Rates
from mercer.stopwatch import Stopwatch

# Panels after the subsample of which the last is timed, and how often; the fastest counts.
PANELS = 3
TIMINGS = 2
# Rates of fresh memory are measured on a block that the system has at hand.  A run may take a hundred
# times as much, and memory that a virtual machine has to request from its host came up to six times as
# slowly where this was measured.  Unknown in advance; about the middle of the observed range.
FRESH_MEMORY_FACTOR = 1.5


def with_predicted_seconds(
    plan: Plan,
    rates: Rates,
    kernel: Kernel,
    points: Points,
    levelled: LevelledKernel,
    y: Tensor,
    n_held_out: int = 0,
) -> Plan:
    """The plan with the seconds that its first epoch and each later one will take."""
    n, l = y.shape
    s, q = levelled.V.shape
    most, V = panel_rows(points.x.device), levelled.V
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

    with small_operations(points.x.device):
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
    first = (triangle + n * n_held_out) * value + overhead + steps
    first += FRESH_MEMORY_FACTOR * rates.write * plan.kept_memory
    # Kept values are read as they are and transposed; the others are evaluated, all n of a row.
    size = points.squared_norms.element_size()
    whole = wanted_bytes(n, triangle, q + n_held_out, size, plan.kept_as)
    share = min(1.0, plan.kept_memory / whole)
    later = 2 * plan.kept_memory * rates.reading(l, value_bytes(plan.kept_as, size)) + steps
    later += (1 - share) * (n * (n + n_held_out) * value + overhead)
    return replace(plan, first_epoch_seconds=first, later_epoch_seconds=later)


def _seconds(*runs: Callable[[], float]) -> list[float]:
    """Of the fastest of each, in turn, so that one slow moment does not affect all repeats of one."""
    best = [math.inf] * len(runs)
    for _ in range(TIMINGS):
        for i, run in enumerate(runs):
            with Stopwatch() as watch:
                run()
            best[i] = min(best[i], watch.seconds)
    return best
