"""Rows that are read in chunks, from the beginning as often as needed, and are never all in memory.

Rows are trained on in the order in which they come, but for a permutation within blocks: neighbours in a
file are often alike.  The permutations are the same in every pass, so that a row keeps its number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch

from mercer.data.points import Points
from mercer.data.rows import Array


class StreamError(ValueError):
    """The rows of a stream are not what they were in an earlier pass."""


class RowStream:
    """The rows to train on of a stream of N rows: all but those left out.

    `read()` starts a pass and gives chunks of rows, (., d).
    """

    def __init__(
        self, read: Callable[[], Iterator[Array]], n_rows: int, left_out: Array, block: int, seed: int
    ) -> None:
        self._read = read
        self.n_rows = n_rows
        self.trains = np.ones(n_rows, dtype=bool)
        self.trains[left_out] = False
        self.block = block
        self._seed = seed

    def __len__(self) -> int:
        return int(self.trains.sum())

    @property
    def order(self) -> Array:
        """Numbers of the rows in the order in which they are trained on, (n,)."""
        rows = np.flatnonzero(self.trains)
        parts = [rows[first : first + self.block] for first in range(0, len(rows), self.block)]
        return np.concatenate([part[self._permuted(i, len(part))] for i, part in enumerate(parts)])

    def blocks(self) -> Iterator[Array]:
        """One pass: blocks of rows to train on, (block, d), the last one shorter."""
        held: list[Array] = []
        count = seen = number = 0
        for chunk in self._read():
            if seen + len(chunk) > self.n_rows:
                raise StreamError(self._changed("more"))
            rows = chunk[self.trains[seen : seen + len(chunk)]]
            seen += len(chunk)
            while len(rows):
                part, rows = rows[: self.block - count], rows[self.block - count :]
                held.append(part)
                count += len(part)
                if count == self.block:
                    yield np.concatenate(held)[self._permuted(number, count)]
                    held, count, number = [], 0, number + 1
        if seen < self.n_rows:
            raise StreamError(self._changed(f"only {seen:,}"))
        if count:
            yield np.concatenate(held)[self._permuted(number, count)]

    def _permuted(self, number: int, length: int) -> Array:
        return np.random.default_rng((self._seed, number)).permutation(length)

    def _changed(self, found: str) -> str:
        return (
            f"A stream must have the same rows in every pass. The first pass had {self.n_rows:,} rows, "
            f"and a later one has {found}."
        )


class StreamedPoints:
    """Prepared points of a stream, for slices in ascending order; slice 0 starts a pass.

    The next block is read and prepared while the last one is worked on.
    """

    def __init__(
        self, stream: RowStream, prepare: Callable[[Array], Points], like: torch.Tensor, d: int
    ) -> None:
        self.stream = stream
        self.prepare = prepare
        self.shape = (len(stream), d)
        self.dtype, self.device = like.dtype, like.device
        self.is_bytes = False
        self._pool = ThreadPoolExecutor(1, "mercer-rows")
        self._blocks: Iterator[Array] = iter(())
        self._next: Future[Points | None] | None = None
        self._held: Points | None = None
        self._first = 0  # number of the first row held

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Points:
        start, stop = rows.start or 0, min(len(self), rows.stop)
        if start < self._first or self._held is None:
            self._begin()
        assert self._held is not None
        while self._first + len(self._held) < stop:
            more = self._following()
            kept = self._held[max(0, start - self._first) :]
            self._first = max(start, self._first) if len(kept) else self._first + len(self._held)
            self._held = kept.followed_by(more) if len(kept) else more
        return self._held[start - self._first : stop - self._first]

    def _begin(self) -> None:
        if self._next is not None:
            self._next.cancel()
            if not self._next.cancelled():
                self._next.exception()  # wait, whatever became of it
        self._blocks = self.stream.blocks()
        self._next = self._pool.submit(self._prepared)
        self._held, self._first = None, 0
        self._held = self._following()

    def _following(self) -> Points:
        assert self._next is not None
        found = self._next.result()
        if found is None:
            raise StreamError("A stream must have the same rows in every pass. A later one ended early.")
        self._next = self._pool.submit(self._prepared)
        return found

    def _prepared(self) -> Points | None:
        block = next(self._blocks, None)
        return None if block is None else self.prepare(block)
