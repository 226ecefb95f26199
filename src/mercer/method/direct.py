"""The dense equations (K + r W^-1) alpha = y, solved at once by a Cholesky factorisation."""

from __future__ import annotations

import torch
from torch import Tensor

# The smallest ridge: it makes the matrix invertible in float64, and is far below any noise.
JITTER = 1e-8


def solve(K: Tensor, y: Tensor, ridge: float, weight: Tensor | None = None) -> Tensor:
    """alpha, (n, l), for K, (n, n), targets y, (n, l), and sample weights W, (n, 1).

    With A = W^1/2 K W^1/2 + r I, which is as well conditioned for any weights, it is
    W^1/2 A^-1 W^1/2 y.
    """
    A = K.clone() if weight is None else K * weight.sqrt() * weight.sqrt().T
    b = y if weight is None else weight.sqrt() * y
    A.diagonal().add_(ridge)
    factor, failed = torch.linalg.cholesky_ex(A)
    if not bool(failed):
        x = torch.cholesky_solve(b, factor)
    else:  # not positive definite: leave out the directions that have no positive eigenvalue
        values, U = torch.linalg.eigh(A)
        known = values > torch.finfo(values.dtype).eps * len(values) * values.abs().max()
        x = U @ (torch.where(known, 1 / values, 0.0)[:, None] * (U.T @ b))  # (n, l)
    return x if weight is None else weight.sqrt() * x
