"""Conformal prediction: intervals and sets with a stated coverage, from rows that were not trained on.

The scores of m such rows say how large that of a new row will be.  If all m + 1 rows are exchangeable,
the score of the new one is at most the k-th smallest of the m with probability k / (m + 1) or more.
With the smallest k for which this is at least the coverage asked for, the values whose score is not
larger form the interval or the set (Vovk, Gammerman and Shafer 2005; Lei et al. 2018).

- A number: the residual divided by its expected size, with a quantile for each side.
- A class: the probability of all classes that are more probable (adaptive sets, Romano, Sesia and
  Candès 2020).  That of the most probable class is 0, so no set is empty.
- Any row: how near it is to the training data (Bates et al. 2023).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
# Shares of rows are whole numbers of rows but for rounding error of this size.
COUNT_ROUNDING = 1e-12


def check_share(value: Any, name: str) -> float:
    """A share strictly between 0 and 1."""
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not is_number or not 0 < value < 1:
        raise ValueError(f"`{name}` must be a number between 0 and 1, such as 0.9. Got {value!r}.")
    return float(value)


def fewest_rows(coverage: float, sides: int = 1) -> int:
    """Rows that calibration needs for this coverage.

    >>> fewest_rows(0.9), fewest_rows(0.9, sides=2)
    (9, 19)
    """
    missed = (1 - coverage) / sides
    return math.ceil((1 - missed) / missed * (1 - COUNT_ROUNDING))


def conformal_quantile(scores: Array, weights: Array, coverage: float) -> float:
    """The smallest score that a new row exceeds with probability 1 - coverage at most; may be infinite.

    Scores and weights are (m,); the new row counts as one more, of weight 1.

    >>> conformal_quantile(np.arange(1.0, 10.0), np.ones(9), 0.9)
    9.0
    """
    order = np.argsort(scores, kind="stable")
    reached = np.cumsum(weights[order])  # (m,)
    needed = coverage * (weights.sum() + 1)
    place = int(np.searchsorted(reached, needed * (1 - COUNT_ROUNDING)))
    return float(scores[order[place]]) if place < len(scores) else math.inf


def interval_bounds(scores: Array, weights: Array, coverage: float) -> tuple[Array, Array]:
    """The lower and the upper quantile of each column of scores, (m, l), that enclose the coverage."""
    side = (1 + coverage) / 2
    upper = [conformal_quantile(column, weights, side) for column in scores.T]
    lower = [-conformal_quantile(-column, weights, side) for column in scores.T]
    return np.array(lower), np.array(upper)


def mass_above(probabilities: Array) -> Array:
    """For each class, the probability of all classes that are more probable, (m, n_classes)."""
    order = np.argsort(-probabilities, axis=1, kind="stable")
    ranked = np.take_along_axis(probabilities, order, 1)
    before = np.cumsum(ranked, axis=1) - ranked  # (m, n_classes)
    before[:, 0] = 0.0  # rounding
    found: Array = np.empty_like(before)
    np.put_along_axis(found, order, before, 1)
    return found


def tail_share(values: Array, weights: Array, new: Array) -> Array:
    """The share of rows with at most each new value, itself counted as one more row, (m,)."""
    order = np.argsort(values, kind="stable")
    reached = np.concatenate([[0.0], np.cumsum(weights[order])])
    below = reached[np.searchsorted(values[order], new, side="right")]
    return np.asarray((below + 1) / (weights.sum() + 1))
