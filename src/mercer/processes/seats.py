"""Where the ranks of a group are: their hosts, the cores they may use, and their devices."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Seat:
    """The place of one rank."""

    host: str
    process: int
    cores: frozenset[int]  # that the process may run on
    device: str

    @classmethod
    def here(cls, device: torch.device) -> Seat:
        able = hasattr(os, "sched_getaffinity")
        cores = os.sched_getaffinity(0) if able else range(os.cpu_count() or 1)
        return cls(socket.gethostname(), os.getpid(), frozenset(cores), str(device))

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}"

    @property
    def is_cpu(self) -> bool:
        return self.device == "cpu"


def share_of_cores(seats: Sequence[Seat], rank: int) -> int:
    """Cores for a rank: those it may run on, shared with the ranks that may run on the same.

    `torchrun` sets one thread for each process, whatever the machine has.

    >>> four = frozenset(range(4))
    >>> share_of_cores([Seat("a", 1, four, "cpu"), Seat("a", 2, four, "cpu")], 0)
    2
    """
    seat = seats[rank]
    together = sum(other.host == seat.host and other.cores == seat.cores for other in seats)
    return max(1, len(seat.cores) // together)


def sharing(seats: Sequence[Seat], rank: int) -> int:
    """Ranks that share the memory of this one: those of its host, or of its device."""
    seat = seats[rank]
    return sum(other.host == seat.host and other.device == seat.device for other in seats)


def devices(seats: Sequence[Seat]) -> int:
    """Devices that the ranks have together: sets of cores, or devices with memory of their own."""
    return len({(seat.host, seat.device, seat.cores if seat.is_cpu else None) for seat in seats})
