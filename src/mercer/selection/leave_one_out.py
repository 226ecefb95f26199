"""Leave-one-out error of kernel ridge regression, in closed form.

The error of predicting each point from all others is

    y_i - f_{-i}(x_i) = [A^-1 y]_i / [A^-1]_ii,    A = K + r I,

so nothing is held out and nothing is trained.  With the eigenpairs of K, each further r costs one
product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mercer.method.direct import JITTER


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
    """The same for one ridge, which an inverse gives in a fraction of the time."""
    A = K.clone()
    A.diagonal().add_(max(ridge, JITTER))
    factor, failed = torch.linalg.cholesky_ex(A)
    if bool(failed):  # not positive definite but for rounding, or not at all
        unknown = torch.full_like(y, math.inf)
        return LeaveOneOut(unknown, unknown)
    inverse = torch.cholesky_inverse(factor)  # (s, s)
    return _errors(inverse @ y, inverse.diagonal())


def _errors(alpha: Tensor, inverse_diagonal: Tensor) -> LeaveOneOut:
    return LeaveOneOut(alpha / inverse_diagonal[:, None], alpha)
