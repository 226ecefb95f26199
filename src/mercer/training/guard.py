"""The divergence guard: recognises a run that diverges, halves its step and starts again."""

from __future__ import annotations

import torch

from mercer.method.step import Step
from mercer.training.state import State
from mercer.training.stopping import EarlyStopping

# Steps bring the weights nearer to the solution (method/step.py), so what is left to guard against is
# rounding error, a kernel that is not positive definite, and a step size set by hand.
#
# A batch's residual this many times that of predicting nothing is divergence.  Unseen points can be
# predicted a thousand times worse than by nothing: an outlier, by a kernel that grows with distance.
DIVERGED_BATCH = 1e6
# An epoch's residual this many times the best so far is divergence, since every point was fitted before;
# unless it is below this share of that of predicting nothing, where it may be rounding error.
DIVERGED_EPOCH = 2.0
ROUNDING_SHARE = 1e-3
MOST_HALVINGS = 12


class DivergenceError(ArithmeticError):
    """Training diverged at every step size tried."""


class Guard:
    """Judges mean squared residuals by that of predicting nothing."""

    def __init__(self, nothing: float, precision: str) -> None:
        self.nothing = nothing
        self.precision = precision

    def batch_diverged(self, residual: float) -> bool:
        return not residual <= DIVERGED_BATCH * self.nothing

    def epoch_diverged(self, state: State) -> bool:
        """At the end of an epoch.  Its last steps have no later residual to show what they did.

        With fewer centres than rows, residuals need not fall from epoch to epoch: rows of a stream may
        be sorted, and `delayed.py` takes shorter steps where residuals grow.
        """
        if not bool(torch.isfinite(state.weights).all()):
            return True
        best = state.progress.best_residual if state.remembered is None else self.nothing
        most = max(DIVERGED_EPOCH * best, ROUNDING_SHARE * self.nothing)
        return state.progress.residual > most

    def is_noisy(self, state: State) -> bool:
        """Whether an epoch that saw every point before left them worse predicted than by nothing.

        Each step fits its batch.  Where the kernel cannot tell the noise of one batch from that of
        another, fitting one spoils the others, and the residual stays at a level that falls with the
        step size.
        """
        progress = state.progress
        return progress.epoch >= progress.all_seen_from and progress.residual > self.nothing

    def is_small(self, residual: float) -> bool:
        """Whether a residual is so small that a stall is worth stopping for."""
        return residual <= ROUNDING_SHARE * self.nothing

    def restart(self, state: State) -> None:
        """Halve the step and go back to weights that are known to be good."""
        progress = state.progress
        if progress.halvings + sum(epoch.halvings for epoch in progress.epochs) >= MOST_HALVINGS:
            raise DivergenceError(_causes(progress.step, self.precision))
        progress.step = progress.step.halved()
        state.weights.copy_(state.good)
        state.started.copy_(state.good)
        if progress.epochs:
            progress.halvings += progress.epochs.pop().halvings
            progress.epoch -= 1
        progress.halvings += 1
        seconds = progress.seconds
        state.begin_epoch()
        progress.seconds = seconds  # the epoch took them all the same
        if progress.epoch == 1:  # weights seen on the way were those of the run that diverged
            state.best = state.best_predictions = None  # the held-out part begins again
            progress.stopping = EarlyStopping(progress.stopping.patience, progress.stopping.tolerance)


def _causes(step: Step, precision: str) -> str:
    return (
        f"Training diverged at every step size tried, the last being {step.gamma:.3g} per point. It may "
        f"be because (a) the kernel is not positive definite, (b) `step_size` was set too large, (c) "
        f"{precision} is too coarse for features of this range: rescale them or use "
        'precision="float64".'
    )
