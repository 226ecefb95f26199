"""The adaptive kernel k_G: how many eigenvalues to level, and the batch and step that follow.

From the subsample's eigenpairs (sigma_i, v_i) the levelled kernel is

    k_q(x, z) = k(x, z) - phi(x)^T V D V^T phi(z),    D_i = (1 - sigma_q / sigma_i) / sigma_i

whose top q eigenvalues are all about lambda_q.  SGD with it profits from batches up to

    m*(k_q) = beta(K_q) / lambda_1(K_q)

and q is chosen so that m* reaches the batch m_G that the device can use.

The subsample flatters itself: its eigenvectors fit its own points, so beta and lambda_1 read off the
spectrum are both too small for all other points, and a step built on them diverges.  Here both are
measured on *fresh* training points.  beta is the mean of k_q(x, x) over those rather than the largest,
because training scales down every point above it (`iteration.py`); m* is then the trace of K_q over
its largest eigenvalue, at least 1 whatever the data, and lambda_1 is that of the scaled operator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mercer.data.points import Points
from mercer.kernels import Kernel
from mercer.method.spectrum import SMALL_MATRIX, NystromSpectrum, largest_eigenvalue, nystrom_spectrum
from mercer.operators.tiled import first_epoch_values, panel_rows
from mercer.planning.plan import EIGHT_BIT, FreshEstimate, Plan, working_memory
from mercer.planning.resource import Resource, affordable_points

# Paper, section 5: s = 2,000 for n <= 1e5 and 12,000 above.  Here the first is where s starts and
# the second where it stops growing.
SUBSAMPLE_SIZE = 2_000
LARGEST_SUBSAMPLE = 12_000
# Fresh points on which beta and lambda_1 are estimated, and the fewest that say anything.
FRESH_POINTS = 2_000
FEWEST_FRESH = 200
ESTIMATE_MATRICES = 10
# Eigenvectors beyond this share of s describe the subsample more than the data: on MNIST, s = 2,000,
# going from q = s/4 to q = s/2 doubles the work of every correction to lower beta by 7 %.
COMPONENT_SHARE = 0.25
# Eigenpairs worth computing at least: fewer take as long.
FEWEST_COMPUTED = 128
# A subsample this small is decomposed whole in milliseconds.
SMALL_SUBSAMPLE = 400
# Work, as a share of one epoch's, that levelling may add where it is not needed to reach m_G, only
# useful; and that a larger subsample may take where it is needed, since every epoch gains by it.
SPARE_WORK_SHARE = 0.03
GROWTH_WORK_SHARE = 0.5
# Growth of m* below which a larger subsample is not worth a further doubling.
GROWTH_WORTH_HAVING = 1.2
# Elementwise passes of one kernel value cost about as much as this many features.
ELEMENTWISE_FEATURES = 50
# A batch below this share of the rows that run at full rate wastes the device more than a batch beyond
# m* wastes its points.
SMALLEST_BATCH_SHARE = 1 / 8
# Rounding error that training may carry in f, as a share of the targets.
ROUNDING_IN_TARGETS = 1e-3
# Share of the largest stable step taken beyond m*, as the paper's implementation does for a full batch.
STABILITY_MARGIN = 0.95


@dataclass(frozen=True)
class LevelledKernel:
    """What turns k into k_q, on the fixed coordinate block x_r (the first s training points)."""

    V: Tensor  # (s, q)
    D: Tensor  # (q,)

    def diagonal(self, k_diag: Tensor, Z: Tensor) -> Tensor:
        """k_q(x, x), (m,), from k(x, x) and Z = Phi V, (m, q)."""
        return (k_diag - Z.square() @ self.D).clamp_(min=0)  # (m,)

    def take_back(self, alpha: Tensor, c: Tensor) -> None:
        """Add V c to the weights of the fixed block."""
        alpha[: len(self.V)].addmm_(self.V, c)  # (s, l)


@dataclass(frozen=True)
class Requests:
    """Numbers set by hand; None where the method chooses."""

    subsample_size: int | None = None
    preconditioner_rank: int | None = None
    batch_size: int | None = None
    step_size: float | None = None


def level(spectrum: NystromSpectrum, q: int, rho: float = 0.0) -> LevelledKernel:
    """The levelled kernel k_q for 1 <= q <= the spectrum's rank.

    With a ridge r the operator is K + r I, and it is the eigenvalues sigma_i + rho, rho = r s / n, that
    are to be level.  Levelling sigma_i alone would leave the leading directions the slowest of all.
    """
    sigma = spectrum.sigma[:q]  # (q,)
    V = spectrum.V[:, :q].contiguous()  # (s, q)
    return LevelledKernel(V, (1 - (sigma[-1] + rho) / (sigma + rho)) / sigma)


def paper_components(spectrum: NystromSpectrum, m_G: float) -> int:
    """q = max{ i : m*(k_i) <= m_G }, both beta and lambda from the subsample's own spectrum."""
    critical = own_critical_batches(spectrum)  # (q_max,)
    within = (critical <= m_G).nonzero()
    return int(within[-1]) + 1 if len(within) else 1


