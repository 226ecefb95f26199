"""The models of a server by name; a file that was replaced is read again while the old model answers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mercer.serve.faults import Fault
from mercer.serve.served import Served, read
from mercer.tables.wording import listed, meant, quoted

# Seconds between two looks at the files.
LOOK_SECONDS = 0.5

Identity = tuple[int, int, int, int] | None


def identity(path: str) -> Identity:
    """What changes when a file is replaced or written to; None if it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


@dataclass
class Entry:
    """One name; changed only by the thread that looks at the files."""

    served: Served
    seen: Identity
    problem: str | None = None  # why the newest file is not served


class Registry:
    """Models by name, in the order given."""

    def __init__(self, paths: Mapping[str, str], n_jobs: int | None) -> None:
        self._n_jobs = n_jobs
        self._entries: dict[str, Entry] = {}
        for name, path in paths.items():
            seen = identity(path)
            self._entries[name] = Entry(read(name, path, n_jobs), seen)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __getitem__(self, name: str) -> Served:
        """The newest version that could be read."""
        if name not in self._entries:
            names = list(self._entries)
            raise Fault(
                404, f"There is no model {quoted(name)}. {meant(name, names)}There are {listed(names)}."
            )
        return self._entries[name].served

    @property
    def entries(self) -> Mapping[str, Entry]:
        return self._entries

    @property
    def only(self) -> Served:
        """The model, if there is one."""
        if len(self._entries) > 1:
            raise Fault(
                404,
                f"There are several models: {listed(list(self._entries))}. Use /models/NAME/predict.",
            )
        return next(iter(self._entries.values())).served

    def watch(self, on_change: Callable[[Entry], None]) -> None:
        """Look at the files from now on; `on_change` is told of every new version, good or not."""
        self._thread = threading.Thread(
            target=self._watch, args=(on_change,), name="mercer-watch", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, on_change: Callable[[Entry], None]) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            for entry in self._entries.values():
                if self.renew(entry):
                    on_change(entry)

    def renew(self, entry: Entry) -> bool:
        """Read the file of an entry again if it has changed; whether it has."""
        path = entry.served.path
        now = identity(path)
        if now == entry.seen:
            return False
        entry.seen = now
        try:
            served = read(entry.served.name, path, self._n_jobs)
        except FileNotFoundError:
            entry.problem = f"{path!r} is gone."
        except Exception as error:
            entry.problem = " ".join(str(error).split()) or type(error).__name__
        else:
            entry.served, entry.problem = served, None
        return True
