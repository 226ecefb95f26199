"""Points that are dealt to the ranks of a group: each holds some, and all together have any of them.

A slice of all points is sent round by those that hold its rows, and every rank gets it.  Numbers are
added as integers, each to zeros of the other ranks, so their bits do not change.  What will be needed
next can be sent while something else is computed (`sending`, `arrived`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeAlias

import torch
from torch import Tensor

from mercer.data.held import Held
from mercer.data.points import Points, byte_points
from mercer.data.rows import as_integers, chunk_length
from mercer.data.streams import StreamedPoints
from mercer.processes.group import Group, RankError


@dataclass(frozen=True)
class Sending:
    """Rows that are on their way to all ranks."""

    rows: slice
    numbers: Tensor  # as integers
    works: list[Any]


class DealtPoints:
    """Points of which this rank holds some; `points[rows]` is for all ranks at once, `own` for one."""

    def __init__(self, points: Points, held: Held, group: Group) -> None:
        bounds = group.gathered((points.bound, points.absolute_bound))
        self.bound, self.absolute_bound = (max(column) for column in zip(*bounds, strict=True))
        self._points = replace(points, bound=self.bound, absolute_bound=self.absolute_bound)
        self.held = held
        self.group = group
        self._number = group.enlist(self)

    def among(self, group: Group) -> DealtPoints:
        """The same points for another run of the same ranks."""
        if group.size != self.group.size:
            raise RankError(
                f"The points of this model are shared out over {self.group.size} ranks. Got "
                f"{group.size}: save the model and load it to use it on another number of them."
            )
        return DealtPoints(self._points, self.held, group)

    def first(self, n: int) -> DealtPoints:
        """The first n of the points; all ranks call this together."""
        if n == len(self):
            return self
        held = self.held.first(n)
        return DealtPoints(self._points[: len(held)], held, self.group)

    def __len__(self) -> int:
        return self.held.n

    @property
    def shape(self) -> tuple[int, int]:
        return self.held.n, self._points.shape[1]

    @property
    def device(self) -> torch.device:
        return self._points.device

    @property
    def dtype(self) -> torch.dtype:
        return self._points.dtype

    @property
    def is_bytes(self) -> bool:
        return self._points.is_bytes

    def own(self, rows: slice) -> Points:
        """Rows that this rank holds, contiguous, as a view."""
        if rows.start >= rows.stop:
            return self._points[:0]
        place, here = next(self.held.within(rows))
        assert here == slice(0, rows.stop - rows.start), "rows of another rank"
        return self._points[place]

    def largest(self, function: Callable[[Points], Tensor]) -> float:
        """The largest of the numbers that a function gives for each point."""
        return max(self.group.gathered(self._points.largest(function)))

    def __getitem__(self, rows: slice) -> Points:
        first, stop, _ = rows.indices(len(self))
        if stop <= self.held.common:
            return self.own(slice(first, stop))
        found: Points = self.group.ask(self._number, first, stop)
        return found

    def answer(self, first: int, stop: int) -> Points:
        return self.arrived(self.sending(slice(first, stop)))

    def sending(self, rows: slice) -> Sending:
        """Begin to send these rows, without waiting; all ranks call this together."""
        stored = self._points.rows
        length = max(0, rows.stop - rows.start)
        numbers = as_integers(stored.new_zeros(length, stored.shape[1]))
        # What all ranks hold, rank 0 gives.
        common = min(rows.stop, max(rows.start, self.held.common))
        begin = rows.start if self.group.is_first else common
        mine = numbers[begin - rows.start :]
        for place, here in self.held.within(slice(begin, rows.stop)):
            mine[here] = as_integers(stored[place])
        return Sending(rows, numbers, self.group.start_adding(numbers))

    def arrived(self, sending: Sending) -> Points:
        """Wait for rows that are being sent."""
        self.group.finish(sending.works)
        return self._of(sending.numbers.view(self._points.rows.dtype))

    @property
    def at_once(self) -> int:
        """Rows that may be sent at a time, so that never many of them are in one place."""
        return chunk_length(self._points.rows.shape[1])

    @property
    def rows(self) -> PassingRows:
        """The points as stored, for all ranks at once."""
        return PassingRows(self)

    def _of(self, stored: Tensor) -> Points:
        bounds = {"bound": self.bound, "absolute_bound": self.absolute_bound}
        if self.is_bytes:
            return replace(byte_points(stored, self.dtype), **bounds)
        x, norms = stored[:, :-2], stored[:, -1]
        return replace(self._points, x=x, squared_norms=norms, extended=stored)

    @property
    def stored(self) -> Tensor:
        """What this rank holds, as it is stored."""
        return self._points.rows

    def to(self, device: torch.device | str) -> NoReturn:
        raise self._in_parts("copied to another device or pickled")

    def as_floats(self) -> NoReturn:
        raise self._in_parts("made a module")

    def _in_parts(self, what: str) -> RuntimeError:
        return RuntimeError(
            f"A model whose points are shared out over {self.group.size} ranks cannot be {what}: save "
            "it and load it instead."
        )


@dataclass(frozen=True)
class PassingRows:
    """A matrix of which only a part at a time is in memory."""

    points: DealtPoints

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.points), self.points.stored.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.points.stored.dtype

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.shape[1] * self.element_size()

    def element_size(self) -> int:
        return self.points.stored.element_size()

    def parts(self) -> Iterator[Tensor]:
        step = self.points.at_once
        for first in range(0, len(self.points), step):
            yield self.points[first : first + step].rows


AnyPoints: TypeAlias = Points | DealtPoints


class PanelPoints:
    """The points of one panel after another; those that come next are sent while one is worked on."""

    def __init__(self, points: AnyPoints | StreamedPoints) -> None:
        self.points = points
        self._last: tuple[slice, Points] | None = None  # what was asked for last
        self._sending: Sending | None = None

    def of(self, rows: slice) -> Points:
        """The points of a panel, which begin at the address of an allocation."""
        if self._last is not None and self._last[0] == rows:
            return self._last[1]
        sending = self._sending
        if sending is not None and sending.rows == rows and isinstance(self.points, DealtPoints):
            found, self._sending = self.points.arrived(sending), None
        else:
            found = self.points[rows].aligned()
        self._last = (rows, found)
        return found

    def sent(self, rows: slice) -> bool:
        """Whether the points of a panel are on their way."""
        return self._sending is not None and self._sending.rows == rows

    def send(self, rows: slice) -> None:
        """Begin to send the points of a panel, if each rank holds only some; all ranks call this."""
        if isinstance(self.points, DealtPoints):
            self._sending = self.points.sending(rows)
