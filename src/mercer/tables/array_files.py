"""NPY, NPZ and IDX files: arrays whose first axis counts the rows."""

from __future__ import annotations

import io
import math
import struct
import sys
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from mercer.tables.bounds import Allowance
from mercer.tables.errors import TableError
from mercer.tables.table import Contents, Reader
from mercer.tables.temporary import TemporaryFiles
from mercer.tables.wording import excerpt, listed

# The third byte of an IDX file is the type of its values, all of them big-endian.
IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
# Versions of the NPY header.  The third has field names in UTF-8, and arrays with fields are no tables.
NPY_HEADERS = {
    (1, 0): npy_format.read_array_header_1_0,
    (2, 0): npy_format.read_array_header_2_0,
}
# An NPY header is shorter than this.
NPY_HEADER_BYTES = 1 << 16
# What NumPy writes.  Others have headers that claim gigabytes of memory, and no NPZ file needs them.
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@dataclass(frozen=True)
class _Stored:
    """Where an array is in a file; it is mapped to memory only while a chunk is read."""

    file: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int  # byte
    order: Literal["C", "F"] = "C"

    @property
    def width(self) -> int:
        """Values in a row."""
        return math.prod(self.shape[1:])

    @property
    def end(self) -> int:
        return self.start + self.dtype.itemsize * math.prod(self.shape)

    def load(self) -> NDArray[Any]:
        return np.memmap(self.file, self.dtype, "r", self.start, self.shape, self.order)


def npy(file: Path, allowance: Allowance) -> Contents:
    """An array of one axis is a column of targets, "y"; any other has the features x0, x1, …"""
    stored = _read_npy_header(file, allowance.name)
    return _arrays([("y" if len(stored.shape) == 1 else "x", stored)], allowance)


def npz(file: Path, allowance: Allowance, member: str | None, temporary: TemporaryFiles) -> Contents:
    """The arrays X and y of an archive, or X_train and y_train, or X_test and y_test."""
    endings = {None: ("", "_train"), "train": ("_train", ""), "test": ("_test",)}
    if member not in endings:
        raise TableError(f'`member` must be "train" or "test". Got {member!r} instead.')
    blocks = []
    with zipfile.ZipFile(file) as archive:
        found = {
            m.filename.removesuffix(".npy").lower(): m
            for m in archive.infolist()
            if m.filename.endswith(".npy")
        }
        ending = next((e for e in endings[member] if f"x{e}" in found), None)
        if ending is None:
            wanted = " or ".join(f"X{e}" for e in endings[member])
            raise TableError(
                f"{allowance.name} must hold an array {wanted}, and y named in the same way. Its arrays "
                f"are {listed(list(found))}."
            )
        for prefix in "xy":
            one = found.get(f"{prefix}{ending}")
            if one is None:
                continue
            if one.compress_type not in COMPRESSIONS:
                raise TableError(
                    f"{allowance.name} is compressed in an unusual way. Write it with numpy.savez or "
                    "numpy.savez_compressed."
                )
            with archive.open(one) as stream:
                path = temporary.copy(stream, f"{prefix}.npy", allowance)
            blocks.append((prefix, _read_npy_header(path, allowance.name)))
    return _arrays(blocks, allowance)


def has_test_arrays(path: str) -> bool:
    """Whether a file is an NPZ archive with the arrays X_test and y_test."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.lower() for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile):
        return False
    return {"x_test.npy", "y_test.npy"} <= names


def idx(file: Path, allowance: Allowance) -> Contents:
    """One array in the format of MNIST, of targets if it has one axis."""
    with file.open("rb") as stream:
        head = stream.read(4 + 4 * 255)
    n_axes = head[3]
    start = 4 + 4 * n_axes
    if len(head) < start:
        raise TableError(f"{allowance.name} is truncated: its header should have {start} bytes.")
    shape = struct.unpack_from(f">{n_axes}I", head, 4)
    stored = _Stored(file, np.dtype(IDX_TYPES[head[2]]), shape, start)
    if file.stat().st_size != stored.end:
        raise _wrong_size(stored, "IDX", allowance.name)
    return _arrays([("y" if n_axes == 1 else "x", stored)], allowance)


def _read_npy_header(file: Path, name: str) -> _Stored:
    """Read from memory, since NumPy allocates as many bytes as the file says that its header has."""
    with file.open("rb") as stream:
        head = io.BytesIO(stream.read(NPY_HEADER_BYTES))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about headers written by Python 2
            shape, is_fortran, dtype = NPY_HEADERS[npy_format.read_magic(head)](head)
    except Exception as error:  # the header is a Python literal, which can be wrong in any way
        raise TableError(f"{name} cannot be read: its NPY header is damaged.") from error
    if dtype.hasobject:
        raise TableError(f"{name} cannot be read: it has Python objects in dtype {excerpt(str(dtype))}.")
    stored = _Stored(file, dtype, shape, head.tell(), "F" if is_fortran else "C")
    if min(shape, default=0) < 0 or stored.end > file.stat().st_size:
        raise _wrong_size(stored, "NPY", name)
    return stored


def _wrong_size(stored: _Stored, kind: str, name: str) -> TableError:
    return TableError(
        f"{name} is truncated or not an {kind} file: by its header it should have "
        f"{min(stored.end, sys.maxsize):,} bytes, "
        f"but it has {stored.file.stat().st_size:,}."
    )


def _arrays(blocks: Sequence[tuple[str, _Stored]], allowance: Allowance) -> Contents:
    """Arrays of equal length side by side: columns x0, x1, … from all but the first axis, and "y".

    Mapping the file again for every chunk releases the pages of the chunk before.
    """
    name = allowance.name
    for prefix, array in blocks:
        # Without a byte for every value, a few bytes could claim any number of rows.
        has_values = bool(array.shape and array.width and array.dtype.itemsize)
        if not has_values or array.dtype.kind not in "biufSUM":
            raise TableError(
                "Arrays must hold numbers, text or dates and have rows. Got "
                f"{excerpt(str(array.dtype))} of shape {excerpt(str(array.shape))} in {name}."
            )
        if prefix == "y" and array.width != 1:
            raise TableError(
                f"y must have one target per row. Got shape {excerpt(str(array.shape))} in {name}."
            )
    lengths = [array.shape[0] for _, array in blocks]
    if len(set(lengths)) > 1:
        counts = " and ".join(f"{length:,}" for length in lengths)
        raise TableError(f"X and y must have the same number of rows. Got {counts} in {name}.")
    allowance.check_columns(sum(array.width for _, array in blocks))
    # The number of the array, and the position in its rows, of each column.
    owner = {
        (prefix if prefix == "y" else f"{prefix}{j}"): (i, j)
        for i, (prefix, array) in enumerate(blocks)
        for j in range(array.width)
    }

    def cut(first: int, stop: int) -> Reader:
        def read(columns: tuple[str, ...], rows: int) -> Iterator[pl.DataFrame]:
            wanted = [[c for c in columns if owner[c][0] == i] for i in range(len(blocks))]
            for start in range(first, stop, rows):
                part = slice(start, min(start + rows, stop))
                frames = [
                    _frame(array.load()[part], mine, [owner[column][1] for column in mine])
                    for (_, array), mine in zip(blocks, wanted, strict=True)
                    if mine
                ]
                yield pl.concat(frames, how="horizontal").select(columns)

        return read

    return Contents(tuple(owner), lengths[0], cut(0, lengths[0]), cut)


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
