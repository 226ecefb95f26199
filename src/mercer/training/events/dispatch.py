"""Everybody who looks on while an estimator trains, and what they may do."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from mercer.planning.plan import Plan
from mercer.training.events.callbacks import Callback, Run
from mercer.training.events.console import ConsoleProgress
from mercer.training.loop import Epoch, History, Training, Watcher

INTERRUPTED = "interrupted from the keyboard"


class Watch(Watcher):
    """Everybody who looks on: console, callbacks, keyboard, and the keeper of checkpoints."""

    def __init__(
        self,
        callbacks: Sequence[Callback],
        console: ConsoleProgress | None,
        plan: Plan,
        finished: Callable[[Tensor, History], Any],
        interrupted: Callable[[], bool],
    ) -> None:
        self.callbacks = callbacks
        self.console = console
        self.plan = plan
        self.finished = finished
        self.interrupted = interrupted

    def keep_checkpoints(self, write: Callable[[Training], None], seconds: float) -> None:
        self._write, self._every, self._written = write, seconds, time.perf_counter()

    def on_batch(self, epoch: int, batch: int, n_batches: int, loss: float) -> None:
        if self.console is not None:
            self.console.on_batch(epoch, batch, n_batches, loss)

    def on_panel(self, training: Training) -> str | None:
        ends = self.interrupted()
        if ends or time.perf_counter() - self._written >= self._every:
            self._write(training)
            self._written = time.perf_counter()
        return INTERRUPTED if ends else None

    def on_epoch(self, epoch: Epoch, training: Training) -> str | None:
        if self.console is not None:
            self.console.on_epoch(epoch)
        history = History(tuple(training.epochs))
        run = Run(self.plan, history, lambda: self.finished(training.alpha.clone(), history))
        reasons = [callback.on_epoch_end(run) for callback in self.callbacks]
        if self.interrupted():
            self._write(training)
            reasons.append(INTERRUPTED)
        return next((str(reason) for reason in reasons if reason), None)
