"""What a part of the torture run gets, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """How much to run: scale 1 is the full run, --quick a sixth of it."""

    scale: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Count:
    """Cases that were tried, and those that broke the law named by `what`, one line each."""

    what: str
    cases: int
    failures: tuple[str, ...] = ()
    note: str = ""
