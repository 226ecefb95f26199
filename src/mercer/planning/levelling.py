"""How many eigenvalues are levelled, of how large a subsample.

SGD with the levelled kernel k_q profits from batches up to m*(k_q).  q is chosen so that m* reaches the
batch m_G that the device can use; where the subsample is too small for that, it grows.  From there q is
doubled as long as training is expected to end sooner: the epochs that this saves (`epochs.py`) take more
operations than levelling and decomposing more (`work.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from mercer.data.dealt_points import AnyPoints
from mercer.kernels.base import Kernel
from mercer.method.critical_batch import (
    FEWEST_FRESH,
    FRESH_POINTS,
    FreshEstimate,
    FreshSample,
    fresh_sample,
    own_critical_batches,
    paper_components,
    safe_components,
)
from mercer.method.preconditioner import level
from mercer.method.spectrum import SMALL_MATRIX, NystromSpectrum, nystrom_spectrum
from mercer.planning.epochs import Goal, Spectrum, epochs_until
from mercer.planning.memory import estimate_points
from mercer.planning.resource import Resource
from mercer.planning.work import ELEMENTWISE_FEATURES, Work, decomposition, fresh_estimate

# Paper, section 5: s = 2,000 for n <= 1e5 and 12,000 above.  Here s starts at the first and grows up to
# the second.
SUBSAMPLE_SIZE = 2_000
LARGEST_SUBSAMPLE = 12_000
# Eigenvectors beyond this share of s describe the subsample more than the data: on MNIST, s = 2,000,
# going from q = s/4 to q = s/2 doubles the work of every correction to lower beta by 7 %.
COMPONENT_SHARE = 0.25
# Fewest eigenpairs computed: fewer take as long.
FEWEST_COMPUTED = 128
# A subsample this small is decomposed whole in milliseconds.
SMALL_SUBSAMPLE = 400
# Work, as a share of one epoch's, that levelling may add where it is not needed to reach m_G but still
# useful; and that a larger subsample may take where it is needed, since every epoch gains from it.
SPARE_WORK_SHARE = 0.03
GROWTH_WORK_SHARE = 0.5
# Growth of m* below which a larger subsample is not worth a further doubling.
GROWTH_WORTH_HAVING = 1.2
# Of the operations that are expected to be saved, what more levelling may cost: epochs are predicted
# within a factor of two.
SAVING_SHARE = 0.5
# Why no more are levelled.
ROUNDING_LIMIT = "rounding error does not allow more"
SUBSAMPLE_LIMIT = "s is too small for more"
# A batch below this share of the rows that run at full rate wastes more of the device than a batch
# beyond m* wastes of its points.
SMALLEST_BATCH_SHARE = 1 / 8


@dataclass(frozen=True)
class Requests:
    """Numbers set by the user; None where the method chooses."""

    subsample_size: int | None = None
    preconditioner_rank: int | None = None
    batch_size: int | None = None
    step_size: float | None = None


@dataclass(frozen=True)
class BatchLimits:
    """What bounds the batch on a device, before the spectrum does."""

    m_C: float
    m_S: int
    m_G: int


@dataclass(frozen=True)
class Levelling:
    """A subsample, how much of its spectrum is levelled, and the batches that allows."""

    spectrum: NystromSpectrum
    fresh: FreshSample
    estimate: FreshEstimate  # of the q chosen
    paper_q: int
    paper_own_critical: float  # m* of the paper's q, estimated on the subsample itself
    batch: BatchLimits
    reason: str  # why no more are levelled

    @property
    def q(self) -> int:
        return self.estimate.q


def levelling(
    kernel: Kernel,
    points: AnyPoints,
    n_outputs: int,
    resource: Resource,
    ridge: float,
    requests: Requests,
    goal: Goal | None,
    keeps_all: Callable[[int, int, int], bool],
) -> Levelling:
    """Grow q, the eigenpairs computed and the subsample until m* reaches m_G or it no longer pays.

    With a goal, q grows further while that is expected to save time.  `keeps_all` tells whether later
    epochs evaluate no kernel values, for s, q and m.
    """
    n, d = points.shape
    features = d / max(1.0, resource.integer_gain) if points.is_bytes else d
    work = features + n_outputs + ELEMENTWISE_FEATURES
    affordable = max(FEWEST_FRESH, estimate_points(resource.usable_each, d, resource.element_size))
    s = _subsample_size(n, requests, affordable)
    width = _first_components(s, n, work, requests)
    critical_before = 0.0
    while True:
        spectrum = nystrom_spectrum(kernel, points[:s], width)
        rank = len(spectrum.sigma) if requests.preconditioner_rank else safe_components(spectrum, n)
        batch = _batch_limits(n, d, n_outputs, s * rank, resource, requests)
        fresh = fresh_sample(kernel, points, s, min(FRESH_POINTS, affordable))
        own_critical = own_critical_batches(spectrum)  # (q_max,)
        paper_q = min(rank, paper_components(own_critical, batch.m_G))
        q = _components(rank, paper_q, _spare_components(s, n, work), requests)
        rho = ridge * s / n
        estimate = fresh.estimate(level(spectrum, q, rho), q)
        while (
            estimate.critical(ridge, n) < batch.m_G and requests.preconditioner_rank is None and q < rank
        ):
            q = min(2 * q, rank)
            estimate = fresh.estimate(level(spectrum, q, rho), q)
        critical = estimate.critical(ridge, n)
        if critical < batch.m_G and q == width < _most_components(s, requests):
            width = min(2 * width, _most_components(s, requests))
            continue
        grown = min(2 * s, LARGEST_SUBSAMPLE, affordable)
        grows = (
            critical < batch.m_G
            and requests.subsample_size is None
            and s < grown <= n // 2
            and critical > GROWTH_WORTH_HAVING * critical_before
            and 2 * n * grown * q + 3 * grown**2 * work < GROWTH_WORK_SHARE * n * n * work
        )
        if not grows:
            break
        s, critical_before = grown, critical
        width = max(width, _first_components(s, n, work, requests))
    if requests.preconditioner_rank is not None:
        reason = "set by the user"
    elif q == rank:
        reason = ROUNDING_LIMIT if rank < len(spectrum.sigma) else SUBSAMPLE_LIMIT
    elif q > _spare_components(s, n, work):
        reason = f"as many as batches of {batch.m_G:,} need"
    else:
        reason = f"more would add over {SPARE_WORK_SHARE:.0%} to an epoch"
    own = float(own_critical[paper_q - 1])
    found = Levelling(spectrum, fresh, estimate, paper_q, own, batch, reason)
    # A held-out part ends training after a number of epochs that hardly depends on q.
    if requests.preconditioner_rank is not None or goal is None or goal.patience is not None:
        return found
    m = batch_size(requests, batch, estimate, ridge, n, resource)
    counted = Work(n, n_outputs, work, keeps_all(s, q, m), resource.ranks)

    def epochs(spectrum: NystromSpectrum, q: int) -> float:
        """Until the goal is reached, as training counts them; m* is no less than the batch."""
        levelled, known = level(spectrum, q, rho), (spectrum.sigma / s).double().cpu()
        beta = fresh.beta(levelled) + ridge
        seen = Spectrum(n, q, known, beta, ridge, gamma=1 / beta)
        return min(goal.most, 1 + epochs_until(seen, levelled, goal))

    return _while_it_pays(kernel, points, found, counted, epochs, rho)


def _while_it_pays(
    kernel: Kernel,
    points: AnyPoints,
    found: Levelling,
    work: Work,
    epochs: Callable[[NystromSpectrum, int], float],
    rho: float,
) -> Levelling:
    """Double q while the epochs that this saves take more operations than it costs.

    The epochs of two q are compared on one spectrum, since what is expected beyond it depends on how
    much of it is known.  More of it is computed if that pays in case that the next doubling saves as
    large a share of the epochs as the last one.
    """
    s, f, most = found.spectrum.s, len(found.fresh.K), _most_components(found.spectrum.s, Requests())
    while True:
        q, spectrum, known = found.q, found.spectrum, len(found.spectrum.sigma)
        rank = safe_components(spectrum, len(points))
        more = min(2 * q, most if q == known else rank)
        if more <= q:
            return replace(found, reason=ROUNDING_LIMIT if q < most else SUBSAMPLE_LIMIT)
        taken = epochs(spectrum, q)
        cost = work.levelling(s, more - q) + fresh_estimate(f, s, more)
        if q == known:
            after = taken * min(1.0, taken / epochs(spectrum, max(1, q // 2)))
            cost += decomposition(s, more)
        else:
            after = epochs(spectrum, more)
        saved = work.later_epochs(taken, s, q) - work.later_epochs(after, s, more)
        if cost > SAVING_SHARE * saved:
            return replace(found, reason="more would take longer than the epochs that they save")
        if q == known:
            spectrum = nystrom_spectrum(kernel, points[:s], more)
            if len(spectrum.sigma) <= q:
                return replace(found, reason=ROUNDING_LIMIT)
            found = replace(found, spectrum=spectrum)
        else:
            estimate = found.fresh.estimate(level(spectrum, more, rho), more)
            found = replace(found, estimate=estimate)


def batch_size(
    requests: Requests,
    batch: BatchLimits,
    estimate: FreshEstimate,
    ridge: float,
    n: int,
    resource: Resource,
) -> int:
    """m: as large as the device can use and the spectrum allows."""
    floor = max(1.0, SMALLEST_BATCH_SHARE * resource.full_rate_rows)
    return requests.batch_size or int(min(batch.m_G, max(estimate.critical(ridge, n), floor)))


def _batch_limits(
    n: int, d: int, n_outputs: int, preconditioner: int, resource: Resource, requests: Requests
) -> BatchLimits:
    m_S = resource.memory_batch(n, d, n_outputs, preconditioner)
    m_C = resource.capacity_batch(n, d, n_outputs)
    # Tiles hold no block of the batch, so memory alone is no reason for one that wastes the device.
    m_G = min(m_C, max(m_S, resource.full_rate_rows))
    if requests.batch_size is not None:
        m_G = requests.batch_size
    return BatchLimits(m_C, m_S, int(max(1, min(m_G, n))))


def _subsample_size(n: int, requests: Requests, affordable: int) -> int:
    s = requests.subsample_size
    if s is None:
        most = min(SUBSAMPLE_SIZE, affordable)
        s = n if n < most + FEWEST_FRESH else most
        q = requests.preconditioner_rank
        return s if q is None else min(n, max(s, q + 1))
    if not 1 <= s <= n:
        raise ValueError(
            f"`subsample_size` must be between 1 and the number of training points, {n} after any "
            f"held-out part. Got {s} instead."
        )
    return s


def _most_components(s: int, requests: Requests) -> int:
    if requests.preconditioner_rank is not None:
        return requests.preconditioner_rank
    return max(1, s - 1 if s <= SMALL_SUBSAMPLE else int(COMPONENT_SHARE * s))


def _first_components(s: int, n: int, work: float, requests: Requests) -> int:
    """Eigenpairs computed at first; more follow where they are not enough."""
    most = _most_components(s, requests)
    if requests.preconditioner_rank is not None or s <= SMALL_MATRIX:
        return most
    return min(most, max(FEWEST_COMPUTED, 2 * _spare_components(s, n, work)))


def _spare_components(s: int, n: int, work: float) -> int:
    """Eigenvalues whose levelling costs next to nothing."""
    return int(SPARE_WORK_SHARE * n * work / (2 * s))


def _components(rank: int, paper: int, spare: int, requests: Requests) -> int:
    """The adjusted q: at least the paper's, and as many more as cost next to nothing."""
    if requests.preconditioner_rank is not None:
        return min(requests.preconditioner_rank, rank)
    return min(rank, max(paper, spare))
