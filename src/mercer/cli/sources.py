"""The tables of the user: opened with their labels, and read in parts of bounded size."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.selectors import by_name

from mercer.estimators import KernelClassifier, KernelRegressor
from mercer.planning.memory import chunk_rows
from mercer.tables.arrays import missing_targets
from mercer.tables.bounds import Bounds
from mercer.tables.columns import Columns
from mercer.tables.errors import TableError
from mercer.tables.formats import DEFAULT_BOUNDS, open_table
from mercer.tables.kinds import is_known
from mercer.tables.table import DEFAULT_TARGET, Table, with_labels
from mercer.tables.wording import excerpt, quoted

Array = NDArray[Any]
Model = KernelClassifier | KernelRegressor


@dataclass(frozen=True)
class Source:
    """A table, with the labels of a second file among its columns if there was one."""

    table: Table
    target: str | None  # None: the default, or the one the model was trained with
    is_test: bool  # the test arrays of a file that also has training arrays


def open_source(
    path: str,
    target: str | None,
    folder: Path | None = None,
    *,
    test: bool = False,
    text: Collection[str] = (),
    bounds: Bounds = DEFAULT_BOUNDS,
) -> Source:
    """Open a table; `target` names a column or a file of labels.

    With `test`, the test arrays are read from a file that has some.
    """
    table, is_test = None, False
    if test and path.lower().endswith(".npz"):
        with suppress(TableError):  # it has only one pair of arrays
            table, is_test = open_table(path, member="test", folder=folder, bounds=bounds), True
    if table is None:
        table = open_table(path, folder=folder, text=text, bounds=bounds)
    if target is not None and target not in table.names and os.path.isfile(target):
        labels = open_table(target, folder=folder, text=text, bounds=bounds)
        return Source(with_labels(table, labels), labels.names[0], is_test)
    return Source(table, target, is_test)


def same_rows(source: Source, path: str, trained: str) -> bool:
    return not source.is_test and os.path.realpath(path) == os.path.realpath(trained)


Part = tuple[Array, Array, Array]  # numbers of rows from 0, features, targets


def held_out_parts(
    X: Array,
    first: int,
    y: Array,
    rows: Array,
    numbers: Array,
    from_all: Callable[[Array], Array],
) -> Iterator[Part]:
    """Some of all rows; X has those from `first` on, and `from_all` adds what other ranks have."""
    step = chunk_rows(X.shape[1])
    for start in range(0, len(rows), step):
        piece = slice(start, start + step)
        here = rows[piece] - first
        own = X[here[(here >= 0) & (here < len(X))]]
        yield numbers[piece], from_all(own), y[rows[piece]]


def row_numbers(source: Source, columns: Columns, n: int) -> Array:
    """Positions in the file, from 0, of the n rows whose target is known."""
    if n == source.table.n_rows:
        return np.arange(n)
    chunks = source.table.chunks([columns.target])
    return np.flatnonzero(np.concatenate([columns.has_target(frame).to_numpy() for frame in chunks]))


def file_parts(
    columns: Columns | PlainColumns, source: Source, notes: dict[str, None]
) -> Iterator[Part]:
    """The rows whose target is known, a chunk at a time."""
    if source.target is not None:
        columns = replace(columns, target=source.target)
    first, dropped = 0, 0
    for frame in source.table.chunks((*columns.names, columns.target)):
        known = columns.has_target(frame)
        numbers = first + np.flatnonzero(known.to_numpy())
        first += len(frame)
        dropped += len(frame) - len(numbers)
        if len(numbers):
            frame = frame.filter(known)
            X, found = columns.features(frame)
            notes.update(dict.fromkeys(found))
            yield numbers, X, columns.targets(frame)
    if dropped:
        notes[missing_targets(dropped, first)] = None


@dataclass(frozen=True)
class PlainColumns:
    """The columns of a model that was saved from Python, without a table: numbers, used as they are."""

    names: tuple[str, ...]
    target: str

    def features(self, frame: pl.DataFrame) -> tuple[NDArray[np.float32], list[str]]:
        for name in self.names:
            if not (frame[name].dtype.is_numeric() or frame[name].dtype == pl.Boolean):
                raise TableError(
                    f"The column {quoted(name)} must hold numbers, since the model was trained on a "
                    f"matrix. Got {excerpt(str(frame[name].dtype))}."
                )
        return frame.select(by_name(*self.names)).cast(pl.Float32).to_numpy(), []

    def has_target(self, frame: pl.DataFrame) -> pl.Series:
        return is_known(frame[self.target])

    def targets(self, frame: pl.DataFrame) -> Array:
        return frame[self.target].to_numpy()


def open_for(
    model: Model, path: str, target: str | None, folder: Path | None, bounds: Bounds = DEFAULT_BOUNDS
) -> tuple[Source, Columns | PlainColumns]:
    """Open a table, with the columns as this model expects them."""
    stored = model.metadata_.get("columns")
    if stored is not None:
        columns = Columns.from_dict(stored)
        if len(columns.feature_names) != model.n_features_in_:
            raise TableError(
                f"The model file describes columns with {len(columns.feature_names)} features, but its "
                f"model has {model.n_features_in_}: it is damaged."
            )
        source = open_source(path, target, folder, test=True, text=columns.text_names, bounds=bounds)
        return source, columns
    source = open_source(path, target, folder, test=True, bounds=bounds)
    truth, table = source.target or DEFAULT_TARGET, source.table
    known = getattr(model, "feature_names_in_", None)
    names = [name for name in table.names if name != truth] if known is None else list(known)
    if len(names) != model.n_features_in_:
        raise TableError(
            f"{table.name} must have the {model.n_features_in_} columns that the model was trained on, "
            f"in the same order. Got {len(names)} besides {quoted(truth)}."
        )
    return source, PlainColumns(tuple(names), truth)
