"""Epochs over steps: training to the interpolant, watched, guarded and stopped early.

The points are in one random order with the subsample first, and batches are contiguous in it.  In the
first epoch a batch needs only the kernel against the fixed block and the points already visited, since
all other weights are still zero.  Later epochs visit panels, and the batches of each, in another random
order each time: in one fixed order a descent by blocks takes several times the epochs.

The loop returns data.  Whoever wants to print or draw, keep or stop, passes a `Watcher`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from mercer.method.step import PanelDescent, Preconditioner, safe_weights
from mercer.operators.tiled import HeldOutProducts, Panel, PanelRows, TrainingProducts, by_output
from mercer.operators.workers import small_operations
from mercer.planning.plan import Plan
from mercer.training.stopping import EarlyStopping, in_epochs

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
# Looks at the held-out points within the first epoch: noisy data can be overfitted before it ends.
FIRST_EPOCH_CHECKS = 8


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
    best_epoch: float = 0.0  # epochs after which the weights kept were reached, perhaps part of one
    best_loss: float | None = None  # their held-out loss


@dataclass(frozen=True)
class Limits:
    """When training ends."""

    max_iter: int  # epochs
    interpolation_tol: (
        float  # training loss that counts as interpolation, relative to predicting nothing
    )
    n_iter_no_change: int  # epochs without an improvement before training stops
    tol: float  # relative fall of the held-out loss that counts as an improvement


class Watcher:
    """Looks on while training runs.  Every method may be left out."""

    def on_batch(self, epoch: int, batch: int, n_batches: int, loss: float) -> None:
        """After each batch; batches count from 1."""

    def on_panel(self, training: Training) -> str | None:
        """Where training may be ended or its state kept; a text ends it and says why."""

    def on_epoch(self, epoch: Epoch, training: Training) -> str | None:
        """After each epoch; a text ends training and says why."""


class Training:
    """A run: solve (K + r I) alpha = y for centred targets y, (n, l), from alpha = 0 or `start_from`.

    `sample_weight`, (n, 1), at most 1, makes it (K + r W^-1) alpha = y.  `triangular` says that a step
    changes only the weights of its batch and of the fixed block, so that points not yet visited have the
    weights they started from.  Without `shuffled`, all epochs visit the points in their own order.
    """

    def __init__(
        self,
        products: TrainingProducts,
        levelled: Preconditioner,
        plan: Plan,
        y: Tensor,
        limits: Limits,
        validation: Validation | None = None,
        *,
        sample_weight: Tensor | None = None,
        start_from: Tensor | None = None,
        triangular: bool = True,
        shuffled: bool = True,
    ) -> None:
        self.products = products
        self.levelled = levelled
        self.plan = plan
        self.y = y
        self.limits = limits
        self.validation = validation
        self.sample_weight = sample_weight
        self.triangular = triangular
        self.shuffled = shuffled
        self.alpha = by_output(torch.zeros_like(y) if start_from is None else start_from)  # (n, l)
        # Rows that have weights from the start.
        rows = self.alpha.any(1).nonzero()
        self.weighted = int(rows.max()) + 1 if len(rows) else 0
        self.safe = y.new_ones(len(y), 1)  # (n, 1)  of iteration.py, each set at the point's first visit
        self.gamma = 2 * plan.step_size / plan.batch_size
        self.nothing = float(y.square().mean())  # the loss of predicting nothing
        self.stopping = EarlyStopping(limits.n_iter_no_change, limits.tol)
        self.stalling = EarlyStopping(STALLED_EPOCHS, STALLED_TOLERANCE)
        # A loss is measured before its step, so weights are known to be good only once an epoch has
        # started from them and ended well.
        self.good = self.alpha.clone()  # where the last good epoch began
        self.started = self.alpha.clone()  # where this one did
        self.best: Tensor | None = None  # of the lowest held-out loss
        self.best_predictions: Tensor | None = None
        self.best_epoch = 0.0  # when they were reached
        self.best_train_loss = math.inf
        self.epochs: list[Epoch] = []
        self.halvings = 0  # in this epoch
        self.number = 1  # of this epoch
        self.panel = 0  # the next of this epoch, in the order of visits
        self.total = 0.0  # loss of this epoch so far
        self.seconds = 0.0  # that this epoch took before the run was resumed
        # K[held-out, visited] @ alpha beyond the fixed block, in the first epoch
        self.settled: Tensor | None = None if validation is None else torch.zeros_like(validation.y)

    def run(self, watcher: Watcher | None = None) -> Outcome:
        with small_operations(self.y.device):
            return self._run(Watcher() if watcher is None else watcher)

    def _run(self, watcher: Watcher) -> Outcome:
        limits = self.limits
        converged, reason = False, f"the limit of {in_epochs(limits.max_iter)} is reached"
        self._clock = time.perf_counter() - self.seconds
        while self.number <= limits.max_iter:
            ended, diverged = self._epoch(watcher)
            if ended is not None:
                reason = ended
                break
            # The last steps of an epoch have no later loss to show what they did.
            diverged = diverged or not bool(torch.isfinite(self.alpha).all())
            most = max(DIVERGED_EPOCH * self.best_train_loss, ROUNDING_SHARE * self.nothing)
            if diverged or self.total > most:
                self._start_again()
                continue
            verdict = self._end_epoch()
            ended = watcher.on_epoch(self.epochs[-1], self)
            self._clock = time.perf_counter()  # looking is not training
            if verdict:
                converged, reason = True, verdict
                break
            if ended is not None:
                reason = ended
                break
        history = History(tuple(self.epochs))
        if self.best is None:
            return Outcome(self.alpha, history, converged, reason, None, float(len(history)))
        best_loss = self.stopping.best_loss
        return Outcome(
            self.best, history, converged, reason, self.best_predictions, self.best_epoch, best_loss
        )

    def _epoch(self, watcher: Watcher) -> tuple[str | None, bool]:
        """Visit the panels that are left; why it was ended, if it was, and whether it diverged."""
        products, n = self.products, len(self.y)
        visits = self._visits()
        n_batches = sum(len(batches) for _, batches in visits)
        done = sum(len(batches) for _, batches in visits[: self.panel])
        total = self.y.new_full((), self.total)  # stays on the device
        for position in range(self.panel, len(visits)):
            index, batches = visits[position]
            panel = products.panels[index]
            first_visit = self.triangular and self.number == 1
            seen = max(panel.stop, self.weighted) if first_visit else n
            rows = products.rows(index, self.alpha, seen)
            for batch, batch_loss in self.descend(panel, rows, batches):
                total += batch_loss * ((batch.stop - batch.start) / n)
                loss = float(batch_loss)
                if not loss <= DIVERGED_BATCH * self.nothing:
                    return None, True
                done += 1
                watcher.on_batch(self.number, done, n_batches, loss)
            self.panel = position + 1
            self.total = float(total)
            self._look_at_held_out(index)
            self.seconds = time.perf_counter() - self._clock
            ended = watcher.on_panel(self)
            if ended is not None and self.panel < len(visits):
                return ended, False
        return None, False

    def _visits(self) -> list[tuple[int, Sequence[slice]]]:
        """The panels of this epoch in the order of their visits, each with its batches in theirs."""
        panels = self.products.panels
        if self.number == 1 or not self.shuffled:
            return [(i, panel.batches) for i, panel in enumerate(panels)]
        draws = torch.Generator().manual_seed(self.number)  # the same where a run is resumed
        order = torch.randperm(len(panels), generator=draws).tolist()
        return [(i, _permuted(panels[i].batches, draws)) for i in order]

    def descend(
        self, panel: Panel, rows: PanelRows, batches: Sequence[slice]
    ) -> Iterator[tuple[slice, Tensor]]:
        """Step through the batches of a panel in the order given; each with its loss before its step."""
        plan = self.plan
        if self.number == 1:
            k_diag = self.products.kernel.diagonal(self.products.points[panel.rows])  # (R,)
            safe = safe_weights(self.levelled, k_diag, rows.Z, plan.beta, plan.ridge)
            self.safe[panel.rows] = safe
        descent = PanelDescent(panel, rows, self.levelled, self.alpha, plan.ridge)
        for batch in batches:
            weight = None if self.sample_weight is None else self.sample_weight[batch]
            g = descent.residual(batch, self.y[batch], weight)  # (m, l)
            loss = g.square().mean()
            descent.step(batch, g.mul_(self.safe[batch]), self.gamma)
            yield batch, loss
        descent.finish()

    def _look_at_held_out(self, index: int) -> None:
        """In the first epoch, keep the weights with the lowest held-out loss along the way."""
        if self.number > 1 or self.validation is None or not self._incremental:
            return
        assert self.settled is not None
        panel = self.products.panels[index]
        if panel.start >= self.products.s:
            self.settled += self.validation.products.times(self.alpha, panel.rows)
        if not self._looks_after(index):
            return
        predictions = self._first_epoch_predictions()
        loss = float((predictions - self.validation.y).square().mean())
        if loss < self.stopping.best_loss:
            self.stopping.best_loss = loss
            self._keep(predictions, (index + 1) / len(self.products.panels))

    def _keep(self, predictions: Tensor, epoch: float) -> None:
        """The weights as they are have the lowest held-out loss so far."""
        self.best, self.best_predictions, self.best_epoch = self.alpha.clone(), predictions, epoch

    @property
    def _incremental(self) -> bool:
        """In the first epoch held-out predictions grow with the points visited."""
        return self.triangular and not self.weighted

    def _looks_after(self, index: int) -> bool:
        """Whether the first epoch looks at the held-out part after this panel, not being its last."""
        n_panels = len(self.products.panels)
        return index + 1 < n_panels and (index + 1) % max(1, n_panels // FIRST_EPOCH_CHECKS) == 0

    def _first_epoch_predictions(self) -> Tensor:
        assert self.validation is not None
        assert self.settled is not None
        if not self.products.s:
            return self.settled.clone()
        return self.settled + self.validation.products.times(self.alpha, slice(0, self.products.s))

    def _start_again(self) -> None:
        """Halve the step and go back to weights that are known to be good."""
        if self.halvings + sum(epoch.halvings for epoch in self.epochs) >= MOST_HALVINGS:
            raise DivergenceError(_causes(self.plan, self.gamma))
        self.gamma /= 2
        self.alpha.copy_(self.good)
        self.started.copy_(self.good)
        if self.epochs:
            self.halvings += self.epochs.pop().halvings
            self.number -= 1
        self.halvings += 1
        self._begin()
        if self.number == 1:  # what was seen of the held-out points led nowhere
            self.best = self.best_predictions = None
            self.stopping = EarlyStopping(self.limits.n_iter_no_change, self.limits.tol)

    def _begin(self) -> None:
        self.panel, self.total = 0, 0.0
        if self.settled is not None:
            self.settled.zero_()

    def _end_epoch(self) -> str:
        """Note the epoch, keep its weights if they are the best; why training is done, if it is."""
        validation, train_loss = self.validation, self.total
        val_loss, val_score, reason = None, None, ""
        if validation is not None:
            incremental = self.number == 1 and self._incremental
            predictions = (
                self._first_epoch_predictions() if incremental else validation.products.times(self.alpha)
            )
            val_loss = float((predictions - validation.y).square().mean())
            val_score = validation.score(predictions)
            verdict = self.stopping.update(val_loss)
            reason = verdict.reason
            if verdict.best:
                self._keep(predictions, float(self.number))
        now = time.perf_counter()
        eta = self.gamma * self.plan.batch_size / 2
        seconds = now - self._clock
        self.epochs.append(
            Epoch(self.number, train_loss, val_loss, val_score, seconds, eta, self.halvings)
        )
        self._clock, self.seconds, self.halvings = now, 0.0, 0
        self.best_train_loss = min(self.best_train_loss, train_loss)
        self.good.copy_(self.started)
        self.started.copy_(self.alpha)
        self.number += 1
        self._begin()
        if reason:
            return reason
        if train_loss <= self.limits.interpolation_tol * self.nothing:
            return "the training points are interpolated to the tolerance"
        if self.stalling.update(train_loss).stop and train_loss <= ROUNDING_SHARE * self.nothing:
            return f"the training loss has reached the limit of {self.plan.precision}"
        return ""

    # What a run that is interrupted needs in order to go on as if it had not been.
    _TENSORS = ("alpha", "safe", "good", "started", "best", "best_predictions", "settled")
    _NUMBERS = (
        "gamma",
        "best_epoch",
        "best_train_loss",
        "halvings",
        "number",
        "panel",
        "total",
        "seconds",
    )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and plain data that `restore` takes; to be taken between panels."""
        tensors = {name: getattr(self, name) for name in self._TENSORS}
        data: dict[str, Any] = {name: getattr(self, name) for name in self._NUMBERS}
        data["stopping"], data["stalling"] = self.stopping.state(), self.stalling.state()
        data["epochs"] = [asdict(epoch) for epoch in self.epochs]
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}, data

    def restore(self, tensors: dict[str, Tensor], data: dict[str, Any]) -> None:
        for name in self._TENSORS:
            tensor = tensors.get(name)
            if tensor is not None:
                tensor = tensor.to(self.y.device, self.y.dtype)
                two = tensor.shape == self.alpha.shape
                setattr(self, name, by_output(tensor) if two else tensor.clone())
        for name in self._NUMBERS:
            setattr(self, name, data[name])
        self.stopping.restore(data["stopping"])
        self.stalling.restore(data["stalling"])
        self.epochs = [Epoch(**epoch) for epoch in data["epochs"]]
        visited = self.panel if self.number == 1 else len(self.products.panels)
        with small_operations(self.y.device):  # as in training, so that values round alike
            self.products.refill(visited)
            self._refill_held_out(visited)

    def _refill_held_out(self, visited: int) -> None:
        """Evaluate what was kept for the held-out part again, in the same pieces."""
        if self.validation is None or not self.validation.products.kept_bytes or not self._incremental:
            return
        times, nothing = self.validation.products.times, torch.zeros_like(self.alpha)
        panels, s = self.products.panels, self.products.s
        for index in range(visited):
            if panels[index].start >= s:
                times(nothing, panels[index].rows)
            if s and (self._looks_after(index) or index + 1 == len(panels)):
                times(nothing, slice(0, s))
        if self.number > 2:
            times(nothing)


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
    shuffled: bool = True,
    watcher: Watcher | None = None,
) -> Outcome:
    """A run from beginning to end; see `Training`."""
    training = Training(
        products,
        levelled,
        plan,
        y,
        limits,
        validation,
        start_from=start_from,
        triangular=triangular,
        shuffled=shuffled,
    )
    return training.run(watcher)


def _permuted(batches: Sequence[slice], draws: torch.Generator) -> list[slice]:
    return [batches[i] for i in torch.randperm(len(batches), generator=draws).tolist()]


def _causes(plan: Plan, gamma: float) -> str:
    return (
        f"Training must bring the residual down. It grew at every step tried, the last being "
        f"{gamma:.3g} per point. It may be because (a) the kernel is not positive definite, (b) "
        f"`step_size` was set too large by hand, (c) {plan.precision} is too coarse for features of "
        'this range: rescale them or use precision="float64".'
    )
