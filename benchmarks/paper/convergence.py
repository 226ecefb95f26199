"""How many epochs a method needs, counted exactly, and how long one of its iterations takes here.

A step of size gamma on batch t subtracts gamma A[:, t] W_t g_t from the values f of the function at all
training points, where g_t is the residual on the batch and A is

    K                              plain SGD
    K_q = K - Z D Z^T              the improved iteration, Z = Phi V
    K - K Z D' Z^T                 the original EigenPro

The residuals g of one epoch, each taken just before its own step, therefore solve a triangular system,

    (I + gamma L W) g = f - y,       L the part of A below the diagonal blocks of the batches,

and after the epoch the values are f - gamma A W g.  One solve costs the same for every batch size.
Counting this way ignores only rounding, and `agreement` checks it against training itself.

Batches are redrawn in every epoch, from a few random orders.  In *one* fixed order plain SGD with small
batches is a cyclic coordinate descent and needs many times more epochs than with random batches (Sun and
Ye 2021 give the worst case), so that a comparison with it would favour Mercer.  Mercer's own loop is in
between: its batches stay the same, and panels and the batches of each are visited in another order in
every epoch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from benchmarks.paper.data import Set, median_distance
from benchmarks.paper.problem import (
    CPU,
    Iterations,
    Problem,
    exactly,
    planned,
    train,
)
from mercer import Gaussian, Laplacian
from mercer.engine import Requests, measure_resource
from mercer.kernels import Kernel
from mercer.method.preconditioner import Preconditioner, nothing_levelled
from mercer.method.schedule import batches
from mercer.method.step import best_step_size, safe_weights
from mercer.model.machine import reproducible_product
from mercer.stopwatch import Stopwatch
from mercer.training.baselines import OriginalPreconditioner

SGD, ORIGINAL, MERCER = "SGD", "original EigenPro", "Mercer"
METHODS = (SGD, ORIGINAL, MERCER)
# Random orders that epochs draw from.  With 8 instead of 4 the same number of epochs was needed.
ORDERS = 4
# The paper's s = 2,000 is a small share of its points; here n is small, so s is a fixed share of it.
SUBSAMPLE_SHARE = 0.25
# The paper's bandwidth for MNIST, 5, is half the median distance between digits; the Laplacian kernel
# falls to the same order of magnitude with the median itself as bandwidth.
GAUSSIAN_SHARE, LAPLACIAN_SHARE = 0.5, 1.0
# Iterations timed together: at most this many, and for about this long.
TIMED_ITERATIONS = 24
TIMED_SECONDS = 0.06
# Epochs over which counting is compared with training.
AGREEMENT_EPOCHS = 4
# Power iterations; enough for the largest eigenvalue within about 1 %.
POWER_STEPS = 100
# A loss this many times that of a zero prediction counts as divergence.
DIVERGED = 10.0


@dataclass(frozen=True)
class Centred:
    """A dataset in random order, with centred features and centred one-hot targets."""

    x: Tensor  # (n, d)
    y: Tensor  # (n, l)
    centre: Tensor  # (d,)  subtracted from the features
    offset: Tensor  # (l,)  subtracted from the targets

    def problem(self, kernel_name: str, full_rate_rows: int | None = None) -> Problem:
        """With a bandwidth from the median distance; `full_rate_rows` describes a larger device."""
        median = median_distance(self.x.numpy())
        kernel: Kernel = (
            Gaussian(GAUSSIAN_SHARE * median)
            if kernel_name == "gaussian"
            else Laplacian(LAPLACIAN_SHARE * median)
        )
        resource = measure_resource(CPU)
        if full_rate_rows is not None:
            resource = replace(resource, full_rate_rows=full_rate_rows)
        requests = Requests(subsample_size=int(SUBSAMPLE_SHARE * len(self.x)))
        return planned(kernel, kernel.points(self.x), self.y, resource, requests)


def centred(found: Set) -> Centred:
    """Centring does not change the kernels and reduces the rounding error of distances."""
    order = np.random.default_rng(0).permutation(len(found.X))
    x = torch.from_numpy(np.ascontiguousarray(found.X[order]))
    y = torch.from_numpy(found.targets()[order])
    centre, offset = x.mean(0), y.mean(0)
    return Centred(x - centre, y - offset, centre, offset)


@dataclass(frozen=True)
class Method:
    """A method on a problem: its operator, and the numbers that give its step."""

    name: str
    problem: Problem
    preconditioner: Preconditioner
    A: Tensor  # (n, n)
    W: Tensor  # (n, 1)
    beta: float
    lambda_1: float

    @property
    def critical(self) -> float:
        """m*"""
        return self.beta / self.lambda_1

    def gamma(self, m: int) -> float:
        return 2 * best_step_size(m, self.beta, self.lambda_1) / m


def method(name: str, given: Problem) -> Method:
    plan, points, levelled = given.plan, given.points, given.levelled
    K = given.kernel.block(points, points, same=True)  # (n, n)
    if name == SGD:
        W, nothing = K.new_ones(len(K), 1), nothing_levelled(K)
        return Method(name, given, nothing, K, W, plan.beta_plain, plan.lambda_1_plain)
    Z = K[:, : plan.subsample_size] @ levelled.V  # (n, q)
    if name == MERCER:
        W = safe_weights(levelled, given.kernel.diagonal(points), Z, plan.beta, 0.0)  # (n, 1)
        return Method(name, given, levelled, K - (Z * levelled.D) @ Z.T, W, plan.beta, plan.lambda_1)
    return _original(given, K, Z)


def _original(given: Problem, K: Tensor, Z: Tensor) -> Method:
    """The original EigenPro with the same q, corrected so that it converges.

    K (I - Z D Z^T) has growing directions if Z D Z^T has an eigenvalue above 1.  With eigenfunctions
    from a subsample it does: at other points their norms differ from those that s / (n sigma²) assumes.
    So their norms are measured here, and D is scaled down for the angles between them.  beta and
    lambda_1 are those of the corrected operator.
    """
    sigma = torch.tensor(given.plan.eigenvalues[: given.plan.preconditioner_rank])  # (q,) over s
    D = (1 - sigma[-1] / sigma) / Z.square().sum(0)  # (q,)
    scaled = (D.sqrt() * Z).double()  # (n, q)
    largest = float(torch.linalg.eigvalsh(scaled.T @ scaled)[-1])
    D = D * min(1.0, float(1 - sigma[-1] / sigma[0]) / largest)  # largest eigenvalue in the ideal case
    A = K - (K @ Z * D) @ Z.T  # (n, n)
    diagonal = A.diagonal()
    beta = float(diagonal.mean())
    W = (beta / diagonal.clamp(min=beta))[:, None]  # (n, 1)
    v = torch.randn(len(A), 1, generator=torch.Generator().manual_seed(0))
    for _ in range(POWER_STEPS):  # A is not symmetric, but similar to a symmetric matrix
        v = A @ (W * (v / v.norm()))  # (n, 1)
    preconditioner = OriginalPreconditioner(given.levelled, Z, D)
    return Method(ORIGINAL, given, preconditioner, A, W, beta, float(v.norm()) / len(A))


@dataclass(frozen=True)
class Losses:
    """Losses of successive epochs; the first of `after` is that of a zero prediction."""

    after: tuple[float, ...]  # at the end of each epoch
    met: tuple[float, ...]  # mean over batches just before their steps, as training reports it

    def epochs_to(self, level: float) -> float | None:
        """Epochs until the training error is `level`, interpolated geometrically between epochs."""
        for i, loss in enumerate(self.after):
            if loss <= level:
                before = self.after[i - 1] if i else loss
                if i == 0 or loss <= 0:
                    return float(i)
                return i - math.log(level / loss) / math.log(before / loss)
        return None

    @property
    def diverged(self) -> bool:
        return not self.after[-1] <= DIVERGED * self.after[0]


def count(
    of: Method, m: int, least: float, most_epochs: int, step: float = 1.0, fixed: bool = False
) -> Losses:
    """Losses with batch size m until the training error is `least`, for at most `most_epochs`.

    `step` multiplies the method's step size.  With `fixed`, every epoch visits the batches in the order
    of the points.
    """
    gamma = step * of.gamma(m)
    solves = [_triangle(of, order, ends, gamma) for order, ends in _orders(of, m, fixed)]
    draws = torch.Generator().manual_seed(1)
    residual = -of.problem.y  # (n, l)  f - y
    met: list[float] = []
    after = [float(residual.square().mean())]
    while len(met) < most_epochs and least < after[-1] <= DIVERGED * after[0]:
        order, T = solves[int(torch.randint(len(solves), (), generator=draws))]
        g = torch.empty_like(residual)
        g[order] = torch.linalg.solve_triangular(T, residual[order], upper=False, unitriangular=True)
        residual = residual.addmm(of.A, of.W * g, alpha=-gamma)  # (n, l)
        met.append(float(g.square().mean()))
        after.append(float(residual.square().mean()))
    return Losses(tuple(after), tuple(met))


def _orders(of: Method, m: int, fixed: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Orders of the points, (n,), and for each position the start of its batch, (n,)."""
    n = of.problem.n
    cut = batches(n, of.problem.plan.subsample_size if fixed else 0, m)
    starts = torch.cat([torch.full((b.stop - b.start,), b.start) for b in cut])
    draws = torch.Generator().manual_seed(0)
    for _ in range(1 if fixed else ORDERS):
        yield (torch.arange(n) if fixed else torch.randperm(n, generator=draws)), starts


