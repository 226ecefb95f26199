"""Half an hour of fits, predictions, saves, loads, checkpoints and resumes in one process.

Whatever leaks shows up: the memory of the last third is compared with that of the first third after
warm-up, and files, file descriptors and threads at the end with those after warm-up.
"""

from __future__ import annotations

import gc
import tempfile
import threading
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

import mercer
from benchmarks.torture.datasets import MADE, median_distance, plain, pool
from benchmarks.torture.record import Count, Size
from mercer import Callback, Checkpoint, KernelClassifier, KernelRegressor

Array = NDArray[Any]
MINUTES = 30.0
MIB = 1 << 20
# The same problems again and again, so that none needs more memory than those before it.  The first
# round warms up: caches fill, threads start, the allocator finds its level.
PROBLEMS = 20
FEWEST_CYCLES = 3 * PROBLEMS
# The allocator's own ups and downs; a megabyte leaked in every cycle would be hundreds.
MOST_GROWTH = 24 * MIB
ROWS = (100, 800)
CHOOSING = 4  # every so many problems, the kernel is chosen, which takes longer than the fit
STOPPED_AFTER = 2  # epochs, of MAX_ITER
MAX_ITER = 6


class Stop(Callback):
    """Ends training after some epochs, as an interrupt would."""

    def on_epoch_end(self, run: Any) -> str | None:
        return "stopped" if run.epoch.number >= STOPPED_AFTER else None


@dataclass
class Watch:
    """What the process holds after each cycle."""

    process: psutil.Process = field(default_factory=psutil.Process)
    resident: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)

    def look(self) -> None:
        gc.collect()
        self.resident.append(self.process.memory_info().rss)
        self.descriptors.append(self.process.num_fds() if hasattr(self.process, "num_fds") else 0)
        self.threads.append(threading.active_count())


def cycle(number: int, folder: Path) -> str:
    """Use one model in every way; what is wrong, or nothing."""
    number %= PROBLEMS
    rng = np.random.default_rng(number)
    table = plain(pool(tuple(MADE)[number % len(MADE)]), int(rng.integers(*ROWS)), rng)
    X, y = table.X, table.y
    kind = KernelRegressor if table.numeric else KernelClassifier
    settings: dict[str, Any] = {"max_iter": MAX_ITER, "tol": 0.0, "random_state": number}
    settings["interpolation_tol"] = 0.0
    if number % CHOOSING:
        settings |= {"kernel": "laplacian", "bandwidth": median_distance(X), "ridge": 0.01}
    whole = kind(**settings).fit(X, y)
    path = folder / "model.mercer"
    whole.save(path)
    if not np.array_equal(mercer.load(path).predict(X), whole.predict(X)):
        return "a loaded model predicts something else"
    checkpoint = folder / "run.checkpoint"
    kind(**settings, callbacks=[Checkpoint(checkpoint, minutes=0), Stop()]).fit(X, y)
    resumed = kind(**settings).fit(X, y, resume=checkpoint)
    if not np.array_equal(resumed.dual_coef_, whole.dual_coef_):
        return "a resumed run ends with other weights"
    return ""


def run(size: Size) -> list[Count]:
    watch, wrong, number = Watch(), list[str](), 0
    seconds = 60 * MINUTES * size.scale
    with tempfile.TemporaryDirectory() as outer, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few epochs, so that there are many cycles
        folder = Path(outer) / "kept"
        folder.mkdir()
        before, tempfile.tempdir = tempfile.tempdir, outer  # whatever is left behind is seen
        try:
            began = time.monotonic()
            while number < FEWEST_CYCLES or time.monotonic() - began < seconds:
                text = cycle(number, folder)
                if text:
                    wrong.append(f"benchmarks.torture.load.cycle({number}, folder): {text}")
                watch.look()
                number += 1
        finally:
            tempfile.tempdir = before
        left = sorted(str(p.relative_to(outer)) for p in Path(outer).rglob("*") if p.is_file())
    extra = tuple(name for name in left if name not in ("kept/model.mercer", "kept/run.checkpoint"))
    return [
        Count("models and checkpoints give back what was trained", number, tuple(wrong)),
        _memory(watch.resident),
        _same("file descriptors", watch.descriptors),
        _same("threads", watch.threads),
        Count("no file is left behind", number, extra),
    ]


def _memory(resident: list[int]) -> Count:
    warm = resident[PROBLEMS:]
    third = max(1, len(warm) // 3)
    first, last = median(warm[:third]) / MIB, median(warm[-third:]) / MIB
    note = f"{first:.0f} MiB in the first third, {last:.0f} MiB in the last, peak {max(warm) / MIB:.0f}"
    grown = (last - first) * MIB > MOST_GROWTH
    return Count("resident memory is flat after warm-up", len(resident), (note,) * grown, note)


def _same(what: str, numbers: list[int]) -> Count:
    """As many at the end as after warm-up."""
    warm = numbers[PROBLEMS:]
    note = f"{warm[0]} after warm-up, {warm[-1]} at the end"
    return Count(f"{what} do not leak", len(numbers), (note,) * (warm[-1] > warm[0]), note)
