"""Leave-one-out error of kernel ridge regression, in closed form.

The error of predicting each point from all others is

    y_i - f_{-i}(x_i) = [A^-1 y]_i / [A^-1]_ii,    A = K + r I,

so nothing is held out and nothing is trained.  With the eigenpairs of K, each further r costs one
product.  For few r, a Cholesky factor L of A takes less: [A^-1]_ii is the squared norm of column i of
L^-1, which is triangular.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mercer.method.direct import JITTER
from mercer.operators.workers import may_go_on

# Columns of L^-1 that are computed at a time.
FACTOR_COLUMNS = 128


@dataclass(frozen=True)
class LeaveOneOut:
    """The leave-one-out error of each point, and the weights of the solution."""

    errors: Tensor  # (s, l)
    alpha: Tensor  # (s, l)

    @property
    def squares(self) -> Tensor:
        """Squared errors, the mean over outputs, (s,)."""
        return self.errors.square().mean(1)

    @property
    def loss(self) -> float:
        return float(self.squares.mean())

    @property
    def size(self) -> float:
        """The root mean square of the weights."""
        return float(self.alpha.square().mean().sqrt())


def leave_one_out(K: Tensor, y: Tensor, ridges: tuple[float, ...]) -> list[LeaveOneOut]:
    """For (K + r I) alpha = y and each r, from one decomposition of K, (s, s); y is (s, l)."""
    eigenvalues, U = torch.linalg.eigh(K)
    eigenvalues = eigenvalues.clamp(min=0)
    Uy, squares = U.T @ y, U.square()  # (s, l), (s, s)
    found = []
    for r in ridges:
        inverse = 1 / (eigenvalues + max(r, JITTER))  # (s,)
        alpha = U @ (inverse[:, None] * Uy)  # (s, l)
        found.append(_errors(alpha, squares @ inverse))
    return found


def leave_one_out_once(K: Tensor, y: Tensor, ridge: float) -> LeaveOneOut:
    """The same for one ridge, which a Cholesky factor gives in a fraction of the time."""
    may_go_on()
    A = K.clone()
    A.diagonal().add_(max(ridge, JITTER))
    L, failed = torch.linalg.cholesky_ex(A)  # (s, s)
    if bool(failed):  # not positive definite but for rounding, or not at all
        unknown = torch.full_like(y, math.inf)
        return LeaveOneOut(unknown, unknown)
    return _errors(torch.cholesky_solve(y, L), _inverse_diagonal(L))


def _inverse_diagonal(L: Tensor) -> Tensor:
    """The diagonal of (L L^T)^-1, (s,): what is above the diagonal of L^-1 is not computed."""
    found = L.new_empty(len(L))
    for first in range(0, len(L), FACTOR_COLUMNS):
        may_go_on()
        columns = slice(first, min(first + FACTOR_COLUMNS, len(L)))
        unit = L.new_zeros(len(L) - first, columns.stop - first)  # (s - first, c)
        unit.diagonal().fill_(1)
        part = torch.linalg.solve_triangular(L[first:, first:], unit, upper=False)
        found[columns] = part.square_().sum(0)
    return found


def _errors(alpha: Tensor, inverse_diagonal: Tensor) -> LeaveOneOut:
    return LeaveOneOut(alpha / inverse_diagonal[:, None], alpha)
