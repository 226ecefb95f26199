"""Fewer centres than rows: how many, how many temporary ones, and how long it takes.

With every row a centre, an epoch takes n² / 2 kernel values at first and n² later.  With p centres it
takes

    n (p + w / 2 + R)   values: rows with the centres, with w temporary ones (half of them on average)
                        and with the R rows of their panel
    n p² / w            kept values read, or evaluated again: a pass over the centres for every w rows

so the w that costs least is p sqrt(2 k), k being the time to read a value over that to evaluate it.  An
exact projection reads more of each value.
Later epochs read the values of rows with the centres as far as memory lasts.  To predict the time of an
epoch, one panel is worked on as in training, and the rest is counted.  Several ranks share out the
columns; the values of a panel's rows among one another are the work of all.

Few centres have their equations solved at once instead (`direct.py`), where that is predicted to be
sooner than the epochs of descent.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

from mercer.data.points import Points
from mercer.kernels.base import Kernel
from mercer.method.conjugate import n_watched
from mercer.method.critical_batch import FRESH_POINTS
from mercer.method.preconditioner import LevelledKernel
from mercer.method.projection import EXACT_BYTES, is_factorised
from mercer.method.schedule import make_schedule
from mercer.method.step import descend
from mercer.model.expansion import ExpansionWithTemporaries
from mercer.operators.pool import POOL
from mercer.operators.storage import value_bytes
from mercer.operators.tiled import TiledOperator, panel_rows
from mercer.operators.to_centres import CentresOperator
from mercer.operators.workers import small_operations
from mercer.planning.calibration import fresh_byte_seconds
from mercer.planning.choose import choose
from mercer.planning.direct import direct_centres_plan, normal_seconds, solves_centres
from mercer.planning.keeping import keeping, pays
from mercer.planning.levelling import SUBSAMPLE_SIZE, Requests
from mercer.planning.memory import centres_bytes, centres_data_bytes, kept_bytes, repeated_bytes
from mercer.planning.plan import Plan
from mercer.planning.resource import Resource
from mercer.planning.together import Together
from mercer.planning.work import ELEMENTWISE_FEATURES
from mercer.stopwatch import Stopwatch, fastest

# With fewer rows than this, every one is a centre unless the user says otherwise.
FEWEST_TIMED = 20_000
# A run that is predicted to take no longer has every row as a centre; otherwise the number of centres is
# the largest that takes no longer.
SHORT_SECONDS = 120.0
# Epochs that are counted on: three without an improvement end training, and two usually bring one.
COUNTED_EPOCHS = 5
# Where n rows take too long, so many centres take time that is worth while; and they are a power of two
# times this number, so that it does not depend on the noise of a measurement.
FEWEST_CENTRES = 1_000
# Rows and columns of the kernel values that are timed, and how often; the fastest counts.
TIMED_ROWS = 1_024
TIMED_COLUMNS = 4_096
TIMED_RUNS = 3
# A clock of coarse ticks may show less.
SHORTEST_SECONDS = 1e-4
# Panels that are rehearsed, each with a first and a second time, and the fastest counts.
REHEARSALS = 2
# Of the memory, what K over the centres may take.
CENTRES_SHARE = 0.5


def value_seconds(kernel: Kernel, points: Points, n_outputs: int, resource: Resource) -> float | None:
    """Of one kernel value and its product with weights; None for a device that is not here.

    It is timed on the points themselves, since passes over kernel values cost more than the product for
    some kernels and less for others, and rounded to a power of two: choices must not depend on noise.
    """
    if resource.rates is None:
        return None
    rows, columns = points[:TIMED_ROWS], points[:TIMED_COLUMNS]
    operator = TiledOperator(kernel, rows, columns, n_outputs)
    weights = columns.squared_norms.new_zeros(len(columns), n_outputs)
    # On a CPU only the time that the workers were running: others may use the cores as well.
    on_cpu = points.device.type == "cpu"
    clock, at_once = (time.process_time, operator.summation.workers.count) if on_cpu else (None, 1)
    seconds = fastest(lambda: float(operator.times(weights)[0, 0]), TIMED_RUNS, clock) / at_once
    seconds = max(seconds, SHORTEST_SECONDS)
    return float(2.0 ** round(math.log2(seconds / (len(rows) * len(columns)))))


def all_centres_seconds(n: int, value: float) -> float:
    """Predicted for a run with every row a centre, if no kernel values are kept."""
    return n * n * value * (COUNTED_EPOCHS - 0.5)


def auto_centres(
    n: int, value: float | None, resource: Resource, together: Together = Together()
) -> int | None:
    """The number of centres for n rows, a kernel value taking so many seconds; None for all of them."""
    if value is None:
        return None
    value /= together.devices
    if all_centres_seconds(n, value) <= SHORT_SECONDS:
        return None
    in_time = SHORT_SECONDS / (COUNTED_EPOCHS * n * value * 1.5)
    # Half of p² in 16 bits; in a group as they are, over the memory of all ranks.
    each = resource.element_size / 2 if together.is_group else 1
    in_memory = math.sqrt(CENTRES_SHARE * resource.usable / each)
    most = min(in_time, in_memory, n / 2)
    p = FEWEST_CENTRES * 2 ** max(0, int(math.log2(max(1.0, most / FEWEST_CENTRES))))
    return p if p < n else None


def choose_with_centres(
    kernel: Kernel,
    points: Points,
    p: int,
    n_outputs: int,
    resource: Resource,
    ridge: float,
    requests: Requests,
    n_held_out: int,
    data_on_disk: bool,
    n_rows: int | None = None,
    value: float | None = None,
    solves: bool = False,
    together: Together = Together(),
    most_epochs: int = COUNTED_EPOCHS,
    n_closing: int = 0,
) -> tuple[Plan, LevelledKernel]:
    """Choose s, q, m and eta for p centres, the first of the points, and what is kept in memory.

    The points may be a sample of `n_rows`.  `value` is the time of a kernel value, if it is known.
    `solves` allows to solve the equations at once.  `together` says how ranks share out the work.
    There will be at most `most_epochs`.  Of the held-out points, `n_closing` are trained on in the end
    where the equations are solved.
    """
    n, d = n_rows or len(points), points.shape[1]
    feature = 1.0 if resource.rates is None else resource.rates.feature
    counted = (d + n_outputs + ELEMENTWISE_FEATURES) * feature if value is None else value
    of_run: dict[str, Any] = {
        "data_on_disk": data_on_disk,
        "n_held_out": n_held_out,
        "dealt": together.dealt,
    }
    P = together.devices
    if solves and solves_centres(n, p, n_outputs, counted, feature, COUNTED_EPOCHS, resource, P):
        plan, nothing = direct_centres_plan(kernel, points, n, p, n_outputs, resource, ridge)
        plan = replace(plan, **of_run, n_closing=n_closing)
        if value is not None:
            seconds = normal_seconds(n + n_closing, p, value, feature, P)
            plan = _with_seconds(plan, seconds, 1, all_centres_seconds(n, value / P))
        return plan, nothing
    # Estimates need points that are not in the subsample, and all of that are centres.
    few = points[: p + FRESH_POINTS]
    if requests.subsample_size is not None and requests.subsample_size > p:
        raise ValueError(
            f"`subsample_size` must be at most the number of centres, {p}, which it is a part of. Got "
            f"{requests.subsample_size} instead."
        )
    asked = requests
    if requests.subsample_size is None and p < SUBSAMPLE_SIZE + FRESH_POINTS:
        asked = replace(requests, subsample_size=min(p, SUBSAMPLE_SIZE))
    # The ridge counts once for all rows, and the estimates are per point.
    plan, levelled = choose(kernel, few, n_outputs, resource, ridge * len(few) / n, asked)
    size, q = resource.element_size, plan.preconditioner_rank
    m = requests.batch_size or plan.batch_size
    rows = max(m, panel_rows(points.device))
    ranks, stored = resource.ranks, 1 if points.is_bytes else size
    coded = ranks == 1 and not together.is_group
    kept = keeping(kernel, few[:p], plan.subsample_size, q, min(m, p), n_held_out, size, coded=coded)
    work = centres_bytes(n, p, max(p, rows), rows, n_outputs, plan.subsample_size, size, ranks)
    # Where not even the rows are in memory, it has better uses.
    of_rows = size * n * p if coded and not data_on_disk else 0.0
    room = kept_bytes(
        resource.usable,
        work=work + repeated_bytes(p, rows + q, ranks, size),
        data=0.0 if data_on_disk else centres_data_bytes(n, p, d, ranks, stored, together.dealt),
        held_out=ranks * n_held_out,
        d=d,
        wanted=kept.wanted + of_rows,
        element_size=size,
    )
    kept_memory = min(room, kept.wanted)
    # Of a value in a projection, in units of the time to evaluate it.
    exact, relative = is_factorised(p, points.device), 1.0
    if value is not None and resource.rates is not None and (exact or kept_memory >= kept.wanted):
        stored = EXACT_BYTES if exact else value_bytes(kept.code, size)
        relative = min(1.0, resource.rates.reading(n_outputs, stored) * stored / value)
    # A power of two, so that it does not depend on the noise of a measurement.
    share = 2.0 ** round(math.log2(math.sqrt(2 * relative)))
    temporary = min(n, max(rows, int(p * min(1.0, share))))
    plan = replace(
        plan,
        n=n,
        ridge=ridge,
        batch_size=min(m, n),
        kept_memory=kept_memory,
        kept_as=kept.code,
        n_centers=p,
        n_temporary=temporary,
        kept_rows_memory=room - kept_memory,
        **of_run,
    )
    if value is None or resource.rates is None:
        return replace(plan, kept_rows_memory=0.0), levelled
    panel = _panel_seconds(kernel, few, plan, levelled)
    evaluated = panel.values * p / panel.columns * n / panel.rows  # of all rows with the centres
    read = resource.rates.reading(n_outputs, size)  # one byte
    used_before = min(plan.kept_rows_memory, POOL.free_bytes if points.device.type == "cpu" else 0)
    fresh = plan.kept_rows_memory - used_before
    write = fresh_byte_seconds(fresh, points.device, resource.rates)
    later = min(COUNTED_EPOCHS, most_epochs) - 1
    # No margin: as many epochs are counted on as there usually are.
    if not pays(fresh, write, evaluated / (size * n * p) - read, later, margin=1.0):
        plan, fresh = replace(plan, kept_rows_memory=used_before), 0.0
    # A pass over the centres takes their steps, and reads all values of K over them; every rank makes an
    # exact projection.  Ranks send what panels added to the values and to the gradient, and the sums of
    # the pass.
    steps, shared = (0.0, 1) if exact else (panel.steps, P)
    projection = steps * p / panel.rows + relative * p * p * value / shared
    projection += 3 * n_outputs * together.sums * p / panel.rows
    of_panel = panel.all_with(temporary / 2, together) + (n_outputs + q) * together.sums
    epoch = n / panel.rows * max(of_panel, together.points) + n / temporary * projection
    epoch += n_watched(n) * p * value / P  # f on the watched rows, at its end
    saved = plan.kept_rows_share * evaluated - read * plan.kept_rows_memory
    every = all_centres_seconds(n, value / P)
    return _with_seconds(plan, epoch, COUNTED_EPOCHS, every, write * fresh, saved), levelled


def _with_seconds(
    plan: Plan,
    epoch: float,
    epochs: int,
    all_centres: float,
    keeping: float = 0.0,
    saved: float = 0.0,
) -> Plan:
    return replace(
        plan,
        first_epoch_seconds=epoch + keeping,
        later_epoch_seconds=epoch - max(0.0, saved),
        expected_epochs=epochs,
        all_centers_seconds=all_centres,
    )


@dataclass(frozen=True)
class PanelSeconds:
    """Of a panel of so many rows, as in training, with no temporary centres but its own rows."""

    rows: int
    columns: int  # the centres, and the rows themselves
    values: float  # kernel values, their products and levelling
    transposed: float  # products with the centres, after the steps
    steps: float

    def all_with(self, temporary: float, together: Together = Together()) -> float:
        """Of a panel with so many temporary centres before it; every rank evaluates its own rows."""
        own, shared = self.rows, self.columns - self.rows + temporary
        columns = own * together.ranks_each + shared / together.devices
        transposed = self.transposed / together.devices
        return self.values * columns / self.columns + transposed + self.steps


def _panel_seconds(kernel: Kernel, few: Points, plan: Plan, levelled: LevelledKernel) -> PanelSeconds:
    """Time a panel of the last of a few points, of which the first p are the centres."""
    p, l = plan.n_weighted, plan.n_outputs
    at_once = min(panel_rows(few.device), len(few))
    schedule = make_schedule(at_once, 0, plan.batch_size, at_once, triangular=False)
    rows, visit = few[len(few) - at_once :], schedule.visits(1)[0]
    operator = CentresOperator(
        *(kernel, rows, few[:p], l), basis=levelled.V, rows_at_once=at_once, kept_rows=at_once
    )
    like = few.squared_norms
    model = ExpansionWithTemporaries(like.new_zeros(p, l), at_once)
    still = replace(plan.step, eta=0.0)  # does all the arithmetic and cannot diverge
    y, safe, both = like.new_ones(at_once, l), like.new_ones(at_once, 1), like.new_ones(at_once, 2 * l)
    best = [math.inf] * 3
    with small_operations(few.device):
        for _ in range(REHEARSALS):
            model.clear()
            operator.clear()
            model.make_room(visit.panel.rows)
            with Stopwatch() as values:
                known = operator.panel(visit.panel.rows, model.weights, 0)
                float(known.f[0, 0])  # waits for the device
            with Stopwatch() as steps:
                for _, losses in descend(visit, known, levelled, model, still, y, safe):
                    float(losses.error)
            with Stopwatch() as transposed:
                float(operator.transposed(both[: len(visit.panel)])[0, 0])
            took = (values, transposed, steps)
            best = [min(a, watch.seconds) for a, watch in zip(best, took, strict=True)]
    R = len(visit.panel)
    return PanelSeconds(R, p + R, *best)
