"""The processes that train together, and what they tell one another.

Every process runs the same program and calls the methods of its `Group` in the same order.  PyTorch's
`torch.distributed` carries the messages: gloo between CPUs, NCCL between GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from mercer.processes.seats import Seat

Thing = TypeVar("Thing")

# How long a rank waits for the others before it asks whether they are still there.
WAITING_SECONDS = 1.0
# What `Work.wait` says when the time that it was given is over.
STILL_WAITING = "Operation timed out!"
# Longest part of an error of PyTorch that is repeated.
LONGEST_CAUSE = 200


class RankError(RuntimeError):
    """The ranks cannot go on together: one is missing, hangs, or was given something else."""


@dataclass
class Group:
    """The ranks of a run; without arguments, a single process.

    >>> alone = Group()
    >>> alone.size, alone.gathered("something")
    (1, ['something'])
    """

    rank: int = 0
    size: int = 1
    handle: dist.ProcessGroup | None = None  # None where there is nobody to talk to
    talk: dist.ProcessGroup | None = None  # likewise, for objects in the memory of the CPU
    seats: list[Seat] = field(default_factory=lambda: [Seat.here(torch.device("cpu"))])  # of all ranks
    #: Raises if another rank is gone; called again and again while this one waits, with True where
    #: the connection to another one was lost.
    check: Callable[[bool], None] = lambda lost: None
    sent: int = 0  # bytes of the tensors that were added over ranks
    calls: int = 0  # exchanges that have ended
    waiting: bool = False  # for other ranks, now
    broken: bool = False  # a rank is gone, and what was sent to it may wait forever

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that prints and writes files."""
        return self.rank == 0

    def add(self, *tensors: Tensor) -> None:
        """Replace each tensor by its sum over the ranks."""
        self.finish(self.start_adding(*tensors))

    def start_adding(self, *tensors: Tensor) -> list[Any]:
        """The same without waiting: the sums are there after `finish`."""
        if self.handle is None:
            return []
        self.sent += sum(tensor.nbytes for tensor in tensors)
        return [dist.all_reduce(t, group=self.handle, async_op=True) for t in tensors]

    def finish(self, works: list[Any]) -> None:
        """Wait for what was started, and look after the other ranks meanwhile."""
        if not works:
            return
        self.waiting = True
        try:
            for work in works:
                self._wait(work)
        finally:
            self.waiting = False
            self.calls += 1

    def gathered(self, thing: Thing) -> list[Thing]:
        """What each rank has here, in the order of ranks."""
        if self.talk is None:
            return [thing]
        found: list[Any] = [None] * self.size
        self._exchange(lambda: dist.all_gather_object(found, thing, group=self.talk))
        return found

    def from_first(self, thing: Thing) -> Thing:
        """What rank 0 has here."""
        if self.talk is None:
            return thing
        found: list[Any] = [thing if self.is_first else None]
        source = dist.get_global_rank(self.talk, 0)
        self._exchange(lambda: dist.broadcast_object_list(found, src=source, group=self.talk))
        return thing if self.is_first else found[0]

    def decided(self, decide: Callable[[], Thing]) -> Thing:
        """What `decide` returns, or raises, on rank 0."""
        if self.talk is None:
            return decide()
        found, error = None, None
        if self.is_first:
            try:
                found = decide()
            except Exception as raised:
                error = raised
        found, other = self.from_first((found, error))
        if error is not None:
            raise error
        if other is not None:
            raise other
        return found  # type: ignore[return-value]

    def _exchange(self, exchange: Callable[[], None]) -> None:
        """Exchange objects once all ranks are here: a wait of unknown length is watched."""
        here = torch.zeros(1)
        self.finish([dist.all_reduce(here, group=self.talk, async_op=True)])
        try:
            exchange()
        except RuntimeError as error:
            raise self._lost(error) from error

    def _look(self, lost: bool) -> None:
        """Raise if another rank is gone."""
        try:
            self.check(lost)
        except RankError:
            self.broken = True
            raise

    def _wait(self, work: Any) -> None:
        while not self._ended(work):
            self._look(False)

    def _ended(self, work: Any) -> bool:
        """Wait for a while; whether it has ended by then."""
        try:
            work.wait(timedelta(seconds=WAITING_SECONDS))
        except RuntimeError as error:
            if STILL_WAITING in str(error):
                return False
            raise self._lost(error) from error
        return True

    def _lost(self, error: RuntimeError) -> RankError:
        """What to raise where a connection was lost."""
        self._look(True)
        self.broken = True
        reason = (str(error).splitlines() or ["no reason given"])[0][:LONGEST_CAUSE]
        return RankError(
            f"The connection to another rank was lost, so training cannot go on ({reason}). The "
            "messages of the other ranks tell the cause."
        )
