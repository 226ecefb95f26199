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
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mercer.data.dealt_points import AnyPoints
from mercer.data.points import Points
from mercer.data.rows import Array, widest
from mercer.files.checkpoint import Saved, write_checkpoint
from mercer.files.container import contents_of
from mercer.files.origin import Origin
from mercer.kernels.base import Kernel
from mercer.method.conjugate import watched_rows
from mercer.method.critical_batch import FRESH_POINTS
from mercer.method.preconditioner import LevelledKernel, Preconditioner
from mercer.method.step import Step
from mercer.model.machine import KernelMachine
from mercer.operators.pool import release_memory
from mercer.planning.calibration import measure_resource
from mercer.planning.centres import choose_with_centres
from mercer.planning.choose import choose
from mercer.planning.levelling import Requests
from mercer.planning.plan import Plan
from mercer.planning.rehearsal import with_predicted_seconds
from mercer.planning.resource import Resource
from mercer.preparation.prepare import prepare
from mercer.preparation.rows import check_range
from mercer.preparation.settings import Settings, measured_resource
from mercer.processes.group import Group
from mercer.selection.setting import SettingRequest
from mercer.training.assemble import HeldOutPart, WatchedPart, assemble, assemble_with_centres
from mercer.training.baselines import original_preconditioner, sgd_step, train_original, train_sgd
from mercer.training.coarseness import kernel_rounding
from mercer.training.events.agreement import Agreement
from mercer.training.events.dispatch import Dispatch, Events
from mercer.training.events.interrupts import interrupts
from mercer.training.guard import DivergenceError
from mercer.training.history import History
from mercer.training.loop import Outcome, Training, Watcher
from mercer.training.problem import Data, Problem
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
# The shortest step of passes over further rows, in units of the plan's: later rows still count.
SHORTEST_STEP = 0.1


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
        with problem.reading():
            return trained_on(problem)

    def trained_on(problem: Problem) -> Fitted:
        assert events is not None
        events.on_plan(problem.plan)
        with nullcontext() if resume is None else contents_of(resume.path):
            run = _training(problem, data, settings, score, start_from, group)
        if resume is not None:
            run.resume(resume.state(run.state, run.most_panels))

        def look(weights: Tensor, history: History) -> Any:
            return snapshot(Fitted(problem, Outcome(weights, history, False, "", None)))

        def save(path: str | os.PathLike[str], state: State) -> None:
            rows = data.rows[:0] if held_out is None else held_out
            write_checkpoint(path, state, problem, data, rows, made_with)

        with interrupts() as interrupted:
            watcher: Watcher = Dispatch(events, problem.plan, look, save, interrupted)
            outcome = run.run(watcher if ranks.handle is None else Agreement(watcher, ranks))
        if problem.plan.n_closing and not outcome.closed:
            problem = problem.without_closing()
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


@dataclass(frozen=True)
class Levelled:
    """What passes over further rows share: made for the centres of a machine."""

    plan: Plan
    preconditioner: LevelledKernel


def pass_over(
    machine: KernelMachine,
    data: Data,
    settings: Settings,
    ridge: float,
    n_seen: int,
    known: Levelled | None,
) -> tuple[KernelMachine, Levelled]:
    """The machine after one pass over further rows, with the centres and the weights that it has.

    The ridge is that of all rows seen, these included, and counts in proportion.  The more rows were
    seen, the shorter are the steps: the noise of each then averages out.
    """
    points, centres = machine.points(data.X), machine.centres
    assert isinstance(centres, Points)
    if points.is_bytes != centres.is_bytes:
        points, centres = points.as_floats(), centres.as_floats()
    check_range(points)
    p, l = machine.alpha.shape
    if known is None:
        few = centres.followed_by(points[:FRESH_POINTS])
        resource = measured_resource(settings, Group())
        arguments = (resource, ridge, settings.requests, 0, False)
        known = Levelled(*choose_with_centres(machine.kernel, few, p, l, *arguments))
    plan, y = known.plan, machine.units.encode(data.Y, machine.alpha)
    weight, share = data.training_weight, len(data.Y) / n_seen
    eta = plan.step.eta * min(1.0, max(SHORTEST_STEP, 2 * share))
    training = assemble_with_centres(
        machine.kernel,
        points,
        centres,
        y,
        replace(plan.step, eta=eta, m=min(plan.step.m, len(y))),
        plan.step_on_centres,
        known.preconditioner,
        replace(settings.limits, max_iter=1),
        ridge=ridge * share,
        n_temporary=plan.n_temporary,
        kept_memory=plan.kept_memory,
        kept_as=plan.kept_as,
        sample_weight=None if weight is None else torch.from_numpy(weight).to(y)[:, None],
        start_from=machine.alpha,
    )
    training.run()
    return replace(machine, alpha=training.model.lasting(training.state.weights).clone()), known


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
        check_range(points)
        targets = units.encode(data.Y_val, y)
        if data.own_scales:  # an output that is constant in training has no variance to be a share of
            targets[:, ~y.any(0)] = 0
        held_out = HeldOutPart(points, targets, lambda f: score(units.decode(f)))
    plan = problem.plan
    rows = data.all_rows(plan.n_closing)
    if plan.n_closing:
        assert held_out is not None
        y = torch.cat([y, held_out.y])  # (N, l)
    weight = data.training_weight
    if weight is not None:
        largest = weight.max()
        if plan.n_closing:
            assert data.sample_weight is not None
            weight = data.sample_weight[rows]
        # At most one among the first rows, so that no step is too large.
        weight = torch.from_numpy(weight).to(y)[:, None] / largest  # (N, 1)
    weights = None if start_from is None else torch.from_numpy(start_from[rows]) / units.scale
    if weights is not None:
        weights[len(data.rows) :] = 0.0  # of rows that are held out at first
    if plan.n_centers is not None:
        watched = None
        if data.stream is not None:
            p = 0 if data.centers is not None else plan.n_weighted
            few = np.concatenate([data.rows[part] for part in watched_rows(plan.n, p, len(data.rows))])
            floats = not machine.centres.is_bytes
            sample = machine.inputs.points(data.X, few, y, as_floats=floats)
            of_few = None
            if weight is not None:
                assert data.sample_weight is not None
                of_few = torch.from_numpy(data.sample_weight[few]).to(y)[:, None] / largest  # (w, 1)
            watched = WatchedPart(sample, units.encode(data.Y[few], y), of_few)
        assert problem.points is not None
        assert isinstance(machine.centres, Points)
        return assemble_with_centres(
            machine.kernel,
            problem.points,
            machine.centres,
            y,
            plan.step,
            plan.step_on_centres,
            problem.preconditioner,
            settings.limits,
            ridge=plan.ridge,
            n_temporary=plan.n_temporary,
            kept_memory=plan.kept_memory,
            kept_as=plan.kept_as,
            kept_rows_memory=plan.kept_rows_memory,
            held_out=held_out,
            watched=watched,
            sample_weight=weight,
            loss_unit=data.loss_unit,
            group=group,
            n_closing=plan.n_closing,
        )
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
        n_closing=plan.n_closing,
    )
