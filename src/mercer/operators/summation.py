"""Sums of the products of many tiles, computed by all cores.

A tile is a block of K small enough to stay in a core's cache while the kernel's elementwise passes run
over it and the product with the weights reads it.  It holds K[columns, rows], because weights^T (l, t)
times a tile (t, R) as it lies in memory runs up to three times as fast as a tile times the weights.

Tiles are shared out over the cores in chunks.  Each chunk has a sum of its own, and these are added in a
fixed order.  How tiles are cut into chunks does not depend on the number of cores, so neither that nor
which core computed what changes a result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from mercer.operators.workers import workers_for

Item = TypeVar("Item")
Job = Callable[[Tensor, "Scratch"], None]  # adds a product to its sum, (l, R), given scratch memory

# Elements in a tile on a CPU: 2 MB of float32, in the cache of one core.  Smaller tiles pay more for
# calls and for packing matrices than they gain.  A device with its own memory prefers few launches.
CPU_TILE_ELEMENTS = 1 << 19
DEVICE_TILE_ELEMENTS = 1 << 24
# Rows whose beginnings are about 4 KB apart, as those of panels are, share the same few places in a
# core's innermost cache; a gap of so many elements takes a fifth off the time of products with them.
ROW_GAP = 16
# A chunk takes one part in so many of the tiles that are left: half a core's share on four cores.
CHUNK_SHARE = 8


def tile_elements(device: torch.device) -> int:
    return CPU_TILE_ELEMENTS if device.type == "cpu" else DEVICE_TILE_ELEMENTS


def by_output(weights: Tensor) -> Tensor:
    """The same weights, (n, l), laid out so that those of one output are contiguous."""
    return weights.T.contiguous().T


class Scratch:
    """Memory of one worker, as a matrix of any shape.

    Views are remembered: a call into torch from one of several threads costs as much as a thousand
    kernel values.
    """

    def __init__(self, memory: Tensor) -> None:
        self._memory = memory
        self._views: dict[tuple[int, int, int], Tensor] = {}

    def shaped(self, rows: int, columns: int, gap: int = 0) -> Tensor:
        """With a `gap` of so many elements between rows."""
        view = self._views.get((rows, columns, gap))
        if view is None:
            view = shaped(self._memory, rows, columns + gap)[:, :columns]
            self._views[rows, columns, gap] = view
        return view


def shaped(memory: Tensor, rows: int, columns: int) -> Tensor:
    """The beginning of a flat tensor as a matrix."""
    return memory[: rows * columns].view(rows, columns)


class AnyTile(Protocol):
    """K[columns, rows], (t, R), in whatever form."""

    @property
    def columns(self) -> slice: ...

    def times(self, weights: Tensor, basis: Tensor | None = None, Z: Tensor | None = None) -> Job:
        """K[rows, columns] weights; with a basis, (t, q), also K[rows, columns] basis, into Z."""


@dataclass(frozen=True)
class Tile:
    """K[columns, rows], (t, R), known or yet to be evaluated.

    The values are passed to `keep`, which may overwrite them, when they have been used.
    """

    columns: slice
    values: Callable[[Scratch], Tensor]
    keep: Callable[[Tensor], None] | None = None

    @classmethod
    def known(cls, columns: slice, values: Tensor) -> Tile:
        return cls(columns, lambda scratch: values)

    def times(self, weights: Tensor, basis: Tensor | None = None, Z: Tensor | None = None) -> Job:
        """K[rows, columns] weights; with a basis, (t, q), also K[rows, columns] basis, into Z."""
        weights_t = weights[self.columns].T  # (l, t)

        def job(total: Tensor, scratch: Scratch) -> None:
            K = self.values(scratch)  # (t, R)
            total.addmm_(weights_t, K)  # (l, R)
            if basis is not None and Z is not None:
                torch.mm(K.T, basis, out=Z)  # (R, q)
            if self.keep is not None:
                self.keep(K)

        return job


class Summation:
    """Runs jobs on all cores and adds up what they compute; workspaces are allocated once."""

    def __init__(self, device: torch.device, dtype: torch.dtype, rows: int, n_outputs: int) -> None:
        self.workers = workers_for(device)
        size = max(rows, tile_elements(device))
        memory = torch.empty(self.workers.count, size, dtype=dtype, device=device)
        self._scratch = [Scratch(memory[i]) for i in range(self.workers.count)]
        self._sums = memory.new_empty(0, n_outputs, rows)  # (chunks, l, rows)

    def of(self, jobs: Sequence[Job], rows: int) -> Tensor:
        """The sum that the jobs add to, (rows, l)."""
        chunks = guided(jobs)
        if len(chunks) > len(self._sums):
            self._sums = self._sums.new_empty(len(chunks), *self._sums.shape[1:])
        sums = self._sums[: len(chunks), :, :rows].zero_()

        def work(i: int, worker: int) -> None:
            for job in chunks[i]:
                job(sums[i], self._scratch[worker])

        self.workers.run(work, len(chunks))
        return sums.sum(0).T.contiguous()


def guided(items: Sequence[Item]) -> list[Sequence[Item]]:
    """Consecutive chunks, each the same share of the rest: large at first, single at the end.

    >>> [len(chunk) for chunk in guided(range(16))]
    [2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1]
    """
    chunks: list[Sequence[Item]] = []
    first = 0
    while first < len(items):
        size = -(-(len(items) - first) // CHUNK_SHARE)
        chunks.append(items[first : first + size])
        first += size
    return chunks


def pieces(start: int, stop: int, width: int) -> list[slice]:
    """Contiguous slices of at most `width`, of even sizes."""
    count = -(-(stop - start) // width)
    edges = [start + (stop - start) * i // max(count, 1) for i in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]
