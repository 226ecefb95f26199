"""Where rows come from: arrays, memory maps, and tensors on any device.

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

Array = NDArray[Any]
Matrix: TypeAlias = Array | Tensor  # (n, d)

# Values handled at a time, so that a copy of the data in another form is never held whole.
CHUNK_ELEMENTS = 1 << 22


def chunks(x: Matrix, rows: Array | None) -> Iterator[tuple[slice, Tensor]]:
    """Slices of the result, and the rows that belong there; all rows of x, or some."""
    n = len(x) if rows is None else len(rows)
    step = max(1, CHUNK_ELEMENTS // max(1, x.shape[1]))
    for first in range(0, n, step):
        part = slice(first, min(first + step, n))
        yield part, _tensor(x[part]) if rows is None else take(x, rows[part])


def take(x: Matrix, rows: Array) -> Tensor:
    """These rows of x, copied."""
    if isinstance(x, Tensor):
        return x[torch.from_numpy(rows).to(x.device)]
    # In the order they are stored in, since x may be a file.
    order = np.argsort(rows)
    found = np.empty((len(rows), x.shape[1]), dtype=x.dtype)
    found[order] = x[rows[order]]
    return torch.from_numpy(found)


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


def _tensor(x: Matrix) -> Tensor:
    if isinstance(x, Tensor):
        return x
    # PyTorch shares memory only with arrays that may be written to and that run forwards.
    return torch.from_numpy(x if x.flags.writeable and min(x.strides) >= 0 else x.copy())
