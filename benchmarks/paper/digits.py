"""Deformed digits: elastic and affine deformations of MNIST, for training sets of up to 10^6 points.

The paper's MNIST with 10^6 points contains deformed copies.  The copies here are generated: each is
rotated, scaled, sheared and shifted a little, and its pixels are displaced by a smooth random field, as
in Simard, Steinkraus and Platt (2003).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, map_coordinates

Floats = NDArray[np.float32]
SIDE = 28
# Simard et al. 2003: displacements uniform in [-1, 1], smoothed by a Gaussian of 4 pixels, times 34.
SMOOTHNESS = 4.0
ELASTICITY = 34.0
# Within the variation of handwriting: larger changes would turn some digits into others.
LARGEST_ROTATION = np.deg2rad(10.0)
LARGEST_SCALE = 0.10
LARGEST_SHEAR = 0.10
LARGEST_SHIFT = 1.5  # pixels
CHUNK = 2_000
LEVELS = 255


def deformed(X: Floats, y: NDArray[Any], n: int, seed: int = 0) -> tuple[Floats, NDArray[Any]]:
    """The digits X, (m, 784), in [0, 1], followed by deformed copies of them, n rows in total."""
    rng = np.random.default_rng(seed)
    out = np.empty((n, SIDE * SIDE), dtype=np.float32)
    labels = np.empty(n, dtype=y.dtype)
    first = min(n, len(X))
    out[:first], labels[:first] = X[:first], y[:first]
    for start in range(first, n, CHUNK):
        rows = rng.integers(len(X), size=min(CHUNK, n - start))
        stop = start + len(rows)
        out[start:stop] = _deform(X[rows], rng)
        labels[start:stop] = y[rows]
    return out, labels


def _deform(X: Floats, rng: np.random.Generator) -> Floats:
    """A deformed copy of each row, (m, 784), rounded to 256 levels."""
    m = len(X)
    places = _affine(m, rng) + _elastic(m, rng)  # (2, m, 28, 28)
    number = np.broadcast_to(np.arange(m)[:, None, None], (m, SIDE, SIDE))
    where = np.concatenate([number[None], places])  # (3, m, 28, 28)
    images = map_coordinates(X.reshape(m, SIDE, SIDE), where, order=1, mode="constant")
    rounded = np.round(images.reshape(m, -1) * LEVELS) / LEVELS
    return np.asarray(rounded, dtype=np.float32)


def _affine(m: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Source coordinates of each pixel after rotation, scale, shear and shift, (2, m, 28, 28)."""
    angle = rng.uniform(-LARGEST_ROTATION, LARGEST_ROTATION, m)
    scale = 1 + rng.uniform(-LARGEST_SCALE, LARGEST_SCALE, (2, m))
    shear = rng.uniform(-LARGEST_SHEAR, LARGEST_SHEAR, m)
    cos, sin = np.cos(angle), np.sin(angle)
    matrix = np.array(
        [[cos * scale[0], -sin * scale[1] + shear], [sin * scale[0], cos * scale[1]]]
    )  # (2, 2, m)
    centre = (SIDE - 1) / 2
    grid = np.mgrid[:SIDE, :SIDE] - centre  # (2, 28, 28)
    shift = rng.uniform(-LARGEST_SHIFT, LARGEST_SHIFT, (2, m))
    found = np.einsum("abm,bij->amij", matrix, grid)
    return np.asarray(found + shift[:, :, None, None] + centre)


def _elastic(m: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Smooth random displacements, (2, m, 28, 28)."""
    noise = rng.uniform(-1, 1, (2, m, SIDE, SIDE))
    smooth = gaussian_filter(noise, (0, 0, SMOOTHNESS, SMOOTHNESS), mode="constant")
    return np.asarray(ELASTICITY * smooth)
