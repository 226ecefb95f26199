"""Which rows the search sees, and what each of them stands for.

Rows that are equal in every feature are one point, with the mean of their targets and the sum of their
weights.  Otherwise the error of leaving one out would be that of having its copy.  The order of points
depends on what they are, and not on where their rows stand, so a row given twice is a row with weight 2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mercer.data.rows import Array, Matrix, take

# Share of the sample that rare classes get at least, all together: with fewer rows a class is not seen.
FEWEST_SHARE = 0.2
# Up to this many times as many rows as points are wanted, and at most so many, all are merged before
# points are drawn.
MERGED_FACTOR = 5
MOST_MERGED = 22_500


def in_even_order(rows: Array, labels: Array | None) -> Array:
    """The rows, so that every class has its share of any first part, and a rare class more than that.

    `labels` are those of the rows.
    """
    if labels is None:
        return rows
    _, labels, counts = np.unique(labels, return_inverse=True, return_counts=True)
    rates = np.maximum(counts / len(rows), FEWEST_SHARE / len(counts))  # (c,)
    order = np.argsort(labels, kind="stable")
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    place = np.empty(len(rows))  # of each row within its class
    place[order] = np.arange(len(rows)) - np.repeat(first, counts)
    found: Array = rows[np.argsort((place + 0.5) / rates[labels], kind="stable")]
    return found


def row_weights(sample: Array, rows: Array, strata: Array | None, sample_weight: Array | None) -> Tensor:
    """Weights of the rows of a sample that give every class the share that it has of all `rows`."""
    if sample_weight is None:
        weights, all_weights = np.ones(len(sample)), np.ones(len(rows))
    else:
        weights, all_weights = sample_weight[sample], sample_weight[rows]
    if strata is not None:
        classes, labels = np.unique(strata[rows], return_inverse=True)
        share = np.bincount(labels, all_weights) / all_weights.sum()  # (c,)
        labels = np.searchsorted(classes, strata[sample])
        seen = np.bincount(labels, weights, minlength=len(classes)) / weights.sum()  # (c,)
        weights = weights * share[labels] / seen[labels]
    return torch.from_numpy(np.asarray(weights, dtype=np.float64))


@dataclass(frozen=True)
class Sample:
    """Points of the search, with weights that make any first part of them stand for all rows."""

    rows: Array  # (m,)  the rows that were drawn
    groups: Tensor  # (m,)  the point that each of them is a copy of
    x: Tensor  # (s, d)  the features of the points
    y: Tensor  # (s, l)
    training: Array  # (n,)  the rows that the sample stands for
    strata: Array | None
    sample_weight: Array | None

    @classmethod
    def draw(
        cls,
        x: Matrix,
        Y: Array,
        rows: Array,
        count: int,
        strata: Array | None = None,
        sample_weight: Array | None = None,
    ) -> Sample:
        """At most `count` points from the rows, which are in random order."""
        drawn = rows
        if len(rows) > max(count, min(MERGED_FACTOR * count, MOST_MERGED)):
            drawn = in_even_order(rows, None if strata is None else strata[rows])[:count]
        features = take(x, drawn)  # (m, d)
        first, groups = _merged(features.to("cpu", torch.float64).numpy())
        order = np.random.default_rng(0).permutation(len(first))
        if strata is not None:
            classes = np.unique(strata[drawn], return_inverse=True)[1]  # (m,)
            labels = np.full(len(first), classes.max())  # (s,)  the first class that a point has
            np.minimum.at(labels, groups, classes)
            order = in_even_order(order, labels[order])
        order = order[:count]
        place = np.full(len(first), len(order))
        place[order] = np.arange(len(order))
        kept = place[groups] < len(order)
        drawn, of_points = drawn[kept], torch.from_numpy(place[groups[kept]])
        empty = torch.zeros(0, Y.shape[1], dtype=torch.float64)
        points = features[torch.from_numpy(first[order]).to(features.device)]
        found = cls(drawn, of_points, points, empty, rows, strata, sample_weight)
        weights = row_weights(drawn, rows, strata, sample_weight)[:, None]  # (m, 1)
        sums = torch.zeros(len(order), Y.shape[1], dtype=torch.float64)
        sums.index_add_(0, of_points, weights * torch.from_numpy(Y[drawn]).double())
        return replace(found, y=sums / found.weights(len(order))[:, None])

    def weights(self, count: int) -> Tensor:
        """Of the first points, (count,)."""
        drawn = self.groups < count
        weights = row_weights(self.rows[drawn.numpy()], self.training, self.strata, self.sample_weight)
        return torch.zeros(count, dtype=torch.float64).index_add_(0, self.groups[drawn], weights)


def _merged(features: Array) -> tuple[Array, Array]:
    """The first of the rows that are equal to it, in an order of their values, and the group of each."""
    rows = np.ascontiguousarray(features + 0.0)  # -0 is 0
    bytes_ = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1])))[:, 0]
    _, first, groups = np.unique(bytes_, return_index=True, return_inverse=True)
    return first, groups
