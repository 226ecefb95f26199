"""The method without scikit-learn: plan, train, predict.

Two levels.  With prepared points, every part of the method can be had on its own:

    plan, preconditioner = choose(kernel, points, n_outputs, resource)    s, q, m, eta
    outcome = train(kernel, points, y, plan.step, preconditioner, limits) alpha, history
    train_sgd, train_original                                             what the paper compares with

With the user's rows, `prepare` makes a `Problem` (inputs, kernel, ridge, plan), and `fit` trains on it.
The estimators are a thin layer over these two.

>>> import torch
>>> from mercer.kernels import Gaussian
>>> kernel, x = Gaussian(bandwidth=1.0), torch.linspace(0, 6, 200, dtype=torch.float64)[:, None]
>>> points, y = kernel.points(x), x.sin()
>>> plan, preconditioner = choose(kernel, points, 1, Resource(capacity=1e8, memory=1e9))
>>> limits = Limits(max_iter=50, interpolation_tol=1e-6, n_iter_no_change=3, tol=0.01)
>>> outcome = train(kernel, points, y, plan.step, preconditioner, limits)
>>> f = kernel.block(points, points) @ outcome.alpha
>>> bool((f - y).abs().max() < 0.01)
True
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mercer.data.dealt_points import AnyPoints, DealtPoints
from mercer.data.inputs import Inputs
from mercer.data.points import Points
from mercer.data.rows import Array, chunks, widest
from mercer.data.targets import TargetUnits
from mercer.files.checkpoint import Saved, write_checkpoint
from mercer.files.container import contents_of
from mercer.files.origin import Origin
from mercer.kernels import Custom, Gaussian, as_kernel, in_units
from mercer.kernels.base import Kernel
from mercer.method.direct import JITTER
from mercer.method.preconditioner import LevelledKernel, Preconditioner
from mercer.method.step import Step
from mercer.model.machine import KernelMachine
from mercer.operators.pool import release_memory
from mercer.operators.tiled import panel_rows
from mercer.operators.workers import threads
from mercer.planning.calibration import measure_resource
from mercer.planning.choose import Requests, choose
from mercer.planning.direct import direct_plan, is_small
from mercer.planning.epochs import expected_epochs
from mercer.planning.memory import data_limit
from mercer.planning.plan import Plan
from mercer.planning.rehearsal import with_predicted_seconds
from mercer.planning.resource import Resource, with_memory
from mercer.planning.together import exchange_seconds, resource_of_all
from mercer.processes.group import Group
from mercer.processes.seats import sharing
from mercer.selection.setting import Chosen, SettingRequest, choose_setting
from mercer.training.assemble import HeldOutPart, assemble, dealing
from mercer.training.baselines import original_preconditioner, sgd_step, train_original, train_sgd
from mercer.training.coarseness import kernel_rounding
from mercer.training.events.agreement import Agreement
from mercer.training.events.dispatch import Dispatch, Events
from mercer.training.events.interrupts import interrupts
from mercer.training.guard import DivergenceError
from mercer.training.history import History
from mercer.training.loop import Outcome, Training, Watcher
from mercer.training.problem import Data, Problem, rows_each, training_points
from mercer.training.state import State
from mercer.training.stopping import INTERPOLATED, SOLVED, Limits, limit_of

__all__ = [
    "Data",
    "Events",
    "Fitted",
    "HeldOutPart",
    "LevelledKernel",
    "Limits",
    "Origin",
    "Outcome",
    "Plan",
    "Points",
    "Problem",
    "Requests",
    "Resource",
    "Saved",
    "SettingRequest",
    "Settings",
    "Step",
    "Training",
    "Watcher",
    "assemble",
    "choose",
    "fit",
    "measure_resource",
    "original_preconditioner",
    "predict_seconds",
    "prepare",
    "sgd_step",
    "train",
    "train_original",
    "train_sgd",
]

predict_seconds = with_predicted_seconds
# Rounding error beyond which a fit in float32 is not to be trusted: of predictions, as a share of the
# spread of the targets, and of kernel values, as a share of their variation.
COARSE = 0.1
# Of the squared length of a row, what may lie outside the space of an earlier fit by rounding.
UNSEEN_SHARE = 1e-9
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


@dataclass(frozen=True)
class Fitted:
    """A trained machine, and how it came about."""

    problem: Problem
    outcome: Outcome

    @property
    def machine(self) -> KernelMachine:
        """Evaluated in float64 if the rounding error of its sums would show otherwise."""
        return self._plain.as_precise_as_needed(self._rounding, self._spread)

    @property
    def too_coarse(self) -> bool:
        """Whether rounding error was so large that training could not know what it predicts."""
        return not self._rounding <= COARSE * self._spread

    def with_honest_reason(self, limits: Limits) -> Fitted:
        """The same, claiming no tolerance below the rounding error of the predictions."""
        claims = self.outcome.reason in (INTERPOLATED, SOLVED)
        if not claims or self._rounding**2 <= limits.interpolation_tol * self._spread**2:
            return self
        reason = limit_of(self.problem.plan.precision)
        return replace(self, outcome=replace(self.outcome, reason=reason))

    def with_note(self, note: str) -> Fitted:
        """The same, with a note on its plan."""
        plan = replace(self.problem.plan, notes=(*self.problem.plan.notes, note))
        return replace(self, problem=replace(self.problem, plan=plan))

    @property
    def _plain(self) -> KernelMachine:
        return replace(self.problem.machine, alpha=self.outcome.alpha.contiguous())

    @cached_property
    def _rounding(self) -> float:
        return self._plain.rounding()

    @property
    def _spread(self) -> float:
        return float(self.problem.y.square().mean().sqrt())


def train(
    kernel: Kernel,
    points: AnyPoints,
    y: Tensor,
    step: Step,
    preconditioner: Preconditioner,
    limits: Limits,
    *,
    watcher: Watcher | None = None,
    **options: Any,
) -> Outcome:
    """Train on prepared points, in random order with the subsample first, and centred targets y.

    `options` are those of `assemble`: kept_memory, kept_as, rows_at_once, held_out, sample_weight,
    start_from, triangular, shuffled, operator, group.
    """
    return assemble(kernel, points, y, step, preconditioner, limits, **options).run(watcher)


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
    resource = _resource(settings, ranks)
    like = torch.zeros((), dtype=settings.dtype, device=settings.device)
    limit = data_limit(settings.device, resource.usable_each)
    solves = _may_solve(data, settings, resource)
    bytes_pay = resource.integer_gain > 1
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
    anyhow = None if solves else dealing(n, 0, panel_rows(device), ranks, device)
    points = training_points(data, chosen.inputs, like, limit, anyhow)
    if chosen.inputs.grid is not None and not points.is_bytes:  # only the first rows looked 8-bit
        chosen = _choose_setting(data, settings, resource, False, solves, on_stage, ranks)
        points = training_points(data, chosen.inputs, like, limit, anyhow)
    _check_range(points)
    grid = chosen.inputs.grid
    kernel = chosen.kernel if grid is None else in_units(chosen.kernel, grid.scale)
    kernel.check(like.dtype)
    y, units, ridge = _centred(data, chosen.ridge, like)
    on_stage("estimating the spectrum")
    requests = settings.requests
    if requests.batch_size is not None:
        requests = replace(requests, batch_size=min(requests.batch_size, len(points)))

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
                keeps=settings.limits.max_iter > 1,
            )
        if resource.rates is not None:
            limits, stops_early = settings.limits, data.n_held_out > 0
            epochs = expected_epochs(
                plan,
                preconditioner,
                y,
                limits.interpolation_tol,
                limits.max_iter,
                limits.n_iter_no_change if stops_early else None,
            )
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
    plan, preconditioner = ranks.decided(made)
    if dealt:
        del points
        deal = dealing(n, plan.subsample_size, plan.batch_size, ranks, device)
        points = training_points(data, chosen.inputs, like, limit, deal)
    plan = replace(plan, kernel=str(chosen.kernel), preparation=chosen.inputs.describe())
    fault = kernel.fault(points) if isinstance(kernel, Custom) else None
    idle = _idle(plan, ranks, device)
    notes = tuple(note for note in (chosen.note, fault, idle) if note is not None)
    plan = replace(plan, notes=(*plan.notes, *notes))
    machine = KernelMachine(kernel, chosen.inputs, points, torch.zeros_like(y), units)
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


def fit(
    data: Data,
    settings: Settings,
    *,
    score: Callable[[Tensor], float] = lambda decisions: float("nan"),
    start_from: Array | None = None,
    events: Events | None = None,
    snapshot: Callable[[Fitted], Any] = lambda fitted: fitted,
    resume: Saved | None = None,
    held_out: Array | None = None,
    origin: Origin | None = None,
    group: Group | None = None,
) -> Fitted:
    """Prepare the data and train; in float64 where float32 diverges or is too coarse.

    Parameters
    ----------
    score : of decisions on the held-out part, (n_val, l); larger is better
    start_from : weights in the order of the user's rows and in the units of the targets, (N, l)
    snapshot : what callbacks get as the model, from the machine with its current weights
    resume : a checkpoint to go on from
    held_out : numbers of the rows held out, for checkpoints
    origin : what the run is made with, for checkpoints; by default the data
    group : the ranks that train together, each of which calls this with the same arguments
    """
    ranks = group or Group()
    events = Events() if events is None else events
    made_with = origin or Origin(
        {}, lambda: {"X": data.X, "y": data.Y, "sample_weight": data.sample_weight}
    )

    def problem_of(settings: Settings) -> Problem:
        assert events is not None
        if resume is not None:
            return resume.problem(data, settings.device, settings.memory, ranks)
        return prepare(data, settings, events.on_stage, group)

    def trained(problem: Problem) -> Fitted:
        assert events is not None
        events.on_plan(problem.plan)
        with nullcontext() if resume is None else contents_of(resume.path):
            run = _training(problem, data, settings, score, start_from, group)
        if resume is not None:
            run.resume(resume.state(run.state, len(run.schedule.panels)))

        def look(weights: Tensor, history: History) -> Any:
            return snapshot(Fitted(problem, Outcome(weights, history, False, "", None)))

        def save(path: str | os.PathLike[str], state: State) -> None:
            rows = data.rows[:0] if held_out is None else held_out
            write_checkpoint(path, state, problem, data, rows, made_with)

        with interrupts() as interrupted:
            watcher: Watcher = Dispatch(events, problem.plan, look, save, interrupted)
            outcome = run.run(watcher if ranks.handle is None else Agreement(watcher, ranks))
        return Fitted(problem, outcome)

    if settings.dtype == widest(settings.device) or resume is not None:
        return trained(problem_of(settings)).with_honest_reason(settings.limits)
    coarse = False
    try:
        problem = problem_of(settings)
        coarse = ranks.from_first(not kernel_rounding(problem.machine, data) <= COARSE)
        note = "the precision float32 is too coarse here: training was run in float64"
        if not coarse:
            fitted = trained(problem)
            if not ranks.from_first(fitted.too_coarse):
                return fitted.with_honest_reason(settings.limits)
            note = "the precision float32 is too coarse here: training was run again in float64"
    except (DivergenceError, torch.linalg.LinAlgError):  # type: ignore[attr-defined]
        note = "training diverged in float32 and was run again in float64"
    if settings.memory is not None:
        release_memory()
    try:
        return trained(problem_of(replace(settings, dtype=torch.float64))).with_note(note)
    except DivergenceError:
        if not coarse:
            raise
    note = (
        "the precision float32 is too coarse here, and training diverged in float64: shift the features "
        "towards zero, or use another bandwidth"
    )
    return trained(problem).with_note(note).with_honest_reason(settings.limits)


def _may_solve(data: Data, settings: Settings, resource: Resource) -> bool:
    """Whether the equations are solved at once: few rows, a ridge that says how closely to fit them,
    nothing held out, and nothing fixed that belongs to descent."""
    setting = settings.setting
    return (
        setting.ridge is None
        and settings.requests == Requests()
        and data.n_held_out == 0
        and widest(settings.device) == torch.float64
        and (isinstance(setting.kernel, str) or not isinstance(as_kernel(setting.kernel, 1.0), Custom))
        and is_small(len(data.rows), data.Y.shape[1], resource)
    )


def _resource(settings: Settings, group: Group) -> Resource:
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
    deal = dealing(plan.n, plan.subsample_size, plan.batch_size, group, device)
    busy = 1 if plan.direct else deal.busy_ranks
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


def _check_range(points: AnyPoints) -> None:
    if not points.bound + 4 * points.absolute_bound < torch.finfo(points.dtype).max:
        precision = str(points.dtype).removeprefix("torch.")
        raise ValueError(
            f"Squared lengths of rows must be finite in {precision}. Got an overflow: the features are "
            'too large, so rescale them, or use precision="float64".'
        )


def _centred(data: Data, ridge: float, like: Tensor) -> tuple[Tensor, TargetUnits, float]:
    """Targets to train on, their units, and the ridge in units of the largest sample weight."""
    if data.sample_weight is not None:
        ridge /= float(data.sample_weight[data.rows].max())
    return data.units.encode(data.Y[data.rows], like), data.units, ridge


def _training(
    problem: Problem,
    data: Data,
    settings: Settings,
    score: Callable[[Tensor], float],
    start_from: Array | None,
    group: Group | None,
) -> Training:
    """A run on the problem, not yet begun."""
    machine, units, y = problem.machine, problem.machine.units, problem.y
    held_out = None
    if data.X_val is not None and data.Y_val is not None:
        points = machine.points(data.X_val)
        _check_range(points)
        targets = units.encode(data.Y_val, y)
        if data.own_scales:  # an output that is constant in training has no variance to be a share of
            targets[:, ~y.any(0)] = 0
        held_out = HeldOutPart(points, targets, lambda f: score(units.decode(f)))
    weight = None
    if data.sample_weight is not None:
        weight = torch.from_numpy(data.sample_weight[data.rows]).to(y)[:, None]  # (n, 1)
        weight /= weight.max()  # at most one, so that no step is too large
    weights = None if start_from is None else torch.from_numpy(start_from[data.rows]) / units.scale
    return assemble(
        machine.kernel,
        machine.centres,
        y,
        problem.plan.step,
        problem.preconditioner,
        settings.limits,
        kept_memory=problem.plan.kept_memory,
        kept_as=problem.plan.kept_as,
        held_out=held_out,
        sample_weight=weight,
        start_from=None if weights is None else weights.to(y),
        loss_unit=data.loss_unit,
        group=None if problem.plan.direct else group,  # every rank solves it, which is quick
    )
