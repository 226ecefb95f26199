"""Mercer trained until its test error is low enough."""

from __future__ import annotations

from typing import Any

from benchmarks.paper.data import Set
from benchmarks.paper.peers import Measured
from mercer import Callback, KernelClassifier
from mercer.stopwatch import Stopwatch
from mercer.training.events.callbacks import Run


class Until(Callback):
    """Stops training once the test error is at most `error`."""

    def __init__(self, data: Set, error: float) -> None:
        self.data, self.error = data, error
        self.best, self.epochs = 1.0, 0
        self.testing = 0.0  # seconds, which do not count as training

    def on_epoch_end(self, run: Run) -> str | None:
        with Stopwatch() as watch:
            self.best = min(self.best, 1 - run.model.score(self.data.X_test, self.data.y_test))
        self.epochs = run.epoch.number
        self.testing += watch.seconds
        return "low enough" if self.reached else None

    @property
    def reached(self) -> bool:
        return self.best <= self.error


def trained_until(method: str, data: Set, error: float, bandwidth: float, **settings: Any) -> Measured:
    """Seconds of `fit` until the test error is at most `error`, and the lowest error reached."""
    until = Until(data, error)
    model = KernelClassifier(
        "gaussian", bandwidth=bandwidth, callbacks=[until], random_state=0, **settings
    )
    with Stopwatch() as watch:
        model.fit(data.X, data.y)
    outcome = f"{until.epochs} epoch{'s' if until.epochs > 1 else ''}"
    note = outcome if until.reached else f"not reached in {outcome}"
    return Measured(method, watch.seconds - until.testing, until.best, note)
