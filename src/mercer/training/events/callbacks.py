"""User callbacks: look at the model while it trains, log, save checkpoints, stop.

Pass any objects with these methods as `callbacks=[...]`; `Callback` has them all, doing nothing.
"""

from __future__ import annotations

import csv
import math
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from mercer.planning.plan import Plan
from mercer.training.history import Epoch, History


def _not_while_training(path: str | os.PathLike[str]) -> None:
    raise ValueError(
        f"A checkpoint can only be written during training. Got {os.fspath(path)!r} after it."
    )


@dataclass(frozen=True)
class Run:
    """What a callback sees: numbers, and the model as it is now."""

    plan: Plan
    history: History
    snapshot: Callable[[], Any]
    #: Write the state of training to a path, for `fit(..., resume=path)`.
    save_checkpoint: Callable[[str | os.PathLike[str]], None] = _not_while_training
    interrupted: bool = False  # Ctrl-C was pressed, and training is about to end

    @property
    def epoch(self) -> Epoch:
        """The epoch that has just ended."""
        return self.history[-1]

    @property
    def model(self) -> Any:
        """A fitted estimator with the current weights; each access makes a new copy."""
        return self.snapshot()


class Callback:
    """Methods called during `fit`, each of which may be left out.

    A text returned by `on_panel_end` or `on_epoch_end` ends training and becomes the model's
    `stop_reason_`.
    """

    def on_stage(self, text: str) -> None:
        """Before training, at each stage of the preparation, such as each setting that is tried.

        An exception that is raised here, or in any of these methods, ends `fit` and leaves the estimator
        as it was.
        """

    def on_fit_begin(self, plan: Plan) -> None:
        """Before the first epoch."""

    def on_panel_end(self, run: Run) -> str | None:
        """Several times an epoch, wherever training can be stopped and resumed."""
        return None

    def on_epoch_end(self, run: Run) -> str | None:
        """After each epoch."""
        return None

    def on_fit_end(self, run: Run) -> None:
        """After the last epoch, also where training was stopped or interrupted."""


class _Attempts:
    """Attempts to write a file while training; one that fails warns, once for each reason."""

    def __init__(self, what: str, path: str | os.PathLike[str]) -> None:
        self.what = what
        self.path = path
        self._told: set[str] = set()  # reasons that were warned of

    def begin(self) -> None:
        """Warn of each reason again."""
        self._told.clear()

    def attempt(self, write: Callable[[], None]) -> bool:
        """Whether the file was written."""
        try:
            write()
        except (OSError, ValueError) as error:  # ValueError: a checkpoint whose kernel is a function
            reason = getattr(error, "strerror", None) or str(error)
            if reason not in self._told:
                self._told.add(reason)
                warnings.warn(
                    f"The {self.what} {os.fspath(self.path)!r} could not be written: {reason}. Training "
                    "goes on, and the next attempt may succeed.",
                    UserWarning,
                    stacklevel=2,
                )
            return False
        return True


class Checkpoint(Callback):
    """Save the state of training, for `fit(X, y, resume=path)`.

    A checkpoint is written when `minutes` have passed since the last attempt, and when training is
    interrupted by Ctrl-C.  Where it cannot be written, because the disk is full for example, a warning
    says why and training goes on.

    >>> from mercer import KernelRegressor
    >>> KernelRegressor(callbacks=[Checkpoint("run.checkpoint", minutes=5)])  # doctest: +ELLIPSIS
    KernelRegressor(...)
    """

    def __init__(self, path: str | os.PathLike[str], minutes: float = 10.0) -> None:
        if not minutes >= 0:
            raise ValueError(f"`minutes` must be at least 0. Got {minutes!r} instead.")
        self.path = path
        self.minutes = minutes
        self._tried = -math.inf
        self._attempts = _Attempts("checkpoint", path)

    def on_fit_begin(self, plan: Plan) -> None:
        self._tried = time.perf_counter()
        self._attempts.begin()

    def on_panel_end(self, run: Run) -> str | None:
        if run.interrupted or time.perf_counter() - self._tried >= 60 * self.minutes:
            self._attempts.attempt(lambda: run.save_checkpoint(self.path))
            self._tried = time.perf_counter()
        return None

    def on_epoch_end(self, run: Run) -> str | None:
        return self.on_panel_end(run) if run.interrupted else None


class TimeLimit(Callback):
    """Stop at the end of the epoch in which a number of seconds has passed.

    >>> from mercer import KernelRegressor
    >>> X = [[float(i)] for i in range(50)]
    >>> model = KernelRegressor(ridge=0.1, callbacks=[TimeLimit(0.0)]).fit(X, range(50))
    >>> model.stop_reason_
    'the time limit of 0 s has passed'
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._start = 0.0

    def on_fit_begin(self, plan: Plan) -> None:
        self._start = time.perf_counter()

    def on_epoch_end(self, run: Run) -> str | None:
        passed = time.perf_counter() - self._start >= self.seconds
        return f"the time limit of {self.seconds:g} s has passed" if passed else None


class CSVLog(Callback):
    """Write a line to a CSV file at the end of each epoch; an existing file is overwritten.

    Where the file cannot be written, because the disk is full for example, a warning says why and
    training goes on.  The next attempt writes all lines again.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lines: list[list[Any]] = []  # that the file should have
        self._written = 0  # how many of them it has
        self._attempts = _Attempts("log", path)

    def on_fit_begin(self, plan: Plan) -> None:
        self._attempts.begin()
        self._lines, self._written = [], 0
        self._add([field.name for field in fields(Epoch)])

    def on_epoch_end(self, run: Run) -> str | None:
        self._add(["" if value is None else value for value in asdict(run.epoch).values()])
        return None

    def _add(self, line: list[Any]) -> None:
        self._lines.append(line)
        # A failed attempt may have left part of a line, so the file begins again.
        self._written = len(self._lines) if self._attempts.attempt(self._write) else 0

    def _write(self) -> None:
        with self.path.open("a" if self._written else "w", newline="") as file:
            csv.writer(file).writerows(self._lines[self._written :])


class TensorBoardLog(Callback):
    """Log losses, score and seconds to TensorBoard, which must be installed."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(
                "TensorBoardLog needs TensorBoard. It is not installed: `pip install tensorboard`."
            ) from error
        self._writer = SummaryWriter(os.fspath(folder))

    def on_epoch_end(self, run: Run) -> str | None:
        epoch = run.epoch
        for name in ("train_loss", "validation_loss", "validation_score", "seconds"):
            value = getattr(epoch, name)
            if value is not None:
                self._writer.add_scalar(name, value, epoch.number)
        return None

    def on_fit_end(self, run: Run) -> None:
        self._writer.close()
