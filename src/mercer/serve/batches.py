"""Requests that arrive together are predicted together.

One thread predicts.  While it is busy requests wait, and when it is done it takes all that wait for the
same model with the same wishes: nobody waits for others to come, and the more come, the more are
predicted at once.  A row has the same prediction in every batch (see "What is promised" in the guide).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mercer.estimators.all_answers import AllAnswers, all_answers
from mercer.serve.served import Served
from mercer.serve.wishes import Wishes

Array = NDArray[Any]
# Rows that are predicted in one call.  Between calls, requests that nobody waits for are dropped.
ROWS_AT_ONCE = 8_192


@dataclass(frozen=True, eq=False)
class Job:
    """The rows of one request, and who waits for its answers."""

    served: Served
    wishes: Wishes
    X: Array  # (m, d)
    answers: Future[AllAnswers] = field(default_factory=Future)
    given_up: threading.Event = field(default_factory=threading.Event)

    def give_up(self) -> None:
        """Nobody waits any more."""
        self.given_up.set()
        self.answers.cancel()

    def fits(self, other: Job) -> bool:
        return self.served is other.served and self.wishes == other.wishes


class Batches:
    """The thread that predicts, and the jobs that wait for it."""

    def __init__(self, on_batch: Callable[[int, int], None]) -> None:
        """`on_batch` is told the requests and the rows of every batch."""
        self._on_batch = on_batch
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="mercer-predict", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        with self._changed:
            self._waiting.append(job)
            self._changed.notify()

    def close(self) -> None:
        """End the thread once all that waits is done."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ended)
                if not self._waiting:
                    return
                batch = self._take()
            # Cancelled while it waited: its client has been told so.
            batch = [job for job in batch if job.answers.set_running_or_notify_cancel()]
            if batch:
                self._on_batch(len(batch), sum(len(job.X) for job in batch))
                self._predict(batch)

    def _take(self) -> list[Job]:
        """The job that waits longest, and those behind it that fit."""
        batch, left = [self._waiting.popleft()], deque[Job]()
        rows = len(batch[0].X)
        while self._waiting:
            job = self._waiting.popleft()
            if job.fits(batch[0]) and rows + len(job.X) <= ROWS_AT_ONCE:
                batch.append(job)
                rows += len(job.X)
            else:
                left.append(job)
        self._waiting = left
        return batch

    def _predict(self, batch: list[Job]) -> None:
        try:
            answers = predicted(batch[0], np.concatenate([job.X for job in batch]))
        except BaseException as error:
            if len(batch) > 1:  # one of them is at fault
                for job in batch:
                    self._predict([job])
            else:
                batch[0].answers.set_exception(error)
            return
        first = 0
        for job in batch:
            job.answers.set_result(_some(answers, slice(first, first + len(job.X))))
            first += len(job.X)


def predicted(job: Job, X: Array) -> AllAnswers:
    """The answers to a job's wishes for rows X, so many at a time."""
    wishes, parts = job.wishes, []
    for first in range(0, len(X), ROWS_AT_ONCE):
        if first and job.given_up.is_set():
            raise TimeoutError
        parts.append(
            all_answers(
                job.served.model,
                X[first : first + ROWS_AT_ONCE],
                probabilities=wishes.probabilities,
                coverage=wishes.interval,
                far=wishes.far,
            )
        )
    return parts[0] if len(parts) == 1 else _joined(parts)


def _joined(parts: list[AllAnswers]) -> AllAnswers:
    found: dict[str, Any] = {}
    for name in (f.name for f in fields(AllAnswers)):
        values = [getattr(part, name) for part in parts]
        found[name] = None if values[0] is None else np.concatenate(values)
    return AllAnswers(**found)


def _some(answers: AllAnswers, rows: slice) -> AllAnswers:
    found: dict[str, Any] = {f.name: getattr(answers, f.name) for f in fields(AllAnswers)}
    part: dict[str, Any] = {name: None if v is None else v[rows] for name, v in found.items()}
    return AllAnswers(**part)
