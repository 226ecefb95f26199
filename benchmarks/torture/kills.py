"""Processes killed and interrupted at random moments.

A process that writes a model, a page and checkpoints in a loop is killed: all of them must be whole, and
the next write must leave nothing else behind.  A fit is interrupted by Ctrl-C: it ends with a usable
model or, at a second Ctrl-C, with KeyboardInterrupt, and resuming from its checkpoint ends with the same
weights as the fit that was not interrupted, bit for bit.

The processes are forks of one that has loaded Mercer and done nothing else.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import mercer
from benchmarks.torture.record import Count, Size
from mercer import Callback, Checkpoint, KernelRegressor, Run
from mercer.files.checkpoint import Saved
from mercer.files.whole import write_text_whole

KILLS = 500  # of the full run
INTERRUPTS = 300
# A loop of writes takes milliseconds.
MOST_KILL_SECONDS = 0.15
# Share of the interrupted fits that get a second Ctrl-C, and the longest wait for it.
TWICE = 0.3
MOST_SECOND_SECONDS = 0.03
# A process that takes so long hangs.
HANGS_SECONDS = 120.0
PAGE = "<p>" + "all work and no play " * 5_000 + "</p>"
SETTINGS: dict[str, Any] = {
    "kernel": "laplacian",
    "bandwidth": 3.0,
    "ridge": 0.0,
    "random_state": 0,
    "batch_size": 64,
    "max_iter": 15,
    "interpolation_tol": 0.0,
    "tol": 0.0,
    "n_iter_no_change": 100,
}


def examples(n: int) -> tuple[Any, Any]:
    X = np.random.default_rng(0).normal(size=(n, 4))
    return X, np.sin(X[:, 0])


def fit(n: int, callbacks: tuple[Callback, ...] = (), resume: Path | None = None) -> KernelRegressor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return KernelRegressor(**SETTINGS, callbacks=callbacks).fit(*examples(n), resume=resume)


def forked(work: Callable[[], Any], during: Callable[[int], None] = lambda child: None) -> str:
    """Run in a child, and something with its number meanwhile; what went wrong, if anything."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        text = "done"
        try:
            work()
        except BaseException:  # whatever it is, the parent reports it
            text = traceback.format_exc()[-400:]
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    during(child)
    deadline = time.monotonic() + HANGS_SECONDS
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            deadline = np.inf
        time.sleep(0.002)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    return "" if text == "done" else text or "the process crashed or did not end"


class Writes(Callback):
    """Writes a model, a page and a checkpoint, so many times; tells a pipe once the first are there."""

    def __init__(self, folder: Path, times: float, ready: int | None = None) -> None:
        self.folder = folder
        self.times = times
        self.ready = ready

    def on_epoch_end(self, run: Run) -> str | None:
        while self.times > 0:
            run.model.save(self.folder / "model.mercer")
            write_text_whole(self.folder / "page.html", PAGE)
            run.save_checkpoint(self.folder / "run.checkpoint")
            self.times -= 1
            if self.ready is not None:
                os.write(self.ready, b".")
                self.ready = None
        return "enough"


def kills(folder: Path, count: int, rng: np.random.Generator) -> Count:
    def look() -> None:
        assert np.isfinite(mercer.load(folder / "model.mercer").predict(examples(5)[0])).all()
        assert (folder / "page.html").read_text() == PAGE
        Saved.read(folder / "run.checkpoint")
        fit(200, (Writes(folder, 1),))
        found = sorted(os.listdir(folder))
        assert found == ["model.mercer", "page.html", "run.checkpoint"], found

    failures, left = [], 0
    for number in range(count):
        read, ready = os.pipe()

        def kill(child: int, read: int = read) -> None:
            os.read(read, 1)
            time.sleep(float(rng.uniform(0, MOST_KILL_SECONDS)))
            os.kill(child, signal.SIGKILL)

        forked(lambda ready=ready: fit(200, (Writes(folder, np.inf, ready),)), kill)  # type: ignore[misc]
        os.close(read)
        os.close(ready)
        left += len(os.listdir(folder)) > 3
        wrong = forked(look)
        if wrong:
            failures.append(f"kill {number}: {wrong}")
    what = "files are whole after a kill, and nothing is left after the next write"
    return Count(what, count, tuple(failures), f"{left} of them left something to clear up")


class CtrlC(Callback):
    """Presses Ctrl-C some time after the first panel, and perhaps a second time."""

    def __init__(self, delay: float, second: float | None) -> None:
        self.delay = delay
        self.second = second
        self.epochs = 0
        self._timer: threading.Timer | None = None

    def on_panel_end(self, run: Run) -> str | None:
        if self._timer is None:
            self._timer = threading.Timer(self.delay, self._press)
            self._timer.daemon = True
            self._timer.start()
        return None

    def on_epoch_end(self, run: Run) -> str | None:
        self.epochs = len(run.history)
        return None

    def _press(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        if self.second is not None:
            time.sleep(self.second)
            os.kill(os.getpid(), signal.SIGINT)


def interrupts(folder: Path, count: int, rng: np.random.Generator) -> Count:
    n, whole, path = 3_000, folder / "whole.npz", folder / "run.checkpoint"

    def interrupted(press: CtrlC) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            model = fit(n, (press, Checkpoint(path)))
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a late one is no longer the fit's
            assert np.isfinite(model.predict(examples(n)[0])).all()
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            ended = press.epochs == SETTINGS["max_iter"]
            assert press.second is not None or ended, "KeyboardInterrupt at the first Ctrl-C"
        if path.exists():
            np.testing.assert_array_equal(fit(n, resume=path).dual_coef_, np.load(whole)["weights"])

    def train() -> None:
        model = fit(n)
        seconds = sum(epoch.seconds for epoch in model.history_.epochs)
        np.savez(whole, weights=model.dual_coef_, seconds=seconds)

    failures = [wrong for wrong in [forked(train)] if wrong]
    most_seconds = float(np.load(whole)["seconds"])
    resumed = 0
    for number in range(count):
        path.unlink(missing_ok=True)
        second = rng.uniform(0, MOST_SECOND_SECONDS) if rng.random() < TWICE else None
        press = CtrlC(rng.uniform(0, most_seconds), second)
        wrong = forked(lambda press=press: interrupted(press))  # type: ignore[misc]
        resumed += path.exists()
        if wrong:
            failures.append(f"interrupt {number}, {'once' if second is None else 'twice'}: {wrong}")
    what = "an interrupted fit is usable, and resumes to the same weights"
    return Count(what, count, tuple(failures), f"{resumed} of them left a checkpoint and were resumed")


def main(scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    forked(lambda: fit(200))  # measures the device, so that no other process has to
    found = []
    for part, count in ((kills, KILLS), (interrupts, INTERRUPTS)):
        with tempfile.TemporaryDirectory() as folder:
            found.append(part(Path(folder), max(1, round(count * scale)), rng))
    print(json.dumps([asdict(count) for count in found]))


def run(size: Size) -> list[Count]:
    """In a process of its own, since it forks and others may have started threads."""
    command = [sys.executable, "-m", "benchmarks.torture.kills", str(size.scale), str(size.seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return [Count("processes are killed and interrupted", 1, (done.stderr[-500:],))]
    return [
        Count(**{**found, "failures": tuple(found["failures"])}) for found in json.loads(done.stdout)
    ]


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
