"""The runs of a session: a bounded number of them, of bounded size."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]

MOST_RUNS = 40
MOST_PINNED = 12
# Bytes of all model files and of what is shown.
MOST_BYTES = 1 << 30
ENDED = ("done", "failed")


@dataclass
class Run:
    """One run, from the request to the result."""

    number: int
    settings: Message
    status: str = "waiting"  # then "running", "done" or "failed"
    stage: str = ""
    pinned: bool = False
    epochs: list[Message] = field(default_factory=list)
    result: Message = field(default_factory=dict)
    details: dict[str, Message] = field(default_factory=dict)
    size: int = 0  # bytes

    def summary(self) -> Message:
        """What the table of runs needs."""
        hidden = ("python", "command")
        return {
            "run": self.number,
            "settings": self.settings,
            "status": self.status,
            "stage": self.stage,
            "pinned": self.pinned,
            "epochs": self.epochs,
            "result": {name: value for name, value in self.result.items() if name not in hidden},
            "score": self.details.get("held_out", {}).get("score", {}),
        }

    def everything(self) -> Message:
        return {**self.summary(), "result": self.result, "details": self.details}


class Runs:
    """All runs by number; the oldest that are not pinned make room for new ones."""

    def __init__(self) -> None:
        self._runs: dict[int, Run] = {}
        self._last = 0

    def __iter__(self) -> Any:
        return iter(self._runs.values())

    def get(self, number: int) -> Run | None:
        return self._runs.get(number)

    def add(self, settings: Message) -> Run:
        self._last += 1
        run = self._runs[self._last] = Run(self._last, settings)
        return run

    def remove(self, number: int) -> None:
        self._runs.pop(number, None)

    def pin(self, number: int, pinned: bool) -> None:
        """Raises a ValueError if too many are pinned."""
        run = self._runs[number]
        if pinned and not run.pinned and sum(one.pinned for one in self) >= MOST_PINNED:
            raise ValueError(f"At most {MOST_PINNED} runs can be pinned. Unpin one first.")
        run.pinned = pinned

    def measure(self, run: Run) -> None:
        """Note how much a run takes."""
        shown = len(json.dumps(run.details)) + len(json.dumps(run.epochs))
        run.size = shown + int(run.result.get("bytes", 0))

    def surplus(self) -> list[Run]:
        """Runs that have to go, the oldest first; never a pinned one, the newest, or one not ended."""
        found = []
        count, size = len(self._runs), sum(run.size for run in self)
        for run in list(self._runs.values())[:-1]:
            if count <= MOST_RUNS and size <= MOST_BYTES:
                break
            if not run.pinned and run.status in ENDED:
                found.append(run)
                count, size = count - 1, size - run.size
        return found
