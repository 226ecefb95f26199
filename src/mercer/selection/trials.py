"""Trying settings: the error of each on points that did not make it, and what may still be the best.

A setting is tried by leaving out one point at a time, with a metric by learning it on one half of the
points and judging it on the other, and with many points by training on some and judging on the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from mercer.kernels import Kernel
from mercer.method.critical_batch import ROUNDING_IN_TARGETS
from mercer.method.direct import JITTER, solve
from mercer.operators.workers import Workers, may_go_on
from mercer.selection.candidates import Candidate, leaders
from mercer.selection.leave_one_out import LeaveOneOut, leave_one_out, leave_one_out_once
from mercer.selection.metric import HALF_POINTS, POINTS_PER_WEIGHT, Descent, Learned, halves, joined
from mercer.selection.variants import Variant

# Most points that a setting is tried on by leaving one out, where one inverse takes some 140 ms, and
# that the last comparison of kernels trains on.
FINE_POINTS = 2_000
# As many points are many.  The last of them judge what others have learned: so many, or this share.
MANY_POINTS = 4_500
JUDGED_ON = 3_000
JUDGED_SHARE = 0.25
# A setting stays in the race if its loss exceeds the lowest by at most this share, since losses change
# with the number of points, or by at most this many standard errors of the difference.
TOLERANCE = 0.1
STANDARD_ERRORS = 1.0
# A metric is taken if it lowers the loss by more than that error, and by more than this share.
WORTH_HAVING = 0.005
# Ridges tried, for kernels with k(x, x) = 1: from interpolation to almost ignoring a single point.
RIDGES = (0.0, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)
# Rounding error of f that a setting may cause, as a share of what training may carry: rows outside the
# sample add to it.
ROUNDING_SHARE_OF_TRAINING = 0.1


class Judged(NamedTuple):
    """A candidate with the metric that was best for it, if any."""

    candidate: Candidate
    metric: Tensor | None
    share: float  # of the loss without a metric


class Setting(NamedTuple):
    """One setting to try; with ridge None, all ridges are tried, or those beside the one it is near."""

    kernel: str
    features: str
    bandwidth: float
    ridge: float | None
    near: float | None = None


class Trials:
    """The settings tried so far, on points in random order with targets y, (s, l)."""

    def __init__(
        self,
        variants: dict[str, Variant],
        y: Tensor,
        weights: Callable[[int], Tensor],
        kernels: dict[str, Callable[[float], Kernel]],
        rounding: float,
        on_progress: Callable[[int], None],
        workers: Workers,
    ) -> None:
        self.variants = variants
        self.all_y = y.double()
        self.y = self.all_y[:FINE_POINTS]
        self.weights = weights
        self.kernels = kernels
        self.rounding = rounding
        self.on_progress = on_progress
        self.workers = workers
        self.tried: list[Candidate] = []
        self.squares: dict[Candidate, Tensor] = {}  # of the errors of each point
        self.errors: dict[Candidate, Tensor] = {}  # of settings tried alone
        self.descents: dict[tuple[Candidate, int], Descent] = {}  # of each half

    @property
    def are_many(self) -> bool:
        """Whether there are enough points for some of them to judge only."""
        return len(self.all_y) >= MANY_POINTS

    @property
    def n_learning(self) -> int:
        """Points that something is learned from for many rows; those after them judge it."""
        count = len(self.all_y)
        return count - min(JUDGED_ON, int(JUDGED_SHARE * count))

    def measure(
        self, settings: Sequence[Setting], points: int, metric: Tensor | None = None, steps: int = 0
    ) -> list[Candidate]:
        """Each setting with its best ridge, on so many points; a core takes whole settings."""
        count = min(points, len(self.y))
        y, root = self.targets(count)  # (s, l), (s, 1)
        found: list[list[Candidate]] = [[] for _ in settings]
        # Settings that differ in the ridge share a matrix, which is one task if there are several.
        same: dict[tuple[str, str, float], list[int]] = {}
        for i, setting in enumerate(settings):
            same.setdefault(setting[:3], []).append(i)
        shared = None
        if len(same) == 1:
            shared = self._matrix(settings[0], count, metric).mul_(root).mul_(root.T)
        tasks = list(same.values()) if shared is None else [[i] for i in range(len(settings))]

        def work(task: int, worker: int) -> None:
            K = shared
            for i in tasks[task]:
                if K is None:
                    K = self._matrix(settings[i], count, metric).mul_(root).mul_(root.T)
                found[i] = self._tried(settings[i], K, root * y, steps)

        self.workers.run(work, len(tasks))
        self.add([candidate for candidates in found for candidate in candidates])
        return [min(candidates, key=lambda c: c.rank) for candidates in found]

    def _tried(self, setting: Setting, K: Tensor, y: Tensor, steps: int) -> list[Candidate]:
        """A setting with each ridge that it is tried with; K and y are weighted."""
        variance = float(y.square().mean()) or 1.0
        # f = K alpha carries the rounding error of its largest parts.
        error = self.rounding * float(torch.linalg.vector_norm(K)) / len(K) / math.sqrt(variance)

        def candidate(r: float, result: LeaveOneOut) -> Candidate:
            found = Candidate(
                kernel=setting.kernel,
                features=setting.features,
                bandwidth=setting.bandwidth,
                ridge=r,
                loss=result.loss / variance,
                reachable=error * result.size <= ROUNDING_SHARE_OF_TRAINING * ROUNDING_IN_TARGETS,
                n_points=len(K),
                metric_steps=steps,
            )
            self.squares[found] = result.squares / variance
            if setting.ridge is not None:
                self.errors[found] = result.errors
            return found

        def once(r: float) -> Candidate:
            return candidate(r, leave_one_out_once(K, y, r))

        if setting.ridge is not None:
            return [once(setting.ridge)]
        unit = float(K.diagonal().mean())
        ridges = tuple(r * unit for r in RIDGES)
        if setting.near is not None:
            return _down_from(nearest(ridges, setting.near), [partial(once, r) for r in ridges])
        return [candidate(r, e) for r, e in zip(ridges, leave_one_out(K, y, ridges), strict=True)]

    def add(self, candidates: list[Candidate]) -> None:
        self.tried += candidates
        self.on_progress(len(self.tried))

    def targets(self, count: int) -> tuple[Tensor, Tensor]:
        """Centred targets of the first points, (s, l), and the roots of their weights, (s, 1)."""
        w = self.weights(count)[:, None]
        y = self.y[:count]
        return y - (w * y).sum(0) / w.sum(), w.sqrt()

    def _matrix(self, setting: Setting, count: int, metric: Tensor | None) -> Tensor:
        kernel = self.kernels[setting.kernel](setting.bandwidth)
        points = self.variants[setting.features].points(kernel, slice(0, count), metric)
        return kernel.block(points, points, same=True)

    def contenders(self, found: list[Candidate], tolerance: float = TOLERANCE) -> list[Candidate]:
        """Those that may be the best, by their errors at each point: of every family the best first."""
        ranked = sorted(found, key=lambda c: c.rank)
        first = leaders(ranked)
        ordered = first + [c for c in ranked if c not in first]
        return [c for c in ordered if self.may_be_best(c, ranked[0], tolerance)]

    def may_be_best(self, candidate: Candidate, best: Candidate, tolerance: float) -> bool:
        if candidate is best or candidate.reachable < best.reachable:
            return candidate is best
        difference = self.squares[candidate] - self.squares[best]  # (s,)
        allowed = max(tolerance * best.loss, STANDARD_ERRORS * _error(difference))
        return float(difference.mean()) <= allowed

    def is_worth_having(self, metric: Candidate, without: Candidate) -> bool:
        """Whether a setting with a metric is clearly better than the same with another one, or none."""
        gain = self.squares[without] - self.squares[metric]  # (s,)
        enough = max(STANDARD_ERRORS * _error(gain), WORTH_HAVING * float(self.squares[without].mean()))
        return float(gain.mean()) > enough

    def can_learn(self, candidate: Candidate) -> bool:
        """Whether a metric can be learned for it: its slope is known, and there are enough points."""
        kernel = self.kernels[candidate.kernel](candidate.bandwidth)
        known = kernel.slope(torch.ones(1, 1, dtype=torch.float64)) is not None
        variant = self.variants[candidate.features]
        half = min(HALF_POINTS, len(self.y) // 2)
        enough = 1 < variant.n_blocks <= half // POINTS_PER_WEIGHT
        return known and enough and variant.inputs.grid is None and candidate.reachable

    def learned(
        self, candidates: list[Candidate], points: int, steps: Sequence[int], ridge_is_given: bool
    ) -> list[Judged]:
        """Each with the metric that it learns, or without one, as the judging halves prefer.

        Those that have learned before, on enough points, go on from there.
        """
        parts = halves(self.y, self.weights(len(self.y)), points)
        found: list[list[list[Learned]]] = [[[], []] for _ in candidates]

        def work(i: int, worker: int) -> None:
            candidate = candidates[i // 2]
            one, other = parts[i % 2], parts[1 - i % 2]
            descent = self.descents.get((candidate, i % 2))
            if descent is None or not descent.suits(one):
                kernel = self.kernels[candidate.kernel](candidate.bandwidth)
                variant = self.variants[candidate.features]
                descent = Descent(variant, kernel, candidate.ridge, ridge_is_given)
                self.descents[candidate, i % 2] = descent
            found[i // 2][i % 2] = descent.learn(one, other, steps)

        self.workers.run(work, 2 * len(candidates))
        variance = sum(float((p.root * p.y).square().mean()) for p in parts) / 2 or 1.0
        return [
            self._judged(candidate, one, two, variance, steps)
            for candidate, (one, two) in zip(candidates, found, strict=True)
        ]

    def _judged(
        self,
        candidate: Candidate,
        one: list[Learned],
        two: list[Learned],
        variance: float,
        steps: Sequence[int],
    ) -> Judged:
        plain = torch.cat([one[0].squares, two[0].squares]) / variance  # (s,)
        results: list[Judged] = []
        for taken, a, b in zip((0, *steps), one, two, strict=False):
            metric, ridge = joined(a, b)
            squares = torch.cat([a.squares, b.squares]) / variance
            judged = replace(
                candidate,
                ridge=ridge,
                loss=float(squares.mean()),
                n_points=len(squares),
                metric_steps=taken,
                left_out="half",
            )
            self.add([judged])
            self.squares[judged] = squares
            if not taken:
                none = judged
            if not taken or self.is_worth_having(judged, none):
                results.append(Judged(judged, metric, judged.loss / (float(plain.mean()) or 1.0)))
        return min(results, key=lambda found: found.candidate.rank)

    def last_comparison(self, settings: Sequence[tuple[Candidate, Tensor | None]]) -> list[float]:
        """The loss of each with its metric, trained on many points, at those that judge."""
        w = self.weights(len(self.all_y))[:, None]  # (s, 1)
        train, rest = slice(0, min(FINE_POINTS, self.n_learning)), slice(self.n_learning, None)
        y = self.all_y - (w[train] * self.all_y[train]).sum(0) / w[train].sum()  # (s, l)
        losses = [math.inf] * len(settings)

        def work(i: int, worker: int) -> None:
            candidate, metric = settings[i]
            kernel = self.kernels[candidate.kernel](candidate.bandwidth)
            points = self.variants[candidate.features].points(kernel, slice(None), metric)
            z = points[train]
            K = kernel.block(z, z, same=True)
            may_go_on()
            alpha = solve(K, y[train], max(candidate.ridge, JITTER), w[train])
            may_go_on()
            f = kernel.block(points[rest], z) @ alpha  # (s', l)
            losses[i] = float((w[rest] * (f - y[rest]).square()).mean())

        self.workers.run(work, len(settings))
        return losses

    def left_out(self, best: Candidate, metric: Tensor | None) -> Tensor:
        """Predictions of each point from all others with this setting, (s, l)."""
        y, root = self.targets(len(self.y))
        errors = self.errors.get(best)
        if errors is None or len(errors) < len(y):
            K = self._matrix(setting_of(best), len(y), metric)
            errors = leave_one_out_once(K.mul_(root).mul_(root.T), root * y, best.ridge).errors
        return self.y - errors / root


def setting_of(
    candidate: Candidate, factor: float = 1.0, ridge: float | None = None, near: float | None = None
) -> Setting:
    """The candidate's, with its bandwidth times a factor."""
    return Setting(candidate.kernel, candidate.features, factor * candidate.bandwidth, ridge, near)


def nearest(ridges: Sequence[float], ridge: float) -> int:
    """The place of the ridge with the lowest ratio to the one given; 0 is near no other."""
    return min(range(len(ridges)), key=lambda i: abs(_log(ridges[i]) - _log(ridge)))


def _log(ridge: float) -> float:
    return math.log(max(ridge, JITTER))


def _down_from(start: int, tries: Sequence[Callable[[], Candidate]]) -> list[Candidate]:
    """Candidates with neighbouring ridges, from one of them to where those beside the best are worse."""
    found = {start: tries[start]()}
    best = start
    while not found[best].reachable and best + 1 < len(tries):  # a larger ridge has smaller weights
        best += 1
        found[best] = tries[best]()
    for step in (1, -1):
        while 0 <= best + step < len(tries):
            if best + step not in found:
                found[best + step] = tries[best + step]()
            if found[best + step].rank >= found[best].rank:
                break
            best += step
    return list(found.values())


def _error(difference: Tensor) -> float:
    """The standard error of the mean of differences."""
    return float(difference.std(correction=0)) / math.sqrt(len(difference))
