"""Choosing the kernel, its bandwidth, the ridge and the scale of the features, by leave-one-out error.

For kernel ridge regression the error of predicting each point from all others has a closed form,

    y_i - f_{-i}(x_i) = [A^-1 y]_i / [A^-1]_ii,    A = K + r I,

so that no part has to be held out and nothing is trained.  With the eigenpairs of K it costs one product
for each further r.  The search is coarse to fine: all kernels, bandwidths far apart around the median
distance and all ridges on a few points; those that may still be the best again on more, and bandwidths
beside the best of them; then around that on two thousand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from mercer.kernels import Kernel, Points, squared_distances

# Points of the three rounds.  One eigendecomposition takes some 4 ms in the first and 30 ms in the
# second on two cores, one inverse of the third some 140 ms.
ROUGH_POINTS = 250
COARSE_POINTS = 600
FINE_POINTS = 2_000
# Settings that go on to the second round: so few points tell losses apart to about this share.
ROUGH_TOLERANCE = 0.05
MOST_CONTENDERS = 8
# Bandwidths of the first round, as multiples of the median distance between points; of the other two,
# as multiples of the best so far.
ROUGH_STEP = 4.0
ROUGH_FACTORS = (1 / 8, 1 / 2, 2.0, 8.0)
COARSE_FACTORS = (1 / 2, 2.0)
FINE_FACTORS = (1 / math.sqrt(2), 1.0, math.sqrt(2))
# Further steps where the best bandwidth is at the end of the grid.
MOST_EXTENSIONS = 3
# Ridges tried, for kernels with k(x, x) = 1: from interpolation to all but ignoring a single point.
RIDGES = (0.0, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)
# What makes the matrix of the ridge 0 invertible in float64, far below any noise.
JITTER = 1e-8
# Rounding error of f, as a share of the targets, that a setting may lead to: a tenth of what training
# may carry, since other rows than these few add to it.
ROUNDING_IN_TARGETS = 1e-4
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
    """What was tried, and the best of it."""

    best: Candidate
    candidates: tuple[Candidate, ...]

    @classmethod
    def from_dict(cls, data: dict[str, Any] | None) -> Selection | None:
        """The selection that `dataclasses.asdict` wrote, if any."""
        if data is None:
            return None
        return cls(Candidate(**data["best"]), tuple(Candidate(**c) for c in data["candidates"]))

    def to_dicts(self) -> list[dict[str, float | str | bool]]:
        """A list of plain dictionaries, as `pandas.DataFrame` takes it."""
        return [asdict(candidate) for candidate in self.candidates]


def median_distance(points: Points) -> float:
    """The median distance between distinct points; 1 where there are none."""
    d2 = squared_distances(points, points, same=True)  # (s, s)
    apart = d2[d2 > 0]
    return float(apart.median().sqrt()) if len(apart) else 1.0


@dataclass(frozen=True)
class LeaveOneOut:
    """The mean squared leave-one-out error, and the root mean square of the weights."""

    loss: float
    weights: float


def leave_one_out(K: Tensor, y: Tensor, ridges: tuple[float, ...]) -> list[LeaveOneOut]:
    """For (K + r I) alpha = y and each r, from one decomposition of K, (s, s); y is (s, l)."""
    eigenvalues, U = torch.linalg.eigh(K)
    eigenvalues = eigenvalues.clamp(min=0)
    Uy, squares = U.T @ y, U.square()  # (s, l), (s, s)
    found = []
    for r in ridges:
        inverse = 1 / (eigenvalues + max(r, JITTER))  # (s,)
        alpha = U @ (inverse[:, None] * Uy)  # (s, l)
        found.append(_errors(alpha, squares @ inverse))
    return found


def leave_one_out_once(K: Tensor, y: Tensor, ridge: float) -> LeaveOneOut:
    """The same for one ridge, which an inverse gives in a fraction of the time."""
    A = K.clone()
    A.diagonal().add_(max(ridge, JITTER))
    factor, failed = torch.linalg.cholesky_ex(A)
    if bool(failed):  # not positive definite but for rounding, or not at all
        return LeaveOneOut(math.inf, math.inf)
    inverse = torch.cholesky_inverse(factor)  # (s, s)
    return _errors(inverse @ y, inverse.diagonal())


def _errors(alpha: Tensor, inverse_diagonal: Tensor) -> LeaveOneOut:
    errors = alpha / inverse_diagonal[:, None]  # (s, l)
    return LeaveOneOut(float(errors.square().mean()), float(alpha.square().mean().sqrt()))


class _Search:
    """The settings tried so far, on points in random order with targets y, (s, l)."""

    def __init__(
        self,
        features: dict[bool, Tensor],
        y: Tensor,
        kernels: dict[str, Callable[[float], Kernel]],
        ridge: float | None,
        rounding: float,
        on_progress: Callable[[int], None],
    ) -> None:
        self.features = features
        self.y = y.double()
        self.kernels = kernels
        self.ridge = ridge
        self.rounding = rounding
        self.on_progress = on_progress
        self.tried: list[Candidate] = []

    def all_ridges(self, name: str, scaled: bool, width: float, points: int) -> Candidate:
        """The best ridge for this bandwidth, on so many points."""
        count = min(points, len(self.y))
        K = self._matrix(name, scaled, width, count)
        unit = float(K.diagonal().mean())
        ridges = tuple(r * unit for r in RIDGES) if self.ridge is None else (self.ridge,)
        found = leave_one_out(K, self._centred(count), ridges)
        pairs = zip(ridges, found, strict=True)
        noted = [self._note(name, scaled, width, r, K, result) for r, result in pairs]
        return min(noted, key=_rank)

    def one_ridge(self, name: str, scaled: bool, width: float, ridge: float) -> Candidate:
        """One setting, on all points."""
        K = self._matrix(name, scaled, width, len(self.y))
        result = leave_one_out_once(K, self._centred(len(self.y)), ridge)
        return self._note(name, scaled, width, ridge, K, result)

    def _centred(self, count: int) -> Tensor:
        return self.y[:count] - self.y[:count].mean(0)

    def _matrix(self, name: str, scaled: bool, width: float, count: int) -> Tensor:
        kernel, x = self.kernels[name](width), self.features[scaled][:count].double()
        points = kernel.points(x - x.mean(0) if kernel.translation_invariant else x)
        return kernel.block(points, points, same=True)

    def _note(
        self, name: str, scaled: bool, width: float, ridge: float, K: Tensor, result: LeaveOneOut
    ) -> Candidate:
        variance = float(self._centred(len(K)).square().mean()) or 1.0
        # f = K alpha carries the rounding error of its largest parts.
        error = self.rounding * float(K.square().mean().sqrt()) * result.weights / math.sqrt(variance)
        self.tried.append(
            Candidate(
                kernel=name,
                scaled=scaled,
                bandwidth=width,
                ridge=ridge,
                loss=result.loss / variance,
                reachable=error <= ROUNDING_IN_TARGETS,
                n_points=len(K),
            )
        )
        self.on_progress(len(self.tried))
        return self.tried[-1]


def select(
    features: dict[bool, Tensor],
    y: Tensor,
    kernels: dict[str, Callable[[float], Kernel]],
    bandwidth: float | None = None,
    ridge: float | None = None,
    rounding: float = 0.0,
    on_progress: Callable[[int], None] = lambda tried: None,
) -> Selection:
    """Search over everything that is not given.

    `features` are points in random order, (s, d), as given (False), standardised (True), or both; y are
    their targets, (s, l), encoded.  `kernels` make a kernel from a bandwidth.  `rounding` is the
    error of a sum over all training points in the precision of training, as a share of its largest
    parts; settings with weights so large that it would show are not taken.  `on_progress` gets the
    number of settings tried.
    """
    search = _Search(features, y, kernels, ridge, rounding, on_progress)
    rough: list[Candidate] = []
    for scaled, x in features.items():
        sample = x[:COARSE_POINTS].double()
        median = median_distance(Points.extend(sample - sample.mean(0)))
        widths = [median * f for f in ROUGH_FACTORS] if bandwidth is None else [bandwidth]
        for name in kernels:
            found = [search.all_ridges(name, scaled, width, ROUGH_POINTS) for width in widths]
            for _ in range(MOST_EXTENSIONS if bandwidth is None else 0):
                width = min(found, key=_rank).bandwidth
                if width == min(c.bandwidth for c in found):
                    further = width / ROUGH_STEP
                elif width == max(c.bandwidth for c in found):
                    further = width * ROUGH_STEP
                else:
                    break
                found.append(search.all_ridges(name, scaled, further, ROUGH_POINTS))
            rough += found
    least = min(rough, key=_rank)
    contenders = [
        c
        for c in sorted(rough, key=_rank)[:MOST_CONTENDERS]
        if c is least or c.loss <= (1 + ROUGH_TOLERANCE) * least.loss
    ]
    coarse = [search.all_ridges(c.kernel, c.scaled, c.bandwidth, COARSE_POINTS) for c in contenders]
    best = min(coarse, key=_rank)
    beside = COARSE_FACTORS if bandwidth is None else ()
    coarse += [
        search.all_ridges(best.kernel, best.scaled, best.bandwidth * f, COARSE_POINTS) for f in beside
    ]
    best = min(coarse, key=_rank)
    if len(y) > COARSE_POINTS:
        setting = (best.kernel, best.scaled)
        factors = FINE_FACTORS if bandwidth is None else (1.0,)
        fine = [search.one_ridge(*setting, best.bandwidth * f, best.ridge) for f in factors]
        if ridge is None:
            width = min(fine, key=_rank).bandwidth
            others = (best.ridge / 3, best.ridge * 3) if best.ridge else (RIDGES[1],)
            fine += [search.one_ridge(*setting, width, r) for r in others]
        best = min(fine, key=_rank)
    return Selection(best, tuple(search.tried))


def _rank(candidate: Candidate) -> tuple[bool, float]:
    loss = candidate.loss if math.isfinite(candidate.loss) else math.inf
    return not candidate.reachable, loss
