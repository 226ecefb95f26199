"""One step of double coordinate block descent (the paper's Algorithm 1).

With residual g = f(x_t) + r alpha_t - y_t on the batch t, the step changes two blocks of weights:

    alpha_t  <-  alpha_t - (2 eta / m) W g                          sampled block
    alpha_r  <-  alpha_r + (2 eta / m) V D V^T Phi^T W g            fixed block

r is the ridge, 0 in the paper.  W is the identity in the paper.  Here its diagonal is

    w_i = min(1, (beta + r) / (k_q(x_i, x_i) + r))

because one point with (2 eta / m) k_q(x_i, x_i) > 2 diverges by itself while all others look well,
and such points are rare enough for a sample to miss.  A positive weight does not move the solution:
where W g = 0, g = 0.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from mercer.adaptive import LevelledKernel


class HasDiagonal(Protocol):
    """What training needs to know of a levelled kernel besides how to step with it."""

    def diagonal(self, k_diag: Tensor, phi: Tensor) -> Tensor:
        """k_q(x, x), (m,), from k(x, x) and phi(x)."""


def safe_weights(
    levelled: HasDiagonal, k_diag: Tensor, phi: Tensor, beta: float, ridge: float
) -> Tensor:
    """w_i for a batch, (m, 1); `beta` includes the ridge."""
    k_q = levelled.diagonal(k_diag, phi) + ridge  # (m,)
    return (beta / k_q.clamp_(min=beta))[:, None]


def residual(f: Tensor, alpha_t: Tensor, y_t: Tensor, ridge: float) -> Tensor:
    """g = f + r alpha_t - y_t, (m, l); overwrites f."""
    g = f.sub_(y_t)
    return g.add_(alpha_t, alpha=ridge) if ridge else g


def descend(
    alpha: Tensor, batch: slice, levelled: LevelledKernel, phi: Tensor, g: Tensor, gamma: float
) -> None:
    """Apply the step of size gamma = 2 eta / m along the weighted residual g, (m, l), in place."""
    alpha[batch].sub_(g, alpha=gamma)  # (m, l)
    s = phi.shape[1]
    alpha[:s].add_(levelled.correction(phi, g), alpha=gamma)  # (s, l)
