"""One epoch of SGD, of the improved and of the original EigenPro under equal conditions, for `costs.py`.

All evaluate one batch at a time and keep no kernel values, as the paper describes them, with the same
batch size, subsample and eigenpairs.
"""

from __future__ import annotations

import torch

from benchmarks.paper.counting import Counter, SecondEpoch
from benchmarks.paper.problem import Problem, exactly, planned, train, train_original, train_sgd
from mercer import Gaussian
from mercer.engine import Requests, Resource, Watcher
from mercer.operators.workers import torch_threads
from mercer.planning.memory import GIB

METHODS = ("SGD", "improved EigenPro", "original EigenPro")
OURS = "Mercer (panels)"
BANDWIDTH = 5.0
BATCH = 256
# Only the cost of a step is measured: a step so small that no method diverges.
SMALL_STEP = 1e-3
# The first epoch skips points that have no weights yet; the second is the iteration of the paper.
TWO_EPOCHS = exactly(2)


def problem(x: torch.Tensor, y: torch.Tensor, s: int, q: int) -> Problem:
    kernel = Gaussian(BANDWIDTH)
    resource = Resource(capacity=float("inf"), memory=8 * GIB)
    requests = Requests(subsample_size=s, preconditioner_rank=q, batch_size=BATCH)
    return planned(kernel, kernel.points(x), y, resource, requests)


def epoch_of(method: str, p: Problem, watcher: Watcher | None = None) -> float:
    """Seconds of the second epoch of a method."""
    if method == "SGD":
        outcome = train_sgd(p, TWO_EPOCHS, m=BATCH, step=SMALL_STEP, watcher=watcher)
    elif method == "original EigenPro":
        outcome = train_original(p, TWO_EPOCHS, step=SMALL_STEP, watcher=watcher)
    else:
        at_once = None if method == OURS else BATCH
        outcome = train(p, TWO_EPOCHS, step=SMALL_STEP, rows_at_once=at_once, watcher=watcher)
    return outcome.history[1].seconds


def counted(method: str, p: Problem) -> tuple[int, int]:
    """Multiply-adds and kernel evaluations of the second epoch."""
    counter = Counter()
    with torch_threads(1), counter:  # a dispatch mode sees its own thread only
        epoch_of(method, p, SecondEpoch(counter))
    return counter.multiply_adds, counter.evaluations
