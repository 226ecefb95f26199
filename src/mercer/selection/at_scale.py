"""Bandwidth and ridge for many rows: what is best for few points may not be for many.

A setting is trained on ten thousand points with some of them as centres, by the equations of the
projected problem, and judged on other points.  The bandwidth goes on by halves as long as that helps,
since with more rows narrower kernels have neighbours enough, and is then refined.  One kernel matrix
gives the errors with several ridges.

Few centres keep a model from following noise, so the best ridge is smaller than with all rows as
centres: right where training has few centres, or stops when held-out rows say so, and too small
otherwise.  For the same reason smooth kernels look better than they are, so kernels are not compared
like this.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from mercer.method.normal_equations import NormalEquations
from mercer.operators.summation import pieces
from mercer.operators.workers import Workers, may_go_on
from mercer.selection.candidates import Candidate
from mercer.selection.trials import FINE_POINTS, JUDGED_ON, RIDGES, Trials, setting_of

# Points that a setting is trained on at most.
TRAINED_ON = 10_000
SCALE_POINTS = TRAINED_ON + JUDGED_ON
CENTRES = 800
# Rows of the kernel matrix at a time.
CHUNK = 2_048
# Bandwidths as multiples of the best so far: those tried first; a further one, as long as the narrowest
# is the best; and those beside the best.
FIRST_FACTORS = (1.0, 1 / 2)
FURTHER_FACTOR = 1 / 2
MOST_FURTHER = 4
BESIDE_FACTORS = (1 / math.sqrt(2), math.sqrt(2))
# Ridges as multiples of the best so far; where that is 0, the smallest are tried.
RIDGE_FACTORS = (1 / 9, 1 / 3, 1.0, 3.0)
SMALLEST_RIDGES = 3


def refined_at_scale(
    trials: Trials, best: Candidate, metric: Tensor | None, any_width: bool, any_ridge: bool
) -> Candidate:
    """With its bandwidth and ridge chosen for many rows, as far as they are open.

    Settings whose weights would be too large for the precision of training are passed over.
    """
    found: list[Candidate] = []

    def lowest() -> Candidate:
        return min(found, key=lambda c: c.rank, default=best)

    def judge(*factors: float) -> None:
        around = lowest()
        settings = [replace(around, bandwidth=f * around.bandwidth) for f in factors]
        found.extend(_judged(trials, settings, metric, any_ridge))

    if not any_width:
        judge(1.0)
        return _first_reachable(trials, found, metric)
    judge(*FIRST_FACTORS)
    for _ in range(MOST_FURTHER):
        if lowest().bandwidth > min(c.bandwidth for c in found):
            break
        judge(FURTHER_FACTOR)
    judge(*BESIDE_FACTORS)
    return _first_reachable(trials, found, metric)


def _judged(
    trials: Trials, settings: Sequence[Candidate], metric: Tensor | None, any_ridge: bool
) -> list[Candidate]:
    """Each setting with several ridges; a core takes whole settings."""
    found: list[list[Candidate]] = [[] for _ in settings]

    def work(i: int, worker: int) -> None:
        found[i] = judge_on_others(trials, settings[i], metric, any_ridge)

    trials.workers.run(work, len(settings))
    judged = [candidate for each in found for candidate in each]
    trials.add(judged)
    return judged


def judge_on_others(
    trials: Trials, setting: Candidate, metric: Tensor | None, any_ridge: bool
) -> list[Candidate]:
    """The setting with each ridge, trained on the first points and judged on the rest."""
    count, n = len(trials.all_y), trials.n_learning
    w = trials.weights(count)[:, None]  # (s, 1)
    y = trials.all_y - (w[:n] * trials.all_y[:n]).sum(0) / w[:n].sum()  # (s, l)
    kernel = trials.kernels[setting.kernel](setting.bandwidth)
    variant = trials.variants[setting.features]
    points = variant.points(kernel, slice(0, count), metric, torch.float32)
    z = points[:CENTRES]
    equations = NormalEquations(len(z), y.shape[1], Workers(1), torch.device("cpu"))
    for rows in pieces(0, n, CHUNK):
        may_go_on()
        equations.add(kernel.block(z, points[rows]), y[rows], w[rows])
    equations.complete()
    K = kernel.block(z, z, same=True).double()  # (p, p)
    ridges: tuple[float, ...] = (setting.ridge,)
    if any_ridge and setting.ridge:
        ridges = tuple(f * setting.ridge for f in RIDGE_FACTORS)
    elif any_ridge:
        ridges = tuple(r * float(K.diagonal().mean()) for r in RIDGES[:SMALLEST_RIDGES])
    may_go_on()
    alphas = equations.solve_each(K, ridges, torch.finfo(torch.float32).eps)  # (p, l) each
    may_go_on()
    others, w, y = kernel.block(points[n:], z), w[n:], y[n:]  # (s - n, p), (s - n, 1), (s - n, l)
    variance = float((w * y.square()).mean()) or 1.0
    found = []
    for ridge, alpha in zip(ridges, alphas, strict=True):
        squares = (w * (others @ alpha.float() - y).square()).mean(1) / variance  # (s - n,)
        loss = float(squares.mean())
        found.append(replace(setting, ridge=ridge, loss=loss, n_points=n, left_out="rows"))
        trials.squares[found[-1]] = squares
    return found


def _first_reachable(trials: Trials, found: list[Candidate], metric: Tensor | None) -> Candidate:
    """The best one that training can carry; leaving one out shows the size of the weights."""
    ranked = sorted(found, key=lambda c: c.rank)
    too_small: dict[float, float] = {}  # the ridge for a bandwidth: smaller ones have larger weights
    for candidate in ranked:
        if candidate.ridge <= too_small.get(candidate.bandwidth, -1.0):
            continue
        setting = setting_of(candidate, ridge=candidate.ridge)
        [left_out] = trials.measure([setting], FINE_POINTS, metric, candidate.metric_steps)
        trials.errors[candidate] = trials.errors[left_out]
        if left_out.reachable:
            return candidate
        too_small[candidate.bandwidth] = candidate.ridge
    return ranked[0]
