"""Measuring how long something takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from typing_extensions import Self


class Stopwatch:
    """Seconds since it was made, or seconds that a `with` block took.

    >>> with Stopwatch() as watch:
    ...     total = sum(range(1000))
    >>> watch.seconds > 0
    True
    """

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._end: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end = time.perf_counter()

    @property
    def seconds(self) -> float:
        """The time so far, or that of the block once it has ended."""
        return (time.perf_counter() if self._end is None else self._end) - self._start


def fastest(
    action: Callable[[], object], repeats: int, clock: Callable[[], float] | None = None
) -> float:
    """Seconds of the fastest run: other programs on the machine can only make a run slower.

    On a GPU the action must wait for its result, or only the launch is timed.  With
    `time.thread_time` as the clock, only the time that this thread was running counts.
    """
    clock = time.perf_counter if clock is None else clock
    times = []
    for _ in range(repeats):
        start = clock()
        action()
        times.append(clock() - start)
    return min(times)
