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

CHANGED = "A stream must have the same rows in every pass."


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
        self.seed = seed

    def __len__(self) -> int:
        return int(self.trains.sum())

    def numbers(self) -> Iterator[Array]:
        """Numbers of the rows of each block in the order in which they are trained on."""
        rows, number = np.zeros(0, dtype=int), 0
        for first in range(0, self.n_rows, self.block):
            more = first + np.flatnonzero(self.trains[first : first + self.block])
            rows = np.concatenate([rows, more])
            if len(rows) >= self.block:
                yield rows[: self.block][self._permuted(number, self.block)]
                rows, number = rows[self.block :], number + 1
        if len(rows):
            yield rows[self._permuted(number, len(rows))]

    @property
    def order(self) -> Array:
        """The same of all blocks, (n,)."""
        return np.concatenate([np.zeros(0, dtype=int), *self.numbers()])

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
        return np.random.default_rng((self.seed, number)).permutation(length)

    def _changed(self, found: str) -> str:
        return (
            f"{CHANGED} The first pass had {self.n_rows:,} rows, and a later one has {found}: if it is "
            "a function, it must return a new iterator each time."
        )


class StreamedPoints:
    """Prepared points of a stream, for slices in ascending order; slice 0 starts a pass.

    The next block is read, prepared and copied to the device by a thread while the last one is worked
    on.  `close` ends a pass that was not read to its end, and the thread.
    """

    def __init__(
        self,
        stream: RowStream,
        prepare: Callable[[Array], Points],
        like: torch.Tensor,
        d: int,
        is_bytes: bool = False,
    ) -> None:
        self.stream = stream
        self.prepare = prepare
        self.shape = (len(stream), d)
        self.dtype, self.device = like.dtype, like.device
        self.is_bytes = is_bytes
        self._lane = CopyLane(like.device) if like.device.type == "cuda" else None
        self._pool: ThreadPoolExecutor | None = None
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

    def close(self) -> None:
        """End the pass and the thread.  A later slice starts another pass."""
        self._wait()
        close = getattr(self._blocks, "close", None)
        self._blocks, self._held, self._first = iter(()), None, 0
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        if close is not None:
            close()

    def _begin(self) -> None:
        self._wait()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "mercer-rows")
        self._blocks = self.stream.blocks()
        self._next = self._pool.submit(self._prepared)
        self._held, self._first = None, 0
        self._held = self._following()

    def _wait(self) -> None:
        """Until nothing is being read, whatever became of it."""
        if self._next is not None and not self._next.cancel():
            self._next.exception()
        self._next = None

    def _following(self) -> Points:
        assert self._next is not None
        assert self._pool is not None
        found = self._next.result()
        if found is None:
            raise StreamError(f"{CHANGED} A later one ended early.")
        if self._lane is not None:
            self._lane.arrived(found)
        self._next = self._pool.submit(self._prepared)
        return found

    def _prepared(self) -> Points | None:
        block = next(self._blocks, None)
        if block is None:
            return None
        return self.prepare(block) if self._lane is None else self._lane.copied(self.prepare, block)


class CopyLane:
    """A CUDA stream of its own for copies, which else would wait for the work on earlier rows."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copied(self, prepare: Callable[[Array], Points], block: Array) -> Points:
        """The points of a block; the calling thread waits for the copy, and nothing else does."""
        with torch.cuda.stream(self.stream):
            points = prepare(block)
            self.stream.synchronize()
        return points

    def arrived(self, points: Points) -> None:
        """The points are used by the stream of this thread now, and freed only after that."""
        for tensor in (points.rows, points.squared_norms, points.beyond):
            if tensor is not None:
                tensor.record_stream(torch.cuda.current_stream(self.device))
