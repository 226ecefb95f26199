"""Where rows come from: arrays, memory maps, tensors on any device, and the shares of several ranks.

All others see chunks of rows as tensors.  A chunk of an array is on the CPU; a chunk of a tensor is
where the tensor is, so data that lives on a device stays there.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mercer.processes.group import Group

Array = NDArray[Any]

# Values handled at a time, so that a copy of the data in another form is never held whole.
CHUNK_ELEMENTS = 1 << 22


class SharedRows:
    """Rows of which each rank has a share: those of rank 0 come first, then those of rank 1, and so on.

    All ranks ask for the same rows at once, and each gives those that it has.
    """

    def __init__(self, own: Array | Tensor, group: Group) -> None:
        lengths = group.gathered(len(own))
        self.own = own
        self.group = group
        self.first = sum(lengths[: group.rank])
        self.shape = (sum(lengths), own.shape[1])
        self.dtype = own.dtype
        self._number = group.enlist(self)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def share(self) -> slice:
        """The rows of this rank."""
        return slice(self.first, self.first + len(self.own))

    def take(self, rows: Array) -> Tensor:
        """These rows, copied."""
        found: Tensor = self.group.ask(self._number, rows)
        return found

    def answer(self, rows: Array) -> Tensor:
        here = np.flatnonzero((rows >= self.share.start) & (rows < self.share.stop))
        own = take(self.own, rows[here] - self.first)
        numbers = as_integers(own.new_zeros(len(rows), self.shape[1]))
        numbers[torch.from_numpy(here).to(own.device)] = as_integers(own)
        self.group.add(numbers)
        return numbers.view(own.dtype)


Matrix: TypeAlias = Array | Tensor | SharedRows  # (n, d)


def chunks(x: Matrix, rows: Array | None) -> Iterator[tuple[slice, Tensor]]:
    """Slices of the result, and the rows that belong there; all rows of x, or some."""
    n = len(x) if rows is None else len(rows)
    step = chunk_length(x.shape[1])
    for first in range(0, n, step):
        part = slice(first, min(first + step, n))
        if rows is None and not isinstance(x, SharedRows):
            yield part, as_tensor(x[part])
        else:
            yield part, take(x, np.arange(part.start, part.stop) if rows is None else rows[part])


def chunk_length(d: int) -> int:
    """Rows of d values that are handled at a time."""
    return max(1, CHUNK_ELEMENTS // max(1, d))


def take(x: Matrix, rows: Array) -> Tensor:
    """These rows of x, copied."""
    if isinstance(x, SharedRows):
        return x.take(rows)
    if isinstance(x, Tensor):
        return x[torch.from_numpy(rows).to(x.device)]
    # In the order they are stored in, since x may be a file.
    order = np.argsort(rows)
    found = np.empty((len(rows), x.shape[1]), dtype=x.dtype)
    found[order] = x[rows[order]]
    return torch.from_numpy(found)


def as_integers(values: Tensor) -> Tensor:
    """The bits of floating point numbers as integers, whose sums with zeros are exact; shared."""
    sizes = {4: torch.int32, 8: torch.int64}
    return values.view(sizes[values.element_size()]) if values.is_floating_point() else values


def widest(device: torch.device) -> torch.dtype:
    """The most precise floating point type that a device has."""
    return torch.float32 if device.type == "mps" else torch.float64


def room(shape: tuple[int, int], like: Tensor, memory: float) -> Tensor:
    """An empty matrix of the type of `like`: on its device or, above `memory` bytes, memory-mapped.

    The file is temporary (TMPDIR says where), and the system removes it with the tensor.
    """
    size = shape[0] * shape[1] * like.element_size()
    if size <= memory:
        return like.new_empty(shape)
    dtype = torch.empty(0, dtype=like.dtype).numpy().dtype
    with tempfile.TemporaryFile(prefix="mercer-") as file:
        if hasattr(os, "posix_fallocate"):  # writing to a mapped file would crash on a full disk
            os.posix_fallocate(file.fileno(), 0, size)
        return torch.from_numpy(np.memmap(file, dtype=dtype, mode="w+", shape=shape))


def as_tensor(x: Array | Tensor) -> Tensor:
    """The same rows as a tensor, without a copy if that is possible."""
    if isinstance(x, Tensor):
        return x
    # PyTorch shares memory only with arrays that may be written to and that run forwards.
    return torch.from_numpy(x if x.flags.writeable and min(x.strides) >= 0 else x.copy())
