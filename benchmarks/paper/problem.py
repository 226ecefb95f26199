"""A training problem with its plan, and every call these benchmarks make to Mercer's training engine.

Parts of the benchmarks train through the functions below and nowhere else, so that a change of the
engine's interface is one edit here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mercer import engine
from mercer.data.inputs import fit_inputs
from mercer.data.points import Points
from mercer.data.targets import TargetUnits
from mercer.engine import HeldOutPart, LevelledKernel, Limits, Outcome, Plan, Requests, Resource, Watcher
from mercer.kernels import Kernel, in_units
from mercer.method.preconditioner import Preconditioner
from mercer.method.schedule import make_schedule
from mercer.method.step import Step, descend
from mercer.model.expansion import Expansion
from mercer.model.machine import KernelMachine
from mercer.operators.kept import KeptRectangle
from mercer.operators.tiled import TiledOperator
from mercer.operators.workers import small_operations
from mercer.stopwatch import Stopwatch

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Problem:
    """Training points in random order, their targets, and the plan for them."""

    kernel: Kernel
    points: Points
    y: Tensor  # (n, l)
    plan: Plan
    levelled: LevelledKernel
    setup_seconds: float = 0.0  # spent on the plan

    @property
    def n(self) -> int:
        return len(self.y)

    @property
    def n_outputs(self) -> int:
        return self.y.shape[1]


def planned(
    kernel: Kernel,
    points: Points,
    y: Tensor,
    resource: Resource | None = None,
    requests: Requests = Requests(),
    n_held_out: int = 0,
) -> Problem:
    """The problem with the plan for `resource`, by default this machine as measured."""
    resource = resource or engine.measure_resource(CPU)
    with Stopwatch() as watch:
        plan, levelled = engine.choose(
            kernel, points, y.shape[1], resource, requests=requests, n_held_out=n_held_out
        )
    return Problem(kernel, points, y, plan, levelled, watch.seconds)


def rehearsed(problem: Problem, resource: Resource) -> Problem:
    """The same problem with the seconds of its epochs predicted from a few panels."""
    if resource.rates is None:
        raise ValueError("A rehearsal needs a measured device. Got one without measured rates.")
    p = problem
    plan = engine.predict_seconds(p.plan, resource.rates, p.kernel, p.points, p.levelled, p.y)
    return replace(problem, plan=plan)


def bytes_pay() -> bool:
    """Whether 8-bit products are faster than float32 products on this machine."""
    return engine.measure_resource(CPU).integer_gain > 1


def untrained(
    X: NDArray[np.float32], Y: NDArray[np.float32], kernel: Kernel, as_bytes: bool
) -> tuple[KernelMachine, Tensor]:
    """A machine with zero weights centred at the rows of X, and the centred targets, (n, l)."""
    rows = np.arange(len(X))
    inputs, _ = fit_inputs(X, rows, as_bytes=as_bytes)
    points = inputs.points(X, rows, torch.zeros(()), known=True)
    if inputs.grid is not None:
        kernel = in_units(kernel, inputs.grid.scale)
    targets = Y.astype(np.float64)
    units = TargetUnits.of(targets)
    y = units.encode(targets, torch.zeros(()))
    return KernelMachine(kernel, inputs, points, torch.zeros_like(y), units), y


def exactly(epochs: int) -> Limits:
    """Train for this many epochs, whatever the losses do."""
    return Limits(max_iter=epochs, interpolation_tol=0.0, n_iter_no_change=epochs, tol=0.0)


def held_out(problem: Problem, points: Points) -> KeptRectangle:
    """K(points, training points) for points that are not trained on."""
    p = problem
    return KeptRectangle(TiledOperator(p.kernel, points, p.points, p.n_outputs), p.plan.kept_memory)


def train(
    problem: Problem,
    limits: Limits,
    *,
    m: int | None = None,
    step: float = 1.0,
    kept_memory: float = 0.0,
    rows_at_once: int | None = None,
    shuffled: bool = True,
    watcher: Watcher | None = None,
) -> Outcome:
    """Mercer's iteration.  `m` replaces the plan's batch size, and `step` multiplies its step size."""
    p, planned = problem, problem.plan.step
    return engine.train(
        p.kernel,
        p.points,
        p.y,
        replace(planned, m=m or planned.m, eta=step * planned.eta),
        p.levelled,
        limits,
        kept_memory=kept_memory,
        kept_as=p.plan.kept_as,
        rows_at_once=rows_at_once,
        shuffled=shuffled,
        watcher=watcher,
    )


def train_sgd(
    problem: Problem,
    limits: Limits,
    *,
    m: int | None = None,
    step: float = 1.0,
    rows_at_once: int | None = 1,
    part: HeldOutPart | None = None,
    watcher: Watcher | None = None,
) -> Outcome:
    """Plain SGD, with the batch m*(k) unless `m` is given; `step` multiplies its step size."""
    p, best = problem, engine.sgd_step(problem.plan, m)
    return engine.train_sgd(
        p.kernel,
        p.points,
        p.y,
        replace(best, eta=step * best.eta),
        limits,
        held_out=part,
        watcher=watcher,
        rows_at_once=rows_at_once,
    )


def train_original(
    problem: Problem,
    limits: Limits,
    *,
    step: float = 1.0,
    part: HeldOutPart | None = None,
    watcher: Watcher | None = None,
) -> Outcome:
    """The original EigenPro, with Mercer's q and batch size; `step` multiplies the plan's step size."""
    p, plan = problem, problem.plan
    sigma = plan.subsample_size * torch.tensor(plan.eigenvalues[: plan.preconditioner_rank])  # (q,)
    return engine.train_original(
        p.kernel,
        p.points,
        p.y,
        replace(plan.step, eta=step * plan.step_size),
        engine.original_preconditioner(p.kernel, p.points, p.levelled, sigma),
        limits,
        held_out=part,
        watcher=watcher,
    )


class Iterations:
    """Iterations with batch m as the paper describes them: one batch at a time, no values kept."""

    def __init__(
        self, problem: Problem, preconditioner: Preconditioner, m: int, W: Tensor | None = None
    ) -> None:
        self.problem, self.preconditioner, self.m = problem, preconditioner, m
        self.W = problem.y.new_ones(problem.n, 1) if W is None else W  # (n, 1)
        self.schedule = make_schedule(problem.n, len(preconditioner.V), m, m)
        self.operator = TiledOperator(
            problem.kernel,
            problem.points,
            problem.points,
            problem.n_outputs,
            rows_at_once=self.schedule.longest,
            cuts=self.schedule.cuts,
            basis=preconditioner.V,
        )
        draws = torch.Generator().manual_seed(0)
        # Weights that are not zero, so that no product is skipped.
        self.model = Expansion(torch.randn(problem.n, problem.n_outputs, generator=draws))

    def __len__(self) -> int:
        """Iterations of one epoch."""
        return len(self.schedule.panels)

    def rows(self, index: int) -> int:
        """Batch size of one iteration: at most m, since batches have even sizes."""
        return len(self.schedule.panels[index])

    def run(self, indices: Iterable[int], gamma: float = 0.0, seconds: float = math.inf) -> int:
        """Run these iterations until `seconds` have passed; returns how many were run.

        The step is gamma = 2 eta / m.  With 0 the weights stay as they are.
        """
        p, done, watch = self.problem, 0, Stopwatch()
        visits = self.schedule.visits(1)
        step = Step(eta=gamma * self.m / 2, m=self.m, beta=1.0)
        with small_operations(CPU):
            for index in indices:
                visit = visits[index]
                products = self.operator.panel(visit.panel.rows, self.model.weights, p.n)
                for _ in descend(visit, products, self.preconditioner, self.model, step, p.y, self.W):
                    pass
                done += 1
                if watch.seconds > seconds:
                    break
        return done
