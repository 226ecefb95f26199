"""One epoch of SGD, of the improved and of the original EigenPro, on equal terms: for `costs.py`.

All evaluate one batch at a time and keep nothing, as the paper describes them, with the same batch,
subsample and eigenpairs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from benchmarks.paper.counting import Counter, SecondEpoch
from mercer import Gaussian, Plan
from mercer.data.points import Points
from mercer.method.spectrum import nystrom_spectrum
from mercer.operators.tiled import TrainingProducts
from mercer.operators.workers import torch_threads
from mercer.planning.choose import LevelledKernel, Requests, adapt
from mercer.planning.resource import GIB, Resource
from mercer.training.baselines import original_preconditioner, train_original, train_sgd
from mercer.training.loop import Limits, Watcher, train

METHODS = ("SGD", "improved EigenPro", "original EigenPro")
OURS = "Mercer (panels)"
BANDWIDTH = 5.0
BATCH = 256
# Only the cost of a step is of interest: so small that no method diverges, whatever its batch.
SMALL_STEP = 1e-3
# The first epoch is a triangle, the second the iteration as the paper counts it.
TWO_EPOCHS = Limits(2, 0.0, 3, 0.0)


@dataclass(frozen=True)
class Problem:
    """A set with its subsample's spectrum, ready for all methods."""

    points: Points
    y: torch.Tensor  # (n, l)
    plan: Plan
    levelled: LevelledKernel
    sigma: torch.Tensor  # (q,)

    @property
    def sizes(self) -> tuple[int, int, int, int, int, int]:
        """n, s, q, d, l, m"""
        p = self.plan
        return p.n, p.subsample_size, p.preconditioner_rank, p.d, p.n_outputs, p.batch_size

    def products(self, rows_at_once: int | None) -> TrainingProducts:
        V, l = self.levelled.V, self.y.shape[1]
        return TrainingProducts(Gaussian(BANDWIDTH), self.points, V, BATCH, l, rows_at_once=rows_at_once)


def problem(x: torch.Tensor, y: torch.Tensor, s: int, q: int) -> Problem:
    kernel = Gaussian(BANDWIDTH)
    points = kernel.points(x)
    resource = Resource(capacity=float("inf"), memory=8 * GIB)
    requests = Requests(subsample_size=s, preconditioner_rank=q, batch_size=BATCH)
    plan, levelled = adapt(kernel, points, y.shape[1], resource, requests=requests)
    spectrum = nystrom_spectrum(kernel, points[:s], q)
    slow = replace(plan, step_size=SMALL_STEP * plan.step_size, beta_plain=plan.beta_plain / SMALL_STEP)
    return Problem(points, y, slow, levelled, spectrum.sigma[: plan.preconditioner_rank])


def epoch_of(method: str, p: Problem, watcher: Watcher | None = None) -> float:
    """Seconds of the second epoch of a method."""
    if method == "SGD":
        outcome = train_sgd(p.products(BATCH), p.plan, p.y, TWO_EPOCHS, BATCH, watcher=watcher)
    elif method == "original EigenPro":
        products = p.products(BATCH)
        original = original_preconditioner(products, p.levelled, p.sigma)
        outcome = train_original(products, original, p.plan, p.y, TWO_EPOCHS, watcher=watcher)
    else:
        products = p.products(None if method == OURS else BATCH)
        outcome = train(products, p.levelled, p.plan, p.y, TWO_EPOCHS, watcher=watcher)
    return outcome.history[1].seconds


def counted(method: str, p: Problem) -> tuple[int, int]:
    """Multiply-adds and kernel evaluations of the second epoch."""
    counter = Counter()
    with torch_threads(1), counter:  # a dispatch mode sees its own thread only
        epoch_of(method, p, SecondEpoch(counter))
    return counter.multiply_adds, counter.evaluations
