"""From the user's rows to a problem that is ready to be trained on: inputs, kernel, ridge, plan."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mercer.data.dealt_points import AnyPoints, DealtPoints
from mercer.data.inputs import Inputs
from mercer.data.points import Points
from mercer.data.rows import chunks, widest
from mercer.data.targets import TargetUnits
from mercer.kernels import Custom, Gaussian, as_kernel, in_units
from mercer.kernels.base import Kernel
from mercer.method.critical_batch import FRESH_POINTS
from mercer.method.direct import JITTER
from mercer.method.preconditioner import LevelledKernel
from mercer.model.machine import KernelMachine
from mercer.operators.tiled import panel_rows
from mercer.operators.workers import threads
from mercer.planning.calibration import measure_resource
from mercer.planning.centres import TIMED_COLUMNS, auto_centres, choose_with_centres, value_seconds
from mercer.planning.choose import choose
from mercer.planning.direct import SPECTRUM_POINTS, direct_plan, is_small
from mercer.planning.epochs import Goal, expected_epochs
from mercer.planning.levelling import Requests
from mercer.planning.memory import data_limit, stream_bytes
from mercer.planning.plan import Plan
from mercer.planning.rehearsal import with_predicted_seconds
from mercer.planning.resource import Resource, with_memory
from mercer.planning.together import Together, exchange_seconds, resource_of_all
from mercer.processes.group import Group
from mercer.processes.seats import sharing
from mercer.selection.setting import Chosen, SettingRequest, choose_setting
from mercer.training.assemble import dealing, dealing_anyhow
from mercer.training.problem import Data, Problem, rows_each, streamed_points, training_points
from mercer.training.stopping import Limits

# Of the squared length of a row, what may lie outside the space of an earlier fit by rounding.
UNSEEN_SHARE = 1e-9
# With fewer rows than this, every one is a centre unless the user says otherwise.
FEWEST_TIMED = 20_000
# Of the memory, what training on a stream gets at least.
LEAST_BESIDE_STREAM = 0.25
# Stands for a kernel that the user gave, until each rank has put its own in the place.
ANY = Gaussian(bandwidth=1.0)


@dataclass(frozen=True)
class Settings:
    """What the user asked for; what is left out, the method chooses."""

    limits: Limits
    setting: SettingRequest = field(default_factory=SettingRequest)
    requests: Requests = field(default_factory=Requests)
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    resource: Resource | None = None  # a user-specified device; None measures the real one
    memory: float | None = None  # bytes that may be used; None for half of what is free
    n_centers: int | Literal["auto"] | None = None  # None: every row is a centre


def prepare(
    data: Data,
    settings: Settings,
    on_stage: Callable[[str], None] = lambda text: None,
    group: Group | None = None,
) -> Problem:
    """Prepare the data, choose what is to be chosen, and make the plan.

    In a group, rank 0 chooses for all, meanwhile on all cores of its host.
    """
    ranks = group or Group()
    resource = measured_resource(settings, ranks)
    like = torch.zeros((), dtype=settings.dtype, device=settings.device)
    limit = data_limit(settings.device, resource.usable_each)
    solves = _may_solve(data, settings, resource)
    in_bytes = data.stream is None or data.X.dtype in (np.uint8, torch.uint8)
    bytes_pay = resource.integer_gain > 1 and in_bytes and data.centers is None
    chosen = _choose_setting(data, settings, resource, bytes_pay, solves, on_stage, ranks)
    if settings.setting.inputs is not None:
        _check_known(settings.setting.inputs, data)
    on_stage("preparing the data")
    solves = solves and chosen.inputs.grid is None
    if solves:
        like = like.to(widest(settings.device))
        chosen = replace(chosen, ridge=max(chosen.ridge, JITTER))
    # Until there is a plan, points that are dealt to the ranks are dealt in panels of any kind.
    n, device = len(data.rows), settings.device
    n_closing = _n_closing(data, settings, chosen)
    anyhow = None if solves else dealing_anyhow(n, ranks, device, n_closing)
    all_points = training_points(data, chosen.inputs, like, limit, anyhow, n_closing)
    if chosen.inputs.grid is not None and not all_points.is_bytes:  # only the first rows looked 8-bit
        chosen = _choose_setting(data, settings, resource, False, solves, on_stage, ranks)
        n_closing = _n_closing(data, settings, chosen)
        anyhow = None if solves else dealing_anyhow(n, ranks, device, n_closing)
        all_points = training_points(data, chosen.inputs, like, limit, anyhow, n_closing)
    check_range(all_points)
    points = all_points.first(n)
    grid = chosen.inputs.grid
    kernel = chosen.kernel if grid is None else in_units(chosen.kernel, grid.scale)
    kernel.check(like.dtype)
    y, units, ridge = _centred(data, chosen.ridge, like)
    on_stage("estimating the spectrum")
    requests = settings.requests
    if requests.batch_size is not None:
        requests = replace(requests, batch_size=min(requests.batch_size, len(points)))

    limits = settings.limits
    patience = limits.n_iter_no_change if data.n_held_out > 0 else None
    goal = Goal(y, limits.interpolation_tol, limits.max_iter, patience)

    def made() -> tuple[Plan, LevelledKernel]:
        if solves:
            assert isinstance(points, Points)
            return direct_plan(kernel, points, y.shape[1], resource, ridge)
        with _all_cores(ranks):
            plan, preconditioner = choose(
                kernel,
                points,
                y.shape[1],
                resource,
                ridge,
                requests,
                data.n_held_out,
                data_on_disk=rows_each(points) > limit,
                keeps=limits.max_iter > 1,
                coded=group is None,
                n_closing=n_closing,
                goal=goal,
            )
        if resource.rates is not None:
            on_stage("timing a few panels")
            epochs = expected_epochs(plan, preconditioner, goal)
            plan = with_predicted_seconds(
                plan,
                resource.rates,
                kernel,
                points,
                preconditioner,
                y,
                data.n_held_out,
                epochs,
                exchange,
                points_exchange,
            )
        return plan, preconditioner

    panel = slice(0, panel_rows(y.device))
    exchange = exchange_seconds(ranks, y[panel].double())
    dealt = isinstance(points, DealtPoints)
    points_exchange = exchange_seconds(ranks, points[panel].rows) if dealt else 0.0
    together = Together.of(group, exchange / y.shape[1], points_exchange if dealt else None)
    value = None if solves else _value_seconds(settings, kernel, points, y.shape[1], resource, ranks)
    p: int | None = None
    if data.centers is not None:
        p = len(data.centers)
    else:
        streams = data.stream is not None
        p = _n_centers(settings, len(y), len(points), value, resource, streams, together)
    if p is not None and not solves:
        centres, known = points[:p], points[: max(p + FRESH_POINTS, SPECTRUM_POINTS)]
        if data.centers is not None:
            centres = chosen.inputs.points(data.centers, None, like, as_floats=True)
            known = centres.followed_by(points[:FRESH_POINTS])
        on_disk = data.stream is not None or rows_each(points) > limit
        n_held_out = data.n_held_out
        left = resource if data.stream is None else _beside_stream(resource, data, len(y))

        def made_with_centres() -> tuple[Plan, LevelledKernel]:
            with _all_cores(ranks):
                return choose_with_centres(
                    *(kernel, known, p, y.shape[1], left, ridge, requests, n_held_out, on_disk),
                    n_rows=len(y),
                    value=value,
                    solves=_may_solve_centres(data, settings, ridge, kernel, group),
                    together=together,
                )

        plan, preconditioner = ranks.decided(made_with_centres)
        machine = KernelMachine(kernel, chosen.inputs, centres, y.new_zeros(p, y.shape[1]), units)
        rows = streamed_points(data, machine) or points
        notes = tuple(note for note in (chosen.note, _idle(plan, ranks, device)) if note is not None)
        preparation, notes = chosen.inputs.describe(), (*plan.notes, *notes)
        plan = replace(plan, kernel=str(chosen.kernel), preparation=preparation, notes=notes)
        found = (chosen.kernel, chosen.ridge, machine, preconditioner, plan, y)
        return Problem(*found, chosen.selection, chosen.left_out, rows)
    plan, preconditioner = ranks.decided(made)
    if dealt:
        del points, all_points
        deal = dealing(n, plan.subsample_size, plan.batch_size, ranks, device, n_closing)
        all_points = training_points(data, chosen.inputs, like, limit, deal, n_closing)
    plan = replace(plan, kernel=str(chosen.kernel), preparation=chosen.inputs.describe())
    fault = kernel.fault(all_points) if isinstance(kernel, Custom) else None
    idle = _idle(plan, ranks, device)
    notes = tuple(note for note in (chosen.note, fault, idle) if note is not None)
    plan = replace(plan, notes=(*plan.notes, *notes))
    alpha = y.new_zeros(len(all_points), y.shape[1])
    machine = KernelMachine(kernel, chosen.inputs, all_points, alpha, units)
    return Problem(
        chosen.kernel,
        chosen.ridge,
        machine,
        preconditioner,
        plan,
        y,
        chosen.selection,
        chosen.left_out,
    )


def _n_closing(data: Data, settings: Settings, chosen: Chosen) -> int:
    """How many rows that are held out may be trained on in the end; see training/closing.py."""
    if data.closing_rows is None or chosen.ridge <= 0 or settings.limits.max_iter == 1:
        return 0
    # Of rows outside the space of the others, the kernel would see only their projections.
    inputs = chosen.inputs
    spans_all = inputs.projection is None or inputs.projection.shape[0] == inputs.projection.shape[1]
    return len(data.closing_rows) if spans_all or not inputs.lossless else 0


def _value_seconds(
    settings: Settings,
    kernel: Kernel,
    points: AnyPoints,
    n_outputs: int,
    resource: Resource,
    group: Group,
) -> float | None:
    """Seconds of a kernel value, where the number of centres may depend on it or the plan tells it.

    In a group, it is that of the device of rank 0, on all its cores.
    """
    if settings.n_centers is None or len(points) < FEWEST_TIMED:
        return None
    few = points[:TIMED_COLUMNS]

    def measured() -> float | None:
        with _all_cores(group):
            return value_seconds(kernel, few, n_outputs, resource)

    return group.decided(measured)


def _n_centers(
    settings: Settings,
    n: int,
    known: int,
    value: float | None,
    resource: Resource,
    streams: bool,
    together: Together,
) -> int | None:
    """The number of centres for n rows, of which `known` are here; None for every row."""
    wanted = settings.n_centers
    if wanted == "auto":
        wanted = auto_centres(n, value, resource, together)
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


def _beside_stream(resource: Resource, data: Data, n: int) -> Resource:
    """What the rows that are read ahead, the sample and the targets of a stream leave, on each rank."""
    assert data.stream is not None
    block = data.stream.rows.block
    held = stream_bytes(n, len(data.X), block, data.X.shape[1], data.X.dtype.itemsize)
    usable = resource.usable_each
    return with_memory(resource, max(usable - held, LEAST_BESIDE_STREAM * usable))


def _may_solve(data: Data, settings: Settings, resource: Resource) -> bool:
    """Whether the equations are solved at once: few rows, a ridge that says how closely to fit them,
    nothing held out, and nothing fixed that belongs to descent."""
    setting = settings.setting
    return (
        (setting.ridge is None or setting.searched)
        and settings.requests == Requests()
        and data.n_held_out == 0
        and data.centers is None
        and data.stream is None
        and widest(settings.device) == torch.float64
        and (isinstance(setting.kernel, str) or not isinstance(as_kernel(setting.kernel, 1.0), Custom))
        and is_small(len(data.rows), data.Y.shape[1], resource)
    )


def _may_solve_centres(
    data: Data, settings: Settings, ridge: float, kernel: Kernel, group: Group | None
) -> bool:
    """Whether the equations of few centres may be solved at once: nothing is fixed that belongs to
    descent, and where there is no ridge, no held-out part says when to stop."""
    if data.stream is not None and group is not None and not kernel.translation_invariant:
        return False  # their sums would need a bound on k(x, x) before all rows are seen
    return (
        settings.requests == Requests()
        and widest(settings.device) == torch.float64
        and not isinstance(kernel, Custom)
        and (ridge > 0 or data.n_held_out == 0)
    )


def measured_resource(settings: Settings, group: Group) -> Resource:
    """The devices of all ranks, or the one that the user specified, shared by them."""
    if settings.resource is not None:
        resource = settings.resource
        if group.size > 1:
            resource = replace(resource, ranks=group.size)
    else:
        device, dtype = settings.device, settings.dtype
        resource = resource_of_all(lambda: measure_resource(device, dtype), group)
    return with_memory(resource, settings.memory)


def _all_cores(group: Group) -> AbstractContextManager[None]:
    """While the other ranks wait, one may use the cores of all that share them."""
    return nullcontext() if group.size == 1 else threads(len(group.seats[group.rank].cores))


def _idle(plan: Plan, group: Group, device: torch.device) -> str | None:
    """A note where there are more ranks than parts to be shared out."""
    p = plan.n_centers
    if p is None:
        deal = dealing(plan.n, plan.subsample_size, plan.batch_size, group, device)
        busy = 1 if plan.direct else deal.busy_ranks
    else:  # columns are shared out, or rows
        busy = dealing_anyhow(plan.n if plan.direct else p + plan.n_temporary, group, device).busy_ranks
    if busy == group.size:
        return None
    return f"{group.size - busy} of {group.size} ranks are idle: the data is too small for so many"


def _choose_setting(
    data: Data,
    settings: Settings,
    resource: Resource,
    bytes_pay: bool,
    solves: bool,
    on_stage: Callable[[str], None],
    group: Group,
) -> Chosen:
    def chosen_here() -> Chosen:
        with _all_cores(group):
            return choose_setting(
                data.X,
                data.comparable_Y,
                data.rows,
                settings.setting,
                dtype=settings.dtype,
                usable=resource.usable_each * sharing(group.seats, group.rank),  # the others wait
                bytes_pay=bytes_pay,
                solves=solves,
                strata=data.strata,
                sample_weight=data.sample_weight,
                on_tried=lambda count: on_stage(
                    f"choosing kernel, bandwidth and ridge, {count} settings tried"
                ),
            )

    own = None if isinstance(settings.setting.kernel, str) else as_kernel(settings.setting.kernel, 1.0)
    chosen = group.decided(chosen_here if own is None else lambda: replace(chosen_here(), kernel=ANY))
    if own is not None:  # every rank has it; a function of the user's own could not be sent
        chosen = replace(chosen, kernel=own)
    if chosen.left_out is None or not data.own_scales:
        return chosen
    decisions = chosen.left_out.decisions * data.units.scale.numpy()  # in the units of the targets
    return replace(chosen, left_out=replace(chosen.left_out, decisions=decisions))


def _check_known(inputs: Inputs, data: Data) -> None:
    """Inputs of an earlier fit must suit the rows: what they leave out must be nothing."""
    for _, chunk in chunks(data.X, data.rows):
        z, beyond = inputs.floats(chunk)
        if bool((beyond > UNSEEN_SHARE * (1 + z.square().sum(1))).any()):
            raise ValueError(
                "With `warm_start`, features must have values like those of the last fit. Got a "
                "category that it did not see, or another value in a column that was constant: fit a "
                "new model."
            )


def check_range(points: AnyPoints) -> None:
    if not points.bound + 4 * points.absolute_bound < torch.finfo(points.dtype).max:
        precision = str(points.dtype).removeprefix("torch.")
        raise ValueError(
            f"Squared lengths of rows must be finite in {precision}. Got an overflow: the features are "
            'too large, so rescale them, or use precision="float64".'
        )


def _centred(data: Data, ridge: float, like: Tensor) -> tuple[Tensor, TargetUnits, float]:
    """Targets to train on, their units, and the ridge in units of the largest sample weight."""
    weight = data.training_weight
    if weight is not None:
        ridge /= float(weight.max())
    return data.targets(data.units, like), data.units, ridge
