"""Files that a command writes: completely or not at all, and never over another one by accident."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

import polars as pl

from mercer.cli.messages import CallError
from mercer.cli.workbook import write_workbook
from mercer.files.whole import whole_file
from mercer.tables.errors import TableError
from mercer.tables.formulas import guarded
from mercer.tables.kinds import kind_of
from mercer.tables.wording import excerpt, quoted
from mercer.tables.workbooks import NEEDS_EXCEL
from mercer.visible import visible

PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather", ".ipc")
JSON_LINES = (".jsonl", ".ndjson")
# Files that a name promises and that cannot be written.
NOT_WRITTEN = (
    ".xls",
    ".xlsm",
    ".xlsb",
    ".ods",
    ".npz",
    ".npy",
    ".svm",
    ".gz",
    ".zip",
    ".html",
    ".mercer",
)


def claim(path: str, option: str, *, force: bool, inputs: Iterable[str] = ()) -> Path:
    """The path that `option` names, after checking that it can and may be written.

    >>> claim("no-such-folder/model.mercer", "--output", force=False)
    Traceback (most recent call last):
        ...
    mercer.cli.messages.CallError: The folder of --output does not exist: 'no-such-folder'. Create it.
    """
    place = Path(os.path.realpath(path))  # a link stays, and its file is replaced
    if not place.parent.is_dir():
        raise CallError(f"The folder of {option} does not exist: {os.path.dirname(path)!r}. Create it.")
    if not os.access(place.parent, os.W_OK):
        raise CallError(f"The folder of {option} is not writable: {str(place.parent)!r}.")
    if place.exists():
        if not place.is_file():
            raise CallError(f"{option} must be a file, but {path!r} is a folder or a device.")
        if any(os.path.exists(given) and os.path.samefile(given, place) for given in inputs):
            raise CallError(f"{option} cannot be {path!r}, which is also read. Name another file.")
        if not force:
            raise CallError(
                f"{option} {path!r} already exists. Name another file, or use --force to overwrite it."
            )
    return place


def check_ending(path: str) -> None:
    """Raise if predictions cannot be written as the ending of a name says."""
    ending = Path(path).suffix.lower()
    if ending in NOT_WRITTEN:
        raise CallError(
            f"Predictions cannot be written as {ending}. Use .csv, .tsv, .xlsx, .json, .jsonl, .parquet "
            "or .arrow."
        )
    if ending == ".xlsx" and find_spec("xlsxwriter") is None:
        raise CallError(NEEDS_EXCEL)


def write_frames(
    frames: Iterable[pl.DataFrame], place: Path | None, *, guard: bool = True
) -> tuple[str, ...]:
    """Write a table part by part as the ending of its name says, else as CSV; None is standard output.

    With `guard`, text in CSV that a spreadsheet would take for a formula gets a ' before it.
    """
    if place is None:
        return _write_csv(frames, sys.stdout.buffer, guard, is_screen=sys.stdout.isatty())
    ending = place.suffix.lower()
    with whole_file(place) as beside:
        if ending in PARQUET or ending in ARROW:
            return _write_columnar(frames, beside, ending in ARROW)
        if ending == ".xlsx":
            return write_workbook(frames, beside)
        with beside.open("wb") as file:
            if ending in JSON_LINES or ending == ".json":
                return _write_json(frames, file, is_array=ending == ".json")
            return _write_csv(frames, file, guard, separator="\t" if ending == ".tsv" else ",")


def _write_json(frames: Iterable[pl.DataFrame], file: BinaryIO, is_array: bool) -> tuple[str, ...]:
    """One object for each row, in lines or in one array."""
    names: tuple[str, ...] = ()
    for frame in frames:
        if is_array:
            file.write(b",\n" if names else b"[\n")
        lines = frame.write_ndjson().rstrip("\n")
        file.write((lines.replace("\n", ",\n") if is_array else lines + "\n").encode())
        names = tuple(frame.columns)
    if is_array:
        file.write(b"\n]\n")
    return names


def _write_csv(
    frames: Iterable[pl.DataFrame],
    file: BinaryIO,
    guard: bool,
    is_screen: bool = False,
    separator: str = ",",
) -> tuple[str, ...]:
    names: tuple[str, ...] = ()
    for frame in frames:
        unfit = next((values for values in frame if kind_of(values.dtype) is None), None)
        if unfit is not None:
            raise TableError(
                f"The column {quoted(unfit.name)} cannot be written to CSV: it holds "
                f"{excerpt(str(unfit.dtype))}. Leave it out, or write a Parquet file."
            )
        # The names are a row of text like any other.
        header = (
            [] if names else [pl.DataFrame({str(i): [name] for i, name in enumerate(frame.columns)})]
        )
        for part in (*header, frame):
            # As text first: writing to a closed pipe, Polars itself would raise no error.
            text = (guarded(part) if guard else part).write_csv(
                include_header=False, separator=separator
            )
            file.write((visible(text, keep="\n") if is_screen else text).encode())
        names = tuple(frame.columns)
    file.flush()
    return names


def _write_columnar(frames: Iterable[pl.DataFrame], path: Path, as_arrow: bool) -> tuple[str, ...]:
    """One file per part, then joined: Polars cannot append to a Parquet or Arrow file."""
    names: tuple[str, ...] = ()
    with tempfile.TemporaryDirectory(prefix=".mercer-", dir=path.parent) as folder:
        parts: list[Path] = []
        for frame in frames:
            parts.append(Path(folder) / f"{len(parts)}.parquet")
            frame.write_parquet(parts[-1])
            names = tuple(frame.columns)
        scan = pl.scan_parquet(parts)
        (scan.sink_ipc if as_arrow else scan.sink_parquet)(path)
    return names
