"""What a user may hang into training: look at the live model after each epoch, log, stop.

Pass any objects with these methods as `callbacks=[...]`; `Callback` has them all, doing nothing.
"""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from mercer.planning.plan import Plan
from mercer.training.loop import Epoch, History


@dataclass(frozen=True)
class Run:
    """What a callback sees: numbers, and the model as it is now."""

    plan: Plan
    history: History
    snapshot: Callable[[], Any]

    @property
    def epoch(self) -> Epoch:
        """The epoch that has just ended."""
        return self.history[-1]

    @property
    def model(self) -> Any:
        """A fitted estimator with the weights as they are now; a copy, made anew at each access."""
        return self.snapshot()


class Callback:
    """A text returned by `on_epoch_end` ends training and becomes the model's `stop_reason_`."""

    def on_fit_begin(self, plan: Plan) -> None:
        """Before the first epoch."""

    def on_epoch_end(self, run: Run) -> str | None:
        """After each epoch."""
        return None

    def on_fit_end(self, run: Run) -> None:
        """After the last epoch, also where training was stopped or interrupted."""


class TimeLimit(Callback):
    """Stop at the end of the first epoch after so many seconds.

    >>> from mercer import KernelRegressor
    >>> X = [[float(i)] for i in range(50)]
    >>> model = KernelRegressor(callbacks=[TimeLimit(0.0)], random_state=0).fit(X, range(50))
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
    """Write a line for each epoch to a CSV file, which is made anew, as soon as the epoch ends."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def on_fit_begin(self, plan: Plan) -> None:
        self._write("w", [field.name for field in fields(Epoch)])

    def on_epoch_end(self, run: Run) -> str | None:
        self._write("a", asdict(run.epoch).values())
        return None

    def _write(self, mode: str, values: Any) -> None:
        with self.path.open(mode, newline="") as file:
            csv.writer(file).writerow("" if value is None else value for value in values)


class TensorBoardLog(Callback):
    """Write losses, score and seconds for TensorBoard, which must be installed."""

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
