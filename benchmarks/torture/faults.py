"""A fault at every call to the system that a write makes, one at a time.

The operation is run once to count its calls, then again for each of them, with that call failing: by an
error (no space, read-only, input/output), or by the end of the process.  Afterwards the file must be
the old one or the new one, whole, and the next write that succeeds must leave nothing else behind.
"""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import mercer
from benchmarks.torture.record import Count, Size
from mercer import Callback, Checkpoint, KernelRegressor, Run
from mercer.files.checkpoint import Saved
from mercer.report import write_report

ERRORS = (errno.ENOSPC, errno.EROFS, errno.EIO)
KILL = 0  # instead of an error: the end of the process
KILLED = 9  # exit code
CALLS = ("open", "fsync", "replace", "mkdir", "rmdir", "unlink", "chmod", "scandir")
Operation = Callable[[], Any]
Check = Callable[[bytes], None]  # raises for contents that are not whole


@dataclass
class Faults:
    """Counts calls to the system, and makes one of them fail."""

    at: int = -1
    kind: int = KILL
    calls: list[str] = field(default_factory=list)

    def pass_by(self, name: str) -> None:
        self.calls.append(name)
        if len(self.calls) - 1 != self.at:
            return
        if self.kind == KILL:
            os._exit(KILLED)
        raise OSError(self.kind, os.strerror(self.kind))

    def watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            self.pass_by(name)
            return real(*given, **named)

        return call

    def opened(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, mode: str = "r", *given: Any, **named: Any) -> Any:
            self.pass_by("open file")
            file = real(path, mode, *given, **named)
            return file if set(mode) <= set("rbt") else WatchedFile(file, self)

        return call

    @contextmanager
    def active(self) -> Iterator[None]:
        with patch.object(io, "open", self.opened(io.open)):
            patches = [patch.object(os, name, self.watched(name, getattr(os, name))) for name in CALLS]
            for each in patches:
                each.start()
            try:
                yield
            finally:
                for each in patches:
                    each.stop()


class WatchedFile:
    """A file whose writes may fail halfway, and whose end may fail as well."""

    def __init__(self, file: Any, faults: Faults) -> None:
        self.file = file
        self.faults = faults

    def write(self, contents: Any) -> int:
        half = len(contents) // 2
        self.file.write(contents[:half])
        self.faults.pass_by("write")
        self.file.write(contents[half:])
        return len(contents)

    def __enter__(self) -> WatchedFile:
        return self

    def __exit__(self, *error: Any) -> None:
        self.file.close()
        self.faults.pass_by("close")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def tried(what: str, path: Path, write: Operation, check: Check) -> Count:
    """A fault at every call of `write` over the file at `path`, which `check` judges afterwards."""
    others, old = set(os.listdir(path.parent)), path.read_bytes()
    counting = Faults()
    with counting.active():
        write()
    new, cases, failures = path.read_bytes(), 0, []
    for kind in (*ERRORS, KILL):
        for at, name in enumerate(counting.calls):
            path.write_bytes(old)
            _with_fault(write, Faults(at, kind))
            cases += 1
            where = f"{what}: {name}, call {at}, {'killed' if kind == KILL else errno.errorcode[kind]}"
            found = path.read_bytes()
            try:
                check(found)
                if len(found) not in (len(old), len(new)):
                    failures.append(f"{where}: neither the old file nor the new one")
            except (ValueError, OSError) as error:
                failures.append(f"{where}: {error}")
            write()
            left = set(os.listdir(path.parent)) - others
            if left:
                failures.append(f"{where}: left {sorted(left)} after the next write")
    return Count(f"{what} is whole after a fault at any of its calls", cases, tuple(failures))


def _with_fault(write: Operation, faults: Faults) -> None:
    if faults.kind != KILL:
        try:
            with faults.active():
                write()
        except OSError:
            return  # or none, where the call is not needed
        return
    child = os.fork()
    if not child:
        with faults.active():
            write()
        os._exit(0)
    os.waitpid(child, 0)


class AtTheSecondEpoch(Callback):
    """Writes a checkpoint, and an epoch later another one over it with every fault."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.counts: list[Count] = []

    def on_epoch_end(self, run: Run) -> str | None:
        if len(run.history) == 1:
            run.save_checkpoint(self.path)
            return None
        write: Operation = lambda: run.save_checkpoint(self.path)  # noqa: E731
        self.counts.append(tried("a checkpoint", self.path, write, lambda raw: _read(self.path)))
        checkpoint = Checkpoint(self.path, minutes=0)
        write = lambda: checkpoint.on_panel_end(run)  # noqa: E731
        self.counts.append(_goes_on(self.path, write))
        return "enough"


def _read(path: Path) -> None:
    Saved.read(path)


def _goes_on(path: Path, write: Operation) -> Count:
    """The callback warns of an error and lets training go on."""
    counting, failures = Faults(), []
    with counting.active():
        write()
    for at, name in enumerate(counting.calls):
        try:
            with Faults(at, errno.ENOSPC).active(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                write()
        except OSError as error:
            failures.append(f"{name}, call {at}: {error}")
        path.read_bytes()
    what = "a checkpoint that cannot be written does not end training"
    return Count(what, len(counting.calls), tuple(failures))


def all_of(folder: Path) -> list[Count]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    settings: dict[str, Any] = {"kernel": "gaussian", "bandwidth": 2.0, "ridge": 0.1, "random_state": 0}
    old = KernelRegressor(**settings).fit(X[:50], X[:50, 0])
    new = KernelRegressor(**settings).fit(X, X[:, 1])
    path = folder / "model.mercer"
    old.save(path)
    counts = [tried("a model", path, lambda: new.save(path), lambda raw: _predicts(path, X))]
    page = folder / "report.html"
    texts: dict[str, Any] = {"title": "t", "command": "c", "data_name": "d", "target": "y"}
    texts |= {"notes": (), "timings": {}}
    write_report(page, old, None, **texts)
    report: Operation = lambda: write_report(page, new, None, **texts)  # noqa: E731
    counts.append(tried("a report", page, report, _ends))
    faults = AtTheSecondEpoch(folder / "run.checkpoint")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        KernelRegressor(**settings, callbacks=[faults], interpolation_tol=0.0, early_stopping=False).fit(
            X, X[:, 1]
        )
    return counts + faults.counts


def _predicts(path: Path, X: Any) -> None:
    if not np.isfinite(mercer.load(path).predict(X)).all():
        raise ValueError("the model does not predict finite numbers")


def _ends(raw: bytes) -> None:
    if not raw.rstrip().endswith(b"</html>"):
        raise ValueError("the report is not whole")


def run(size: Size) -> list[Count]:
    """In a process of its own, since it forks and others may have started threads."""
    del size  # every call is tried, whatever the size
    command = [sys.executable, "-m", "benchmarks.torture.faults"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([*command, folder], capture_output=True, text=True, check=False)
    if done.returncode:
        return [Count("writes meet faults", 1, (done.stderr[-500:],))]
    return [
        Count(**{**found, "failures": tuple(found["failures"])}) for found in json.loads(done.stdout)
    ]


if __name__ == "__main__":
    print(json.dumps([asdict(count) for count in all_of(Path(sys.argv[1]))]))
