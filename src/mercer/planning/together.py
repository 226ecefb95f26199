"""What the devices of several ranks offer together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mercer.planning.resource import Resource
from mercer.processes.group import Group
from mercer.processes.seats import devices, sharing
from mercer.stopwatch import fastest

# Exchanges that are timed; the fastest counts.
EXCHANGES = 3


@dataclass(frozen=True)
class Together:
    """How work is shared out over the devices of several ranks, and what their messages take."""

    devices: int = 1
    ranks_each: float = 1.0  # on the same device: what all ranks do, it does so many times
    sums: float = 0.0  # seconds in which the ranks add up the sums of a panel for one output
    points: float = 0.0  # and send its points, where these are dealt to them
    dealt: bool = False  # they are
    is_group: bool = False  # kernel values are kept as they are, and not in 16 bits

    @classmethod
    def of(cls, group: Group | None, sums: float, points: float | None) -> Together:
        """Of a group; None where there is none.  `points` is None where every rank has them all."""
        if group is None:
            return cls()
        count = devices(group.seats)
        return cls(count, group.size / count, sums, points or 0.0, points is not None, True)


def resource_of_all(measure: Callable[[], Resource], group: Group) -> Resource:
    """Capacity and memory of all ranks; each has the same share of the work, so the weakest counts.

    Ranks that have the same cores or the same device measure it once.
    """
    if group.size == 1:
        return replace(measure(), ranks=1)
    places = [(seat.host, seat.device, seat.cores) for seat in group.seats]
    firsts = [places.index(place) for place in places]  # by rank, the one that measures for it
    found = group.gathered(measure() if firsts[group.rank] == group.rank else None)
    by_rank = [found[first] for first in firsts]
    each = [resource for resource in by_rank if resource is not None]
    count = devices(group.seats)
    shares = [r.memory / sharing(group.seats, rank) for rank, r in enumerate(each)]
    weakest = min(range(len(each)), key=shares.__getitem__)
    reserved = each[weakest].reserved / each[weakest].memory
    memory = group.size * shares[weakest]
    return replace(
        each[0],
        capacity=count * min(r.capacity for r in each),
        full_rate_rows=count * min(r.full_rate_rows for r in each),
        integer_gain=min(r.integer_gain for r in each),
        memory=memory,
        reserved=reserved * memory,
        ranks=group.size,
    )


def exchange_seconds(group: Group, numbers: Tensor) -> float:
    """Seconds in which the ranks add up such numbers, of which each has as many."""
    if group.handle is None or group.size == 1:
        return 0.0
    sent, sums = group.sent, torch.zeros_like(numbers)
    seconds = fastest(lambda: group.add(sums), EXCHANGES)
    group.sent = sent
    return seconds


def beside(work: float, messages: float, growing: bool = False) -> float:
    """Seconds of an epoch's work that is done while messages are on their way, or of waiting for them.

    The sums of a panel are sent while those of the next one are added up, so each panel takes the longer
    of the two.  `growing` work is proportional to the number of the panel, as in the first epoch.

    >>> beside(10.0, 4.0), beside(10.0, 12.0), beside(10.0, 4.0, growing=True)
    (10.0, 12.0, 10.4)
    """
    if growing and messages < 2 * work:
        return work + messages**2 / (4 * work)  # the mean of max(2 work u, messages) for u in [0, 1]
    return max(work, messages)
