"""Fewer centres than rows: how many, and the plan for them."""

from __future__ import annotations

import torch

from mercer.data.dealt_points import AnyPoints
from mercer.data.rows import widest
from mercer.kernels import Custom
from mercer.method.critical_batch import FRESH_POINTS
from mercer.method.preconditioner import LevelledKernel
from mercer.model.machine import KernelMachine
from mercer.planning.centres import (
    FEWEST_TIMED,
    TIMED_COLUMNS,
    auto_centres,
    choose_with_centres,
    value_seconds,
)
from mercer.planning.direct import SPECTRUM_POINTS
from mercer.planning.levelling import Requests
from mercer.planning.memory import stream_bytes
from mercer.planning.plan import Plan
from mercer.planning.resource import Resource, with_memory
from mercer.planning.together import Together
from mercer.preparation.rows import Prepared
from mercer.preparation.settings import all_cores
from mercer.training.assemble import dealing_anyhow
from mercer.training.problem import Problem, rows_each, streamed_points

# Of the memory, what training on a stream gets at least.
LEAST_BESIDE_STREAM = 0.25


def timed_value(prepared: Prepared, points: AnyPoints) -> float | None:
    """Seconds of a kernel value, where the number of centres may depend on it or the plan tells it.

    In a group, it is that of the device of rank 0, on all its cores.
    """
    if prepared.solves or prepared.settings.n_centers is None or prepared.n < FEWEST_TIMED:
        return None
    few = points[:TIMED_COLUMNS]

    def measured() -> float | None:
        with all_cores(prepared.ranks):
            return value_seconds(prepared.kernel, few, prepared.n_outputs, prepared.resource)

    return prepared.ranks.decided(measured)


def n_centres(prepared: Prepared, value: float | None, together: Together) -> int | None:
    """The number of centres; None for every row."""
    if prepared.solves:
        return None
    if prepared.data.centers is not None:
        return len(prepared.data.centers)
    wanted, n, known = prepared.settings.n_centers, len(prepared.y), prepared.n
    streams = prepared.data.stream is not None
    if wanted == "auto":
        wanted = auto_centres(n, value, prepared.resource, together)
        if streams:
            most = max(1, known // 2)
            wanted = most if wanted is None else min(wanted, most)
    if not streams and (wanted is None or wanted >= n):
        return None
    if wanted is None:
        raise ValueError(
            f"`n_centers=None` needs all rows in memory, and {known:,} of the {n:,} rows of the stream "
            "fit: set a number of centres, or raise `memory_limit`."
        )
    if wanted > known:
        raise ValueError(
            f"`n_centers` must be at most {known:,}, the rows of the stream that fit into memory. Got "
            f"{wanted:,}: raise `memory_limit`."
        )
    return wanted


def problem_with_centres(
    prepared: Prepared, points: AnyPoints, p: int, value: float | None, together: Together
) -> Problem:
    """The plan for p centres: the user's own, or the first points."""
    data, chosen, kernel, y = prepared.data, prepared.chosen, prepared.kernel, prepared.y
    centres = points[:p]
    known = points[: min(prepared.n, max(p + FRESH_POINTS, SPECTRUM_POINTS))]
    if data.centers is not None:
        centres = chosen.inputs.points(data.centers, None, y, as_floats=True)
        known = centres.followed_by(points[:FRESH_POINTS])

    def made() -> tuple[Plan, LevelledKernel]:
        with all_cores(prepared.ranks):
            return choose_with_centres(
                kernel,
                known,
                p,
                prepared.n_outputs,
                _beside_stream(prepared),
                prepared.ridge,
                prepared.requests,
                data.n_held_out,
                data.stream is not None or rows_each(points) > prepared.limit,
                n_rows=len(y),
                value=value,
                solves=_may_solve(prepared),
                together=together,
                most_epochs=prepared.settings.limits.max_iter,
                n_closing=prepared.n_closing,
            )

    plan, preconditioner = prepared.ranks.decided(made)
    points = points.first(plan.n + plan.n_closing) if data.stream is None else points
    machine = KernelMachine(
        kernel, chosen.inputs, centres, y.new_zeros(p, prepared.n_outputs), data.units
    )
    # Columns are shared out, or rows.
    shared = plan.n if plan.direct else p + plan.n_temporary
    busy = dealing_anyhow(shared, prepared.ranks, y.device).busy_ranks
    rows = streamed_points(data, machine) or points
    return prepared.problem(machine, preconditioner, plan, busy, rows)


def _beside_stream(prepared: Prepared) -> Resource:
    """What the rows that are read ahead, the sample and the targets of a stream leave, on each rank."""
    resource, data = prepared.resource, prepared.data
    if data.stream is None:
        return resource
    block = data.stream.rows.block
    held = stream_bytes(len(prepared.y), len(data.X), block, data.X.shape[1], data.X.dtype.itemsize)
    usable = resource.usable_each
    return with_memory(resource, max(usable - held, LEAST_BESIDE_STREAM * usable))


def _may_solve(prepared: Prepared) -> bool:
    """Whether the equations of few centres may be solved at once: nothing is fixed that belongs to
    descent, and where there is no ridge, no held-out part says when to stop."""
    data, kernel, settings = prepared.data, prepared.kernel, prepared.settings
    if data.stream is not None and prepared.group is not None and not kernel.translation_invariant:
        return False  # their sums would need a bound on k(x, x) before all rows are seen
    return (
        settings.requests == Requests()
        and widest(settings.device) == torch.float64
        and not isinstance(kernel, Custom)
        and (prepared.ridge > 0 or data.n_held_out == 0)
    )
