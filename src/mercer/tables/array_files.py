"""NPY, NPZ and IDX files: arrays whose first axis counts the rows."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mercer.tables.table import Contents, TableError
from mercer.tables.temporary import TemporaryFiles
from mercer.tables.wording import listed

# The third byte of an IDX file is the type of its values, all of them big-endian.
IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def npy(file: Path, name: str) -> Contents:
    """An array of one axis is a column of targets, "y"; any other has the features x0, x1, …"""
    array = partial(np.load, file, mmap_mode="r", allow_pickle=False)
    return _arrays([("y" if array().ndim == 1 else "x", array)], name)


def npz(file: Path, name: str, member: str | None, temporary: TemporaryFiles) -> Contents:
    """The arrays X and y of an archive, or X_train and y_train, or X_test and y_test."""
    endings = {None: ("", "_train"), "train": ("_train", ""), "test": ("_test",)}
    if member not in endings:
        raise TableError(f'`member` must be "train" or "test". Got {member!r} instead.')
    with zipfile.ZipFile(file) as archive:
        stored = {n.removesuffix(".npy").lower(): n for n in archive.namelist() if n.endswith(".npy")}
        ending = next((e for e in endings[member] if f"x{e}" in stored), None)
        if ending is None:
            wanted = " or ".join(f"X{e}" for e in endings[member])
            raise TableError(
                f"{name} must hold an array {wanted}, and y named in the same way. Its arrays are "
                f"{listed(list(stored))}."
            )
        blocks = []
        for prefix in "xy":
            if f"{prefix}{ending}" in stored:
                with archive.open(stored[f"{prefix}{ending}"]) as stream:
                    unpacked = temporary.copy(stream, f"{prefix}.npy")
                array = partial(np.load, unpacked, mmap_mode="r", allow_pickle=False)
                blocks.append((prefix, array))
    return _arrays(blocks, name)


def idx(file: Path, head: bytes, name: str) -> Contents:
    """One array in the format of MNIST, of targets if it has one axis."""
    n_axes = head[3]
    shape = struct.unpack_from(f">{n_axes}I", head, 4)
    dtype = np.dtype(IDX_TYPES[head[2]])
    start = 4 + 4 * n_axes
    expected = start + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if file.stat().st_size != expected:
        raise TableError(
            f"{name} is truncated or not an IDX file: by its header it should have {expected:,} bytes, "
            f"but it has {file.stat().st_size:,}."
        )
    array = partial(np.memmap, file, dtype, "r", start, shape)
    return _arrays([("y" if n_axes == 1 else "x", array)], name)


def _arrays(blocks: Sequence[tuple[str, Callable[[], NDArray[Any]]]], name: str) -> Contents:
    """Arrays of equal length side by side: columns x0, x1, … from all but the first axis, and "y".

    Each array is given by a function that maps its file to memory.  Mapping it again for every chunk
    releases the pages of the chunk before.
    """
    names: list[str] = []
    owner: dict[str, tuple[int, int]] = {}  # number of the array, and position in its rows
    lengths = []
    for i, (prefix, load) in enumerate(blocks):
        array = load()
        if array.ndim == 0 or array.dtype.kind not in "biufSUM":
            raise TableError(
                f"Arrays must hold numbers, text or dates and have rows. Got {array.dtype} of shape "
                f"{array.shape} in {name}."
            )
        width = int(np.prod(array.shape[1:]))
        columns = [prefix] if prefix == "y" else [f"{prefix}{j}" for j in range(width)]
        if len(columns) != width:
            raise TableError(f"y must have one target per row. Got shape {array.shape} in {name}.")
        names += columns
        owner |= {column: (i, j) for j, column in enumerate(columns)}
        lengths.append(len(array))
    if len(set(lengths)) > 1:
        counts = " and ".join(f"{length:,}" for length in lengths)
        raise TableError(f"X and y must have the same number of rows. Got {counts} in {name}.")

    def read(columns: tuple[str, ...], rows: int) -> Iterator[pl.DataFrame]:
        wanted = [[column for column in columns if owner[column][0] == i] for i in range(len(blocks))]
        for start in range(0, lengths[0], rows):
            frames = [
                _frame(load()[start : start + rows], mine, [owner[column][1] for column in mine])
                for (_, load), mine in zip(blocks, wanted, strict=True)
                if mine
            ]
            yield pl.concat(frames, how="horizontal").select(columns)

    return tuple(names), lengths[0], read


def _frame(array: NDArray[Any], names: Sequence[str], places: list[int]) -> pl.DataFrame:
    """Columns of an array, converted to types that Polars supports."""
    part = np.asarray(array).reshape(len(array), -1)
    if places != list(range(part.shape[1])):
        part = part[:, places]
    if part.dtype.kind == "S":
        part = np.char.decode(part, "utf-8")
    elif part.dtype.kind == "f" and part.itemsize not in (4, 8):
        part = part.astype(np.float32 if part.itemsize < 4 else np.float64)
    elif part.dtype.kind == "M":
        part = part.astype("M8[us]")
    part = part.astype(part.dtype.newbyteorder("="), copy=False)
    return pl.from_numpy(part, schema=list(names), orient="row")
