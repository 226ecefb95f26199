"""What the paper compares with, on the same engine: plain kernel SGD and the original EigenPro.

Plain SGD is the same loop with nothing levelled, at its own best step: 1 / beta for a batch up to
m*(k), 2 / (beta + (m - 1) lambda_1) beyond.

The original EigenPro (Ma and Belkin 2017) writes each eigenfunction as a combination of all n points,

    e_i = (1 / (n lambda_i)) sum_j e_i(x_j) k(x_j, .),

so its correction changes all n weights, at n q l operations a step and n q memory:

    alpha  <-  alpha + gamma E diag((1 - lambda_q / lambda_i) / (n lambda_i)) E_t^T g.

The improved iteration (`iteration.py`) needs only the s weights of the subsample.  Where the subsample
is all of the data the two are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from mercer.operators.tiled import TrainingProducts, kernel_times
from mercer.planning.choose import LevelledKernel, best_step_size
from mercer.planning.plan import Plan
from mercer.training.loop import Limits, Outcome, Validation, Watcher, train


def train_sgd(
    products: TrainingProducts,
    plan: Plan,
    y: Tensor,
    limits: Limits,
    batch_size: int | None = None,
    validation: Validation | None = None,
    watcher: Watcher | None = None,
    rows_at_once: int | None = 1,
) -> Outcome:
    """Plain mini-batch kernel SGD; the batch is m*(k) unless given.

    One batch is evaluated at a time, as the method is described: larger panels would lend a small batch
    the efficiency of a large one.
    """
    beta, lambda_1 = plan.beta_plain + plan.ridge, plan.lambda_1_plain + plan.ridge / plan.n
    m = batch_size or max(1, int(beta / lambda_1))
    plain = replace(
        plan,
        subsample_size=0,
        preconditioner_rank=0,
        beta=beta,
        lambda_1=lambda_1,
        batch_size=m,
        step_size=best_step_size(m, beta, lambda_1),
    )
    nothing_levelled = LevelledKernel(V=y.new_zeros(0, 0), D=y.new_zeros(0))
    without_block = TrainingProducts(
        products.kernel, products.points, nothing_levelled.V, m, y.shape[1], rows_at_once=rows_at_once
    )
    return train(without_block, nothing_levelled, plain, y, limits, validation, watcher=watcher)


@dataclass(frozen=True)
class OriginalPreconditioner:
    """The correction goes to all n weights, through the eigenfunctions at every point."""

    levelled: LevelledKernel
    Z: Tensor  # (n, q)  Phi V at all points: eigenfunctions, but for a factor of sqrt(sigma)
    D: Tensor  # (q,)  (1 - sigma_q / sigma_i) s / (n sigma_i²)

    @property
    def V(self) -> Tensor:
        return self.levelled.V

    def diagonal(self, k_diag: Tensor, Z: Tensor) -> Tensor:
        return self.levelled.diagonal(k_diag, Z)

    def take_back(self, alpha: Tensor, c: Tensor) -> None:
        alpha.addmm_(self.Z, c)  # (n, l)


def original_preconditioner(
    products: TrainingProducts, levelled: LevelledKernel, sigma: Tensor
) -> OriginalPreconditioner:
    """From the eigenvalues sigma, (q,), of K_s that `levelled` was made from."""
    points, s = products.points, products.s
    Z = kernel_times(products.kernel, points, points[:s], levelled.V)  # (n, q)
    D = (1 - sigma[-1] / sigma) * s / (len(points) * sigma.square())
    return OriginalPreconditioner(levelled, Z, D)


def train_original(
    products: TrainingProducts,
    preconditioner: OriginalPreconditioner,
    plan: Plan,
    y: Tensor,
    limits: Limits,
    validation: Validation | None = None,
    watcher: Watcher | None = None,
) -> Outcome:
    """The original EigenPro iteration with the same q, batch and step as the plan."""
    m = plan.batch_size
    return train(
        # Weights change everywhere at each step, so a panel cannot hold more than one batch.
        TrainingProducts(products.kernel, products.points, products.V, m, y.shape[1], rows_at_once=m),
        preconditioner,
        plan,
        y,
        limits,
        validation,
        triangular=False,
        watcher=watcher,
    )
