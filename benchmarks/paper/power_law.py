"""Fits of a power law, t ~ x^p."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def exponent(x: Sequence[float], t: Sequence[float]) -> float:
    """p by least squares on the logarithms; NaN for fewer than two points.

    >>> round(exponent([1, 10, 100], [2, 200, 20_000]), 6)
    2.0
    """
    if len(x) < 2:
        return math.nan
    return float(np.polyfit(np.log(x), np.log(t), 1)[0])
