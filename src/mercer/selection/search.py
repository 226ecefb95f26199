"""Choosing the kernel, its bandwidth, the ridge and how features are prepared, by leave-one-out error.

The search goes from coarse to fine.  All kernels, all ways to prepare the features, widely spaced
bandwidths around the median distance and all ridges are tried on a few points.  Those that may still be
the best are tried again on more points, with bandwidths beside the best of them.  For the best few, a
metric is learned on one half of two thousand points and judged on the other.  With more rows, the best
of each kernel are compared once more, trained on three thousand points and judged on others, since what
is best for few points may not be for many.  The winner's bandwidth and ridge are refined on two thousand
points.  A setting drops out when a paired comparison of its errors with those of the best setting
rejects it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from mercer.kernels import Kernel
from mercer.method.critical_batch import ROUNDING_IN_TARGETS
from mercer.method.direct import JITTER, solve
from mercer.operators.workers import Workers
from mercer.selection.candidates import Candidate, Selection, leaders
from mercer.selection.leave_one_out import leave_one_out, leave_one_out_once
from mercer.selection.metric import (
    HALF_POINTS,
    JUDGED_STEPS,
    POINTS_PER_WEIGHT,
    Learned,
    halves,
    joined,
    learn,
)
from mercer.selection.variants import Variant

# Points of the three rounds.  One eigendecomposition takes some 4 ms in the first and 30 ms in the
# second on two cores, one inverse of the third some 140 ms.
ROUGH_POINTS = 250
COARSE_POINTS = 600
FINE_POINTS = 2_000
# A setting stays in the race if its loss exceeds the lowest by at most this share, since losses change
# with the number of points, or by at most this many standard errors of the difference.  Rough kernels
# gain more from more points than smooth ones, so few points decide little.
ROUGH_TOLERANCE = 0.3
TOLERANCE = 0.1
STANDARD_ERRORS = 1.0
# A metric is taken if it lowers the loss by more than that error, and by more than this share.
WORTH_HAVING = 0.005
MOST_CONTENDERS = 10
# Families of settings that learn a metric in a few steps on this many points; the best go on.
MOST_LEARNERS = 4
TRIAL_POINTS = 400
FINALISTS = 2
FINAL_TOLERANCE = 0.05
# Points of the last comparison, to train on and to judge, and how close the best of a kernel must be.
FINAL_POINTS = 3_000
JUDGING_POINTS = 1_500
LAST_TOLERANCE = 0.2
MOST_COMPARED = 6
MOST_POINTS = FINAL_POINTS + JUDGING_POINTS
# Bandwidths of the first round, as multiples of the median distance between points; of the other two,
# as multiples of the best so far.
ROUGH_STEP = 4.0
ROUGH_FACTORS = (1 / 8, 1 / 2, 2.0, 8.0)
COARSE_FACTORS = (1 / 2, 2.0)
FINE_FACTORS = (1 / math.sqrt(2), math.sqrt(2))
# Further steps where the best bandwidth is at the end of the grid.
MOST_EXTENSIONS = 3
# Ridges tried, for kernels with k(x, x) = 1: from interpolation to almost ignoring a single point.
RIDGES = (0.0, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)
BESIDE_NO_RIDGE = (1e-3, 1e-2)
# Rounding error of f that a setting may cause, as a share of what training may carry: rows outside the
# sample add to it.
ROUNDING_SHARE_OF_TRAINING = 0.1
# A loss above this is no better than the mean's, and what was learned is noise.
NO_BETTER = 0.99
# Kernels tried where none is given: a rough and a smooth one, and a product of rough ones.
CANDIDATES = ("laplacian", "gaussian", "l1_laplacian")


@dataclass(frozen=True)
class Found:
    """What the search chose."""

    selection: Selection
    weights: Tensor | None  # (blocks,)  the metric, if one is better than none
    decisions: Tensor  # (s, l)  leave-one-out predictions of the chosen setting


class Judged(NamedTuple):
    """A candidate with the metric that was best for it, if any."""

    candidate: Candidate
    metric: Tensor | None
    share: float  # of the loss without a metric


class Setting(NamedTuple):
    """One setting to try; with ridge None, all ridges are tried."""

    kernel: str
    features: str
    bandwidth: float
    ridge: float | None


class _Search:
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

    def measure(
        self, settings: Sequence[Setting], points: int, metric: Tensor | None = None, steps: int = 0
    ) -> list[Candidate]:
        """Each setting with its best ridge, on so many points; a core takes whole settings."""
        count = min(points, len(self.y))
        y, root = self.targets(count)  # (s, l), (s, 1)
        variance = float((root * y).square().mean()) or 1.0
        found: list[list[Candidate]] = [[] for _ in settings]

        def work(i: int, worker: int) -> None:
            setting = settings[i]
            K = root * self._matrix(setting, count, metric) * root.T
            if setting.ridge is None:
                unit = float(K.diagonal().mean())
                ridges = tuple(r * unit for r in RIDGES)
                results = leave_one_out(K, root * y, ridges)
            else:
                ridges, results = (setting.ridge,), [leave_one_out_once(K, root * y, setting.ridge)]
            # f = K alpha carries the rounding error of its largest parts.
            error = self.rounding * float(K.square().mean().sqrt()) / math.sqrt(variance)
            for r, result in zip(ridges, results, strict=True):
                candidate = Candidate(
                    kernel=setting.kernel,
                    features=setting.features,
                    bandwidth=setting.bandwidth,
                    ridge=r,
                    loss=result.loss / variance,
                    reachable=error * result.size <= ROUNDING_SHARE_OF_TRAINING * ROUNDING_IN_TARGETS,
                    n_points=count,
                    metric_steps=steps,
                )
                found[i].append(candidate)
                self.squares[candidate] = result.squares / variance
                if setting.ridge is not None:
                    self.errors[candidate] = result.errors

        self.workers.run(work, len(settings))
        self.add([candidate for candidates in found for candidate in candidates])
        return [min(candidates, key=lambda c: c.rank) for candidates in found]

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

    def learned(
        self, candidates: list[Candidate], points: int, steps: Sequence[int], ridge_is_given: bool
    ) -> list[Judged]:
        """Each with the metric that it learns, or without one, as the judging halves prefer."""
        parts = halves(self.y, self.weights(len(self.y)), points)
        found: list[list[list[Learned]]] = [[[], []] for _ in candidates]

        def work(i: int, worker: int) -> None:
            candidate = candidates[i // 2]
            kernel = self.kernels[candidate.kernel](candidate.bandwidth)
            variant = self.variants[candidate.features]
            one, other = parts[i % 2], parts[1 - i % 2]
            found[i // 2][i % 2] = learn(
                variant, kernel, candidate.ridge, one, other, steps, ridge_is_given=ridge_is_given
            )

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
            )
            self.add([judged])
            self.squares[judged] = squares
            # Only what is clearly better than no metric at all.
            gain = plain - squares
            enough = max(STANDARD_ERRORS * _error(gain), WORTH_HAVING * float(plain.mean()))
            if not taken or float(gain.mean()) > enough:
                results.append(Judged(judged, metric, judged.loss / (float(plain.mean()) or 1.0)))
        return min(results, key=lambda found: found.candidate.rank)

    def last_comparison(self, judged: list[Judged]) -> list[float]:
        """The loss of each, trained on many points, at others."""
        w = self.weights(MOST_POINTS)[:, None]  # (s, 1)
        train, rest = slice(0, FINAL_POINTS), slice(FINAL_POINTS, MOST_POINTS)
        y = self.all_y - (w[train] * self.all_y[train]).sum(0) / w[train].sum()  # (s, l)
        losses = [math.inf] * len(judged)

        def work(i: int, worker: int) -> None:
            candidate, metric, _ = judged[i]
            kernel = self.kernels[candidate.kernel](candidate.bandwidth)
            points = self.variants[candidate.features].points(kernel, slice(0, MOST_POINTS), metric)
            K = kernel.block(points[train], points[train], same=True)
            alpha = solve(K, y[train], max(candidate.ridge, JITTER), w[train])
            f = kernel.block(points[rest], points[train]) @ alpha  # (s', l)
            losses[i] = float((w[rest] * (f - y[rest]).square()).mean())

        self.workers.run(work, len(judged))
        return losses

    def left_out(self, best: Candidate, metric: Tensor | None) -> Tensor:
        """Predictions of each point from all others with this setting, (s, l)."""
        y, root = self.targets(len(self.y))
        errors = self.errors.get(best)
        if errors is None or len(errors) < len(y):
            K = self._matrix(_setting(best), len(y), metric)
            errors = leave_one_out_once(root * K * root.T, root * y, best.ridge).errors
        return self.y - errors / root


def _error(difference: Tensor) -> float:
    """The standard error of the mean of differences."""
    return float(difference.std(correction=0)) / math.sqrt(len(difference))


def select(
    variants: dict[str, Variant],
    y: Tensor,
    kernels: dict[str, Callable[[float], Kernel]],
    bandwidth: float | None = None,
    ridge: float | None = None,
    *,
    weights: Callable[[int], Tensor] = lambda count: torch.ones(count, dtype=torch.float64),
    metric: bool = True,
    rounding: float = 0.0,
    on_progress: Callable[[int], None] = lambda tried: None,
    workers: Workers = Workers(1),
) -> Found:
    """Search over everything that is not given.

    `variants` are ways to prepare points, in random order; y are their targets, (s, l), encoded.
    `weights` gives those of the first points.  `kernels` make a kernel from a bandwidth.  `metric`:
    one may be learned.  `rounding` is the error of a sum over all training points in the precision of
    training, as a share of its largest parts; settings with weights so large that it would show are not
    taken.  `on_progress` gets the number of settings tried; each of the `workers` tries one at a time.
    """
    search = _Search(variants, y, weights, kernels, rounding, on_progress, workers)
    settings: list[Setting] = []
    for label, variant in variants.items():
        for name, make in kernels.items():
            if len(kernels) > 1 and make(1.0).absolute and not variant.suits_absolute:
                continue
            widths = [bandwidth] if bandwidth is not None else _widths(variant, make)
            settings += [Setting(name, label, width, ridge) for width in widths]
    rough: list[Candidate] = []
    for _ in range(1 + MOST_EXTENSIONS):
        rough += search.measure(settings, ROUGH_POINTS)
        settings = _further(rough, ridge) if bandwidth is None else []
    contenders = search.contenders(rough, ROUGH_TOLERANCE)[:MOST_CONTENDERS]
    coarse = search.measure([_setting(c, ridge=ridge) for c in contenders], COARSE_POINTS)
    if bandwidth is None:
        first = leaders(search.contenders(coarse))[:MOST_LEARNERS]
        beside = [_setting(c, f, c.ridge) for c in first for f in COARSE_FACTORS]
        coarse += search.measure(beside, COARSE_POINTS)
    best, weighting = _narrowed(search, coarse, metric and bandwidth is None, ridge is not None)
    if len(search.y) > COARSE_POINTS or weighting is not None:
        best = _refined(search, best, weighting, bandwidth is None, ridge is None)
    if best.loss > NO_BETTER:
        best, weighting = replace(best, metric_steps=0), None
    selection = Selection(best, tuple(search.tried))
    return Found(selection, weighting, search.left_out(best, weighting))


def _narrowed(
    search: _Search, coarse: list[Candidate], metric: bool, ridge_is_given: bool
) -> tuple[Candidate, Tensor | None]:
    """The best family, and its metric."""
    first = leaders(search.contenders(coarse))
    close = leaders(search.contenders(coarse, ROUGH_TOLERANCE))
    many = len(search.all_y) >= MOST_POINTS
    if many:
        close = search.measure([_setting(c, ridge=c.ridge) for c in close[:MOST_COMPARED]], FINE_POINTS)
        first = close = sorted(close, key=lambda c: c.rank)
    learners = _each_kernel_first(close)
    learners = [c for c in learners if metric and _can_learn(search, c)]
    if learners and learners[0] == first[0]:
        tried = search.learned(learners[:MOST_LEARNERS], TRIAL_POINTS, JUDGED_STEPS[:-1], ridge_is_given)
        ranked = sorted((found.candidate for found in tried), key=lambda c: c.rank)
        close = [c for c in ranked[:FINALISTS] if search.may_be_best(c, ranked[0], FINAL_TOLERANCE)]
        if many:
            close = [
                c
                for c in _first_of_each_kernel(ranked)
                if c.loss <= (1 + LAST_TOLERANCE) * ranked[0].loss
            ]
        plain = [c for c in learners if c.family in {other.family for other in close}]
        finals = search.learned(plain, HALF_POINTS, JUDGED_STEPS, ridge_is_given)
        # Leaving out one of all points judges what has no metric; the halves say what a metric brings.
        whole = plain
        if not many:
            whole = search.measure([_setting(c, ridge=c.ridge) for c in plain], FINE_POINTS)
        losses = [final.share * one.loss for final, one in zip(finals, whole, strict=True)]
        if many and len(plain) > 1:
            losses = search.last_comparison(finals)
        best = min(range(len(plain)), key=losses.__getitem__)
        if finals[best].metric is None:
            return whole[best], None
        return finals[best].candidate, finals[best].metric
    if len(search.y) > COARSE_POINTS and not many:
        first = search.measure([_setting(c, ridge=c.ridge) for c in first], FINE_POINTS)
    return min(first, key=lambda c: c.rank), None


def _first_of_each_kernel(candidates: list[Candidate]) -> list[Candidate]:
    kernels = [c.kernel for c in candidates]
    return [c for i, c in enumerate(candidates) if kernels.index(c.kernel) == i]


def _each_kernel_first(candidates: list[Candidate]) -> list[Candidate]:
    """The best of each kernel before the others."""
    first = _first_of_each_kernel(candidates)
    return first + [c for c in candidates if c not in first]


def _can_learn(search: _Search, candidate: Candidate) -> bool:
    kernel = search.kernels[candidate.kernel](candidate.bandwidth)
    known = kernel.slope(torch.ones(1, 1, dtype=torch.float64)) is not None
    variant = search.variants[candidate.features]
    half = min(HALF_POINTS, len(search.y) // 2)
    enough = 1 < variant.n_blocks <= half // POINTS_PER_WEIGHT
    return known and enough and variant.inputs.grid is None and candidate.reachable


def _refined(
    search: _Search, best: Candidate, metric: Tensor | None, any_width: bool, any_ridge: bool
) -> Candidate:
    """With its bandwidth and ridge chosen on all points, as far as they are open."""
    steps = best.metric_steps
    settings = _with_ridges([best], 1.0, None if any_ridge else best.ridge)
    fine = []
    if metric is None:
        # Descent on a metric finds the bandwidth as well.
        settings += [_setting(best, f, best.ridge) for f in FINE_FACTORS if any_width]
        if best.n_points == len(search.y):
            settings, fine = settings[1:], [best]
    fine += search.measure(settings, FINE_POINTS, metric, steps)
    return min(fine, key=lambda c: c.rank)


def _widths(variant: Variant, make: Callable[[float], Kernel]) -> list[float]:
    """Bandwidths of the first round: multiples of the median distance between distinct points."""
    distances = variant.distances(make(1.0), slice(0, COARSE_POINTS))
    apart = distances[distances > 0]
    median = float(apart.median()) if len(apart) else 1.0
    return [median * f for f in ROUGH_FACTORS]


def _with_ridges(candidates: list[Candidate], factor: float, ridge: float | None) -> list[Setting]:
    """The candidates' settings with their ridge and those beside it, or with the one that is given."""
    settings = []
    for c in candidates:
        beside = (c.ridge / 3, 3 * c.ridge) if c.ridge else BESIDE_NO_RIDGE
        ridges = (c.ridge, *beside) if ridge is None else (ridge,)
        settings += [_setting(c, factor, r) for r in ridges]
    return settings


def _setting(candidate: Candidate, factor: float = 1.0, ridge: float | None = None) -> Setting:
    """The candidate's, with its bandwidth times a factor."""
    return Setting(candidate.kernel, candidate.features, factor * candidate.bandwidth, ridge)


def _further(found: list[Candidate], ridge: float | None) -> list[Setting]:
    """A bandwidth beyond those tried, for each family whose best is the first or the last."""
    settings = []
    for best in leaders(found):
        widths = [c.bandwidth for c in found if c.family == best.family]
        if best.bandwidth == min(widths):
            settings.append(_setting(best, 1 / ROUGH_STEP, ridge))
        elif best.bandwidth == max(widths):
            settings.append(_setting(best, ROUGH_STEP, ridge))
    return settings
