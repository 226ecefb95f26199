"""Epochs over steps: training to the interpolant, watched, guarded and stopped early.

The points are in one random order with the subsample first, and batches are contiguous in it.  In the
first epoch a batch needs only the kernel against the fixed block and the points already visited, since
all other weights are still zero.

The loop returns data.  Whoever wants to print or draw passes `on_batch` and `on_epoch`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from mercer.iteration import PanelDescent, Preconditioner, safe_weights
from mercer.plan import Plan
from mercer.products import HeldOutProducts, TrainingProducts, by_output
from mercer.stopping import EarlyStopping
from mercer.workers import small_operations

# A batch's loss this many times that of predicting nothing is divergence: unseen points can be
# predicted worse than by nothing, but not by this much.
DIVERGED_BATCH = 100.0
# An epoch's loss this many times the best so far is divergence, since every point was fitted before;
# unless it is below this share of the loss of predicting nothing, where it may be rounding error.
DIVERGED_EPOCH = 2.0
ROUNDING_SHARE = 1e-3
MOST_HALVINGS = 12
# Epochs without a fall of a hundredth that show, at such a loss, that rounding error keeps it up.
STALLED_EPOCHS = 5
STALLED_TOLERANCE = 0.01


class DivergenceError(ArithmeticError):
    """Training diverged at every step size tried."""


@dataclass(frozen=True)
class Epoch:
    """One pass over the training points.  Losses are mean squared errors per output."""

    number: int
    train_loss: float  # of each batch just before its step
    validation_loss: float | None
    validation_score: float | None
    seconds: float
    step_size: float  # eta
    halvings: int  # how often the guard halved the step in this epoch


@dataclass(frozen=True)
class History:
    """The epochs of a run, as data.

    >>> History((Epoch(1, 0.5, None, None, 0.1, 64.0, 0),)).column("train_loss")
    [0.5]
    """

    epochs: tuple[Epoch, ...] = ()

    def __len__(self) -> int:
        return len(self.epochs)

    def __getitem__(self, index: int) -> Epoch:
        return self.epochs[index]

    def column(self, name: str) -> list[float | None]:
        """One field over all epochs."""
        return [getattr(epoch, name) for epoch in self.epochs]

    def to_dicts(self) -> list[dict[str, float | None]]:
        """A list of plain dictionaries, as `pandas.DataFrame` takes it."""
        return [asdict(epoch) for epoch in self.epochs]


@dataclass(frozen=True)
class Validation:
    """Held-out points, their targets on the training scale, and a score, larger being better."""

    products: HeldOutProducts
    y: Tensor  # (n_val, l)
    score: Callable[[Tensor], float]  # of predictions, (n_val, l)


@dataclass(frozen=True)
class Outcome:
    """What training made."""

    alpha: Tensor  # (n, l)
    history: History
    converged: bool
    reason: str
    validation_predictions: Tensor | None  # of the weights kept


@dataclass(frozen=True)
class Limits:
    """When training ends."""

    max_epochs: int
    tol: float  # train loss, as a share of the loss of predicting nothing, that counts as interpolation
    patience: int
    tolerance: float


def train(
    products: TrainingProducts,
    levelled: Preconditioner,
    plan: Plan,
    y: Tensor,
    limits: Limits,
    validation: Validation | None = None,
    *,
    start_from: Tensor | None = None,
    triangular: bool = True,
    on_batch: Callable[[int, int, int, float], None] | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
) -> Outcome:
    """Solve (K + r I) alpha = y for centred targets y, (n, l), from alpha = 0 or `start_from`.

    `triangular` says that a step changes only the weights of its batch and of the fixed block, so that
    points not yet visited have the weights they started from.  `on_batch` gets the epoch, the batch, the
    number of batches and the batch's loss.
    """
    with small_operations(y.device):
        return _train(
            products, levelled, plan, y, limits, validation, start_from, triangular, on_batch, on_epoch
        )


def _train(
    products: TrainingProducts,
    levelled: Preconditioner,
    plan: Plan,
    y: Tensor,
    limits: Limits,
    validation: Validation | None,
    start_from: Tensor | None,
    triangular: bool,
    on_batch: Callable[[int, int, int, float], None] | None,
    on_epoch: Callable[[Epoch], None] | None,
) -> Outcome:
    n = len(y)
    kernel, points = products.kernel, products.points
    n_batches = sum(len(panel.batches) for panel in products.panels)
    alpha = by_output(torch.zeros_like(y) if start_from is None else start_from)  # (n, l)
    weighted = int(alpha.any(1).nonzero().max()) + 1 if bool(alpha.any()) else 0  # rows not all zero
    weights = y.new_ones(n, 1)  # (n, 1)  of iteration.py, each set at the point's first visit
    gamma = 2 * plan.step_size / plan.batch_size
    nothing = float(y.square().mean())  # the loss of predicting nothing
    stopping = EarlyStopping(limits.patience, limits.tolerance)
    stalling = EarlyStopping(STALLED_EPOCHS, STALLED_TOLERANCE)
    # A loss is measured before its step, so weights are known to be good only once an epoch has
    # started from them and ended well.
    good, started = alpha.clone(), alpha.clone()  # where the last good epoch began; where this one did
    best, best_predictions = alpha, None
    best_train_loss = math.inf
    epochs: list[Epoch] = []
    halvings = 0
    converged, reason = False, f"all {limits.max_epochs} epochs are done"

    number = 1
    start = time.perf_counter()
    while number <= limits.max_epochs:
        total = y.new_zeros(())  # stays on the device
        diverged = False
        done = 0
        for index, panel in enumerate(products.panels):
            seen = max(panel.stop, weighted) if triangular and number == 1 else n
            rows = products.rows(index, alpha, seen)
            if number == 1:
                k_diag = kernel.diagonal(points[panel.rows])  # (R,)
                weights[panel.rows] = safe_weights(levelled, k_diag, rows.Z, plan.beta, plan.ridge)
            descent = PanelDescent(panel, rows, levelled, alpha, plan.ridge)
            for batch in panel.batches:
                g = descent.residual(batch, y[batch])  # (m, l)
                batch_loss = g.square().mean()
                descent.step(batch, g.mul_(weights[batch]), gamma)
                total += batch_loss * (len(g) / n)
                loss = float(batch_loss)
                diverged = not loss <= DIVERGED_BATCH * nothing
                done += 1
                if diverged:
                    break
                if on_batch is not None:
                    on_batch(number, done, n_batches, loss)
            if diverged:
                break
            descent.finish()
        train_loss = float(total)
        # The last steps of an epoch have no later loss to show what they did.
        diverged = diverged or not bool(torch.isfinite(alpha).all())
        if diverged or train_loss > max(DIVERGED_EPOCH * best_train_loss, ROUNDING_SHARE * nothing):
            if halvings + sum(epoch.halvings for epoch in epochs) >= MOST_HALVINGS:
                raise DivergenceError(_causes(plan, gamma))
            gamma /= 2
            alpha.copy_(good)
            started.copy_(good)
            if epochs:
                halvings += epochs.pop().halvings
                number -= 1
            halvings += 1
            continue

        val_loss, val_score, predictions = None, None, None
        verdict = None
        if validation is not None:
            predictions = validation.products.times(alpha)  # (n_val, l)
            val_loss = float((predictions - validation.y).square().mean())
            val_score = validation.score(predictions)
            verdict = stopping.update(val_loss)
        now = time.perf_counter()
        eta = gamma * plan.batch_size / 2
        epochs.append(Epoch(number, train_loss, val_loss, val_score, now - start, eta, halvings))
        if on_epoch is not None:
            on_epoch(epochs[-1])
        start, halvings = now, 0
        best_train_loss = min(best_train_loss, train_loss)
        good.copy_(started)
        started.copy_(alpha)
        if verdict is not None and verdict.best:
            best, best_predictions = alpha.clone(), predictions
        if verdict is not None and verdict.stop:
            converged, reason = True, verdict.reason
            break
        if train_loss <= limits.tol * nothing:
            converged, reason = True, "the training points are interpolated to the tolerance"
            break
        if stalling.update(train_loss).stop and train_loss <= ROUNDING_SHARE * nothing:
            converged, reason = True, f"the training loss has reached the limit of {plan.precision}"
            break
        number += 1
    kept = best if validation is not None else alpha
    return Outcome(kept, History(tuple(epochs)), converged, reason, best_predictions)


def _causes(plan: Plan, gamma: float) -> str:
    return (
        f"Training must bring the residual down. It grew at every step tried, the last being "
        f"{gamma:.3g} per point. It may be because (a) the kernel is not positive definite, (b) "
        f"`step_size` was set too large by hand, (c) {plan.precision} is too coarse for features of "
        'this range: rescale them or use precision="float64".'
    )
