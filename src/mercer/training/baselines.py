"""What the paper compares with, on the same engine: plain kernel SGD and the original EigenPro.

Plain SGD is the same loop with nothing levelled, at its own best step: 1 / beta for a batch up to
m*(k), 2 / (beta + (m - 1) lambda_1) beyond.

The original EigenPro (Ma and Belkin 2017) writes each eigenfunction as a combination of all n points,

    e_i = (1 / (n lambda_i)) sum_j e_i(x_j) k(x_j, .),

so its correction changes all n weights, at n q l operations a step and n q memory:

    alpha  <-  alpha + gamma E diag((1 - lambda_q / lambda_i) / (n lambda_i)) E_t^T g.

The improved iteration (`method/step.py`) needs only the s weights of the subsample.  Where the subsample
is all of the data the two are the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mercer.data.points import Points
from mercer.kernels.base import Kernel
from mercer.method.preconditioner import LevelledKernel, nothing_levelled
from mercer.method.step import Step, best_step_size
from mercer.model.expansion import Expansion
from mercer.model.machine import reproducible_product
from mercer.planning.plan import Plan
from mercer.training.assemble import HeldOutPart, assemble
from mercer.training.loop import Outcome, Watcher
from mercer.training.stopping import Limits


def sgd_step(plan: Plan, batch_size: int | None = None) -> Step:
    """The best step of plain SGD on a plan's kernel; the batch is m*(k) unless given."""
    beta, lambda_1 = plan.beta_plain + plan.ridge, plan.lambda_1_plain + plan.ridge / plan.n
    m = batch_size or max(1, int(beta / lambda_1))
    return Step(best_step_size(m, beta, lambda_1), m, beta, plan.ridge)


def train_sgd(
    kernel: Kernel,
    points: Points,
    y: Tensor,
    step: Step,
    limits: Limits,
    *,
    held_out: HeldOutPart | None = None,
    watcher: Watcher | None = None,
    rows_at_once: int | None = 1,
) -> Outcome:
    """Plain mini-batch kernel SGD.

    One batch is evaluated at a time, as the method is described: larger panels would give a small batch
    the efficiency of a large one.
    """
    run = assemble(
        kernel,
        points,
        y,
        step,
        nothing_levelled(y),
        limits,
        rows_at_once=rows_at_once,
        held_out=held_out,
    )
    return run.run(watcher)


@dataclass(frozen=True)
class OriginalPreconditioner:
    """Corrects all n weights, through the eigenfunctions at every point."""

    levelled: LevelledKernel
    Z: Tensor  # (n, q)  Phi V at all points: eigenfunctions, up to a factor of sqrt(sigma)
    D: Tensor  # (q,)  (1 - sigma_q / sigma_i) s / (n sigma_i²)

    @property
    def V(self) -> Tensor:
        return self.levelled.V

    def diagonal(self, k_diag: Tensor, Z: Tensor) -> Tensor:
        return self.levelled.diagonal(k_diag, Z)

    def removed(self, Zp: Tensor) -> Tensor:
        return self.levelled.removed(Zp)

    def correct(self, model: Expansion, c: Tensor) -> None:
        model.weights.addmm_(self.Z, c)  # (n, l)


def original_preconditioner(
    kernel: Kernel, points: Points, levelled: LevelledKernel, sigma: Tensor
) -> OriginalPreconditioner:
    """From the eigenvalues sigma, (q,), of K_s that `levelled` was made from."""
    s = len(levelled.V)
    Z = reproducible_product(kernel, points, points[:s], levelled.V)  # (n, q)
    D = (1 - sigma[-1] / sigma) * s / (len(points) * sigma.square())
    return OriginalPreconditioner(levelled, Z, D)


def train_original(
    kernel: Kernel,
    points: Points,
    y: Tensor,
    step: Step,
    preconditioner: OriginalPreconditioner,
    limits: Limits,
    *,
    held_out: HeldOutPart | None = None,
    watcher: Watcher | None = None,
) -> Outcome:
    """The original EigenPro iteration with the q, batch and step that the improved one uses."""
    run = assemble(
        kernel,
        points,
        y,
        step,
        preconditioner,
        limits,
        # Weights change everywhere at each step, so a panel cannot hold more than one batch.
        rows_at_once=step.m,
        held_out=held_out,
        triangular=False,
    )
    return run.run(watcher)
