"""Nyström estimate of the top of the kernel spectrum.

The kernel matrix K_s of s subsampled training points has eigenpairs (sigma_i, v_i).  They
approximate the spectrum of the full problem:

    lambda_i = sigma_i / s                       eigenvalue of K / n
    e_i(x)   = v_i^T phi(x) / sqrt(sigma_i)      eigenfunction, unit RKHS norm

where phi(x) = (k(x_r1, x), ..., k(x_rs, x)).  Nothing here knows about devices, batch sizes or
labels.

Only the leading q_max pairs are wanted, so K_s is not decomposed: subspace iteration with
Rayleigh-Ritz (Halko, Martinsson and Tropp 2011) finds them by matrix products.  Pairs near q_max
need not be exact: levelling with Ritz pairs keeps the levelled kernel positive semi-definite.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mercer.data.points import Points
from mercer.kernels import Kernel
from mercer.operators.dense import dense_block, dense_product

# Extra directions carried beside those wanted (Halko et al., section 4.2, suggest 5 to 10; a slowly
# decaying spectrum profits from more, and a share of q costs no more than that share).
OVERSAMPLING = 16
OVERSAMPLING_SHARE = 0.1
# Power passes before Rayleigh-Ritz.  On MNIST (s = 2,000) three leave the last of 500 Ritz values 15 %
# low, in three quarters of the time of a full decomposition.
POWER_PASSES = 3
# Relative change of the largest eigenvalue that ends its iteration.
EIGENVALUE_TOLERANCE = 1e-3
MAX_ITERATIONS = 50
# Beyond this share of s, one full decomposition is faster than iterating.
FULL_DECOMPOSITION_SHARE = 0.3
# A matrix this small is decomposed whole in less than a tenth of a second.
SMALL_MATRIX = 1_000


@dataclass(frozen=True)
class NystromSpectrum:
    """Leading eigenpairs of the subsample kernel matrix K_s, eigenvalues decreasing."""

    sigma: Tensor  # (q_max,)
    V: Tensor  # (s, q_max)
    k_diag: Tensor  # (s,)  k(x, x) at each subsampled point
    notes: tuple[str, ...] = ()  # fallbacks that were needed

    @property
    def s(self) -> int:
        return self.V.shape[0]


def nystrom_spectrum(kernel: Kernel, x_r: Points, q_max: int) -> NystromSpectrum:
    """The leading `q_max` eigenpairs, fewer where rounding error hides the rest."""
    s = len(x_r)
    if s > 1 and not 1 <= q_max < s:
        raise ValueError(
            f"`preconditioner_rank` must be at least 1 and less than the subsample size s={s}. "
            f"Got {q_max} instead. Lower `preconditioner_rank` or raise `subsample_size`."
        )
    K = dense_block(kernel, x_r, x_r, same=True)  # (s, s)
    if not bool(torch.isfinite(K).all()):
        raise ValueError(
            "The kernel must be finite on the data. Got infinity or NaN on the subsample: the "
            "features may be too large for their precision (rescale them, or use "
            'precision="float64"), or the kernel function may be wrong.'
        )
    k_diag = kernel.diagonal(x_r)
    if not bool((k_diag >= 0).all() and (k_diag > 0).any()):
        raise ValueError(
            "A kernel must be positive semi-definite: k(x, x) at least 0, and not 0 everywhere. Got "
            f"values down to {float(k_diag.min()):.3g}, up to {float(k_diag.max()):.3g}: correct the "
            "kernel function."
        )
    notes: tuple[str, ...] = ()
    sigma, V = top_eigenpairs(K, q_max)
    if not _usable(sigma, V):
        notes = ("the eigen-solver failed in single precision and was run again in double",)
        sigma, V = top_eigenpairs(K.to("cpu", torch.float64), q_max)
        if not _usable(sigma, V):
            raise ValueError(
                "The kernel matrix of the subsample must have a positive largest eigenvalue. Got "
                f"{float(sigma[0]):.3g}: the kernel function may not be positive definite."
            )
        sigma, V = sigma.to(K.device, K.dtype), V.to(K.device, K.dtype)
    # Same cut-off as numpy.linalg.matrix_rank, in the precision K_s was computed in: a pair below
    # it is rounding error, and dividing by it would make the step explode.
    rounding_error = s * torch.finfo(K.dtype).eps * sigma[0]
    rank = max(1, int((sigma > rounding_error).sum()))
    return NystromSpectrum(sigma[:rank], V[:, :rank].contiguous(), k_diag, notes)


def _usable(sigma: Tensor, V: Tensor) -> bool:
    return bool(torch.isfinite(sigma).all() and torch.isfinite(V).all() and sigma[0] > 0)


def top_eigenpairs(K: Tensor, q_max: int) -> tuple[Tensor, Tensor]:
    """Leading eigenvalues (q_max,), decreasing, and eigenvectors (s, q_max) of a symmetric matrix."""
    s = len(K)
    width = q_max + max(OVERSAMPLING, int(OVERSAMPLING_SHARE * q_max))
    if s <= SMALL_MATRIX or width > FULL_DECOMPOSITION_SHARE * s:
        sigma, V = torch.linalg.eigh(K)
        return sigma.flip(0)[:q_max], V.flip(1)[:, :q_max]
    generator = torch.Generator().manual_seed(0)  # the same fit each time
    Q = torch.randn(s, width, generator=generator, dtype=K.dtype).to(K.device)
    for _ in range(POWER_PASSES):
        Q, _ = torch.linalg.qr(dense_product(K, Q))  # (s, width)
    ritz, W = torch.linalg.eigh(Q.T @ dense_product(K, Q))  # (width,), (width, width)
    return ritz.flip(0)[:q_max], dense_product(Q, W.flip(1)[:, :q_max])


def largest_eigenvalue(K: Tensor, root: Tensor | None = None) -> float:
    """lambda_1 of a symmetric positive semi-definite matrix, from below, within about a hundredth.

    With `root`, (n,), that of the matrix whose rows and columns are multiplied by it.
    """
    scale = K.new_ones(len(K), 1) if root is None else root[:, None]  # (n, 1)
    generator = torch.Generator().manual_seed(0)
    Q = torch.randn(len(K), min(len(K), OVERSAMPLING), generator=generator, dtype=K.dtype).to(K.device)
    largest = 0.0
    for _ in range(MAX_ITERATIONS):
        Q, _ = torch.linalg.qr(Q)  # (n, p)
        product = scale * dense_product(K, scale * Q)  # (n, p)
        previous, largest = largest, float(torch.linalg.eigvalsh(Q.T @ product)[-1])
        if not abs(largest - previous) > EIGENVALUE_TOLERANCE * abs(largest):
            break
        Q = product
    return largest
