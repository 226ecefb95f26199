"""Sends training events to the console and to callbacks, and ends training on Ctrl-C."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from mercer.planning.plan import Plan
from mercer.training.events.callbacks import Callback, Run
from mercer.training.events.console import ConsoleProgress
from mercer.training.loop import Epoch, History, Training, Watcher

INTERRUPTED = "interrupted from the keyboard"


class Watch(Watcher):
    """Passes each event on; the first callback that returns a text ends training."""

    def __init__(
        self,
        callbacks: Sequence[Callback],
        console: ConsoleProgress | None,
        plan: Plan,
        snapshot: Callable[[Tensor, History], Any],
        write_checkpoint: Callable[[str | os.PathLike[str], Training], None],
        interrupted: Callable[[], bool],
    ) -> None:
        self.callbacks = callbacks
        self.console = console
        self.plan = plan
        self.snapshot = snapshot
        self.write_checkpoint = write_checkpoint
        self.interrupted = interrupted

    def on_batch(self, epoch: int, batch: int, n_batches: int, loss: float) -> None:
        if self.console is not None:
            self.console.on_batch(epoch, batch, n_batches, loss)

    def on_panel(self, training: Training) -> str | None:
        run = self._run(training)
        return self._verdict(run, [callback.on_panel_end(run) for callback in self.callbacks])

    def on_epoch(self, epoch: Epoch, training: Training) -> str | None:
        if self.console is not None:
            self.console.on_epoch(epoch)
        run = self._run(training)
        return self._verdict(run, [callback.on_epoch_end(run) for callback in self.callbacks])

    def _run(self, training: Training) -> Run:
        history = History(tuple(training.epochs))
        return Run(
            self.plan,
            history,
            lambda: self.snapshot(training.alpha.clone(), history),
            lambda path: self.write_checkpoint(path, training),
            self.interrupted(),
        )

    def _verdict(self, run: Run, reasons: Sequence[str | None]) -> str | None:
        ended = next((str(reason) for reason in reasons if reason), None)
        return INTERRUPTED if ended is None and run.interrupted else ended
