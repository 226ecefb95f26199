"""The processes that train together, and what they tell one another.

Every process runs the same program and calls the methods of its `Group` in the same order.  PyTorch's
`torch.distributed` carries the messages: gloo between CPUs, NCCL between GPUs.

Some things rank 0 does for all: it searches, saves, and runs callbacks.  For these it may need data that
other ranks hold.  So while rank 0 decides, the others answer its questions (`decided`, `ask`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from mercer.processes.packing import packed, unpacked
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


class Answering(Protocol):
    """Something that every rank has a part of."""

    def answer(self, *question: Any) -> Any:
        """The whole answer, on each rank; all ranks call this together."""


@dataclass(eq=False)
class Connections:
    """Between the ranks of a process group; nothing else may keep them, so that they can be closed."""

    tensors: dist.ProcessGroup | None = None  # on the device; None where there is nobody to talk to
    objects: dist.ProcessGroup | None = None  # likewise, in the memory of the CPU
    beats: dist.ProcessGroup | None = None  # of the monitor
    broken: bool = False  # a rank is gone, and what was sent to it may wait forever

    def close(self) -> None:
        """End the threads that carry the messages, once these have let go of the last ones."""
        self.tensors = self.objects = self.beats = None


@dataclass(eq=False)
class Group:
    """The ranks of a run; without arguments, a single process.

    >>> alone = Group()
    >>> alone.size, alone.gathered("something")
    (1, ['something'])
    """

    rank: int = 0
    size: int = 1
    connections: Connections = field(default_factory=Connections)
    seats: list[Seat] = field(default_factory=lambda: [Seat.here(torch.device("cpu"))])  # of all ranks
    #: Raises if another rank is gone; called again and again while this one waits, with True where
    #: the connection to another one was lost.
    check: Callable[[bool], None] = lambda lost: None
    sent: int = 0  # bytes of the tensors that were added over ranks
    calls: int = 0  # exchanges that have ended
    waiting: bool = False  # for other ranks, now
    ended: bool = False  # the block that it was made for
    deciding: bool = False  # this is rank 0, and the others answer its questions
    apart: bool = False  # this is rank 0, and the others go on meanwhile
    _answering: WeakValueDictionary[int, Answering] = field(default_factory=WeakValueDictionary)
    _n_enlisted: int = 0

    @property
    def handle(self) -> dist.ProcessGroup | None:
        """What carries tensors on the device."""
        return self.connections.tensors

    @property
    def talk(self) -> dist.ProcessGroup | None:
        """What carries objects."""
        return self.connections.objects

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
        return [dist.all_reduce(t, group=self._carrier(t), async_op=True) for t in tensors]

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
        # Packed before the others wait for it, so that an error in packing is told to them.
        mine, found = packed(thing), [None] * self.size
        self._exchange(lambda: dist.all_gather_object(found, mine, group=self.talk))
        return [unpacked(theirs, self._device) for theirs in found]  # type: ignore[arg-type]

    def from_first(self, thing: Thing) -> Thing:
        """What rank 0 has here."""
        if self.talk is None:
            return thing
        found = [packed(thing) if self.is_first else None]
        source = dist.get_global_rank(self.talk, 0)
        self._exchange(lambda: dist.broadcast_object_list(found, src=source, group=self.talk))
        return thing if self.is_first else unpacked(found[0], self._device)  # type: ignore[arg-type]

    def decided(self, decide: Callable[[], Thing]) -> Thing:
        """What `decide` returns, or raises, on rank 0; meanwhile the others answer its questions."""
        if self.talk is None or self.deciding:
            return decide()
        found, error = None, None
        if self.is_first:
            self.deciding = True
            try:
                found = decide()
            except Exception as raised:
                error = raised
            finally:
                self.deciding = False
        while True:
            number, told = self.from_first((None, (found, error)))
            if number is None:
                break
            self._answering[number].answer(*told)
        found, other = told
        if error is not None:
            raise error
        if other is not None:
            raise other
        return found  # type: ignore[return-value]

    def enlist(self, answering: Answering) -> int:
        """A number by which to `ask` this; ranks enlist the same things in the same order."""
        self._n_enlisted += 1
        self._answering[self._n_enlisted] = answering
        return self._n_enlisted

    def ask(self, number: int, *question: Any) -> Any:
        """The answer of what was enlisted; all ranks ask together, or rank 0 while it decides."""
        if self.ended or self.apart:
            when = "one of them did" if self.ended else "only rank 0 did, and the others went on"
            raise RuntimeError(
                f"What is shared out over {self.size} ranks needs all of them at once. Got a call that "
                f"{when}: call it on all ranks, or save the model and load it."
            )
        if self.deciding:
            self.from_first((number, question))
        return self._answering[number].answer(*question)

    def _device(self) -> torch.device:
        """Where the tensors of this rank are."""
        return torch.device(self.seats[self.rank].device)

    def _carrier(self, tensor: Tensor) -> dist.ProcessGroup | None:
        """What carries a tensor: NCCL takes none from the memory of the CPU."""
        return self.talk if tensor.device.type == "cpu" and self.talk is not None else self.handle

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
            self.connections.broken = True
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
        self.connections.broken = True
        reason = (str(error).splitlines() or ["no reason given"])[0][:LONGEST_CAUSE]
        return RankError(
            f"The connection to another rank was lost, so training cannot go on ({reason}). The "
            "messages of the other ranks tell the cause."
        )
