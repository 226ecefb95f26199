"""How long a run will take: a few panels are rehearsed on their own points, and the rest is counted.

What a kernel value costs depends on the kernel, the number of features and outputs, and their type; what
a step costs, on the batch and q.  So the code that will run is timed where it will run: the values of a
short panel and of a long one, the short one with what levelling adds, and its steps.  Only what needs
more memory than a rehearsal may take, keeping values and reading them again, comes from the device's
measured rates.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from mercer.data.points import Points
from mercer.kernels import Kernel
from mercer.operators.tiled import TrainingProducts, first_epoch_values, panel_rows
from mercer.operators.workers import small_operations
from mercer.planning.choose import LevelledKernel
from mercer.planning.plan import Plan
from mercer.planning.resource import Rates
from mercer.training.loop import Limits, Training

# The panels after the subsample of which the last is rehearsed, and how often; the best counts.
PANELS = 3
REPEATS = 2
# Rates of fresh memory are measured on a block that the system has at hand.  A run may take a hundred
# times as much, and what a virtual machine has to ask its host for came up to six times as slowly where
# this was measured.  How much that will be nobody can know beforehand; this is about the middle.
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
    size = points.squared_norms.element_size()
    most, V = panel_rows(points.x.device), levelled.V
    m = min(plan.batch_size, most)  # a larger one takes as long a row
    rows = m * (most // m)
    few = points[: s + PANELS * rows]
    products, plain = (TrainingProducts(kernel, few, each, m, l) for each in (V, V[:, :0]))
    values = [len(panel) * max(panel.stop, s) for panel in products.panels]
    short, long = 0, max(range(len(values)), key=values.__getitem__)
    panel = products.panels[short]
    nothing = y.new_zeros(len(few), l)
    # A step of 0 goes through the motions and cannot diverge.
    still = replace(plan, step_size=0.0)
    run = Training(products, levelled, still, y[: len(few)], Limits(1, 0.0, 1, 0.0))

    def evaluate(products: TrainingProducts, index: int) -> float:
        rows = products.rows(index, nothing, 0)
        return float(rows.f[0, 0])  # waits for the device

    def step() -> float:
        return sum(float(loss) for _, loss in run.descend(panel, known, panel.batches))

    with small_operations(points.x.device):
        known = products.rows(short, nothing, 0)
        of_short, of_long, with_levelling, with_steps = _seconds(
            lambda: evaluate(plain, short),
            lambda: evaluate(plain, long),
            lambda: evaluate(products, short),
            step,
        )
    value = of_long / values[long]
    if values[long] > 2 * values[short]:
        value = max(0.0, of_long - of_short) / (values[long] - values[short])
    n_panels = n / len(panel)
    overhead = n_panels * max(0.0, with_levelling - values[short] * value)
    steps = n_panels * with_steps

    triangle = first_epoch_values(n, s, max(rows, plan.batch_size))
    first = (triangle + n * n_held_out) * value + overhead + steps
    first += FRESH_MEMORY_FACTOR * rates.write * plan.kept_memory
    # Kept values are read as they are and transposed; the others are evaluated, all n of a row.
    share = min(1.0, plan.kept_memory / (size * (triangle + n * (q + n_held_out))))
    later = 2 * plan.kept_memory * rates.reading(l, size) + steps
    later += (1 - share) * (n * (n + n_held_out) * value + overhead)
    return replace(plan, first_epoch_seconds=first, later_epoch_seconds=later)


def _seconds(*runs: Callable[[], float]) -> list[float]:
    """Of the fastest of each, in turn, so that one slow moment does not meet all repeats of one."""
    best = [math.inf] * len(runs)
    for _ in range(REPEATS):
        for i, run in enumerate(runs):
            start = time.perf_counter()
            run()
            best[i] = min(best[i], time.perf_counter() - start)
    return best
