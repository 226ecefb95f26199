"""Epochs over steps: training to the interpolant, watched, guarded and stopped early.

The points are in one random order with the subsample first, and batches are contiguous in it.  In the
first epoch a batch needs only the kernel against the fixed block and the points already visited, since
all other weights are still zero.

The loop returns data.  To print, draw, save or stop, pass a `Watcher`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mercer.method.preconditioner import Preconditioner
from mercer.method.schedule import Panel, Schedule, Visit
from mercer.method.step import Losses, Step, descend, safe_weights
from mercer.model.expansion import Expansion
from mercer.operators.base import PanelProducts, SquareOperator
from mercer.operators.refined import Refined
from mercer.operators.sharded import ShardedSquare
from mercer.operators.sharded_centres import ShardedCentres
from mercer.operators.workers import small_operations
from mercer.stopwatch import Stopwatch
from mercer.training.delayed import DelayedProjection
from mercer.training.direct import DirectSolve
from mercer.training.guard import Guard
from mercer.training.history import Epoch, History, in_epochs
from mercer.training.state import State
from mercer.training.stopping import (
    INTERPOLATED,
    NOTHING_LEARNED,
    SOLVED,
    STALLED,
    Limits,
    limit_of,
)
from mercer.training.validation import HeldOut, Validation

# An epoch's error below this share of that of predicting nothing is so far below that the weights at its
# end are surely better than none.
SURELY_LEARNED = 0.9
# Rounding error of a sum in units of eps times the sum of absolute values, and the rows that show it.
ROUNDING_UNITS = 4.0
ROUNDING_ROWS = 256
# Error of products with kept values, beside the residual, from which on they are refined.
KEPT_ERROR_SHARE = 0.1
# Error at the end, in units of the lowest, that shows the last weights to be worse.
WORSE = 1.1


@dataclass(frozen=True)
class Outcome:
    """The result of training."""

    alpha: Tensor  # (p, l)
    history: History
    converged: bool
    reason: str
    validation_predictions: Tensor | None  # of the weights kept
    best_epoch: float = 0.0  # epochs after which the weights kept were reached, perhaps part of one
    best_loss: float | None = None  # their held-out loss
    closed: bool = False  # the weights are those of closing epochs, which went on from the best


class Watcher:
    """Receives the events of a run.  Every method may be left out."""

    def on_batch(self, epoch: int, batch: int, n_batches: int, loss: float) -> None:
        """After each batch; batches count from 1."""

    def on_panel(self, training: Training) -> str | None:
        """Where training may be ended or its state saved; a text ends it and says why."""

    def on_epoch(self, epoch: Epoch, training: Training) -> str | None:
        """After each epoch; a text ends training and says why."""


class Training:
    """A run: solve (K + r I) alpha = y for centred targets y, (n, l), from alpha = 0 or `start_from`.

    `sample_weight`, (n, 1), at most 1, makes it (K + r W^-1) alpha = y.  Losses are reported in units of
    `loss_unit`: that of squared targets, where y are the user's targets divided by something.
    The operator, y and the weights may have more rows than the schedule; see closing.py.
    """

    def __init__(
        self,
        operator: SquareOperator,
        preconditioner: Preconditioner,
        schedule: Schedule,
        step: Step,
        y: Tensor,
        limits: Limits,
        validation: Validation | None = None,
        *,
        sample_weight: Tensor | None = None,
        start_from: Tensor | None = None,
        loss_unit: float = 1.0,
        delayed: DelayedProjection | DirectSolve | None = None,
    ) -> None:
        self.operator = operator
        self.preconditioner = preconditioner
        self.schedule = schedule
        self.y = y
        self.limits = limits
        self.sample_weight = sample_weight
        self.loss_unit = loss_unit
        self.delayed = delayed
        self.model = Expansion(torch.zeros_like(y) if start_from is None else start_from)
        if delayed is not None:
            self.model = delayed.model
        self.n_weighted = self.model.n_weighted  # from the start
        self.state = State.begin(step, limits, self.model.weights, len(y))
        # Losses of predicting nothing: mean squared error and residual.
        y = y[: schedule.n]
        weight = None if sample_weight is None else sample_weight[: schedule.n]
        self._mean_weight = 1.0 if weight is None else float(weight.mean())
        squares = y.square() if weight is None else y.square() * weight
        self.nothing = float(squares.mean()) / self._mean_weight
        residual = y if weight is None else y * weight
        self.guard = Guard(float(residual.square().mean()), str(y.dtype).removeprefix("torch."))
        self.held_out: HeldOut | None = None
        if validation is not None:
            self.held_out = HeldOut(validation, schedule, self.n_weighted)
            self.held_out.begin(self.model, self.state)
        if delayed is not None:
            delayed.begin(self.state)

    def resume(self, state: State) -> None:
        """Go on from the state of an interrupted run."""
        self.state = state
        self.model.weights = state.weights
        if self.delayed is not None:
            self.delayed.resume(state)
            return
        progress, panels = state.progress, self.schedule.panels
        visited = progress.panel if progress.epoch == 1 else len(panels)
        with small_operations(self.y.device):  # as in training, so that values round alike
            # What an operator kept is evaluated again, with zero weights.
            nothing = torch.zeros_like(self.model.weights)
            for panel in panels[:visited]:
                self.operator.panel(panel.rows, nothing, 0)
            self._replay(visited, nothing)
            if isinstance(self.operator, Refined) and state.refined is not None:
                self.operator.refine(state.refined, self._columns_of(state.refined))

    def _replay(self, visited: int, nothing: Tensor) -> None:
        """Evaluate again what else was kept after so many panels of the first epoch."""
        if self.held_out is not None:
            self.held_out.replay(visited, self.model, self.state)

    def _columns_of(self, weights: Tensor) -> int:
        """Columns that these weights belong to; later ones have zero weights."""
        return self.schedule.n

    @property
    def most_panels(self) -> int:
        """Panels of an epoch, at most."""
        return len(self.schedule.panels)

    def run(self, watcher: Watcher | None = None) -> Outcome:
        with small_operations(self.y.device):
            return self._run(Watcher() if watcher is None else watcher)

    def _run(self, watcher: Watcher) -> Outcome:
        progress = self.state.progress
        converged, reason = False, f"the limit of {in_epochs(self.limits.max_iter)} is reached"
        while progress.epoch <= self.limits.max_iter:
            ended, diverged = self._epoch(watcher)
            if ended is not None:
                reason = ended
                break
            if diverged or self.guard.epoch_diverged(self.state):
                self.guard.restart(self.state)
                if self.held_out is not None and self.state.best is None:
                    self.held_out.begin(self.model, self.state)
                if self.delayed is not None:
                    self.delayed.begin(self.state)
                continue
            verdict = self._end_epoch()
            ended = watcher.on_epoch(progress.epochs[-1], self)
            if verdict:
                converged, reason = verdict != STALLED, verdict
                break
            if ended is not None:
                reason = ended
                break
        return self._outcome(converged, reason)

    def _outcome(self, converged: bool, reason: str) -> Outcome:
        """The best weights; zero weights, which predict the mean, where no others are better."""
        state, history, progress = self.state, self.state.history, self.state.progress
        weights, predictions = self._last_weights(), state.best_predictions
        best_epoch, best_loss = float(len(history)), None
        if state.best is not None:
            weights, best_epoch = state.best, progress.best_epoch
            best_loss = progress.stopping.best_loss
        if progress.epochs and self._no_better_than_nothing(weights, best_epoch):
            weights, best_epoch = torch.zeros_like(weights), 0.0
            if self.held_out is not None:
                predictions = torch.zeros_like(self.held_out.validation.y)  # (n_val, l)
                best_loss = self.held_out.validation.loss(predictions)
            converged, reason = False, NOTHING_LEARNED
        if best_loss is not None:
            best_loss *= self.loss_unit
        weights = self.model.lasting(weights)
        return Outcome(weights, history, converged, reason, predictions, best_epoch, best_loss)

    def _last_weights(self) -> Tensor:
        """Those at the end; with fewer centres than rows, the best if the last epoch was much worse."""
        progress = self.state.progress
        if self.delayed is None or progress.error_now <= WORSE * progress.lowest:
            return self.state.weights
        weights = torch.zeros_like(self.state.weights)
        self.model.lasting(weights).copy_(self.delayed.best(self.state))
        return weights

    def _no_better_than_nothing(self, weights: Tensor, epoch: float) -> bool:
        """Whether weights reached in an epoch predict the training points no better than zero weights.

        The epoch's error tells where it is low; it was measured while the weights changed, so where it
        is not low, the points are predicted once more.
        """
        if self.nothing == 0:  # constant targets, which zero weights predict exactly
            return False
        if not bool(weights.any()):
            return True
        reached = self.state.progress.epochs[max(0, math.ceil(epoch) - 1)].train_loss
        if reached <= SURELY_LEARNED * self.loss_unit * self.nothing:
            return False
        every = None if len(self.y) == self.schedule.n else slice(0, self.schedule.n)
        columns = every if self.delayed is None else None  # all centres
        f = self.operator.times(weights, every, columns)  # (n, l)
        squares = (f - self.y[: len(f)]).square()
        if self.sample_weight is not None:
            squares *= self.sample_weight[: len(f)]
        return not float(squares.mean()) / self._mean_weight <= self.nothing

    def _epoch(self, watcher: Watcher) -> tuple[str | None, bool]:
        """Visit the panels that are left; why it was ended, if it was, and whether it diverged."""
        progress, n = self.state.progress, self.schedule.n
        visits = self._visits()
        done = sum(len(visit.batches) for visit in visits[: progress.panel])
        so_far = self.y.new_tensor([progress.error, progress.residual])  # (2,)  stays on the device
        before, watch = progress.seconds, Stopwatch()
        if self.delayed is not None:
            self.delayed.begin_epoch(self.state)
        for position in range(progress.panel, len(visits)):
            visit = visits[position]
            self._tell_neighbours(visits, position)
            for batch, losses in self._visited(visit):
                both = torch.stack([losses.error / self._mean_weight, losses.residual])  # (2,)
                so_far += both * ((batch.stop - batch.start) / n)
                error, residual = both.tolist()
                if self.guard.batch_diverged(residual):
                    progress.seconds = before + watch.seconds
                    return None, True
                done += 1
                watcher.on_batch(progress.epoch, done, self.schedule.n_batches, self.loss_unit * error)
            progress.panel = position + 1
            progress.error, progress.residual = so_far.tolist()
            if self.delayed is not None:
                left = len(visits) - progress.panel
                if not self.delayed.after_panel(visit, self.state, left):
                    continue  # others may look at the state after projections only
            if self.held_out is not None:
                self.held_out.after_panel(visit, self.model, self.state)
            progress.seconds = before + watch.seconds
            ended = watcher.on_panel(self)
            if ended is not None and progress.panel < len(visits):
                return ended, False
        progress.seconds = before + watch.seconds
        return None, False

    def _tell_neighbours(self, visits: list[Visit], position: int) -> None:
        """Operators that work ahead are told which panels are before and after the one to be visited."""
        if not isinstance(self.operator, ShardedSquare | ShardedCentres):
            return
        before = visits[position - 1].panel.rows if position > 0 else None
        after = visits[position + 1].panel if position + 1 < len(visits) else None
        self.operator.neighbours(before, None if after is None else (after.rows, self._stop(after)))

    def _visited(self, visit: Visit) -> Iterator[tuple[slice, Losses]]:
        """The batches of a panel with their losses, as they are worked on."""
        if isinstance(self.delayed, DirectSolve):
            return self.delayed.visit(visit, self.y, self.sample_weight)
        if self.delayed is not None:
            self.delayed.before_panel(visit, self.state)
        stop = self._stop(visit.panel)
        return self._descend(visit, self.operator.panel(visit.panel.rows, self.model.weights, stop))

    def _visits(self) -> list[Visit]:
        return self.schedule.visits(self.state.progress.epoch)

    def _stop(self, panel: Panel) -> int:
        """Columns from here on have zero weights when the panel is visited in this epoch."""
        return self.schedule.columns_needed(panel, self.state.progress.epoch, self.n_weighted)

    def _is_new(self, panel: Panel) -> bool:
        """Whether the panel is visited for the first time in this epoch."""
        return self.state.progress.epoch == 1

    def _descend(self, visit: Visit, products: PanelProducts) -> Iterator[tuple[slice, Losses]]:
        progress, rows = self.state.progress, visit.panel.rows
        step = progress.step
        if self._is_new(visit.panel):
            k_diag = self.operator.diagonal(rows)  # (R,)
            self.state.safe[rows] = safe_weights(
                self.preconditioner, k_diag, products.Z, step.beta, step.ridge
            )
        return descend(
            visit,
            products,
            self.preconditioner,
            self.model,
            step,
            self.y,
            self.state.safe,
            self.sample_weight,
            None if self.state.remembered is None else self.state.remembered.residuals,
        )

    def _end_epoch(self) -> str:
        """Record the epoch, keep its weights if they are the best; why training is done, if it is."""
        state, progress, residual = self.state, self.state.progress, self.state.progress.residual
        loss, score, reason, watch = None, None, "", Stopwatch()
        eta = progress.step.eta
        if self.delayed is not None:
            self.delayed.end_epoch(state)
        if self.held_out is not None:
            predictions = self.held_out.predictions(self.model, state)
            loss = self.held_out.validation.loss(predictions)
            score = self.held_out.validation.score(predictions)
            verdict = progress.stopping.update(loss)
            reason = verdict.reason
            if verdict.best:
                state.keep_best(predictions, loss, float(progress.epoch))
            loss *= self.loss_unit
        progress.seconds += watch.seconds
        self._record(eta, loss, score)
        if self.guard.is_noisy(state):  # zero weights are better, and so is a smaller step
            progress.step = progress.step.halved()
            state.weights.zero_()
            progress.all_seen_from = progress.epoch + 2
            if self.delayed is not None:
                self.delayed.begin(state)
        self._begin_next_epoch(residual)
        if reason:
            return reason
        tolerance = self.limits.interpolation_tol * self.guard.nothing
        stalled = progress.stalling.update(residual).stop
        if self.delayed is not None:
            return self.delayed.verdict(stalled)
        stalled = stalled and self.guard.is_small(residual)
        # The error of kept values could hide so much of the residual, and must not be trained on.
        error = self._error_of_kept_values()
        coarse = self._is_coarse(error, residual)
        residual = (math.sqrt(residual) + math.sqrt(error)) ** 2
        if residual > tolerance and (coarse or not stalled):
            if coarse and progress.epoch <= self.limits.max_iter:
                self._refine()
            return ""
        if max(tolerance, residual) <= ROUNDING_UNITS**2 * self._rounding():
            return limit_of(self.guard.precision)
        if residual <= tolerance:
            return SOLVED if progress.step.ridge else INTERPOLATED
        return STALLED

    def _record(self, eta: float, loss: float | None = None, score: float | None = None) -> None:
        """Add the epoch to the history, with its step, held-out loss and score."""
        progress = self.state.progress
        progress.epochs.append(
            Epoch(
                number=progress.epoch,
                train_loss=self.loss_unit * progress.error,
                validation_loss=loss,
                validation_score=score,
                seconds=progress.seconds,
                step_size=eta,
                halvings=progress.halvings,
                closing=progress.closing is not None,
            )
        )

    def _begin_next_epoch(self, residual: float) -> None:
        """After one with this residual."""
        state, progress = self.state, self.state.progress
        progress.halvings = 0
        progress.best_residual = min(progress.best_residual, residual)
        state.good.copy_(state.started)
        state.started.copy_(state.weights)
        progress.epoch += 1
        state.begin_epoch()

    def _is_coarse(self, error: float, residual: float) -> bool:
        """Whether the error of products with kept values shows beside the residual."""
        return error > KEPT_ERROR_SHARE**2 * residual and error > self._rounding()

    def _error_of_kept_values(self) -> float:
        """Mean squared error of products that read them."""
        if not isinstance(self.operator, Refined):
            return 0.0
        first = self.schedule.panels[0].rows
        return self.operator.error(first, self.state.weights, self.schedule.n)

    def _refine(self) -> None:
        """Evaluate the product with the weights as they are, for the epochs that follow."""
        assert isinstance(self.operator, Refined)
        watch = Stopwatch()
        self.state.refined = self.state.weights.clone()
        self.operator.refine(self.state.refined, self.schedule.n)
        self.state.progress.seconds += watch.seconds  # of the epoch that begins

    def _rounding(self) -> float:
        """Mean square of the rounding error of f: each sum may be off by eps sum_j |alpha_j| k_j."""
        rows = slice(0, min(ROUNDING_ROWS, len(self.y)))
        sums = self.operator.times(self.state.weights.abs(), rows)  # (R, l)
        return float((torch.finfo(sums.dtype).eps * sums).square().mean())