def _triangle(of: Method, order: Tensor, starts: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """I + gamma L W in the given order, (n, n), stored by columns as the solver expects."""
    T = (of.A * (gamma * of.W.T))[order][:, order].T.contiguous()  # (n, n) transposed
    # Column j of the transposed matrix is row j; entries before the start of its batch remain.
    T.mul_(torch.arange(len(T))[:, None] < starts)
    return order, T.T


class Timer:
    """Times one iteration of a method with batch size m."""

    def __init__(self, of: Method, m: int) -> None:
        self.of, self.m = of, m
        self.best = math.inf  # seconds of one iteration
        self.iterations = Iterations(of.problem, of.preconditioner, m, of.W)

    def measure(self) -> None:
        """Time a few more iterations; the best mean counts, since others may share the machine."""
        n = len(self.iterations)
        # Spread over the points, since those of the subsample take slightly less time.
        spread = np.linspace(0, n - 1, min(n, TIMED_ITERATIONS)).astype(int)
        with Stopwatch() as watch:
            done = self.iterations.run(spread.tolist(), seconds=TIMED_SECONDS)
        self.best = min(self.best, watch.seconds / done)

    def train(self, level: float, most_epochs: int) -> dict[str, float] | None:
        """Run all iterations to the level in a fixed batch order, for the epochs that counting gives.

        Returns the measured seconds, those computed from one iteration, and the training error reached;
        None where the level is not reached.
        """
        of, iterations = self.of, self.iterations
        counted = count(of, self.m, level, most_epochs, fixed=True).epochs_to(level)
        if counted is None:
            return None
        epochs = math.ceil(counted)
        iterations.model.weights.zero_()
        with Stopwatch() as watch:
            for _ in range(epochs):
                iterations.run(range(len(iterations)), of.gamma(self.m))
        given = of.problem
        f = reproducible_product(
            given.kernel, given.points, given.points, iterations.model.weights
        )  # (n, l)
        return {
            "m": self.m,
            "epochs": epochs,
            "seconds": watch.seconds,
            "counted_seconds": epochs * len(iterations) * self.best,
            "error": float((f - given.y).square().mean()),
        }


def time_iterations(timers: Sequence[Timer], rounds: int) -> None:
    """Measure in turn, so that slow moments of the machine affect all alike."""
    for timer in timers:  # the first use of memory does not count
        timer.iterations.run([0])
    for _ in range(rounds):
        for timer in timers:
            timer.measure()


def agreement(of: Method) -> float:
    """Largest relative difference between counted losses and those of training (for Mercer)."""
    trained = train(of.problem, exactly(AGREEMENT_EPOCHS), shuffled=False).history
    if any(epoch.halvings for epoch in trained.epochs):
        return math.inf  # training changed the step, so the losses cannot be compared
    m = of.problem.plan.batch_size
    counted = count(of, m, 0.0, AGREEMENT_EPOCHS, fixed=True).met
    pairs = zip(counted, trained.column("train_loss"), strict=True)
    return max(abs(a / b - 1) for a, b in pairs if b)
