"""Files that a command writes: completely or not at all, and never over another one by accident."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import polars as pl

from mercer.cli.messages import CallError
from mercer.files.whole import whole_file

PARQUET = (".parquet", ".pq")


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


def write_frames(frames: Iterable[pl.DataFrame], place: Path | None) -> tuple[str, ...]:
    """Write a table part by part, as Parquet if its name ends so, else CSV; None is standard output."""
    if place is None:
        return _write_csv(frames, sys.stdout.buffer)
    with whole_file(place) as beside:
        if place.suffix in PARQUET:
            return _write_parquet(frames, beside)
        with beside.open("wb") as file:
            return _write_csv(frames, file)


def _write_csv(frames: Iterable[pl.DataFrame], file: BinaryIO) -> tuple[str, ...]:
    names: tuple[str, ...] = ()
    for frame in frames:
        # As text first: writing to a closed pipe, Polars itself would raise no error.
        file.write(frame.write_csv(include_header=not names).encode())
        names = tuple(frame.columns)
    file.flush()
    return names


def _write_parquet(frames: Iterable[pl.DataFrame], path: Path) -> tuple[str, ...]:
    """One file per part, then joined: Polars cannot append to a Parquet file."""
    names: tuple[str, ...] = ()
    with tempfile.TemporaryDirectory(prefix=".mercer-", dir=path.parent) as folder:
        parts: list[Path] = []
        for frame in frames:
            parts.append(Path(folder) / f"{len(parts)}.parquet")
            frame.write_parquet(parts[-1])
            names = tuple(frame.columns)
        pl.scan_parquet(parts).sink_parquet(path)
    return names
