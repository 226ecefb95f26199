"""When to stop: a loss goes in, a verdict comes out."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mercer.training.history import in_epochs

# Reasons to end training that others need to know.
INTERPOLATED = "the training points are interpolated to the tolerance"
SOLVED = "the equations with the ridge are solved to the tolerance"
SETTLED = "the training loss has almost stopped falling"
STALLED = "the training loss has almost stopped falling, above the tolerance"
NOTHING_LEARNED = "no weights predict better than the mean of the targets"


def limit_of(precision: str) -> str:
    """The reason where rounding error keeps the loss from falling."""
    return f"the training loss has reached the limit of {precision}"


@dataclass(frozen=True)
class Limits:
    """When training ends."""

    max_iter: int  # epochs
    interpolation_tol: (
        float  # training loss that counts as interpolation, relative to predicting nothing
    )
    n_iter_no_change: int  # epochs without an improvement before training stops
    tol: float  # relative fall of the held-out loss that counts as an improvement


@dataclass(frozen=True)
class Verdict:
    best: bool  # the lowest loss so far: keep these weights
    stop: bool
    reason: str = ""


@dataclass
class EarlyStopping:
    """Stop when a held-out loss has not fallen by a share `tolerance` for `patience` checks.

    Any fall counts as best, so that the weights kept are the best seen; only a fall of at least that
    share resets the count.
    """

    patience: int
    tolerance: float
    best_loss: float = math.inf
    reference: float = math.inf  # the loss that the next one must fall below
    waited: int = 0  # checks since it did

    def update(self, loss: float) -> Verdict:
        best = loss < self.best_loss
        self.best_loss = min(loss, self.best_loss)
        if loss < self.reference * (1 - self.tolerance):
            self.reference = loss
            self.waited = 0
        else:
            self.waited += 1
        stop = self.waited >= self.patience
        reason = f"held-out loss has not improved for {in_epochs(self.waited)}" if stop else ""
        return Verdict(best, stop, reason)
