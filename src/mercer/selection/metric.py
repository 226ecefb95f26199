"""Learning which features matter: a diagonal metric that lowers the leave-one-out error.

Every block of features has a weight.  With A = K + r I, B = A^-1, alpha = B y and the leave-one-out
errors e = alpha / diag(B), the gradient of the mean of e² in A is a matrix,

    G = -(B g alpha^T + B diag(h) B),    g = 2 e / (s diag(B)),    h = -2 e² / (s diag(B)),

so the derivatives in all weights and in r together cost about one more inverse.  A few steps of Adam
are taken on the logarithms of weights and ridge.

Half of the points are descended on, and the other half judges how many steps were worth taking: on its
own points, any metric looks better than none.  The first steps are taken on some points of the half.
Those of the best settings continue on all of them, or begin anew where some were too few.  The result is
the geometric mean of what both halves learned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mercer.data.points import Points
from mercer.kernels.base import Kernel
from mercer.method.direct import JITTER
from mercer.operators.workers import may_go_on
from mercer.selection.adam import Adam
from mercer.selection.leave_one_out import leave_one_out_once
from mercer.selection.variants import Variant

# Points of a half, and how many of them each weight needs; with fewer, nothing is learned.
HALF_POINTS = 800
POINTS_PER_WEIGHT = 10
# Steps after which the other half judges.
JUDGED_STEPS = (2, 4, 8, 16)
RATE = 0.4
# The smallest ridge while descending in single precision.
SMALLEST_RIDGE = 1e-3
# Rows of the gradient in the kernel matrix that are computed at a time.
BLOCK_ROWS = 128


@dataclass(frozen=True)
class Half:
    """Some of the points, their centred targets, and the roots of the weights of rows."""

    rows: slice
    y: Tensor  # (s, l)
    root: Tensor  # (s, 1)

    def squares(
        self, variant: Variant, kernel: Kernel, weights: Tensor | None, ridges: Sequence[float]
    ) -> list[Tensor]:
        """Squared leave-one-out errors of this half with a metric and each ridge, (s,)."""
        points = variant.points(kernel, self.rows, weights)
        K = kernel.block(points, points, same=True).mul_(self.root).mul_(self.root.T)
        return [leave_one_out_once(K, self.root * self.y, ridge).squares for ridge in ridges]


@dataclass(frozen=True)
class Learned:
    """The metric after some steps on one half, and the errors it makes on the other."""

    weights: Tensor | None  # (blocks,)  None: no metric
    ridge: float
    squares: Tensor  # (s,)


class Descent:
    """The metric that one half of the points learns: steps on some of them, then on more."""

    def __init__(self, variant: Variant, kernel: Kernel, ridge: float, ridge_is_given: bool) -> None:
        self.variant, self.kernel = variant, kernel
        self.ridge, self.ridge_is_given = ridge, ridge_is_given
        self.passed: dict[int, tuple[Tensor, float]] = {}  # weights and ridge after so many steps
        self._points = 0  # of the half that the last steps were taken on
        self._judged: dict[tuple[int, int], Learned] = {}  # by steps, and the end of the judge's rows
        ones = torch.ones(variant.n_blocks, dtype=torch.float64)
        self._adam = Adam(ones, max(ridge, SMALLEST_RIDGE))

    def suits(self, half: Half) -> bool:
        """Whether steps on a half may follow those so far: they were on it, or on enough points."""
        return (
            self._points in (0, len(half.y)) or self._points >= self.variant.n_blocks * POINTS_PER_WEIGHT
        )

    def learn(self, half: Half, judge: Half, judged: Sequence[int]) -> list[Learned]:
        """No metric first, then what was learned after each of the judged steps.

        Further steps are taken on `half`.  A ridge too small for single precision stays as it is.
        """
        self._points = len(half.y)
        for step in range(len(self.passed) + 1, max(judged) + 1):
            may_go_on()
            if not self._step(step, half):
                break
        last = self.passed[max(self.passed)][1] if self.passed else self.ridge
        # What the ridge alone would bring is no merit of the metric.
        without = judge.squares(self.variant, self.kernel, None, (self.ridge, last))
        plain = [Learned(None, r, e) for r, e in zip((self.ridge, last), without, strict=True)]
        found = [min(plain, key=lambda one: float(one.squares.mean()))]
        for step in (step for step in judged if step in self.passed):
            weights, ridge = self.passed[step]
            if (step, judge.rows.stop) not in self._judged:
                [squares] = judge.squares(self.variant, self.kernel, weights, (ridge,))
                self._judged[step, judge.rows.stop] = Learned(weights, ridge, squares)
            found.append(self._judged[step, judge.rows.stop])
        return found

    def _step(self, step: int, half: Half) -> bool:
        """One step of Adam, unless the gradient is no number."""
        adam = self._adam
        gradient = loss_gradient(self.variant, self.kernel, adam.weights, adam.ridge, half)
        if not adam.step(gradient, RATE):
            return False
        if self.ridge_is_given or adam.ridge < SMALLEST_RIDGE:
            adam.ridge = max(self.ridge if self.ridge_is_given else 0.0, SMALLEST_RIDGE)
        ridge = adam.ridge
        if ridge < 2 * SMALLEST_RIDGE:
            ridge = min(ridge, self.ridge)
        self.passed[step] = (adam.weights, self.ridge if self.ridge_is_given else ridge)
        return True


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
    Bg, Bh = B @ g, B * h  # (s, l), (s, s)
    in_ridge = torch.zeros(())
    in_logs = torch.zeros(variant.n_blocks, dtype=torch.float64)
    # -G is symmetric once (B g alpha^T) is replaced by its symmetric part, which no derivative tells
    # apart.  So what is above the diagonal of blocks counts twice, and what is below is not computed.
    for first in range(0, len(B), BLOCK_ROWS):
        rows, rest = slice(first, min(first + BLOCK_ROWS, len(B))), slice(first, None)
        H = Bh[rows] @ B[:, rest]  # (b, t)
        H.addmm_(Bg[rows], alpha[rest].T, alpha=0.5).addmm_(alpha[rows], Bg[rest].T, alpha=0.5)
        in_ridge -= H.diagonal().sum()
        H[:, rows.stop - first :].mul_(2)
        # In the kernel matrix, and from there in the distances: dk = -slope d(distance).
        H.mul_(root[rows]).mul_(root[rest].T).mul_(slopes[rows, rest])
        in_logs += in_weights(H, points[rows], points[rest], variant)
    return torch.cat([in_logs, ridge * in_ridge.double()[None]])


def in_weights(H: Tensor, a: Points, b: Points, variant: Variant) -> Tensor:
    """sum_ik H_ik times the distance of a_i and b_k in each block of features, (blocks,)."""
    by_rows, by_columns = H.sum(1), H.sum(0)  # (b,), (t,)
    found = torch.zeros(variant.n_blocks, dtype=torch.float64)
    if a.n_absolute:  # |x - z| = 2 max(x, z) - x - z
        x, z = a.by_feature, b.by_feature  # (p, b), (p, t)
        larger, sums = torch.empty_like(H), torch.empty(len(x))  # (b, t), (p,)
        for j, (x_j, z_j) in enumerate(zip(x.unbind(), z.unbind(), strict=True)):
            torch.maximum(x_j[:, None], z_j, out=larger)
            torch.dot(H.view(-1), larger.view(-1), out=sums[j])
        found[: len(x)] = (2 * sums - x @ by_rows - z @ by_columns).double()
    x, z = a.by_squares, b.by_squares  # (b, w'), (t, w')
    squares = by_rows @ x.square() + by_columns @ z.square() - 2 * (x * (H @ z)).sum(0)  # (w',)
    return found.index_add_(0, variant.blocks[a.n_absolute :], squares.double())


def _plus_ridge(K: Tensor, ridge: float) -> Tensor:
    K.diagonal().add_(max(ridge, JITTER))
    return K


def halves(y: Tensor, weights: Tensor, most: int) -> tuple[Half, Half]:
    """At most so many points of each half of the first ones, (s, l): fewer are among more."""
    h = min(HALF_POINTS, len(y) // 2)

    def part(first: int) -> Half:
        rows = slice(first, first + min(most, h))
        w = weights[rows, None]
        return Half(rows, y[rows] - (w * y[rows]).sum(0) / w.sum(), w.sqrt())

    return part(0), part(h)


def joined(one: Learned, other: Learned) -> tuple[Tensor | None, float]:
    """One metric and ridge from both halves: the geometric means."""
    ridge = one.ridge if one.ridge == other.ridge else math.sqrt(one.ridge * other.ridge)
    if one.weights is None or other.weights is None:
        return None, ridge
    return (one.weights * other.weights).sqrt(), ridge
