"""Conjugate epochs: the weights of three epochs, combined into better ones.

An epoch brings weights nearer to the solution, but hardly along directions of small eigenvalues.  With u
the weights at its end, u_1 those that it began with and u_2 those that the epoch before began with, the
combination

    u + a (u - u_1) + b (u - u_2)

with the lowest objective J(f) = sum_i w_i (f(x_i) - y_i)^2 + r ||f||^2 is a step of conjugate gradients,
with an epoch as the preconditioner.  It is found by a line search along u - u_1, and another one along
u - u_2, made conjugate to the first.  Every output has a and b of its own.

Sums over rows are estimated on a sample of them, the rows that are watched.  Fitting k numbers to its
noise lowers the sum of squares by k times their mean, so a direction is taken only where J falls by
twice that (Mallows' C_p).
What is linear in the weights can be combined in the same way: values, residuals, gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# Rows of the sample: one of so many, between these bounds.
WATCHED_SHARE = 16
FEWEST_WATCHED = 2_048
MOST_WATCHED = 16_384
# Earlier weights that are combined with the last ones.
N_EARLIER = 2
# The fall of J for a direction, in units of what the noise of the sample would bring.
WORTH_TAKING = 2.0
# In units of a difference of weights.  Where training has converged, differences are rounding error, and
# line searches along them lead anywhere.
FARTHEST = 30.0


def n_watched(n: int) -> int:
    """Rows of the sample, of n."""
    return min(n, max(FEWEST_WATCHED, min(MOST_WATCHED, n // WATCHED_SHARE)))


def watched_rows(n: int, p: int, at_hand: int | None = None) -> tuple[slice, slice]:
    """Rows of the sample: some of the first p, and the last of those `at_hand`, by default all n.

    The first p may be the centres, which are fitted better than other rows, so each kind has its share.
    """
    at_hand = n if at_hand is None else at_hand
    size = min(n_watched(n), at_hand)
    if p < min(n, at_hand):
        size = min(size, int((at_hand - p) / (1 - p / n)))
        of_centres = min(p, round(size * p / n))
    else:
        of_centres = size
    return slice(p - of_centres, p), slice(at_hand - (size - of_centres), at_hand)


class Reached(NamedTuple):
    """Weights on p centres, and the function they make."""

    f: Tensor  # (w, l)  on the sample
    weights: Tensor  # (p, l)
    values: Tensor  # (p, l)  on the centres


def coefficients(
    last: Reached,
    earlier: Sequence[Reached],
    y: Tensor,
    weight: Tensor | None,
    scale: float,
    ridge: float,
) -> list[Tensor]:
    """For each of the earlier weights u_j a row c_j, (l,): the best are u + sum_j c_j (u - u_j).

    y, (w, l), are targets of the sample and `weight`, (w, 1), the weights of its rows, each of which
    stands for `scale` rows.
    """

    def product(one: Reached, other: Reached) -> Tensor:
        """That of J's second derivative, (l,)."""
        f = one.f if weight is None else one.f * weight
        # `values` are those that projections approach, so the two are not quite symmetric.
        norm = one.weights * other.values + other.weights * one.values
        return scale * (f * other.f).sum(0) + ridge / 2 * norm.sum(0)

    # Laid out in one way, so that sums round alike.
    last, *others = (Reached(*(t.double().contiguous() for t in u)) for u in (last, *earlier))
    error = last._replace(f=last.f - y)
    squares = error.f.square() if weight is None else error.f.square() * weight
    noise = scale * squares.mean(0)  # (l,)  the fall of J that noise brings
    found = [torch.zeros_like(noise) for _ in others]
    # Conjugate directions, their curvatures, and their parts: a row for each of the earlier weights.
    directions: list[tuple[Reached, Tensor, list[Tensor]]] = []
    for j, reached in enumerate(others):
        d = Reached(*(a - b for a, b in zip(last, reached, strict=True)))
        parts = [torch.full_like(noise, float(i == j)) for i in range(len(others))]
        for before, curvature, of in directions:
            share = _ratio(product(d, before), curvature)
            d = Reached(*(a - share * b for a, b in zip(d, before, strict=True)))
            parts = [a - share * b for a, b in zip(parts, of, strict=True)]
        slope, curvature = product(error, d), product(d, d)
        step = -_ratio(slope, curvature)  # (l,)
        taken = (-step * slope > WORTH_TAKING * noise) & (step.abs() <= FARTHEST)
        step = torch.where(taken, step, 0.0)
        found = [c + step * part for c, part in zip(found, parts, strict=True)]
        directions.append((d, curvature, parts))
    return found


def combine_(last: Tensor, earlier: Sequence[Tensor], found: Sequence[Tensor]) -> None:
    """last + sum_j c_j (last - earlier_j), in place."""
    last.mul_((1 + torch.stack(list(found)).sum(0)).to(last))
    for other, c in zip(earlier, found, strict=True):
        last.addcmul_(other, c.to(last).expand_as(other), value=-1)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is not positive: a direction that is none."""
    return torch.where(b > 0, a / b.clamp(min=torch.finfo(b.dtype).tiny), 0.0)
