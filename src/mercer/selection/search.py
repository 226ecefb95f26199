"""Choosing the kernel, its bandwidth, the ridge and how features are prepared, by leave-one-out error.

The search goes from coarse to fine.  All kernels, all ways to prepare the features, widely spaced
bandwidths around the median distance and all ridges are tried on a few points.  Those that may still be
the best are tried again on more points, with bandwidths beside the best of them.  For the best few, a
metric is learned on one half of two thousand points and judged on the other.

With more rows, the bandwidth is followed as long as the error falls, since more rows support narrower
kernels.  The best of each kernel are compared once more, trained on two thousand points and judged on
others, since what is best for few points may not be for many.  The winner's metric is learned from ten
thousand.

The winner's bandwidth and ridge are refined on two thousand points, or on many more where the ridge is
not all that keeps the model from following noise.  A setting drops out when a paired comparison of its
errors with those of the best setting rejects it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mercer.kernels import Kernel
from mercer.operators.workers import Workers
from mercer.selection.at_scale import refined_at_scale
from mercer.selection.candidates import Candidate, Selection, leaders
from mercer.selection.metric import HALF_POINTS, JUDGED_STEPS
from mercer.selection.metric_at_scale import with_metric_of_many
from mercer.selection.trials import FINE_POINTS, Setting, Trials, setting_of
from mercer.selection.variants import Variant

# Points of the first two rounds; the third has `FINE_POINTS`.  One eigendecomposition takes some 5 ms in
# the first, and one Cholesky factor 3 ms in the second.
ROUGH_POINTS = 250
COARSE_POINTS = 600
# How much worse than the best a setting may be in the first round.  Rough kernels gain more from more
# points than smooth ones, so few points decide little.
ROUGH_TOLERANCE = 0.3
MOST_CONTENDERS = 10
# Families of settings that learn a metric in a few steps on this many points; the best go on.
MOST_LEARNERS = 4
# Points that choose them, with many rows.
LEARNER_POINTS = 1_200
TRIAL_POINTS = 400
FINALISTS = 2
FINAL_TOLERANCE = 0.05
# How close the best of a kernel must be for the last comparison, on `MOST_POINTS`, and how many are.
LAST_TOLERANCE = 0.2
MOST_COMPARED = 6
# Bandwidths that the first round begins with, as multiples of the median distance between points; those
# of the other two, as multiples of the best so far.  Where all but narrow kernels predict the mean, they
# do not tell that narrow ones are better; towards wide ones the error has no such plain.
ROUGH_STEPS = (1 / 4, 4.0)
ROUGH_FACTORS = (1 / 8, 1 / 2, 2.0)
COARSE_FACTORS = (1 / 2, 2.0)
FINE_FACTORS = (1 / math.sqrt(2), math.sqrt(2))
# Further steps, by the factors of the round, where the best bandwidth is the first or the last tried.
MOST_EXTENSIONS = 4
# Further halves of the bandwidth on all points, with many rows.
MOST_HALVES = 2
# Further ridges for a metric learned from many rows.
MOST_RIDGES = 3
# Ridges beside the best one, where that is 0.
BESIDE_NO_RIDGE = (1e-3, 1e-2)
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
    at_scale: bool = False,
    on_progress: Callable[[int], None] = lambda tried: None,
    workers: Workers = Workers(1),
) -> Found:
    """Search over everything that is not given.

    `variants` are ways to prepare points, in random order; y are their targets, (s, l), encoded.
    `weights` gives those of the first points.  `kernels` make a kernel from a bandwidth.  `metric`:
    one may be learned.  `rounding` is the error of a sum over all training points in the precision of
    training, as a share of its largest parts; settings with weights so large that it would show are not
    taken.  `at_scale`: training stops early or has few centres, so a ridge that is best for some centres
    among many rows will not be too small.  `on_progress` gets the number of settings tried; each of the
    `workers` tries one at a time.
    """
    trials = Trials(variants, y, weights, kernels, rounding, on_progress, workers)
    settings: list[Setting] = []
    for label, variant in variants.items():
        for name, make in kernels.items():
            if len(kernels) > 1 and make(1.0).absolute and not variant.suits_absolute:
                continue
            widths = [bandwidth] if bandwidth is not None else _widths(variant, make)
            settings += [Setting(name, label, width, ridge) for width in widths]
    rough: list[Candidate] = []
    for _ in range(1 + MOST_EXTENSIONS):
        rough += trials.measure(settings, ROUGH_POINTS)
        settings = _further(rough, ridge, ROUGH_STEPS) if bandwidth is None else []
    contenders = trials.contenders(rough, ROUGH_TOLERANCE)[:MOST_CONTENDERS]
    coarse = trials.measure([setting_of(c, 1.0, ridge, c.ridge) for c in contenders], COARSE_POINTS)
    if bandwidth is None:
        first = leaders(trials.contenders(coarse))[:MOST_LEARNERS]
        coarse += _with_bandwidths_beside(trials, first, ridge)
    learns = metric and bandwidth is None
    best, weighting = _narrowed(trials, coarse, learns, ridge is not None)
    if learns:
        best, weighting = with_metric_of_many(trials, best, weighting, ridge is not None)
    if at_scale and trials.are_many:
        best = refined_at_scale(trials, best, weighting, bandwidth is None, ridge is None)
    elif len(trials.y) > COARSE_POINTS or weighting is not None:
        best = _refined(trials, best, weighting, bandwidth is None, ridge is None)
    if best.loss > NO_BETTER:
        best, weighting = replace(best, metric_steps=0), None
    selection = Selection(best, tuple(trials.tried))
    return Found(selection, weighting, trials.left_out(best, weighting))


def _with_bandwidths_beside(
    trials: Trials, first: list[Candidate], ridge: float | None
) -> list[Candidate]:
    """Half and twice the bandwidth; with many rows as far as that helps, with a ridge of its own."""
    if not trials.are_many:
        return trials.measure(
            [setting_of(c, f, c.ridge) for c in first for f in COARSE_FACTORS], COARSE_POINTS
        )
    found: list[Candidate] = []
    settings = [setting_of(c, f, ridge, c.ridge) for c in first for f in COARSE_FACTORS]
    for _ in range(1 + MOST_EXTENSIONS):
        found += trials.measure(settings, COARSE_POINTS)
        settings = _further([*first, *found], ridge, COARSE_FACTORS, near_ridge=True)
    return found


def _narrowed(
    trials: Trials, coarse: list[Candidate], metric: bool, ridge_is_given: bool
) -> tuple[Candidate, Tensor | None]:
    """The best family, and its metric."""
    first = leaders(trials.contenders(coarse))
    close = leaders(trials.contenders(coarse, ROUGH_TOLERANCE))
    if trials.are_many:
        close = close[:MOST_COMPARED]
        # Those that can learn a metric are compared again when they have one.
        again = metric and all(trials.can_learn(c) for c in close)
        measured = _on_more_points(trials, close, LEARNER_POINTS if again else FINE_POINTS)
        first = close = sorted(measured, key=lambda c: c.rank)
    learners = [c for c in _each_kernel_first(close) if metric and trials.can_learn(c)]
    if learners and learners[0] == first[0]:
        return _best_learner(trials, learners, ridge_is_given)
    if len(trials.y) > COARSE_POINTS and not trials.are_many:
        first = _on_more_points(trials, first)
    return min(first, key=lambda c: c.rank), None


def _best_learner(
    trials: Trials, learners: list[Candidate], ridge_is_given: bool
) -> tuple[Candidate, Tensor | None]:
    """The best of settings that can learn a metric, and the metric if one is worth having."""
    tried = trials.learned(learners[:MOST_LEARNERS], TRIAL_POINTS, JUDGED_STEPS[:-1], ridge_is_given)
    ranked = sorted((found.candidate for found in tried), key=lambda c: c.rank)
    if trials.are_many:
        enough = (1 + LAST_TOLERANCE) * ranked[0].loss
        close = [c for c in _first_of_each_kernel(ranked) if c.loss <= enough]
    else:
        close = [c for c in ranked[:FINALISTS] if trials.may_be_best(c, ranked[0], FINAL_TOLERANCE)]
    plain = [c for c in learners if c.family in {other.family for other in close}]
    # With many points, the winner goes on to learn from all of them.
    steps = JUDGED_STEPS[:-1] if trials.are_many else JUDGED_STEPS
    finals = trials.learned(plain, HALF_POINTS, steps, ridge_is_given)
    # Leaving out one of all points judges what has no metric; the halves say what a metric brings.
    decided = len(plain) == 1 and finals[0].metric is not None
    whole = plain if trials.are_many or decided else _on_more_points(trials, plain)
    losses = [final.share * one.loss for final, one in zip(finals, whole, strict=True)]
    if trials.are_many and len(plain) > 1:
        losses = trials.last_comparison([(final.candidate, final.metric) for final in finals])
    i = min(range(len(plain)), key=losses.__getitem__)
    if finals[i].metric is None:
        return whole[i], None
    return finals[i].candidate, finals[i].metric


def _on_more_points(
    trials: Trials, candidates: list[Candidate], points: int = FINE_POINTS
) -> list[Candidate]:
    return trials.measure([setting_of(c, ridge=c.ridge) for c in candidates], points)


def _first_of_each_kernel(candidates: list[Candidate]) -> list[Candidate]:
    kernels = [c.kernel for c in candidates]
    return [c for i, c in enumerate(candidates) if kernels.index(c.kernel) == i]


def _each_kernel_first(candidates: list[Candidate]) -> list[Candidate]:
    """The best of each kernel before the others."""
    first = _first_of_each_kernel(candidates)
    return first + [c for c in candidates if c not in first]


def _refined(
    trials: Trials, best: Candidate, metric: Tensor | None, any_width: bool, any_ridge: bool
) -> Candidate:
    """With its bandwidth and ridge chosen on all points, as far as they are open.

    Descent on a metric finds a bandwidth as well, and its points are among these.
    """

    def measured(settings: list[Setting]) -> list[Candidate]:
        return trials.measure(settings, FINE_POINTS, metric, best.metric_steps)

    many = trials.are_many
    any_width = any_width and metric is None
    settings = _with_ridges(best, any_ridge)
    if any_width:
        settings += [one for f in FINE_FACTORS for one in _beside(best, f, any_ridge and many)]
    fine = []
    if metric is None and best.n_points == len(trials.y):
        settings, fine = settings[1:], [best]
    fine += measured(settings)
    for _ in range(MOST_HALVES if many and any_width else 0):
        best = min(fine, key=lambda c: c.rank)
        if best.bandwidth > min(c.bandwidth for c in fine):
            break
        fine += measured(_beside(best, 1 / 2, any_ridge))
    # The ridge was chosen before the metric was.
    for _ in range(MOST_RIDGES if many and any_ridge and metric is not None else 0):
        best = min(fine, key=lambda c: c.rank)
        tried = [c.ridge for c in fine]
        if not best.ridge or min(tried) < best.ridge < max(tried):
            break
        further = best.ridge / 3 if best.ridge == min(tried) else 3 * best.ridge
        fine += measured([setting_of(best, ridge=further)])
    return min(fine, key=lambda c: c.rank)


def _beside(best: Candidate, factor: float, any_ridge: bool) -> list[Setting]:
    """Its bandwidth times a factor, with its ridge, and with twice that if narrower, half if wider."""
    other = 2 * best.ridge if factor < 1 else best.ridge / 2
    ridges = (best.ridge, other) if any_ridge and best.ridge else (best.ridge,)
    return [setting_of(best, factor, r) for r in ridges]


def _widths(variant: Variant, make: Callable[[float], Kernel]) -> list[float]:
    """Bandwidths of the first round: multiples of the median distance between distinct points."""
    distances = variant.distances(make(1.0), slice(0, ROUGH_POINTS))
    apart = distances[distances > 0]
    median = float(apart.median()) if len(apart) else 1.0
    return [median * f for f in ROUGH_FACTORS]


def _with_ridges(best: Candidate, any_ridge: bool) -> list[Setting]:
    """Its setting with its ridge and, unless that is given, those beside it."""
    beside = (best.ridge / 3, 3 * best.ridge) if best.ridge else BESIDE_NO_RIDGE
    ridges = (best.ridge, *beside) if any_ridge else (best.ridge,)
    return [setting_of(best, ridge=r) for r in ridges]


def _further(
    found: list[Candidate],
    ridge: float | None,
    factors: tuple[float, float],
    near_ridge: bool = False,
) -> list[Setting]:
    """A bandwidth beyond those tried, for each family whose best is the first or the last."""
    settings = []
    for best in leaders(found):
        widths = [c.bandwidth for c in found if c.family == best.family]
        near = best.ridge if near_ridge else None
        if best.bandwidth == min(widths):
            settings.append(setting_of(best, factors[0], ridge, near))
        elif best.bandwidth == max(widths):
            settings.append(setting_of(best, factors[1], ridge, near))
    return settings
