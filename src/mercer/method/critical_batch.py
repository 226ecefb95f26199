"""The critical batch size m*(k_q) = beta(K_q) / lambda_1(K_q), and which q it takes to reach a batch.

Estimates made on the subsample itself are biased: its eigenvectors fit its own points, so beta and
lambda_1 read off its spectrum are both too small for all other points, and a step built on them
diverges. Here both are measured on *fresh* training points.  beta is the mean of k_q(x, x) over those
rather than the maximum, because training scales down every point above it (`step.py`); m* is then the
trace of K_q over its largest eigenvalue, at least 1 for any data, and lambda_1 is that of the scaled
operator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mercer.data.dealt_points import AnyPoints
from mercer.kernels.base import Kernel
from mercer.method.preconditioner import LevelledKernel
from mercer.method.spectrum import NystromSpectrum, largest_eigenvalue
from mercer.operators.dense import dense_block, dense_product

# Fresh points on which beta and lambda_1 are estimated, and the fewest that give a usable estimate.
FRESH_POINTS = 2_000
FEWEST_FRESH = 200
# Rounding error that training may carry in f, as a share of the targets.
ROUNDING_IN_TARGETS = 1e-3


@dataclass(frozen=True)
class FreshEstimate:
    """beta and lambda_1 of the levelled kernel k_q, estimated on fresh training points."""

    q: int
    beta: float  # mean of k_q(x, x)
    beta_max: float  # largest of them
    lambda_1: float  # largest eigenvalue of K_q / n

    @property
    def critical_batch_size(self) -> float:
        """m*(k_q) = beta / lambda_1."""
        return self.beta / self.lambda_1

    def critical(self, ridge: float, n: int) -> float:
        """The same for K_q + r I."""
        return (self.beta + ridge) / (self.lambda_1 + ridge / n)


@dataclass(frozen=True)
class FreshSample:
    """Kernel values between fresh points and between them and the subsample."""

    K: Tensor  # (f, f)
    phi: Tensor  # (f, s)
    k_diag: Tensor  # (f,)

    def estimate(self, levelled: LevelledKernel | None, q: int) -> FreshEstimate:
        """beta and lambda_1 of the levelled kernel, or of k itself where there is none.

        lambda_1 is that of W^1/2 K_q W^1/2 / n, with the weights w_i = min(1, beta / k_q(x_i, x_i)) that
        training gives to its points, so that a few distant ones do not determine it.
        """
        K, diagonal = self.K, self.k_diag
        if levelled is not None:
            Z = dense_product(self.phi, levelled.V)  # (f, q)
            removed = dense_product(Z * levelled.D, Z.T)  # (f, f)
            K = torch.sub(K, removed, out=removed)  # (f, f)
            diagonal = levelled.diagonal(self.k_diag, Z)
        beta = self._mean(diagonal)
        # Training scales the residual of points above beta down (step.py), and so its operator.
        root = (beta / diagonal.clamp(min=beta)).sqrt_()  # (f,)
        lambda_1 = max(largest_eigenvalue(K, root), beta) / len(K)
        return FreshEstimate(q=q, beta=beta, beta_max=float(diagonal.max()), lambda_1=lambda_1)

    def beta(self, levelled: LevelledKernel) -> float:
        """That of the estimate, in a fraction of its time."""
        return self._mean(levelled.diagonal(self.k_diag, dense_product(self.phi, levelled.V)))

    def _mean(self, diagonal: Tensor) -> float:
        """At least what a diagonal, (f,), loses to rounding; lambda_1 is at least as large as well."""
        return max(float(diagonal.mean()), torch.finfo(diagonal.dtype).eps * float(self.k_diag.mean()))


def fresh_sample(kernel: Kernel, points: AnyPoints, s: int, count: int = FRESH_POINTS) -> FreshSample:
    """The points after the subsample or, if too few follow, the last ones, which may overlap it."""
    n = len(points)
    fresh = points[s : s + count] if n - s >= FEWEST_FRESH else points[max(0, n - count) :]
    return FreshSample(
        K=dense_block(kernel, fresh, fresh, same=True),
        phi=dense_block(kernel, fresh, points[:s]),
        k_diag=kernel.diagonal(fresh),
    )


def paper_components(critical: Tensor, m_G: float) -> int:
    """q = max{ i : m*(k_i) <= m_G }, given m*(k_i) of the subsample's own spectrum, (q_max,)."""
    within = (critical <= m_G).nonzero()
    return int(within[-1]) + 1 if len(within) else 1


def own_critical_batches(spectrum: NystromSpectrum) -> Tensor:
    """m*(k_i) for every i, estimated on the subsample itself, (q_max,)."""
    sigma, V = spectrum.sigma, spectrum.V
    # On the subsample phi(x_r)^T v_i = sigma_i V_ri, so that phi^T V D V^T phi is the sum over
    # i <= q of V_ri² (sigma_i - sigma_q): two cumulative sums give it for every q.
    squares = V.square()  # (s, q_max)
    removed = (squares * sigma).cumsum(1) - squares.cumsum(1) * sigma  # (s, q_max)
    beta = (spectrum.k_diag[:, None] - removed).amax(0)  # (q_max,)
    return beta / (sigma / spectrum.s)


def safe_components(spectrum: NystromSpectrum, n: int) -> int:
    """The largest q whose step, 1 / beta(K_q), does not drown the residual in rounding error.

    Weights are about step times residual, so f = K alpha carries an error of about
    eps sqrt(n) k_rms / beta of the targets.  Smooth kernels in few dimensions have beta fall by orders
    of magnitude with q, and levelling all of it would trade the last digits for speed.
    """
    sigma = spectrum.sigma
    # The mean over the subsample of k_q(x, x): see `own_critical_batches`; each V_i has unit length.
    removed = (
        sigma.cumsum(0) - torch.arange(1, len(sigma) + 1, device=sigma.device) * sigma
    ) / spectrum.s
    beta = spectrum.k_diag.mean() - removed  # (q_max,)
    k_rms = float(sigma.square().sum().sqrt()) / spectrum.s
    least = torch.finfo(sigma.dtype).eps * math.sqrt(n) * k_rms / ROUNDING_IN_TARGETS
    return max(1, int((beta >= least).sum()))
