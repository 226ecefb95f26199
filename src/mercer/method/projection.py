"""More rows than centres: bringing the function back to the span of the centres.

Descent on n rows makes every row of a batch a centre.  With p < n centres Z, such rows are temporary:
now and then the function is projected onto the span of k(z, .), z in Z, and they are dropped (delayed
projection; Abedsoltan, Ma, Pandit, Belkin, "Fast training of large kernel models with delayed
projections", 2024).  The projection of a function with values F on Z has weights K(Z, Z)^-1 F.

One pass of the same descent over the centres, with targets F and from the weights there are, brings the
weights nearer to that.  What it leaves, F - K(Z, Z) alpha, is not lost: F is kept, and the next pass
goes on from there.  Few centres have K(Z, Z) factorised instead, and a projection is exact: a smooth
kernel has directions that descent hardly reaches.

The subsample are the first s centres.  So levelling maps the span of the centres to itself, and the
limit of descent is that without levelling: the weights that minimise

    sum_i w_i (f(x_i) - y_i)^2 + r ||f||^2,        f = sum_j alpha_j k(z_j, .)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mercer.data.rows import widest
from mercer.method.preconditioner import Preconditioner
from mercer.method.schedule import Schedule
from mercer.method.step import Step, descend, safe_weights
from mercer.model.expansion import Expansion
from mercer.operators.base import SquareOperator

# Centres whose kernel matrix is factorised in a second or two.
MOST_FACTORISED = 3_000
# For each of its elements, an exact projection reads it and one of two triangles, in float64.
EXACT_BYTES = 16
# Jitter of a factorisation, in units of the rounding error of K's spectrum.
ROUNDINGS = 4.0


def is_factorised(p: int, device: torch.device) -> bool:
    """Whether projections onto p centres are exact."""
    return p <= MOST_FACTORISED and widest(device) == torch.float64


class Projection:
    """Passes over the centres, whose kernel matrix an operator keeps or evaluates."""

    def __init__(
        self,
        operator: SquareOperator,
        preconditioner: Preconditioner,
        schedule: Schedule,
        step: Step,
        like: Tensor,
        exact: bool = False,
    ) -> None:
        """`like` has the type and the outputs of the weights, (., l); `exact` factorises K(Z, Z)."""
        self.operator = operator
        self.step = step
        self.preconditioner = preconditioner
        self.schedule = schedule
        self._weights = like.new_zeros(schedule.n, like.shape[1])  # (p, l)
        self.Z = like.new_empty(schedule.n, preconditioner.V.shape[1])  # (p, q)  K(Z, X_r) V
        for panel in schedule.panels:  # what the operator keeps is evaluated here, with zero weights
            self.Z[panel.rows] = operator.panel(panel.rows, self._weights, 0).Z
        k_diag = torch.cat([operator.diagonal(panel.rows) for panel in schedule.panels])  # (p,)
        self._safe = safe_weights(preconditioner, k_diag, self.Z, step.beta, 0.0)  # (p, 1)
        self._factor: Tensor | None = None  # (p, p)
        if exact:
            rows = slice(0, schedule.n)
            self._K = operator.block(rows, rows).double()
            # Above what rounding error does to the smallest eigenvalues.
            jitter = ROUNDINGS * torch.finfo(like.dtype).eps * math.sqrt(schedule.n)
            shifted = self._K + jitter * float(k_diag.mean()) * torch.eye(schedule.n).to(self._K)
            factor, failed = torch.linalg.cholesky_ex(shifted)
            self._factor = None if bool(failed) else factor  # a kernel that is not positive definite

    @property
    def is_exact(self) -> bool:
        """Whether one pass does it."""
        return self._factor is not None

    def levelled(self, values: Tensor) -> Tensor:
        """Values on the centres of P f, (p, l), from those of f: P turns a gradient into a step."""
        top = self.preconditioner.V.T @ values[: len(self.preconditioner.V)]  # (q, l)
        return values - self.Z @ (self.preconditioner.D[:, None] * top)

    def product(self, rows: slice, alpha: Tensor) -> Tensor:
        """K(Z, Z)[rows] alpha, (R, l)."""
        return self.operator.panel(rows, alpha, self.schedule.n).f

    def advance(self, alpha: Tensor, values: Tensor, number: int) -> float:
        """One pass: change alpha, (p, l), so that the function comes nearer to the values, (p, l).

        `number` decides the order of visits.  Returns the mean square of what was missing before.
        """
        if self._factor is not None:
            left = values.double() - self._K @ alpha.double()  # (p, l)
            # Of few columns, this takes a tenth of the time of `cholesky_solve`.
            half = torch.linalg.solve_triangular(self._factor, left, upper=False)
            alpha += torch.linalg.solve_triangular(self._factor.T, half, upper=True).to(alpha)
            return float(left.square().mean())
        model = Expansion(alpha)
        missing = 0.0
        for visit in self.schedule.visits(2 + number):
            products = self.operator.panel(visit.panel.rows, model.weights, self.schedule.n)
            for batch, losses in descend(
                visit, products, self.preconditioner, model, self.step, values, self._safe
            ):
                missing += float(losses.residual) * (batch.stop - batch.start) / self.schedule.n
        alpha.copy_(model.weights)
        return missing
