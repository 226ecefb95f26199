"""When to stop: a loss goes in, a verdict comes out."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    best: bool  # the lowest loss so far: keep these weights
    stop: bool
    reason: str = ""


class EarlyStopping:
    """Stop when a held-out loss has not fallen by a share `tolerance` for `patience` checks.

    Any fall counts as best, so that the weights kept are the best seen; only a fall worth having
    resets the patience.
    """

    def __init__(self, patience: int, tolerance: float) -> None:
        self.patience = patience
        self.tolerance = tolerance
        self.best_loss = math.inf
        self._reference = math.inf
        self._waited = 0

    def update(self, loss: float) -> Verdict:
        best = loss < self.best_loss
        self.best_loss = min(loss, self.best_loss)
        if loss < self._reference * (1 - self.tolerance):
            self._reference = loss
            self._waited = 0
        else:
            self._waited += 1
        stop = self._waited >= self.patience
        reason = f"held-out loss has not improved for {in_epochs(self._waited)}" if stop else ""
        return Verdict(best, stop, reason)

    def state(self) -> dict[str, float]:
        return {"best_loss": self.best_loss, "reference": self._reference, "waited": self._waited}

    def restore(self, state: dict[str, float]) -> None:
        self.best_loss, self._reference = state["best_loss"], state["reference"]
        self._waited = int(state["waited"])


def in_epochs(count: int) -> str:
    """A number of epochs in words.

    >>> in_epochs(1), in_epochs(2)
    ('1 epoch', '2 epochs')
    """
    return f"{count} epoch" if count == 1 else f"{count} epochs"
