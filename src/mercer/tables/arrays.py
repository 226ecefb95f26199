"""A whole table as arrays of features and targets, in memory or in a file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mercer.planning.memory import GIB, chunk_rows, feature_bytes, free_disk, stay_in_memory
from mercer.tables.columns import Columns
from mercer.tables.errors import CellError, TableError, rows_from
from mercer.tables.kinds import is_known, of_kinds
from mercer.tables.table import Table


@dataclass(frozen=True)
class Arrays:
    """The rows whose target is known."""

    X: NDArray[np.float32]  # (n, d)  in memory, or a memory-mapped file
    y: NDArray[Any]  # (n,)
    notes: tuple[str, ...]
    dropped: int = 0  # rows whose target is missing
    weights: NDArray[np.float64] | None = None  # (n,)  if a column has them


def read_arrays(
    table: Table, columns: Columns, *, memory: float, folder: Path, weight: str | None = None
) -> Arrays:
    """Read a table; features that take too much of `memory` go to a file in `folder`.

    `weight` is a column with the weights of the rows.  The caller owns the folder and deletes the file.
    """
    d = len(columns.feature_names)
    size = feature_bytes(table.n_rows, d)
    notes: dict[str, None] = {}
    targets: list[NDArray[Any]] = []
    weights: list[NDArray[np.float64]] = []

    def parts() -> Iterator[NDArray[np.float32]]:
        for part in labelled_rows(table, columns, weight):
            notes.update(dict.fromkeys(part.notes))
            targets.append(part.y)
            if part.weights is not None:
                weights.append(part.weights)
            yield part.X

    if stay_in_memory(size, memory):
        X = _in_memory(parts(), table.n_rows, d)
    else:
        X = _in_file(parts(), size, d, folder)
        notes[f"the features take {size / GIB:.2g} GiB and are read from disk"] = None
    y = np.concatenate(targets) if targets else np.zeros(0)
    given = None if weight is None else np.concatenate([*weights, np.zeros(0)])
    return Arrays(X, y, tuple(notes), table.n_rows - len(y), given)


@dataclass(frozen=True)
class LabelledRows:
    """The rows of a chunk whose target is known."""

    numbers: NDArray[np.int64]  # (m,)  theirs in the table, from 0
    X: NDArray[np.float32]  # (m, d)
    y: NDArray[Any]  # (m,)
    weights: NDArray[np.float64] | None  # (m,)
    notes: list[str]


def labelled_rows(table: Table, columns: Columns, weight: str | None) -> Iterator[LabelledRows]:
    """One pass over a table; `weight` is a column with the weights of the rows."""
    wanted = [*columns.names, columns.target, *([] if weight is None else [weight])]
    first, weights = 0, None
    for frame in table.chunks(wanted, rows=chunk_rows(len(columns.feature_names))):
        known = columns.has_target(frame)
        numbers = first + np.flatnonzero(known.to_numpy())
        if weight is not None:
            with rows_from(first):
                weights = _weights(frame, weight)[known.to_numpy()]
        first += len(frame)
        labelled = frame.filter(known)
        X, notes = columns.features(labelled)
        yield LabelledRows(numbers, X, columns.targets(labelled), weights, notes)


def targets_only(table: Table, columns: Columns) -> tuple[NDArray[np.bool_], NDArray[Any]]:
    """Which rows have a target, and the targets of those, in one pass over that column alone."""
    known, targets = [], []
    for frame in table.chunks([columns.target]):
        here = columns.has_target(frame)
        known.append(here.to_numpy())
        targets.append(columns.targets(frame.filter(here)))
    return np.concatenate(known), np.concatenate(targets)


def _weights(frame: pl.DataFrame, name: str) -> NDArray[np.float64]:
    """Weights of rows: numbers that are not negative."""
    values = of_kinds(frame, {name: "number"}).to_series().cast(pl.Float64)
    wrong = ~(is_known(values) & (values >= 0)).fill_null(False)
    if wrong.any():
        row = int(wrong.arg_true()[0])
        raise CellError(name, row, str(frame[name][row]), "weights of at least 0 in all rows")
    return values.to_numpy()


def missing_targets(dropped: int, rows: int) -> str:
    """A note on rows without a target."""
    return f"dropped {dropped:,} of {rows:,} rows because their target is missing"


def _in_memory(parts: Iterable[NDArray[np.float32]], n: int, d: int) -> NDArray[np.float32]:
    X = np.empty((n, d), np.float32)
    filled = 0
    for part in parts:
        X[filled : filled + len(part)] = part
        filled += len(part)
    return X[:filled]


def _in_file(
    parts: Iterable[NDArray[np.float32]], size: int, d: int, folder: Path
) -> NDArray[np.float32]:
    """Written rather than mapped while it grows, so that none of it stays resident."""
    free = free_disk(folder)
    if size > free:
        raise TableError(
            f"The features take {size / GIB:.1f} GiB, but only {free / GIB:.1f} GiB are free in "
            f"{folder}. Free some space, raise the memory limit, or drop columns."
        )
    n = 0
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".float32", delete=False) as file:
        for part in parts:
            file.write(part.data)
            n += len(part)
    if not n:
        return np.empty((0, d), np.float32)
    # Copy-on-write, since PyTorch needs writable memory; the file is never changed.
    return np.memmap(file.name, np.float32, "c", shape=(n, d))
