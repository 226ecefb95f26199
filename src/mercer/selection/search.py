"""Choosing the kernel, its bandwidth, the ridge and the scale of the features, by leave-one-out error.

The search goes from coarse to fine.  All kernels, widely spaced bandwidths around the median distance
and all ridges are tried on a few points.  Those that may still be the best are tried again on more
points, with bandwidths beside the best of them.  The best of each kernel that is still in the race is
refined on two thousand points.  A setting drops out when a paired comparison of its errors with those
of the best setting rejects it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from torch import Tensor

from mercer.data.points import Points
from mercer.kernels import Kernel
from mercer.kernels.distances import squared_distances
from mercer.method.critical_batch import ROUNDING_IN_TARGETS
from mercer.operators.workers import Workers
from mercer.selection.leave_one_out import leave_one_out, leave_one_out_once

# Points of the three rounds.  One eigendecomposition takes some 4 ms in the first and 30 ms in the
# second on two cores, one inverse of the third some 140 ms.
ROUGH_POINTS = 250
COARSE_POINTS = 600
FINE_POINTS = 2_000
# A setting stays in the race if its loss exceeds the lowest by at most this share, since losses change
# with the number of points, or by at most this many standard errors of the difference.
TOLERANCE = 0.05
STANDARD_ERRORS = 1.0
MOST_CONTENDERS = 8
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
# Rounding error of f that a setting may cause, as a share of what training may carry: rows outside the
# sample add to it.
ROUNDING_SHARE_OF_TRAINING = 0.1
# Kernels tried where none is given: a rough and a smooth one.
CANDIDATES = ("laplacian", "gaussian")


@dataclass(frozen=True)
class Candidate:
    """One setting and its leave-one-out error."""

    kernel: str
    scaled: bool  # features were standardised
    bandwidth: float
    ridge: float
    loss: float  # mean squared leave-one-out error, as a share of the variance of the targets
    reachable: bool  # the precision of training can carry weights of this size
    n_points: int


@dataclass(frozen=True)
class Selection:
    """The settings that were tried, and the best of them."""

    best: Candidate
    candidates: tuple[Candidate, ...]

    def to_dicts(self) -> list[dict[str, float | str | bool]]:
        """A list of plain dictionaries, which `pandas.DataFrame` accepts."""
        return [asdict(candidate) for candidate in self.candidates]

    def __repr__(self) -> str:
        return f"Selection(best={self.best}, {len(self.candidates)} tried)"

    def __str__(self) -> str:
        """A table of the best setting of each kernel and scale, on the most points it was tried on."""
        lines = [f"{len(self.candidates):,} settings tried; the best of each kernel on the most points:"]
        lines += [
            f"{'kernel':<12} {'features':<13} {'bandwidth':>10} {'ridge':>8} {'loss':>8} {'points':>7}"
        ]
        shown: dict[tuple[str, bool], Candidate] = {}
        for c in sorted(self.candidates, key=lambda c: (-c.n_points, _rank(c))):
            shown.setdefault((c.kernel, c.scaled), c)
        for c in shown.values():
            features = "standardised" if c.scaled else "as given"
            lines.append(
                f"{c.kernel:<12} {features:<13} {c.bandwidth:>10.4g} {c.ridge:>8.2g} {c.loss:>8.4f} "
                f"{c.n_points:>7,}" + "  chosen" * (c == self.best)
            )
        return "\n".join(lines)


def median_distance(points: Points) -> float:
    """The median distance between distinct points; 1 where there are none."""
    d2 = squared_distances(points, points, same=True)  # (s, s)
    apart = d2[d2 > 0]
    return float(apart.median().sqrt()) if len(apart) else 1.0


class Setting(NamedTuple):
    """One setting to try; with ridge None, all ridges are tried."""

    kernel: str
    scaled: bool
    bandwidth: float
    ridge: float | None


class _Search:
    """The settings tried so far, on points in random order with targets y, (s, l)."""

    def __init__(
        self,
        features: dict[bool, Tensor],
        y: Tensor,
        kernels: dict[str, Callable[[float], Kernel]],
        rounding: float,
        on_progress: Callable[[int], None],
        workers: Workers,
    ) -> None:
        self.features = features
        self.y = y.double()
        self.kernels = kernels
        self.rounding = rounding
        self.on_progress = on_progress
        self.workers = workers
        self.tried: list[Candidate] = []
        self.squares: dict[Candidate, Tensor] = {}  # errors of each point

    def measure(self, settings: Sequence[Setting], points: int) -> list[Candidate]:
        """Each setting with its best ridge, on so many points; a core takes whole settings."""
        count = min(points, len(self.y))
        y = self.y[:count] - self.y[:count].mean(0)  # (s, l)
        variance = float(y.square().mean()) or 1.0
        found: list[list[Candidate]] = [[] for _ in settings]

        def work(i: int, worker: int) -> None:
            setting = settings[i]
            K = self._matrix(setting, count)
            if setting.ridge is None:
                unit = float(K.diagonal().mean())
                ridges = tuple(r * unit for r in RIDGES)
                results = leave_one_out(K, y, ridges)
            else:
                ridges, results = (setting.ridge,), [leave_one_out_once(K, y, setting.ridge)]
            # f = K alpha carries the rounding error of its largest parts.
            error = self.rounding * float(K.square().mean().sqrt()) / math.sqrt(variance)
            for r, result in zip(ridges, results, strict=True):
                candidate = Candidate(
                    kernel=setting.kernel,
                    scaled=setting.scaled,
                    bandwidth=setting.bandwidth,
                    ridge=r,
                    loss=result.loss / variance,
                    reachable=error * result.weights <= ROUNDING_SHARE_OF_TRAINING * ROUNDING_IN_TARGETS,
                    n_points=count,
                )
                found[i].append(candidate)
                self.squares[candidate] = result.squares / variance

        self.workers.run(work, len(settings))
        self.tried += [candidate for candidates in found for candidate in candidates]
        self.on_progress(len(self.tried))
        return [min(candidates, key=_rank) for candidates in found]

    def _matrix(self, setting: Setting, count: int) -> Tensor:
        kernel = self.kernels[setting.kernel](setting.bandwidth)
        x = self.features[setting.scaled][:count].double()
        points = kernel.points(x - x.mean(0) if kernel.translation_invariant else x)
        return kernel.block(points, points, same=True)

    def contenders(self, found: list[Candidate]) -> list[Candidate]:
        """Those that may be the best, by their errors at each point: of every kernel the best first."""
        ranked = sorted(found, key=_rank)
        leaders = _leaders(ranked)
        ordered = leaders + [c for c in ranked if c not in leaders]
        return [c for c in ordered if self._may_be_best(c, ranked[0])]

    def _may_be_best(self, candidate: Candidate, best: Candidate) -> bool:
        if candidate is best or candidate.reachable < best.reachable:
            return candidate is best
        difference = self.squares[candidate] - self.squares[best]  # (s,)
        error = float(difference.std(correction=0)) / math.sqrt(len(difference))
        return float(difference.mean()) <= max(TOLERANCE * best.loss, STANDARD_ERRORS * error)


def select(
    features: dict[bool, Tensor],
    y: Tensor,
    kernels: dict[str, Callable[[float], Kernel]],
    bandwidth: float | None = None,
    ridge: float | None = None,
    rounding: float = 0.0,
    on_progress: Callable[[int], None] = lambda tried: None,
    workers: Workers = Workers(1),
) -> Selection:
    """Search over everything that is not given.

    `features` are points in random order, (s, d), as given (False), standardised (True), or both; y are
    their targets, (s, l), encoded.  `kernels` make a kernel from a bandwidth.  `rounding` is the
    error of a sum over all training points in the precision of training, as a share of its largest
    parts; settings with weights so large that it would show are not taken.  `on_progress` gets the
    number of settings tried; each of the `workers` tries one at a time.
    """
    search = _Search(features, y, kernels, rounding, on_progress, workers)
    settings: list[Setting] = []
    for scaled, x in features.items():
        sample = x[:COARSE_POINTS].double()
        median = median_distance(Points.extend(sample - sample.mean(0)))
        widths = [median * f for f in ROUGH_FACTORS] if bandwidth is None else [bandwidth]
        settings += [Setting(name, scaled, width, ridge) for name in kernels for width in widths]
    rough: list[Candidate] = []
    for _ in range(1 + MOST_EXTENSIONS):
        rough += search.measure(settings, ROUGH_POINTS)
        settings = _further(rough, ridge) if bandwidth is None else []
    contenders = search.contenders(rough)[:MOST_CONTENDERS]
    coarse = search.measure([_setting(c, ridge=ridge) for c in contenders], COARSE_POINTS)
    if bandwidth is None:
        best = min(coarse, key=_rank)
        beside = [_setting(best, f, ridge) for f in COARSE_FACTORS]
        coarse += search.measure(beside, COARSE_POINTS)
    if len(y) <= COARSE_POINTS:
        return Selection(min(coarse, key=_rank), tuple(search.tried))
    leaders = _leaders(search.contenders(coarse))
    fine = search.measure([_setting(c, ridge=c.ridge) for c in leaders], FINE_POINTS)
    best = min(fine, key=_rank)
    if bandwidth is None:
        fine += search.measure([_setting(best, f, best.ridge) for f in FINE_FACTORS], FINE_POINTS)
    if ridge is None:
        best = min(fine, key=_rank)
        others = (best.ridge / 3, best.ridge * 3) if best.ridge else (RIDGES[1],)
        fine += search.measure([_setting(best, ridge=r) for r in others], FINE_POINTS)
    return Selection(min(fine, key=_rank), tuple(search.tried))


def _setting(candidate: Candidate, factor: float = 1.0, ridge: float | None = None) -> Setting:
    """The candidate's, with its bandwidth times a factor."""
    return Setting(candidate.kernel, candidate.scaled, factor * candidate.bandwidth, ridge)


def _leaders(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The best of each kernel and scale, the best of all first."""
    best: dict[tuple[str, bool], Candidate] = {}
    for candidate in sorted(candidates, key=_rank):
        best.setdefault((candidate.kernel, candidate.scaled), candidate)
    return list(best.values())


def _further(found: list[Candidate], ridge: float | None) -> list[Setting]:
    """A bandwidth beyond those tried, for each kernel and scale whose best is the first or the last."""
    settings = []
    for best in _leaders(found):
        widths = [c.bandwidth for c in found if (c.kernel, c.scaled) == (best.kernel, best.scaled)]
        if best.bandwidth == min(widths):
            settings.append(_setting(best, 1 / ROUGH_STEP, ridge))
        elif best.bandwidth == max(widths):
            settings.append(_setting(best, ROUGH_STEP, ridge))
    return settings


def _rank(candidate: Candidate) -> tuple[bool, float]:
    loss = candidate.loss if math.isfinite(candidate.loss) else math.inf
    return not candidate.reachable, loss
