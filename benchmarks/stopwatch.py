"""Timing a block of code."""

from __future__ import annotations

import time
from collections.abc import Callable

from typing_extensions import Self


class Stopwatch:
    """Seconds of a `with` block; while it runs, the seconds so far."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._stopped: float | None = None

    def __enter__(self) -> Self:
        self._start = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped = self.seconds

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start if self._stopped is None else self._stopped


def fastest(action: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest of several runs, since others may share the machine."""
    times = []
    for _ in range(repeats):
        with Stopwatch() as watch:
            action()
        times.append(watch.seconds)
    return min(times)
