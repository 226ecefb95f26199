"""Which rows the search sees, and what each of them stands for.

Rows that are equal in every feature are one point, with the mean of their targets and the sum of their
weights.  Otherwise the error of leaving one out would be that of having its copy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mercer.data.rows import Array, Matrix, take

# Share of the sample that rare classes get at least, all together: with fewer rows a class is not seen.
FEWEST_SHARE = 0.2


def in_even_order(rows: Array, strata: Array | None) -> Array:
    """The rows, so that every class has its share of any first part, and a rare class more than that."""
    if strata is None:
        return rows
    _, labels, counts = np.unique(strata[rows], return_inverse=True, return_counts=True)
    rates = np.maximum(counts / len(rows), FEWEST_SHARE / len(counts))  # (c,)
    order = np.argsort(labels, kind="stable")
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    place = np.empty(len(rows))  # of each row within its class
    place[order] = np.arange(len(rows)) - np.repeat(first, counts)
    found: Array = rows[np.argsort((place + 0.5) / rates[labels], kind="stable")]
    return found


def row_weights(sample: Array, rows: Array, strata: Array | None, sample_weight: Array | None) -> Tensor:
    """How many of the `rows` each row of the sample stands for, 1 on average, times its own weight."""
    weights = np.ones(len(sample))
    if strata is not None:
        classes, counts = np.unique(strata[rows], return_counts=True)
        labels = np.searchsorted(classes, strata[sample])
        seen = np.bincount(labels, minlength=len(classes))
        weights = (counts[labels] / len(rows)) / (seen[labels] / len(sample))
    if sample_weight is not None:
        weights = weights * sample_weight[sample]
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
        """At most `count` of the rows, which are in random order."""
        drawn = in_even_order(rows, strata)[:count]
        features = take(x, drawn)  # (m, d)
        labels = torch.unique(features.to("cpu"), dim=0, return_inverse=True)[1].numpy()
        _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
        order = np.argsort(first)  # points by their first copy
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        groups = torch.from_numpy(place[inverse])
        empty = torch.zeros(0, Y.shape[1], dtype=torch.float64)
        points = features[torch.from_numpy(first[order]).to(features.device)]
        found = cls(drawn, groups, points, empty, rows, strata, sample_weight)
        weights = row_weights(drawn, rows, strata, sample_weight)[:, None]  # (m, 1)
        sums = torch.zeros(len(order), Y.shape[1], dtype=torch.float64)
        sums.index_add_(0, groups, weights * torch.from_numpy(Y[drawn]).double())
        return replace(found, y=sums / found.weights(len(order))[:, None])

    def weights(self, count: int) -> Tensor:
        """Of the first points, (count,)."""
        drawn = self.groups < count
        weights = row_weights(self.rows[drawn.numpy()], self.training, self.strata, self.sample_weight)
        return torch.zeros(count, dtype=torch.float64).index_add_(0, self.groups[drawn], weights)
