"""Sends the events of a run to the console and to callbacks, and ends it on Ctrl-C."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from mercer.planning.plan import Plan
from mercer.training.events.callbacks import Callback, Run
from mercer.training.events.console import ConsoleProgress
from mercer.training.history import Epoch, History
from mercer.training.loop import Training, Watcher
from mercer.training.state import State

INTERRUPTED = "interrupted from the keyboard"


class Events:
    """Console and callbacks of one fit; `verbose` is 0 for no output, 2 to print the plan as well."""

    def __init__(self, callbacks: Sequence[Callback] = (), verbose: int = 0) -> None:
        self.callbacks = callbacks
        self.console = ConsoleProgress() if verbose else None
        self._prints_plan = verbose > 1

    def on_stage(self, text: str) -> None:
        """Something before training that has no steps to count."""
        if self.console is not None:
            self.console.on_stage(text)
        for callback in self.callbacks:
            callback.on_stage(text)

    def on_plan(self, plan: Plan) -> None:
        """The plan is made, and training begins."""
        if self.console is not None:
            self.console.clear()
            if self._prints_plan:
                self.console.on_text(str(plan))
        for callback in self.callbacks:
            callback.on_fit_begin(plan)

    def on_rows(self, done: int, total: int) -> None:
        """Rows predicted so far."""
        if self.console is not None:
            self.console.on_rows(done, total)

    def on_end(self, plan: Plan, history: History, model: Any) -> None:
        """The model is fitted."""
        ended = Run(plan, history, lambda: model)
        for callback in self.callbacks:
            callback.on_fit_end(ended)


class Dispatch(Watcher):
    """Passes each event of a run on; the first callback that returns a text ends training."""

    def __init__(
        self,
        events: Events,
        plan: Plan,
        snapshot: Callable[[Tensor, History], Any],
        write_checkpoint: Callable[[str | os.PathLike[str], State], None],
        interrupted: Callable[[], bool],
    ) -> None:
        self.events = events
        self.plan = plan
        self.snapshot = snapshot
        self.write_checkpoint = write_checkpoint
        self.interrupted = interrupted

    def on_batch(self, epoch: int, batch: int, n_batches: int, loss: float) -> None:
        if self.events.console is not None:
            self.events.console.on_batch(epoch, batch, n_batches, loss)

    def on_panel(self, training: Training) -> str | None:
        run = self._run(training)
        return _verdict(run, [callback.on_panel_end(run) for callback in self.events.callbacks])

    def on_epoch(self, epoch: Epoch, training: Training) -> str | None:
        if self.events.console is not None:
            self.events.console.on_epoch(epoch)
        run = self._run(training)
        return _verdict(run, [callback.on_epoch_end(run) for callback in self.events.callbacks])

    def _run(self, training: Training) -> Run:
        history = training.state.history
        return Run(
            self.plan,
            history,
            lambda: self.snapshot(training.model.weights.clone(), history),
            lambda path: self.write_checkpoint(path, training.state),
            self.interrupted(),
        )


def _verdict(run: Run, reasons: Sequence[str | None]) -> str | None:
    ended = next((str(reason) for reason in reasons if reason), None)
    return INTERRUPTED if ended is None and run.interrupted else ended
