"""Slow and obvious versions of what Mercer computes, in NumPy float64, straight from the formulas."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def distances(x: Array, z: Array) -> Array:
    return np.sqrt(((x[:, None, :] - z[None, :, :]) ** 2).sum(-1))


def gaussian(x: Array, z: Array, sigma: float) -> Array:
    return np.exp(-(distances(x, z) ** 2) / (2 * sigma**2))


def laplacian(x: Array, z: Array, sigma: float) -> Array:
    return np.exp(-distances(x, z) / sigma)


def l1_laplacian(x: Array, z: Array, sigma: float) -> Array:
    return np.exp(-np.abs(x[:, None, :] - z[None, :, :]).sum(2) / sigma)


def cauchy(x: Array, z: Array, sigma: float) -> Array:
    return 1 / (1 + (distances(x, z) / sigma) ** 2)


def matern32(x: Array, z: Array, sigma: float) -> Array:
    t = np.sqrt(3) * distances(x, z) / sigma
    return (1 + t) * np.exp(-t)


def matern52(x: Array, z: Array, sigma: float) -> Array:
    t = np.sqrt(5) * distances(x, z) / sigma
    return (1 + t + t**2 / 3) * np.exp(-t)


def exponential_power(x: Array, z: Array, sigma: float, exponent: float) -> Array:
    return np.exp(-((distances(x, z) / sigma) ** exponent))


def neural_tangent(x: Array, z: Array, sigma: float, depth: int) -> Array:
    """The recursion of Jacot et al. (2018) for ReLU, covariances kept as they are."""
    x = np.hstack([x / sigma, np.ones((len(x), 1))])
    z = np.hstack([z / sigma, np.ones((len(z), 1))])
    covariance = x @ z.T
    lengths = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(z, axis=1)[None, :]
    tangent = covariance.copy()
    for _ in range(depth):
        theta = np.arccos(np.clip(covariance / lengths, -1, 1))
        covariance = lengths * (np.sin(theta) + (np.pi - theta) * np.cos(theta)) / np.pi
        tangent = tangent * (np.pi - theta) / np.pi + covariance
    return tangent


def levelled(K: Array, s: int, q: int) -> Array:
    """K_q over all points, the subsample being the first s."""
    sigma, V = np.linalg.eigh(K[:s, :s])
    sigma, V = sigma[::-1][:q], V[:, ::-1][:, :q]
    D = (1 - sigma[-1] / sigma) / sigma
    phi = K[:, :s]
    return K - phi @ V @ np.diag(D) @ V.T @ phi.T


def solution(K: Array, y: Array, ridge: float = 0.0) -> Array:
    return np.linalg.solve(K + ridge * np.eye(len(K)), y)


def projected_solution(
    K: Array, K_centres: Array, y: Array, ridge: float = 0.0, weight: Array | None = None
) -> Array:
    """alpha with (K^T W K + r K_ZZ) alpha = K^T W y, the least-squares one; K is K(X, Z)."""
    weighted = K if weight is None else weight[:, None] * K
    return np.linalg.lstsq(weighted.T @ K + ridge * K_centres, weighted.T @ y, rcond=None)[0]
