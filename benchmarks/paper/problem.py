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

from benchmarks.stopwatch import Stopwatch
from mercer.data.inputs import fit_preparation
from mercer.data.points import Points
from mercer.kernels import Kernel, in_units
from mercer.method.step import PanelDescent, Preconditioner
from mercer.model.machine import KernelMachine
from mercer.operators.tiled import HeldOutProducts, TrainingProducts, by_output
from mercer.operators.workers import small_operations
from mercer.planning.choose import LevelledKernel, Requests, adapt
from mercer.planning.plan import Plan
from mercer.planning.rehearsal import with_predicted_seconds
from mercer.planning.resource import Resource, measure_resource
from mercer.training import baselines, loop
from mercer.training.loop import Limits, Outcome, Validation, Watcher

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
    resource = resource or measure_resource(CPU)
    with Stopwatch() as watch:
        plan, levelled = adapt(
            kernel, points, y.shape[1], resource, requests=requests, n_held_out=n_held_out
        )
    return Problem(kernel, points, y, plan, levelled, watch.seconds)


def rehearsed(problem: Problem, resource: Resource) -> Problem:
    """The same problem with the seconds of its epochs predicted from a few panels."""
    if resource.rates is None:
        raise ValueError("A rehearsal needs a measured device. Got one without measured rates.")
    p = problem
    plan = with_predicted_seconds(p.plan, resource.rates, p.kernel, p.points, p.levelled, p.y)
    return replace(problem, plan=plan)


def bytes_pay() -> bool:
    """Whether 8-bit products are faster than float32 products on this machine."""
    return measure_resource(CPU).integer_gain > 1


def untrained(
    X: NDArray[np.float32], Y: NDArray[np.float32], kernel: Kernel, as_bytes: bool
) -> tuple[KernelMachine, Tensor]:
    """A machine with zero weights centred at the rows of X, and the centred targets, (n, l)."""
    rows = np.arange(len(X))
    preparation, _ = fit_preparation(X, rows, as_bytes=as_bytes)
    points = preparation.points(X, rows, torch.zeros(()), known=True)
    if preparation.grid is not None:
        kernel = in_units(kernel, preparation.grid.scale)
    y = torch.from_numpy(Y)
    offset = y.mean(0)
    return KernelMachine(kernel, preparation, points, torch.zeros_like(y), offset), y - offset


def exactly(epochs: int) -> Limits:
    """Train for this many epochs, whatever the losses do."""
    return Limits(max_iter=epochs, interpolation_tol=0.0, n_iter_no_change=epochs, tol=0.0)


def held_out(problem: Problem, points: Points) -> HeldOutProducts:
    """Products K(points, training points) @ alpha for points that are not trained on."""
    p = problem
    return HeldOutProducts(p.kernel, points, p.points, p.n_outputs, budget=p.plan.kept_memory)


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
    p, m = problem, m or problem.plan.batch_size
    plan = replace(p.plan, batch_size=m, step_size=step * p.plan.step_size)
    products = TrainingProducts(
        p.kernel, p.points, p.levelled.V, m, p.n_outputs, kept_memory, rows_at_once
    )
    return loop.train(products, p.levelled, plan, p.y, limits, shuffled=shuffled, watcher=watcher)


def train_sgd(
    problem: Problem,
    limits: Limits,
    *,
    m: int | None = None,
    step: float = 1.0,
    rows_at_once: int | None = 1,
    validation: Validation | None = None,
    watcher: Watcher | None = None,
) -> Outcome:
    """Plain SGD, with the batch m*(k) unless `m` is given; `step` multiplies its step size."""
    p, plan = problem, problem.plan
    # The step size is inversely proportional to beta and lambda_1 together, and m* is their ratio.
    scaled = replace(plan, beta_plain=plan.beta_plain / step, lambda_1_plain=plan.lambda_1_plain / step)
    products = TrainingProducts(p.kernel, p.points, p.levelled.V, plan.batch_size, p.n_outputs)
    return baselines.train_sgd(products, scaled, p.y, limits, m, validation, watcher, rows_at_once)


def train_original(
    problem: Problem,
    limits: Limits,
    *,
    step: float = 1.0,
    validation: Validation | None = None,
    watcher: Watcher | None = None,
) -> Outcome:
    """The original EigenPro, with Mercer's q and batch size; `step` multiplies the plan's step size."""
    p, plan = problem, problem.plan
    products = TrainingProducts(p.kernel, p.points, p.levelled.V, plan.batch_size, p.n_outputs)
    sigma = plan.subsample_size * torch.tensor(plan.eigenvalues[: plan.preconditioner_rank])  # (q,)
    preconditioner = baselines.original_preconditioner(products, p.levelled, sigma)
    scaled = replace(plan, step_size=step * plan.step_size)
    return baselines.train_original(products, preconditioner, scaled, p.y, limits, validation, watcher)


def nothing_levelled(problem: Problem) -> LevelledKernel:
    """The preconditioner of plain SGD: none."""
    return LevelledKernel(V=problem.y.new_zeros(0, 0), D=problem.y.new_zeros(0))


class Iterations:
    """Iterations with batch m as the paper describes them: one batch at a time, no values kept."""

    def __init__(
        self, problem: Problem, preconditioner: Preconditioner, m: int, W: Tensor | None = None
    ) -> None:
        self.problem, self.preconditioner, self.m = problem, preconditioner, m
        self.W = problem.y.new_ones(problem.n, 1) if W is None else W  # (n, 1)
        self.products = TrainingProducts(
            problem.kernel, problem.points, preconditioner.V, m, problem.n_outputs, rows_at_once=m
        )
        draws = torch.Generator().manual_seed(0)
        # Weights that are not zero, so that no product is skipped.
        self.alpha = by_output(torch.randn(problem.n, problem.n_outputs, generator=draws))

    def __len__(self) -> int:
        """Iterations of one epoch."""
        return len(self.products.panels)

    def rows(self, index: int) -> int:
        """Batch size of one iteration: at most m, since batches have even sizes."""
        return len(self.products.panels[index])

    def run(self, indices: Iterable[int], gamma: float = 0.0, seconds: float = math.inf) -> int:
        """Run these iterations until `seconds` have passed; returns how many were run.

        The step is gamma = 2 eta / m.  With 0 the weights stay as they are.
        """
        p, done, watch = self.problem, 0, Stopwatch()
        with small_operations(CPU):
            for index in indices:
                panel = self.products.panels[index]
                rows = self.products.rows(index, self.alpha, p.n)
                descent = PanelDescent(panel, rows, self.preconditioner, self.alpha, 0.0)
                for batch in panel.batches:
                    g = descent.residual(batch, p.y[batch])  # (m, l)
                    descent.step(batch, g.mul_(self.W[batch]), gamma)
                descent.finish()
                done += 1
                if watch.seconds > seconds:
                    break
        return done