def own_critical_batches(spectrum: NystromSpectrum) -> Tensor:
    """m*(k_i) for every i as the subsample sees itself, (q_max,)."""
    sigma, V = spectrum.sigma, spectrum.V
    # On the subsample phi(x_r)^T v_i = sigma_i V_ri, so that phi^T V D V^T phi is the sum over
    # i <= q of V_ri² (sigma_i - sigma_q): two cumulative sums give it for every q.
    squares = V.square()  # (s, q_max)
    removed = (squares * sigma).cumsum(1) - squares.cumsum(1) * sigma  # (s, q_max)
    beta = (spectrum.k_diag[:, None] - removed).amax(0)  # (q_max,)
    return beta / (sigma / spectrum.s)


def safe_components(spectrum: NystromSpectrum, n: int) -> int:
    """The largest q whose step, 1 / beta(K_q), does not drown the residual in rounding error.

    Weights are about step times residual, so f = K alpha carries an error of about
    eps sqrt(n) k_rms / beta of the targets.  Smooth kernels in few dimensions have beta fall by orders
    of magnitude with q, and levelling all of it would trade the last digits for speed.
    """
    sigma = spectrum.sigma
    # The mean over the subsample of k_q(x, x): see `own_critical_batches`; each V_i has unit length.
    removed = (
        sigma.cumsum(0) - torch.arange(1, len(sigma) + 1, device=sigma.device) * sigma
    ) / spectrum.s
    beta = spectrum.k_diag.mean() - removed  # (q_max,)
    k_rms = float(sigma.square().sum().sqrt()) / spectrum.s
    least = torch.finfo(sigma.dtype).eps * math.sqrt(n) * k_rms / ROUNDING_IN_TARGETS
    return max(1, int((beta >= least).sum()))


@dataclass(frozen=True)
class FreshSample:
    """Kernel values between fresh points and between them and the subsample."""

    K: Tensor  # (f, f)
    phi: Tensor  # (f, s)
    k_diag: Tensor  # (f,)

    def estimate(self, levelled: LevelledKernel | None, q: int) -> FreshEstimate:
        """beta and lambda_1 of the levelled kernel, or of k itself where there is none.

        lambda_1 is that of W^1/2 K_q W^1/2 / n, with the weights w_i = min(1, beta / k_q(x_i, x_i)) that
        training gives to its points, so that a few far ones do not set it for all.
        """
        K, diagonal = self.K, self.k_diag
        if levelled is not None:
            Z = self.phi @ levelled.V  # (f, q)
            K = K - (Z * levelled.D) @ Z.T  # (f, f)
            diagonal = levelled.diagonal(self.k_diag, Z)
        # Below these bounds both numbers are rounding error: the diagonal has lost that much to
        # subtraction, and no eigenvalue is largest that is less than their mean.
        beta = max(float(diagonal.mean()), torch.finfo(K.dtype).eps * float(self.k_diag.mean()))
        # Training scales the residual of points above beta down (iteration.py), and so its operator.
        root = (beta / diagonal.clamp(min=beta)).sqrt_()  # (f,)
        lambda_1 = max(largest_eigenvalue(root[:, None] * K * root), beta) / len(K)
        return FreshEstimate(q=q, beta=beta, beta_max=float(diagonal.max()), lambda_1=lambda_1)


