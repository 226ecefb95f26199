"""How large the errors of a machine are at a row: a second function on the same kernel.

log(|e_i| + delta) of rows that were not trained on is fitted by kernel ridge regression over p of the
centres.  With K the kernel values between rows and these centres and K_p those among the centres,

    g(x) = mean + k_p(x)^T w,   w minimises sum_i omega_i (t_i - g(x_i))² + lambda w^T K_p w.

In the features Phi = K K_p^(-1/2), this is ridge regression, whose leave-one-out errors one singular
value decomposition gives for all lambda.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Centres of the function: errors vary more slowly than targets, and a few hundred rows say little more.
DIFFICULTY_LANDMARKS = 300
# Added to errors before the logarithm, as a share of their mean: 0 says no more than a small error.
SMALLEST_ERROR = 0.1
DIFFICULTY_RIDGES = (0.1, 1.0, 10.0, 100.0, 1000.0)
# Directions of K_p with less than this share of the largest eigenvalue are rounding error.
DIFFICULTY_ROUNDING = 1e-10
# Leave-one-out error, as a share of the variance, below which errors differ from row to row.
CLEARLY_VARYING = 0.98


@dataclass(frozen=True)
class Difficulty:
    """The typical size of errors, exp(g(x)), within the sizes it was fitted on."""

    mean: Tensor  # (l,)
    low: Tensor  # (l,)  bounds of g
    high: Tensor  # (l,)
    w: Tensor  # (p, l)

    def sizes(self, K: Tensor) -> Tensor:
        """For rows with the kernel values K, (m, p), the size of the errors of each output, (m, l).

        The result is on the CPU, wherever K is.
        """
        g = self.mean + (K @ self.w.to(K.device)).cpu()  # (m, l)
        return torch.minimum(torch.maximum(g, self.low), self.high).exp()


def fit_difficulty(K: Tensor, K_p: Tensor, errors: Tensor, weights: Tensor) -> Difficulty | None:
    """From errors, (m, l), of rows with weights omega, (m,); None if they are alike everywhere.

    Errors and weights may be on the CPU where the kernel values are on a device.
    """
    weights = weights.to(K.device)
    sizes = errors.to(K.device).abs()
    typical = sizes.mean(0)  # (l,)
    if not bool((typical > 0).all() & torch.isfinite(typical).all()):
        return None
    t = (sizes + SMALLEST_ERROR * typical).log()  # (m, l)
    mean = (weights @ t) / weights.sum()  # (l,)
    eigenvalues, U = torch.linalg.eigh(K_p)
    used = eigenvalues > DIFFICULTY_ROUNDING * eigenvalues[-1]
    whitening = U[:, used] / eigenvalues[used].sqrt()  # (p, q)
    roots = weights.sqrt()[:, None]
    A, s, Bt = torch.linalg.svd(roots * (K @ whitening), full_matrices=False)  # (m, q), (q,), (q, q)
    y = roots * (t - mean)  # (m, l)
    Ay, spread = A.T @ y, y.square().sum(0)  # (q, l), (l,)
    if not bool((spread > 0).all()):
        return None
    losses = []
    for ridge in DIFFICULTY_RIDGES:
        shrink = s.square() / (s.square() + ridge)  # (q,)
        residual = y - A @ (shrink[:, None] * Ay)  # (m, l)
        left_out = residual / (1 - A.square() @ shrink)[:, None]
        losses.append(float((left_out.square().sum(0) / spread).mean()))
    best = min(range(len(losses)), key=losses.__getitem__)
    if not losses[best] < CLEARLY_VARYING:
        return None
    shrunk = (s / (s.square() + DIFFICULTY_RIDGES[best]))[:, None] * Ay  # (q, l)
    w = whitening @ (Bt.T @ shrunk)  # (p, l)
    return Difficulty(mean.cpu(), t.amin(0).cpu(), t.amax(0).cpu(), w.cpu())
