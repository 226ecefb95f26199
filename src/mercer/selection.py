"""Choosing the bandwidth from the data."""

from __future__ import annotations

import torch
from torch import Tensor

from mercer.kernels import Gaussian, squared_distances

# Pairs enough for a median; the same subsample size as the paper's.
MEDIAN_POINTS = 2_000


def median_bandwidth(x: Tensor, generator: torch.Generator) -> float:
    """The median distance between distinct points of a random subsample; 1 where there are none."""
    rows = torch.randperm(len(x), generator=generator)[:MEDIAN_POINTS].to(x.device)
    sample = x[rows]
    points = Gaussian().points(sample - sample.mean(0))
    d2 = squared_distances(points, points, same=True)  # (s, s)
    apart = d2[d2 > 0]
    return float(apart.median().sqrt()) if len(apart) else 1.0
