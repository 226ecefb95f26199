"""Looks after the ranks of a group, so that one that dies or hangs does not leave the others waiting.

A thread on each rank exchanges a `Beat` with the others every few seconds, on connections of its own.  A
rank that does not answer is gone.  A rank that answers may still hang: it is then neither waiting for
the others nor using its processor.  Long work is no fault: it takes processor time.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any

import psutil
import torch.distributed as dist
from typing_extensions import Self

from mercer.processes.group import Group, RankError
from mercer.processes.seats import Seat

# Seconds without progress after which the ranks give up; MERCER_PATIENCE sets another number.
RANK_PATIENCE = 60.0
PATIENCE_VARIABLE = "MERCER_PATIENCE"
# Seconds between beats, at most this and at most this share of the patience.  An error of one rank is
# known to all after about as long.
BEAT_SECONDS = 1.0
BEAT_SHARE = 1 / 8
# Share of a core that a rank uses if it works on something; beats take less than a tenth of it.
BUSY_SHARE = 0.02
# How long it may take the system to end a process whose connections are closed.
ENDING_SECONDS = 3.0
# Longest part of an error of another rank that is repeated.
MOST_REPEATED = 500


@dataclass(frozen=True)
class Beat:
    """What a rank tells the others about itself."""

    calls: int = 0  # exchanges that have ended
    waiting: bool = False  # for the others
    processor_seconds: float = 0.0
    left: bool = False  # it has ended its part
    failure: str | None = None  # why it ended, if by an error of its own


class Judge:
    """From beats to a verdict: what is wrong, or None."""

    def __init__(self, seats: Sequence[Seat], patience: float, now: float) -> None:
        self.seats = seats
        self.patience = patience
        self._last = [Beat() for _ in seats]
        self._moved = [now] * len(seats)  # when each rank was last seen to make progress
        self._seen = now

    def verdict(self, beats: Sequence[Beat], now: float) -> str | None:
        busy = BUSY_SHARE * (now - self._seen)
        for rank, (beat, last) in enumerate(zip(beats, self._last, strict=True)):
            works = beat.processor_seconds - last.processor_seconds > busy
            if beat.left or beat.calls != last.calls or works:
                self._moved[rank] = now
        self._last, self._seen = list(beats), now
        failed = [rank for rank, beat in enumerate(beats) if beat.failure is not None]
        if failed:
            return f"{named(self.seats, failed[:1])} failed: {beats[failed[0]].failure}"
        still = [rank for rank in range(len(beats)) if now - self._moved[rank] >= self.patience]
        hanging = [rank for rank in still if not beats[rank].waiting]
        waiting = any(beat.waiting for beat in beats)
        left = [rank for rank, beat in enumerate(beats) if beat.left]
        if left and still and len(left) + len(still) == len(beats) and waiting:
            return (
                f"{named(self.seats, left)} has ended its part, and the others have waited for "
                f"{self.patience:g} s: all ranks must call the same functions in the same order."
            )
        if hanging and waiting:
            return (
                f"{named(self.seats, hanging)} made no progress for {self.patience:g} s, and the others "
                "wait: it may hang, or may never have called what they have."
            )
        if len(still) == len(beats):
            return (
                f"All ranks have waited for one another for {self.patience:g} s: they must call the "
                "same functions in the same order, also `predict`."
            )
        return None


def named(seats: Sequence[Seat], ranks: Sequence[int]) -> str:
    """Ranks and where they are, to begin a sentence.

    >>> named([Seat("a", 7, frozenset(), "cpu")], [0])
    'Rank 0 (process 7 on a)'
    """
    return " and ".join(f"Rank {rank} ({seats[rank]})" for rank in ranks)


def patience() -> float:
    """Seconds without progress that are allowed."""
    text = os.environ.get(PATIENCE_VARIABLE, "")
    try:
        seconds = float(text) if text else RANK_PATIENCE
    except ValueError:
        seconds = float("nan")
    if not seconds > 0:
        raise ValueError(f"{PATIENCE_VARIABLE} must be a positive number of seconds. Got {text!r}.")
    return seconds


class Monitor:
    """For the length of a block, the ranks of a group look after one another.

    An error in the block is told to the others, and ends
    theirs with the name of this rank, also where they have come to its end.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.patience = patience()
        self.fault: str | None = None
        self._lost = False  # a connection, and so the answer of another rank
        self._leaving = False
        self._woken = threading.Event()
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._run, name="mercer-monitor", daemon=True)

    def __enter__(self) -> Self:
        self.group.check = self.check
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, place: TracebackType | None
    ) -> None:
        if error is not None and self.fault is None:
            self._failure = _repeated(error)
        self._leaving = True
        self._woken.set()
        # All leave together, or learn of this rank's error.  An exchange that fails ends it, too.
        try:
            self._thread.join()
        except BaseException:  # a second interrupt: the thread still waits for the others
            self.group.connections.broken = True
            raise
        self.group.check = lambda lost: None
        # Once all have ended their parts, a process may be gone before it has answered.
        if error is None and not self._lost:
            self.group.connections.broken |= self.fault is not None
            self.check()

    def check(self, lost: bool = False) -> None:
        """Raise if something is wrong; if a connection was `lost`, once it is known why.

        Where the other ranks go on answering, it never will be.
        """
        if lost:
            self._woken.set()
            self._thread.join(self.patience)
        if self.fault is not None:
            raise RankError(f"Training was ended on all ranks. {self.fault}")

    def _run(self) -> None:
        group, judge = self.group, Judge(self.group.seats, self.patience, time.monotonic())
        interval = min(BEAT_SECONDS, BEAT_SHARE * self.patience)
        while True:
            left = self._leaving
            mine = Beat(group.calls, group.waiting, time.process_time(), left, self._failure)
            try:
                found = self._exchange(mine)
            except RuntimeError as error:
                self._lost, self.fault = True, self._gone(error)
                return
            if mine.failure is not None:
                return  # all know it now, and do not answer any more
            self.fault = judge.verdict(found, time.monotonic())
            if self.fault is not None or all(beat.left for beat in found):
                return
            if not left:
                self._woken.wait(interval)

    def _exchange(self, mine: Beat) -> list[Beat]:
        beats = self.group.connections.beats
        dist.monitored_barrier(beats, timedelta(seconds=self.patience), wait_all_ranks=True)
        found: list[Any] = [None] * self.group.size
        dist.all_gather_object(found, mine, group=beats)
        return found

    def _gone(self, error: RuntimeError) -> str:
        """What an error of the exchange means; rank 0 learns who did not answer."""
        ranks = re.search(r"Ranks? ([\d, ]+) failed to pass", str(error))
        gone = [int(text) for text in re.findall(r"\d+", ranks[1])] if ranks else []
        # Of ranks on this host the system knows, but for a moment after their connections are closed.
        host, until = self.group.seats[self.group.rank].host, time.monotonic() + ENDING_SECONDS
        near = [rank for rank, seat in enumerate(self.group.seats) if seat.host == host]
        while not gone and time.monotonic() < until:
            gone = [rank for rank in near if not _is_alive(self.group.seats[rank].process)]
            time.sleep(ENDING_SECONDS / 20)
        known = [rank for rank in gone if rank < self.group.size and rank != self.group.rank]
        who = named(self.group.seats, known) if known else "Another rank"
        return f"{who} has ended or does not answer: it may have been killed, or the network be cut."


def _is_alive(process: int) -> bool:
    try:
        return bool(psutil.Process(process).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _repeated(error: BaseException) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= MOST_REPEATED else f"{text[:MOST_REPEATED]}…"
