"""The processes that train together, and what they tell one another.

Every process runs the same program on the same machine code, and calls the methods of its `Group` in the
same order.  PyTorch's `torch.distributed` carries the messages: gloo between CPUs, NCCL between GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Thing = TypeVar("Thing")

# How long a rank waits for the others before it asks whether they are still there.
WAITING_SECONDS = 1.0


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
    #: Raises if another rank is gone; called again and again while this one waits.
    check: Callable[[], None] = lambda: None
    sent: int = field(default=0, init=False)  # bytes of the tensors that were added over ranks

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that prints and writes files."""
        return self.rank == 0

    def add(self, *tensors: Tensor) -> None:
        """Replace each tensor by its sum over the ranks."""
        if self.handle is None:
            return
        self.sent += sum(tensor.nbytes for tensor in tensors)
        self._wait([dist.all_reduce(t, group=self.handle, async_op=True) for t in tensors])

    def gathered(self, thing: Thing) -> list[Thing]:
        """What each rank has here, in the order of ranks."""
        if self.handle is None:
            return [thing]
        found: list[Any] = [None] * self.size
        self._talk(lambda: dist.all_gather_object(found, thing, group=self.handle))
        return found

    def from_first(self, thing: Thing) -> Thing:
        """What rank 0 has here."""
        if self.handle is None:
            return thing
        found = [thing if self.is_first else None]
        source = dist.get_global_rank(self.handle, 0)
        self._talk(lambda: dist.broadcast_object_list(found, src=source, group=self.handle))
        return found[0]  # type: ignore[return-value]

    def together(self) -> None:
        """Wait until all ranks are here."""
        self.gathered(None)

    def _wait(self, works: list[Any]) -> None:
        """Wait for collectives, and look after the other ranks meanwhile."""
        for work in works:
            while True:
                try:
                    work.wait(timedelta(seconds=WAITING_SECONDS))
                    break
                except RuntimeError as error:
                    self.check()
                    if "timed out" not in str(error).lower():
                        raise _lost(error) from error

    def _talk(self, exchange: Callable[[], None]) -> None:
        """Exchange objects, once all ranks are here: a wait of unknown length is watched."""
        here = torch.zeros(1)
        self._wait([dist.all_reduce(here, group=self.handle, async_op=True)])
        try:
            exchange()
        except RuntimeError as error:
            self.check()
            raise _lost(error) from error


def _lost(error: RuntimeError) -> RankError:
    return RankError(
        "The connection to another rank was lost, so that training cannot go on. See the messages of "
        f"the other ranks for the cause ({str(error).splitlines()[0][:200]})."
    )
