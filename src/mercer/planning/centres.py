"""Fewer centres than rows: how many, how many temporary ones, and how long it takes.

With every row a centre, an epoch takes n² / 2 kernel values at first and n² later.  With p centres it
takes

    n (p + w / 2 + R)   values: rows with the centres, with w temporary ones (half of them on average)
                        and with the R rows of their panel
    n p² / w            kept values read, or evaluated again: a pass over the centres for every w rows

so the w that costs least is p sqrt(2 k), k being the time to read a value over that to evaluate it.
"""

from __future__ import annotations

import math
from dataclasses import replace

from mercer.data.points import Points
from mercer.kernels.base import Kernel
from mercer.method.critical_batch import FRESH_POINTS
from mercer.method.preconditioner import LevelledKernel
from mercer.operators.storage import value_bytes
from mercer.operators.tiled import TiledOperator, panel_rows
from mercer.planning.choose import SUBSAMPLE_SIZE, Requests, choose
from mercer.planning.keeping import keeping
from mercer.planning.memory import centres_bytes, data_bytes, kept_bytes
from mercer.planning.plan import Plan
from mercer.planning.resource import Resource
from mercer.stopwatch import fastest

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
    seconds = fastest(lambda: float(operator.times(weights)[0, 0]), TIMED_RUNS)
    return float(2.0 ** round(math.log2(seconds / (len(rows) * len(columns)))))


def all_centres_seconds(n: int, value: float) -> float:
    """Predicted for a run with every row a centre, if no kernel values are kept."""
    return n * n * value * (COUNTED_EPOCHS - 0.5)


def auto_centres(n: int, value: float | None, resource: Resource) -> int | None:
    """The number of centres for n rows, a kernel value taking so many seconds; None for all of them."""
    if value is None or all_centres_seconds(n, value) <= SHORT_SECONDS:
        return None
    in_time = SHORT_SECONDS / (COUNTED_EPOCHS * n * value * 1.5)
    in_memory = math.sqrt(CENTRES_SHARE * resource.usable_each)  # half of p² in 16 bits
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
) -> tuple[Plan, LevelledKernel]:
    """Choose s, q, m and eta for p centres, the first of the points, and what is kept in memory.

    The points may be a sample of `n_rows`.  `value` is the time of a kernel value, if it is known.
    """
    n, d = n_rows or len(points), points.shape[1]
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
    kept = keeping(kernel, few[:p], plan.subsample_size, q, min(m, p), n_held_out, size)
    kept_memory = kept_bytes(
        resource.usable,
        work=centres_bytes(n, p, p, rows, n_outputs, plan.subsample_size, size),
        data=0.0 if data_on_disk else data_bytes(n, d, 1, 1 if points.is_bytes else size, None),
        held_out=n_held_out,
        d=d,
        wanted=kept.wanted,
        element_size=size,
    )
    whole = kept_memory >= kept.wanted
    relative = 1.0
    if value is not None and resource.rates is not None and whole:
        byte = resource.rates.reading(n_outputs, value_bytes(kept.code, size))
        relative = min(1.0, 2 * byte * value_bytes(kept.code, size) / value)
    temporary = min(n, max(rows, int(p * min(1.0, math.sqrt(2 * relative)))))
    plan = replace(
        plan,
        n=n,
        ridge=ridge,
        batch_size=min(m, n),
        kept_memory=kept_memory,
        kept_as=kept.code,
        data_on_disk=data_on_disk,
        n_held_out=n_held_out,
        n_centers=p,
        n_temporary=temporary,
    )
    if value is not None:
        values = p + rows + temporary / 2 + relative * p * p / temporary
        levelling = 0.0 if resource.rates is None else resource.rates.feature * plan.subsample_size * q
        epoch = n * (values * value + levelling)
        plan = replace(
            plan,
            first_epoch_seconds=epoch,
            later_epoch_seconds=epoch,
            expected_epochs=COUNTED_EPOCHS,
            all_centers_seconds=all_centres_seconds(n, value),
        )
    return plan, levelled
