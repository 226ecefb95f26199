"""Closing epochs: once held-out rows have said when to stop, they are trained on as well.

They are the last rows of the run, in panels of their own, and have zero weights until then.  Closing
epochs go on from the best weights with all rows, until the residual of the new rows has come down to the
lowest of the others before.

That is done only with a ridge, and where the last epochs did no harm: training then leads to the
solution with the ridge, and more rows make that better.  Where the held-out loss was rising, it was the
end of training that kept the model from fitting noise.

It must cost little.  Where all kernel values are kept, an epoch reads them; only those of the new rows
are evaluated, once.  There may then be as many closing epochs as there were others.  Where values are
evaluated again in every epoch, closing epochs may be a third of the others.

Where the equations of few centres are solved at once, they are solved again with the new rows, and that
counts as a closing epoch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor

from mercer.method.schedule import Panel, Schedule, Visit
from mercer.method.step import Losses
from mercer.operators.kept import KeptSquare
from mercer.operators.refined import Refined
from mercer.operators.sharded import ShardedSquare
from mercer.stopwatch import Stopwatch
from mercer.training.direct import DirectSolve
from mercer.training.loop import Outcome, Training, Watcher
from mercer.training.state import ClosingProgress

# Epochs before, for each closing epoch that takes as long as one of them.
EPOCHS_FOR_ONE = 3
# Fitting the new rows spoils the fit of the others at first: on Connect-4 the error was higher after two
# closing epochs than before them, and lower from the third on.
FEWEST_EPOCHS = 3


class TrainingAndClosing(Training):
    """A run that goes on with the rows of its held-out part once they have said when to stop.

    The operator, the targets and the weights have all rows, those held out last; `schedule` has those
    to begin with, and `of_all` has the same panels and after them those of the others.
    """

    def __init__(self, *given: Any, of_all: Schedule, **options: Any) -> None:
        super().__init__(*given, **options)
        self.of_all = of_all
        self.n = self.schedule.n  # rows before those held out

    @property
    def most_panels(self) -> int:
        return len(self.of_all.panels)

    def _run(self, watcher: Watcher) -> Outcome:
        if self.state.progress.closing is None:
            outcome = super()._run(watcher)
            if not outcome.converged or not self._begins_to_close(outcome.reason):
                return replace(outcome, alpha=outcome.alpha[: self.n])  # all others are zero
            self._with_new_rows()
        return self._close(watcher)

    def _begins_to_close(self, reason: str) -> bool:
        """Whether a run that has ended for this reason goes on; if so, from its best weights."""
        state, progress, best = self.state, self.state.progress, self.state.best
        last, lowest = progress.epochs[-1].validation_loss, self.loss_unit * progress.stopping.best_loss
        most = self._most_epochs() if progress.step.ridge else 0
        harmless = last is not None and last <= (1 + self.limits.tol) * lowest
        if most < FEWEST_EPOCHS or best is None or not harmless:
            return False
        progress.closing = ClosingProgress(progress.epoch, most, progress.best_residual, reason)
        progress.best_residual = math.inf  # new rows have larger ones at first
        for weights in (state.weights, state.good, state.started):
            weights.copy_(best)
        return True

    def _most_epochs(self) -> int:
        taken, kept = len(self.state.progress.epochs), self._keeper()
        reads = kept is not None and kept.end == self.n
        return min(taken if reads else taken // EPOCHS_FOR_ONE, self.limits.max_iter - taken)

    def _with_new_rows(self) -> None:
        """From here on the schedule is that of all rows, and none is held out."""
        assert self.held_out is not None
        freed = getattr(self.held_out.validation.operator, "kept_bytes", 0.0)
        self.held_out, self.schedule, kept = None, self.of_all, self._keeper()
        if kept is not None:  # values of the new rows only where those of all others are
            kept.budget = kept.budget + freed if kept.end == self.n else 0.0
        if self.sample_weight is not None:
            self._mean_weight = float(self.sample_weight.mean())

    def _close(self, watcher: Watcher) -> Outcome:
        """Closing epochs, and their outcome: the weights before, where they came to no good end."""
        state, progress, begun = self.state, self.state.progress, self.state.progress.closing
        assert begun is not None
        assert state.best is not None
        ended, failed, done = None, False, False
        while ended is None and not done:
            ended, diverged = self._epoch(watcher)
            if ended is not None:
                break
            failed = diverged or self.guard.epoch_diverged(state)
            if failed:
                break
            done = self._end_closing_epoch(begun)
            ended = watcher.on_epoch(progress.epochs[-1], self)
        # An epoch that was ended on the way does not count: the weights are those that it began with.
        closed = not failed and progress.epoch >= begun.first + FEWEST_EPOCHS
        early = ended is not None and not done
        return Outcome(
            state.started if closed else state.best[: self.n],
            state.history,
            not early,
            str(ended) if early else begun.reason,
            state.best_predictions,
            progress.best_epoch,
            self.loss_unit * progress.stopping.best_loss,
            closed,
        )

    def _end_closing_epoch(self, begun: ClosingProgress) -> bool:
        """Record the epoch; whether it was the last."""
        progress = self.state.progress
        residual, epochs = progress.residual, progress.epoch - begun.first + 1
        of_new = begun.residual * self.schedule.n / (self.schedule.n - self.n)
        done = epochs >= begun.most or (epochs >= FEWEST_EPOCHS and of_new <= begun.level)
        self._record(progress.step.eta)
        self._begin_next_epoch(residual)
        if not done and self._is_coarse(self._error_of_kept_values(), residual):
            self._refine()
        return done

    # What differs within an epoch, and when a run is resumed.

    def _visits(self) -> list[Visit]:
        if self._is_first_with_new_rows:
            return self.schedule.visits_with_new_rows(self.state.progress.epoch, self.n)
        return super()._visits()

    def _stop(self, panel: Panel) -> int:
        was_held_out = self._is_first_with_new_rows and panel.start >= self.n
        return panel.stop if was_held_out else super()._stop(panel)

    def _is_new(self, panel: Panel) -> bool:
        was_held_out = self._is_first_with_new_rows and panel.start >= self.n
        return was_held_out or super()._is_new(panel)

    def _visited(self, visit: Visit) -> Iterator[tuple[slice, Losses]]:
        begun = self.state.progress.closing
        for batch, losses in super()._visited(visit):
            if begun is not None and batch.start >= self.n:
                share = (batch.stop - batch.start) / self.schedule.n
                begun.residual += share * float(losses.residual)
            yield batch, losses

    @property
    def _is_first_with_new_rows(self) -> bool:
        progress = self.state.progress
        return progress.closing is not None and progress.epoch == progress.closing.first

    def _replay(self, visited: int, nothing: Tensor) -> None:
        progress = self.state.progress
        if progress.closing is None:
            return super()._replay(visited, nothing)
        self._with_new_rows()
        new = self.schedule.panels[visited:]
        for panel in new[: progress.panel] if self._is_first_with_new_rows else new:
            self.operator.panel(panel.rows, nothing, 0)
        return None

    def _columns_of(self, weights: Tensor) -> int:
        return self.of_all.n if bool(weights[self.n :].any()) else self.n

    def _keeper(self) -> KeptSquare | ShardedSquare | None:
        """What keeps kernel values."""
        operator = self.operator.kept if isinstance(self.operator, Refined) else self.operator
        return operator if isinstance(operator, (KeptSquare, ShardedSquare)) else None


class SolvedAndClosed(Training):
    """A run that solves the equations of few centres, and again with the rows of its held-out part.

    The operator, the targets and the weights of rows have all rows, those held out last.
    """

    def _run(self, watcher: Watcher) -> Outcome:
        state, progress = self.state, self.state.progress
        if progress.closing is None:
            outcome = super()._run(watcher)
            if not outcome.converged:
                return outcome
            self._close(outcome.reason)
            watcher.on_epoch(progress.epochs[-1], self)
        assert progress.closing is not None
        return Outcome(
            self.model.lasting(state.weights),
            state.history,
            True,
            progress.closing.reason,
            state.best_predictions,
            progress.best_epoch,
            self.loss_unit * progress.stopping.best_loss,
            closed=True,
        )

    def _close(self, reason: str) -> None:
        progress, watch = self.state.progress, Stopwatch()
        assert isinstance(self.delayed, DirectSolve)
        progress.closing = ClosingProgress(progress.epoch, 1, progress.best_residual, reason)
        self.delayed.close(self.state, self.y, self.sample_weight)
        progress.seconds = watch.seconds
        self._record(progress.step.eta)
        self._begin_next_epoch(progress.best_residual)