def fresh_sample(kernel: Kernel, points: Points, s: int, count: int = FRESH_POINTS) -> FreshSample:
    """The points that follow the subsample, or, where too few do, a sample that may overlap it."""
    n = len(points)
    fresh = points[s : s + count] if n - s >= FEWEST_FRESH else points[max(0, n - count) :]
    return FreshSample(
        K=kernel.block(fresh, fresh, same=True),
        phi=kernel.block(fresh, points[:s]),
        k_diag=kernel.diagonal(fresh),
    )


def best_step_size(m: int, beta: float, lambda_1: float) -> float:
    """eta for batch m.

    Per point the step 2 eta / m is 1 / beta up to m*, and 2 / (beta + (m - 1) lambda_1) beyond, less a
    margin: the latter is the limit of stability, where a direction that holds all of a batch (rows that
    are all alike, say) swings for ever.
    """
    limit = 2 / (beta + (m - 1) * lambda_1)
    return 0.5 * m * (1 / beta if m <= beta / lambda_1 else min(1 / beta, STABILITY_MARGIN * limit))


def adapt(
    kernel: Kernel,
    points: Points,
    n_outputs: int,
    resource: Resource,
    ridge: float = 0.0,
    requests: Requests = Requests(),
    n_held_out: int = 0,
    data_on_disk: bool = False,
    keeps: bool = True,
) -> tuple[Plan, LevelledKernel]:
    """Choose s, q, m and eta for training points in random order; the first s are the subsample.

    `keeps` says whether kernel values may be kept: a single epoch has no use for them.
    """
    n, d = points.x.shape
    features = d / max(1.0, resource.integer_gain) if points.is_bytes else d
    work = features + n_outputs + ELEMENTWISE_FEATURES
    # Estimates hold about this many matrices over the subsample or the fresh points at once, and two
    # copies of such points, which must leave room for the rest.
    usable = resource.memory - resource.reserved
    affordable = max(
        FEWEST_FRESH, affordable_points(usable, ESTIMATE_MATRICES, 2 * d, resource.element_size)
    )
    s = _subsample_size(n, requests, affordable)
    critical_before = 0.0
    width = _first_components(s, n, work, requests)
    while True:
        spectrum = nystrom_spectrum(kernel, points[:s], width)
        rank = len(spectrum.sigma) if requests.preconditioner_rank else safe_components(spectrum, n)
        m_S = resource.memory_batch(n, d, n_outputs, preconditioner=s * rank)
        m_C = resource.capacity_batch(n, d, n_outputs)
        # Tiles hold no block of the batch, so memory alone is no reason for one that wastes the device.
        m_G = min(m_C, max(m_S, resource.full_rate_rows))
        if requests.batch_size is not None:
            m_G = requests.batch_size
        m_G = int(max(1, min(m_G, n)))
        fresh = fresh_sample(kernel, points, s, min(FRESH_POINTS, affordable))
        paper = min(rank, paper_components(spectrum, m_G))
        q = _components(rank, paper, _spare_components(s, n, work), requests)
        rho = ridge * s / n
        chosen = fresh.estimate(level(spectrum, q, rho), q)
        while chosen.critical(ridge, n) < m_G and requests.preconditioner_rank is None and q < rank:
            q = min(2 * q, rank)
            chosen = fresh.estimate(level(spectrum, q, rho), q)
        critical = chosen.critical(ridge, n)
        if critical < m_G and q == width < _most_components(s, requests):
            width = min(2 * width, _most_components(s, requests))
            continue
        grown = min(2 * s, LARGEST_SUBSAMPLE, affordable)
        grows = (
            critical < m_G
            and requests.subsample_size is None
            and s < grown <= n // 2
            and critical > GROWTH_WORTH_HAVING * critical_before
            and 2 * n * grown * q + 3 * grown**2 * work < GROWTH_WORK_SHARE * n * n * work
        )
        if not grows:
            break
        s, critical_before = grown, critical
        width = max(width, _first_components(s, n, work, requests))

    beta, lambda_1 = chosen.beta + ridge, chosen.lambda_1 + ridge / n
    floor = max(1.0, SMALLEST_BATCH_SHARE * resource.full_rate_rows)
    m = requests.batch_size or int(min(m_G, max(critical, floor)))
    eta = requests.step_size or best_step_size(m, beta, lambda_1)
    plain = fresh.estimate(None, 0)
    size = resource.element_size
    # Held-out points are held as given and as prepared.
    data = 2 * size * n_held_out * d + (0 if data_on_disk else points.x.nbytes)
    spare = max(0.0, usable - working_memory(n, n_outputs, s, size) - data)
    # Beside the values of the first epoch, Z and all of K for the held-out points.
    values = first_epoch_values(n, s, max(m, panel_rows(points.x.device)))
    kept = min(spare, size * (values + n * (q + n_held_out))) if keeps else 0.0
    plan = Plan(
        n=n,
        d=d,
        n_outputs=n_outputs,
        kernel=str(kernel),
        device=resource.device,
        device_name=resource.name,
        precision=str(points.dtype).removeprefix("torch."),
        capacity=resource.capacity,
        memory=resource.memory - resource.reserved,
        capacity_batch_size=m_C,
        memory_batch_size=m_S,
        device_batch_size=m_G,
        subsample_size=s,
        preconditioner_rank=q,
        paper_rule=fresh.estimate(level(spectrum, paper), paper),
        paper_rule_own_critical=float(own_critical_batches(spectrum)[paper - 1]),
        beta_plain=plain.beta_max,
        lambda_1_plain=plain.lambda_1,
        beta=beta,
        beta_max=chosen.beta_max + ridge,
        lambda_1=lambda_1,
        batch_size=m,
        step_size=eta,
        ridge=ridge,
        products=EIGHT_BIT if points.is_bytes else f"in {str(points.dtype).removeprefix('torch.')}",
        kept_memory=kept,
        bound=_active_bound(m, m_G, n, s, m_C, m_S, requests),
        eigenvalues=tuple((spectrum.sigma / s).tolist()),
        data_on_disk=data_on_disk,
        notes=spectrum.notes,
    )
    return plan, level(spectrum, q, rho)


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
    """Eigenpairs computed at first: more follow where they are not enough."""
    most = _most_components(s, requests)
    if requests.preconditioner_rank is not None or s <= SMALL_MATRIX:
        return most
    return min(most, max(FEWEST_COMPUTED, 2 * _spare_components(s, n, work)))


def _spare_components(s: int, n: int, work: float) -> int:
    """Eigenvalues whose levelling costs next to nothing."""
    return int(SPARE_WORK_SHARE * n * work / (2 * s))


def _components(rank: int, paper: int, spare: int, requests: Requests) -> int:
    """The adjusted q: the paper's at least, and as many more as cost next to nothing."""
    if requests.preconditioner_rank is not None:
        return min(requests.preconditioner_rank, rank)
    return min(rank, max(paper, spare))


def _active_bound(m: int, m_G: int, n: int, s: int, m_C: float, m_S: int, requests: Requests) -> str:
    if requests.batch_size is not None:
        return "set by hand"
    if m_G == n and s == n:
        return "data"
    if m < m_G:
        return "spectrum"
    return "memory" if m_S < m_C else "capacity"
