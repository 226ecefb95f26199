"""Files as tables: named columns that can be read again and again, in chunks of bounded size.

Polars reads CSV, TSV, Parquet and Arrow, NumPy reads NPY, NPZ and IDX, scikit-learn reads svmlight.
What cannot be read twice or from the middle (standard input, gzip, members of an NPZ) is first copied, a
piece at a time, to a temporary file, which goes when its table does and at exit at the latest.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import shutil
import struct
import sys
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from sklearn.datasets import load_svmlight_file

# Rows of a chunk, and values of one: 64 MB of them at eight bytes each.  Fewer rows than the last number
# are not worth what a chunk of very many columns costs by itself.
CHUNK_ROWS = 1 << 15
CHUNK_VALUES = 1 << 23
FEWEST_CHUNK_ROWS = 1 << 9
# Rows from which the types of a text file's columns are first guessed; all rows then confirm them.
INFER_ROWS = 10_000
# Enough of a file to see its format and the names of its columns.
HEAD_BYTES = 1 << 20
# What text files have where a value is missing.  Words that may well be labels ("None") are not here.
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "?")
SEPARATORS = ",\t;|"
# Bytes of an svmlight file parsed at a time.
SVMLIGHT_BYTES = 1 << 24

ENDINGS = {
    ".csv": "CSV",
    ".tsv": "TSV",
    ".tab": "TSV",
    ".svm": "svmlight",
    ".svmlight": "svmlight",
    ".libsvm": "svmlight",
    ".parquet": "Parquet",
    ".pq": "Parquet",
    ".arrow": "Arrow",
    ".feather": "Arrow",
    ".ipc": "Arrow",
    ".npz": "NPZ",
    ".npy": "NPY",
    ".idx": "IDX",
    ".idx1-ubyte": "IDX",
    ".idx3-ubyte": "IDX",
}
TEXT_FORMATS = ("CSV", "TSV", "svmlight")
MAGIC = {
    b"PAR1": "Parquet",
    b"ARROW1": "Arrow",
    b"\xff\xff\xff\xff": "Arrow stream",
    b"\x93NUMPY": "NPY",
    b"PK\x03\x04": "NPZ",
}
GZIP_MAGIC = b"\x1f\x8b"
# The third byte of an IDX file is the type of its values, all of them big-endian.
IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
SVMLIGHT_LINE = re.compile(rb"\s*[-+.\deE,]+(\s+qid:\d+)?(\s+\d+:[-+.\deEinfa]+)+\s*(#.*)?")
UNREADABLE = (pl.exceptions.PolarsError, OSError, EOFError, ValueError, zlib.error, zipfile.BadZipFile)

Reader = Callable[[tuple[str, ...], int], Iterator[pl.DataFrame]]


class TableError(ValueError):
    """Something about the data that its owner has to know, in one sentence."""


@dataclass(frozen=True)
class Table:
    """A file with named columns; every call of `chunks` reads it from the beginning."""

    name: str  # for messages
    names: tuple[str, ...]  # of the columns, in order
    n_rows: int
    read: Reader = field(repr=False, compare=False)
    files: object = field(
        default=None, repr=False, compare=False
    )  # temporary ones, as long as this lives

    def chunks(
        self, columns: Sequence[str] | None = None, rows: int = CHUNK_ROWS
    ) -> Iterator[pl.DataFrame]:
        """The rows in order, at most so many at a time, and fewer where there are very many columns."""
        wanted = self.names if columns is None else tuple(columns)
        known = set(self.names)
        absent = next((column for column in wanted if column not in known), None)
        if absent is not None:
            raise TableError(f"{self.name} must have a column {absent!r}. Got {_listed(self.names)}.")
        rows = min(rows, chunk_rows(len(wanted)))
        with _problems_of(self.name):
            yield from (frame for frame in self.read(wanted, rows) if len(frame))


def chunk_rows(n_columns: int) -> int:
    """Rows of so many columns that are read at a time."""
    return max(FEWEST_CHUNK_ROWS, min(CHUNK_ROWS, CHUNK_VALUES // max(1, n_columns)))


def open_table(
    path: str, *, member: str | None = None, text: Collection[str] = (), folder: Path | None = None
) -> Table:
    """The table in a file, "-" being standard input; nothing is held in memory but a chunk at a time.

    `member` chooses between the "train" and "test" arrays of an NPZ file.  `text` names columns of a CSV
    file that are to be taken as text even if all of it is digits.  Temporary files are made in `folder`.
    """
    name = "standard input" if path == "-" else path
    scratch = _Scratch(folder)
    with _problems_of(name):
        file = _plain_file(path, name, scratch)
        with file.open("rb") as stream:
            head = stream.read(HEAD_BYTES)
        kind = _format(name, head)
        if member is not None and kind != "NPZ":
            raise TableError(
                f"Only an NPZ file has members to choose from. Got {name}, which is {kind}."
            )
        if kind == "NPZ":
            names, n_rows, read = _npz(file, name, member, scratch)
        elif kind == "NPY":
            array = partial(np.load, file, mmap_mode="r", allow_pickle=False)
            names, n_rows, read = _arrays([("y" if array().ndim == 1 else "x", array)], name)
        elif kind == "IDX":
            names, n_rows, read = _idx(file, head, name)
        elif kind == "svmlight":
            names, n_rows, read = _svmlight(file, name, scratch)
        elif kind in ("CSV", "TSV"):
            names, n_rows, read = _delimited(file, head, kind, text)
        elif kind == "Parquet":
            names, n_rows, read = _polars(pl.scan_parquet(file, glob=False))
        elif kind == "Arrow":
            names, n_rows, read = _arrow(file)
        else:  # Polars reads the streaming kind of Arrow only as a whole
            names, n_rows, read = _polars(pl.read_ipc_stream(file).lazy())
    return Table(name, names, n_rows, read, scratch)


class _Scratch:
    """A folder for temporary files, made when first needed; it goes with the last reference to this."""

    def __init__(self, parent: Path | None) -> None:
        self.parent = parent
        self.folder: Path | None = None

    def file(self, name: str) -> Path:
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="mercer-", dir=self.parent))
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        return self.folder / name

    def copy(self, stream: Any, name: str) -> Path:
        """What a binary stream holds, as a file."""
        path = self.file(name)
        with path.open("wb") as file:
            shutil.copyfileobj(stream, file, 1 << 20)
        return path


@contextmanager
def _problems_of(name: str) -> Iterator[None]:
    """What readers say about a file, as one sentence that names it."""
    try:
        yield
    except TableError:
        raise
    except UNREADABLE as error:
        reason = " ".join(str(error).split("\n\n")[0].split()).rstrip(".") or type(error).__name__
        raise TableError(f"{name} must be a whole file that can be read. Got: {reason}.") from error


def _listed(names: Sequence[str], most: int = 10) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(map(repr, names[:most])) or "none") + more


def _plain_file(path: str, name: str, scratch: _Scratch) -> Path:
    """A regular file with the contents, not compressed."""
    if path == "-":
        file = scratch.copy(sys.stdin.buffer, "input")
    elif not os.path.exists(path):
        raise TableError(f"{path} must be a file. Got nothing of that name: check its spelling.")
    elif os.path.isdir(path):
        raise TableError(f"{path} must be a file. Got a folder: name a file in it.")
    elif not os.path.isfile(path):  # a pipe can be read only once
        with open(path, "rb") as pipe:
            file = scratch.copy(pipe, "input")
    else:
        file = Path(path)
    with file.open("rb") as stream:
        if stream.read(len(GZIP_MAGIC)) == GZIP_MAGIC:
            with gzip.open(file) as unpacked:
                return scratch.copy(unpacked, "unpacked")
    return file


def _format(name: str, head: bytes) -> str:
    """Binary formats by their contents; text formats by the ending, where it says."""
    if not head:
        raise TableError(f"{name} must hold a table. Got an empty file.")
    for magic, kind in MAGIC.items():
        if head.startswith(magic):
            return kind
    if head[:2] == b"\0\0" and len(head) > 4 and head[2] in IDX_TYPES and head[3] > 0:
        return "IDX"
    by_ending = ENDINGS.get(Path(name.lower().removesuffix(".gz")).suffix)
    if b"\0" in head or by_ending not in (None, *TEXT_FORMATS):
        raise TableError(
            f"{name} must be CSV, TSV, Parquet, Arrow, NPZ, NPY, svmlight or IDX, gzip-ed or not. Got "
            + (f"contents that are not {by_ending}." if by_ending else "an unknown format.")
        )
    if by_ending is not None:
        return by_ending
    lines = (line for line in head.splitlines() if line.strip() and not line.startswith(b"#"))
    return "svmlight" if SVMLIGHT_LINE.fullmatch(next(lines, b"")) else "CSV"


# Each kind of file gives the names of its columns, the number of rows, and a reader.
Opened = tuple[tuple[str, ...], int, Reader]


def _polars(scan: pl.LazyFrame, n_rows: int | None = None) -> Opened:
    def read(columns: tuple[str, ...], rows: int) -> Iterator[pl.DataFrame]:
        yield from scan.select(columns).collect_batches(chunk_size=rows)

    if n_rows is None:
        n_rows = int(scan.select(pl.len()).collect(engine="streaming").item())
    return tuple(scan.collect_schema().names()), n_rows, read


def _arrow(file: Path) -> Opened:
    """Slices, since reading in batches would keep the whole file mapped and resident."""
    names, n_rows, _ = _polars(pl.scan_ipc(file, glob=False))

    def read(columns: tuple[str, ...], rows: int) -> Iterator[pl.DataFrame]:
        for start in range(0, n_rows, rows):
            yield pl.scan_ipc(file, glob=False).select(columns).slice(start, rows).collect()

    return names, n_rows, read


def _delimited(file: Path, head: bytes, kind: str, text: Collection[str]) -> Opened:
    """A text file with a separator, its columns of the narrowest type that loses no value."""
    start = head.decode("utf-8-sig", errors="replace")
    outside_quotes = re.sub(r'"[^"]*"', "", start).partition("\n")[0]
    separator = "\t" if kind == "TSV" else max(SEPARATORS, key=outside_quotes.count)
    first = next(csv.reader(io.StringIO(start, newline=""), delimiter=separator), [])
    has_header = not all(map(_is_number, first)) or first in (
        [str(i) for i in range(len(first))],
        [str(i + 1) for i in range(len(first))],
    )
    options: dict[str, Any] = {
        "separator": separator,
        "has_header": has_header,
        "null_values": MISSING,
        "try_parse_dates": True,
        "glob": False,
    }
    guessed = pl.scan_csv(file, infer_schema_length=INFER_ROWS, **options)
    types: dict[str, Any] = dict(guessed.collect_schema())
    names = dict(zip(types, _names(list(types), first, has_header), strict=True))
    fixed = {name for name in types if names[name] in text}
    padded = _padded(guessed, types, fixed)
    types |= dict.fromkeys(fixed, pl.String())

    def scan(types: dict[str, Any], ignore_errors: bool = False) -> pl.LazyFrame:
        raw = {name: pl.String() if name in padded else kind for name, kind in types.items()}
        strict = not ignore_errors
        return pl.scan_csv(file, schema=raw, ignore_errors=ignore_errors, **options).with_columns(
            _stripped(name).cast(types[name], strict=strict) for name in padded
        )

    # Counting rows alone would map the whole file to memory; counting missing values does not.
    as_text = scan(dict.fromkeys(types, pl.String()))
    n_rows, missing = _count(as_text, lambda name: pl.col(name).is_null() | (pl.col(name) == ""))
    suspects = [] if n_rows <= INFER_ROWS else [n for n in types if types[n] != pl.String()]
    while suspects:
        _, lost = _count(scan(types, True).select(suspects), lambda name: pl.col(name).is_null())
        suspects = [name for name in suspects if lost[name] > missing[name]]
        for name in suspects:
            types[name] = pl.Float64() if types[name] == pl.Int64() else pl.String()
        suspects = [name for name in suspects if types[name] != pl.String()]
    return _polars(scan(types).rename(names), n_rows)


def _names(read: list[str], first: list[str], has_header: bool) -> list[str]:
    """The first record where it has names, since Polars leaves doubled quotes and blanks in them."""
    if not has_header:
        return [f"x{i}" for i in range(len(read))]
    names = [name.strip() for name in first]
    return names if len(set(names)) == len(read) else read


def _padded(scan: pl.LazyFrame, types: dict[str, Any], fixed: Collection[str]) -> list[str]:
    """Columns of text with blanks around it in the first rows; `types` gets what they are without them.

    Columns that are empty in the first rows are numbers until one of their values says otherwise.
    """
    strings = [name for name in types if types[name] == pl.String() and name not in fixed]
    sample = scan.select(strings).head(INFER_ROWS).collect(engine="streaming")
    padded = [n for n in sample.columns if bool((sample[n] != sample[n].str.strip_chars()).any())]
    bare = sample.select(_stripped(name) for name in padded)
    for name in bare.columns:
        for number in (pl.Float64(), pl.Int64()):
            if bare[name].cast(number, strict=False).null_count() == bare[name].null_count():
                types[name] = number
    for name in sample.columns:
        if len(sample) == INFER_ROWS and sample[name].null_count() == INFER_ROWS:
            types[name] = pl.Int64()
    return padded


def _stripped(name: str) -> pl.Expr:
    bare = pl.col(name).str.strip_chars()
    return pl.when(bare.is_in(MISSING)).then(None).otherwise(bare).alias(name)


def _count(scan: pl.LazyFrame, condition: Callable[[str], pl.Expr]) -> tuple[int, dict[str, int]]:
    """Rows, and those of them in which each column meets a condition."""
    names = scan.collect_schema().names()
    sums = (condition(name).sum().alias(str(i)) for i, name in enumerate(names))
    n_rows, *counts = scan.select(pl.len(), *sums).collect(engine="streaming").row(0)
    return n_rows, dict(zip(names, counts, strict=True))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _arrays(blocks: Sequence[tuple[str, Callable[[], NDArray[Any]]]], name: str) -> Opened:
    """Arrays of equal length side by side: x0, x1, … of all but the first axis, and "y".

    Each is given by what maps its file to memory, which is done anew for every chunk: the pages of one
    chunk are then gone when the next is read.
    """
    names: list[str] = []
    owner: dict[str, tuple[int, int]] = {}  # the array a column is in, and its place there
    lengths = []
    for i, (prefix, load) in enumerate(blocks):
        array = load()
        if array.ndim == 0 or array.dtype.kind not in "biufSUM":
            raise TableError(
                f"{name} must hold arrays of numbers, text or dates. "
                f"Got {array.dtype} of shape {array.shape}."
            )
        width = int(np.prod(array.shape[1:]))
        columns = [prefix] if prefix == "y" else [f"{prefix}{j}" for j in range(width)]
        if len(columns) != width:
            raise TableError(f"{name} must have one target a row. Got y of shape {array.shape}.")
        names += columns
        owner |= {column: (i, j) for j, column in enumerate(columns)}
        lengths.append(len(array))
    if len(set(lengths)) > 1:
        counts = " and ".join(f"{length:,}" for length in lengths)
        raise TableError(f"{name} must have as many targets as rows. Got arrays of {counts} rows.")

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
    """Columns of an array, of a type that Polars has."""
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


def _npz(file: Path, name: str, member: str | None, scratch: _Scratch) -> Opened:
    endings = {None: ("", "_train"), "train": ("_train", ""), "test": ("_test",)}
    if member not in endings:
        raise TableError(f'The member of an NPZ file must be "train" or "test". Got {member!r}.')
    with zipfile.ZipFile(file) as archive:
        stored = {n.removesuffix(".npy").lower(): n for n in archive.namelist() if n.endswith(".npy")}
        ending = next((e for e in endings[member] if f"x{e}" in stored), None)
        if ending is None:
            wanted = " or ".join(f"X{e}" for e in endings[member])
            raise TableError(
                f"{name} must hold an array {wanted}, and y likewise. Got {_listed(list(stored))}."
            )
        blocks = []
        for prefix in "xy":
            if f"{prefix}{ending}" in stored:
                with archive.open(stored[f"{prefix}{ending}"]) as stream:
                    unpacked = scratch.copy(stream, f"{prefix}.npy")
                array = partial(np.load, unpacked, mmap_mode="r", allow_pickle=False)
                blocks.append((prefix, array))
    return _arrays(blocks, name)


def _idx(file: Path, head: bytes, name: str) -> Opened:
    n_axes = head[3]
    shape = struct.unpack_from(f">{n_axes}I", head, 4)
    dtype = np.dtype(IDX_TYPES[head[2]])
    start = 4 + 4 * n_axes
    expected = start + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if file.stat().st_size != expected:
        raise TableError(
            f"{name} must have the {expected:,} bytes that its first ones announce. "
            f"Got {file.stat().st_size:,}: it is cut short or not IDX."
        )
    array = partial(np.memmap, file, dtype, "r", start, shape)
    return _arrays([("y" if n_axes == 1 else "x", array)], name)


def _svmlight(file: Path, name: str, scratch: _Scratch) -> Opened:
    """Sparse rows made dense a chunk at a time: x0, x1, … and "y"."""
    n_rows, first, last, whole = 0, 1, 0, True
    for X, y in _svmlight_blocks(file, np.iinfo(np.int32).max, zero_based=True):
        n_rows += len(y)
        whole = whole and bool(np.all(y == np.round(y)))
        if X.nnz:
            first, last = min(first, int(X.indices.min())), max(last, int(X.indices.max()))
    zero_based = first == 0
    d = last + zero_based
    _check_room(name, n_rows, d, scratch)
    names = (*(f"x{i}" for i in range(d)), "y")
    place = {column: i for i, column in enumerate(names)}

    def read(columns: tuple[str, ...], rows: int) -> Iterator[pl.DataFrame]:
        mine = [column for column in columns if column != "y"]
        places = [place[column] for column in mine]
        for X, y in _svmlight_blocks(file, d, zero_based):
            for start in range(0, len(y), rows):
                part = X[start : start + rows]
                targets = pl.Series("y", y[start : start + rows])
                frame = pl.DataFrame([targets.cast(pl.Int64) if whole else targets])
                if mine:
                    part = part if len(mine) == d else part[:, places]
                    dense = part.toarray()
                    frame = frame.hstack(pl.from_numpy(dense, schema=mine, orient="row"))
                yield frame.select(columns)

    return names, n_rows, read


def _svmlight_blocks(file: Path, d: int, zero_based: bool) -> Iterator[tuple[Any, NDArray[Any]]]:
    with file.open("rb") as stream:
        for offset in range(0, file.stat().st_size, SVMLIGHT_BYTES):
            X, y = load_svmlight_file(
                stream,
                n_features=d,
                dtype=np.float32,
                zero_based=zero_based,
                offset=offset,
                length=SVMLIGHT_BYTES,
            )
            yield X, y


def _check_room(name: str, n_rows: int, d: int, scratch: _Scratch) -> None:
    """A sparse file of some megabytes can be terabytes when dense."""
    from mercer.planning.resource import (  # brings PyTorch, which nothing else here needs
        find_device,
        free_memory,
    )

    dense = 4 * n_rows * d
    folder = scratch.parent or Path(tempfile.gettempdir())
    room = max(free_memory(find_device("cpu")), shutil.disk_usage(folder).free)
    if dense > room:
        raise TableError(
            f"{name} must fit into memory or on disk when its sparse rows are made dense. Got "
            f"{n_rows:,} rows × {d:,} features, {dense / 1024**3:,.1f} GiB of {room / 1024**3:,.1f} GiB "
            "free: keep fewer features, or project them first."
        )
