"""Learning which features matter from many rows: a diagonal metric for a model with some centres.

A metric that is best for a model of a few hundred points is not the best for one of many.  So each step
draws thousands of rows X with weights W, the first p of them as centres Z, solves the projected problem,
and descends on its error on other rows J.  With

    A = K_ZX W K_XZ + r K_ZZ,    alpha = A^-1 K_ZX W y,    e = K_JZ alpha - y_J,    g = 2 W_J e / |e|,

|e| the number of errors, the loss is the mean of w e².  With v = A^-1 K_ZJ g, its gradients are

    in K_JZ    g alpha^T
    in K_XZ    W (y - K_XZ alpha) v^T - W K_XZ v alpha^T
    in K_ZZ    -r v alpha^T
    in r       -sum of v times K_ZZ alpha,

all of low rank, so a step costs about three evaluations of the kernel values.  Every step draws other
rows: the metric is not fitted to a few of them, and the steps become shorter since gradients vary.  Rows
that no step has seen judge whether the result is better than the metric of few points, or none.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from mercer.data.points import Points
from mercer.kernels.base import Kernel
from mercer.operators.summation import pieces
from mercer.operators.workers import Workers, may_go_on
from mercer.selection.adam import Adam
from mercer.selection.at_scale import judge_on_others
from mercer.selection.candidates import Candidate
from mercer.selection.metric import in_weights
from mercer.selection.trials import Trials
from mercer.selection.variants import Variant

# Rows of a step to train on, and as many to judge; some of the former are centres.
STEP_ROWS = 3_000
STEP_CENTRES = 500
STEPS = 16
# Of the first step; the others are shorter and shorter.
FIRST_RATE = 0.3
# The smallest ridge while descending, and the jitter of A in units of its mean diagonal element.
LEAST_RIDGE = 1e-4
GRAM_JITTER = 1e-7
# Rows that a core evaluates at a time.
PIECE = 1_000


def with_metric_of_many(
    trials: Trials, best: Candidate, metric: Tensor | None, ridge_is_given: bool
) -> tuple[Candidate, Tensor | None]:
    """The setting with a metric learned from many rows, if that is better than the one it has.

    Where it has none, the metric must be clearly better.  The ridge stays as it is, and is to be chosen
    anew.
    """
    if not (trials.are_many and trials.can_learn(best)):
        return best, metric
    weights, ridge = learn_from_many(trials, best, metric, ridge_is_given)
    tries = [
        (best, metric),
        (replace(best, ridge=ridge, metric_steps=best.metric_steps + STEPS), weights),
    ]
    found: list[Candidate] = [best, best]

    def work(i: int, worker: int) -> None:
        judged = judge_on_others(trials, *tries[i], any_ridge=not ridge_is_given)
        found[i] = min(judged, key=lambda c: c.rank)

    trials.workers.run(work, len(tries))
    trials.add(found)
    before, after = found
    better = trials.is_worth_having(after, before) if metric is None else after.rank < before.rank
    if not better:
        return best, metric
    return replace(best, loss=after.loss, metric_steps=after.metric_steps), weights


def learn_from_many(
    trials: Trials, best: Candidate, metric: Tensor | None, ridge_is_given: bool
) -> tuple[Tensor, float]:
    """The weights of blocks after all steps, and the ridge that descended with them.

    The first step begins with the metric that the setting has, if any.
    """
    variant = trials.variants[best.features]
    kernel = trials.kernels[best.kernel](best.bandwidth)
    n = trials.n_learning
    y, w = trials.all_y[:n], trials.weights(len(trials.all_y))[:n, None]  # (n, l), (n, 1)
    if metric is None:
        metric = torch.ones(variant.n_blocks, dtype=torch.float64)
    adam = Adam(metric, max(best.ridge, LEAST_RIDGE))
    generator = torch.Generator().manual_seed(0)
    count = min(STEP_ROWS, n // 2)
    for step in range(STEPS):
        may_go_on()
        rows = torch.randperm(n, generator=generator)[: 2 * count]
        gradient = projected_gradient(
            variant, kernel, adam.weights, adam.ridge, rows, y[rows], w[rows], trials.workers
        )
        if not adam.step(gradient, FIRST_RATE * (1 - step / STEPS)):
            break
        if ridge_is_given or adam.ridge < LEAST_RIDGE:
            adam.ridge = max(best.ridge if ridge_is_given else 0.0, LEAST_RIDGE)
    return adam.weights, best.ridge if ridge_is_given else adam.ridge


def projected_gradient(
    variant: Variant,
    kernel: Kernel,
    weights: Tensor,
    ridge: float,
    rows: Tensor,
    y: Tensor,
    w: Tensor,
    workers: Workers,
) -> Tensor:
    """Derivatives of the loss in the logarithms of weights and ridge, (blocks + 1,).

    The first half of the rows, with targets y, (2 n, l), and weights w, (2 n, 1), is trained on, and the
    other half judges.  Kernel values are in single precision, sums in double.
    """
    n = len(rows) // 2
    y = y - (w[:n] * y[:n]).sum(0) / w[:n].sum()
    points = variant.points(kernel, rows, weights, torch.float32)
    z = points[: min(STEP_CENTRES, n)]
    training, judging = pieces(0, n, PIECE), pieces(n, len(rows), PIECE)
    parts = [*training, *judging]
    K = [torch.zeros(0)] * len(parts)  # (R, p) each
    A = [torch.zeros(0)] * len(training)  # (p, p) each
    b = [torch.zeros(0)] * len(training)  # (p, l) each

    def evaluate(i: int, worker: int) -> None:
        K[i] = kernel.block(points[parts[i]], z)
        if i < len(training):
            exact = K[i].double()
            A[i] = exact.T @ (w[parts[i]] * exact)
            b[i] = exact.T @ (w[parts[i]] * y[parts[i]])

    workers.run(evaluate, len(parts))
    K_zz = kernel.block(z, z, same=True)  # (p, p)
    total = sum(A[1:], A[0]) + ridge * K_zz.double()
    total.diagonal().add_(GRAM_JITTER * float(total.diagonal().mean()))
    factor, failed = torch.linalg.cholesky_ex(total)
    if bool(failed):
        return torch.full((variant.n_blocks + 1,), math.nan, dtype=torch.float64)
    alpha = torch.cholesky_solve(sum(b[1:], b[0]), factor)  # (p, l)
    g = torch.zeros_like(y[n:])  # (n, l)
    back = [torch.zeros(0)] * len(judging)  # (p, l) each

    def judge(i: int, worker: int) -> None:
        rows, exact = judging[i], K[len(training) + i].double()
        own = g[rows.start - n : rows.stop - n]  # (R, l)
        own[:] = 2 * w[rows] * (exact @ alpha - y[rows]) / g.numel()
        back[i] = exact.T @ own

    workers.run(judge, len(judging))
    v = torch.cholesky_solve(sum(back[1:], back[0]), factor)  # (p, l)
    found = [torch.zeros(0)] * len(parts)  # (blocks,) each
    alpha_t, v_t = alpha.T.float(), v.T.float()  # (l, p)

    def descend(i: int, worker: int) -> None:
        rows = parts[i]
        if i < len(training):
            exact = K[i].double()
            residual = w[rows] * (y[rows] - exact @ alpha)  # (R, l)
            H = residual.float() @ v_t  # (R, p)
            H.addmm_((w[rows] * (exact @ v)).float(), alpha_t, alpha=-1)
        else:
            H = g[rows.start - n : rows.stop - n].float() @ alpha_t
        found[i] = _in_logs(H, K[i], kernel, points[rows], z, variant)

    workers.run(descend, len(parts))
    of_centres = _in_logs(-ridge * (v_t.T @ alpha_t), K_zz, kernel, z, z, variant)
    in_ridge = -ridge * (v * (K_zz.double() @ alpha)).sum()
    return torch.cat([sum(found, of_centres), in_ridge[None]])


def _in_logs(H: Tensor, K: Tensor, kernel: Kernel, a: Points, b: Points, variant: Variant) -> Tensor:
    """From the gradient in kernel values to that in the logarithms of weights, (blocks,)."""
    slopes = kernel.slope(K)
    assert slopes is not None
    return in_weights(H.mul_(slopes).neg_(), a, b, variant)  # dk = -slope d(distance)
