"""Which rows of a whole one process holds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Held:
    """Which of n rows a rank holds: slices in ascending order; all ranks hold those before `common`."""

    n: int
    slices: Sequence[slice]
    common: int = 0

    @cached_property
    def _firsts(self) -> list[int]:
        return [rows.start for rows in self.slices]

    @cached_property
    def _places(self) -> list[int]:
        """Of the first row of each slice among those held, and their number."""
        places = [0]
        for rows in self.slices:
            places.append(places[-1] + rows.stop - rows.start)
        return places

    def __len__(self) -> int:
        return self._places[-1]

    def first(self, n: int) -> Held:
        """Which of the first n rows it holds.

        >>> Held(100, [slice(10, 20), slice(40, 60)]).first(50)
        Held(n=50, slices=[slice(10, 20, None), slice(40, 50, None)], common=0)
        """
        slices = [slice(rows.start, min(rows.stop, n)) for rows in self.slices if rows.start < n]
        return Held(n, slices, min(self.common, n))

    def within(self, part: slice) -> Iterator[tuple[slice, slice]]:
        """Of the rows in a part, those held: their places among those held, and in the part.

        >>> list(Held(100, [slice(10, 20), slice(40, 60)]).within(slice(15, 50)))
        [(slice(5, 10, None), slice(0, 5, None)), (slice(10, 20, None), slice(25, 35, None))]
        """
        for i in range(max(0, bisect_right(self._firsts, part.start) - 1), len(self.slices)):
            rows = self.slices[i]
            if rows.start >= part.stop:
                return
            first, stop = max(rows.start, part.start), min(rows.stop, part.stop)
            if first < stop:
                shift = self._places[i] - rows.start
                here = slice(first - part.start, stop - part.start)
                yield slice(first + shift, stop + shift), here
