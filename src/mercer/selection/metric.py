"""Learning which features matter: a diagonal metric that lowers the leave-one-out error.

Every block of features has a weight.  With A = K + r I, B = A^-1, alpha = B y and the leave-one-out
errors e = alpha / diag(B), the gradient of the mean of e² in A is a matrix,

    G = -(B g alpha^T + B diag(h) B),    g = 2 e / (s diag(B)),    h = -2 e² / (s diag(B)),

so the derivatives in all weights and in r together cost about one more inverse.  A few steps of Adam
(Kingma and Ba, 2015) are taken on the logarithms of weights and ridge.

Half of the points are descended on, and the other half judges how many steps were worth taking: on its
own points, any metric looks better than none.  The result is the geometric mean of what both halves
learned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mercer.kernels.base import Kernel
from mercer.method.direct import JITTER
from mercer.selection.leave_one_out import leave_one_out_once
from mercer.selection.variants import Variant

# Points of a half, and how many of them each weight needs; with fewer, nothing is learned.
HALF_POINTS = 800
POINTS_PER_WEIGHT = 10
# Steps after which the other half judges.
JUDGED_STEPS = (2, 4, 8, 16)
# Adam on logarithms: the rate is the largest change of a logarithm in one step, about.
RATE = 0.4
FIRST_MOMENT = 0.8
SECOND_MOMENT = 0.95
# The smallest ridge while descending in single precision.
SMALLEST_RIDGE = 1e-3


@dataclass(frozen=True)
class Half:
    """Some of the points, their centred targets, and the roots of the weights of rows."""

    rows: slice
    y: Tensor  # (s, l)
    root: Tensor  # (s, 1)

    def squares(self, variant: Variant, kernel: Kernel, weights: Tensor | None, ridge: float) -> Tensor:
        """Squared leave-one-out errors of this half with a metric, (s,)."""
        points = variant.points(kernel, self.rows, weights)
        K = kernel.block(points, points, same=True)
        return leave_one_out_once(K.mul_(self.root).mul_(self.root.T), self.root * self.y, ridge).squares


@dataclass(frozen=True)
class Learned:
    """The metric after some steps on one half, and the errors it makes on the other."""

    weights: Tensor | None  # (blocks,)  None: no metric
    ridge: float
    squares: Tensor  # (s,)


def learn(
    variant: Variant,
    kernel: Kernel,
    ridge: float,
    half: Half,
    judge: Half,
    judged: Sequence[int],
    *,
    ridge_is_given: bool = False,
) -> list[Learned]:
    """No metric first, then what was learned after each of the judged steps.

    A ridge too small for single precision stays as it is.
    """
    found = [Learned(None, ridge, judge.squares(variant, kernel, None, ridge))]
    logs = torch.zeros(variant.n_blocks + 1, dtype=torch.float64)  # of the weights, and of the ridge
    logs[-1] = math.log(max(ridge, SMALLEST_RIDGE))
    first, second = torch.zeros_like(logs), torch.zeros_like(logs)
    for step in range(1, max(judged) + 1):
        gradient = loss_gradient(variant, kernel, logs[:-1].exp(), float(logs[-1].exp()), half)
        if not bool(torch.isfinite(gradient).all()):
            break
        first = FIRST_MOMENT * first + (1 - FIRST_MOMENT) * gradient
        second = SECOND_MOMENT * second + (1 - SECOND_MOMENT) * gradient.square()
        size = (second / (1 - SECOND_MOMENT**step)).sqrt()  # (blocks + 1,)
        size = size.clamp_(min=torch.finfo(size.dtype).tiny)
        logs = logs - RATE * first / (1 - FIRST_MOMENT**step) / size
        logs[-1].clamp_(min=math.log(SMALLEST_RIDGE))
        if ridge_is_given:
            logs[-1] = math.log(max(ridge, SMALLEST_RIDGE))
        if step in judged:
            weights, r = logs[:-1].exp(), float(logs[-1].exp())
            if r < 2 * SMALLEST_RIDGE:
                r = min(r, ridge)
            if ridge_is_given:
                r = ridge
            found.append(Learned(weights, r, judge.squares(variant, kernel, weights, r)))
    # What the ridge alone would bring is no merit of the metric.
    plain = Learned(None, found[-1].ridge, judge.squares(variant, kernel, None, found[-1].ridge))
    return [min(found[0], plain, key=lambda one: float(one.squares.mean())), *found[1:]]


def loss_gradient(variant: Variant, kernel: Kernel, weights: Tensor, ridge: float, half: Half) -> Tensor:
    """Derivatives of the leave-one-out loss in the logarithms of weights and ridge, (blocks + 1,).

    In single precision, which is enough for a direction and takes half the time.
    """
    points = variant.points(kernel, half.rows, weights, torch.float32)
    root, y = half.root.float(), half.y.float()
    K = kernel.block(points, points, same=True)  # (s, s)
    slopes = kernel.slope(K)
    assert slopes is not None
    factor, failed = torch.linalg.cholesky_ex(_plus_ridge(root * K * root.T, ridge))
    if bool(failed):
        return torch.full((variant.n_blocks + 1,), math.nan, dtype=torch.float64)
    B = torch.cholesky_inverse(factor)  # (s, s)
    alpha, diagonal = B @ (root * y), B.diagonal()[:, None]  # (s, l), (s, 1)
    e = alpha / diagonal
    g, h = 2 * e / diagonal / e.numel(), (-2 * e.square() / diagonal / e.numel()).sum(1)
    G = (B @ g) @ alpha.T  # (s, s)
    G.addmm_(B * h, B).neg_()
    in_ridge = float(G.diagonal().sum()) * ridge
    # In the kernel matrix, and from there in the distances: dk = -slope d(distance).
    H = G.mul_(root).mul_(root.T).mul_(slopes).neg_()  # (s, s)
    sums = H.sum(0) + H.sum(1)  # (s,)
    in_weights = torch.zeros(variant.n_blocks, dtype=torch.float64)
    n_absolute = points.n_absolute
    larger = torch.empty_like(H)
    for j, z_j in enumerate(points.by_feature):  # sum_ik H_ik |z_i - z_k| = 2 sum_ik H_ik max - ...
        torch.maximum(z_j[:, None], z_j[None, :], out=larger)
        in_weights[j] = float(2 * torch.dot(H.view(-1), larger.view(-1)) - sums @ z_j)
    z = points.by_squares  # (s, w - n_absolute)
    squares = sums @ z.square() - 2 * (z * (H @ z)).sum(0)  # sum_ik H_ik (z_i - z_k)²
    in_weights.index_add_(0, variant.blocks[n_absolute:], squares.double())
    return torch.cat([in_weights, torch.tensor([in_ridge], dtype=torch.float64)])


def _plus_ridge(K: Tensor, ridge: float) -> Tensor:
    K.diagonal().add_(max(ridge, JITTER))
    return K


def halves(y: Tensor, weights: Tensor, most: int) -> tuple[Half, Half]:
    """The first points, (s, l), in two parts of at most so many."""
    h = min(most, len(y) // 2)

    def part(rows: slice) -> Half:
        w = weights[rows, None]
        return Half(rows, y[rows] - (w * y[rows]).sum(0) / w.sum(), w.sqrt())

    return part(slice(0, h)), part(slice(h, 2 * h))


def joined(one: Learned, other: Learned) -> tuple[Tensor | None, float]:
    """One metric and ridge from both halves: the geometric means."""
    ridge = one.ridge if one.ridge == other.ridge else math.sqrt(one.ridge * other.ridge)
    if one.weights is None or other.weights is None:
        return None, ridge
    return (one.weights * other.weights).sqrt(), ridge
