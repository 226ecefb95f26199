"""The rows of a user's files, as a model reads them: a table, its target, and parts of bounded size."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mercer.estimators import KernelClassifier, KernelRegressor
from mercer.tables.columns import Columns
from mercer.tables.formats import Table, TableError, open_table

Array = NDArray[Any]
Model = KernelClassifier | KernelRegressor
# Bytes of features that are predicted at a time.
PREDICTED_BYTES = 1 << 26


@dataclass(frozen=True)
class Source:
    """A table, and the second one that its labels may be in."""

    table: Table
    target: str | None
    labels: Table | None
    is_test: bool  # the test arrays of a file that has others as well


def open_source(
    path: str,
    target: str | None,
    folder: Path | None = None,
    *,
    test: bool = False,
    text: Collection[str] = (),
) -> Source:
    """Open a table, `test` preferring the test arrays of a file that has them."""
    table, is_test = None, False
    if test and path.lower().endswith(".npz"):
        with suppress(TableError):  # it has only one pair of arrays
            table, is_test = open_table(path, member="test", folder=folder), True
    if table is None:
        table = open_table(path, folder=folder, text=text)
    if target is None or target in table.names or not os.path.isfile(target):
        return Source(table, target, None, is_test)
    labels = open_table(target, folder=folder, text=text)
    if len(labels.names) != 1 or labels.n_rows != table.n_rows:
        raise TableError(
            f"A file of labels must be one column, with a row for each of {path}. Got "
            f"{len(labels.names)} columns and {labels.n_rows:,} rows for {table.n_rows:,} in {target}."
        )
    return Source(table, None, labels, is_test)


def same_rows(source: Source, path: str, trained: str) -> bool:
    return not source.is_test and os.path.realpath(path) == os.path.realpath(trained)


Part = tuple[Array, Array, Array]  # numbers of rows from 0, features, truth


def held_out_parts(X: Array, y: Array, rows: Array, numbers: Array) -> Iterator[Part]:
    step = max(1, PREDICTED_BYTES // (4 * X.shape[1]))
    for start in range(0, len(rows), step):
        piece = slice(start, start + step)
        yield numbers[piece], X[rows[piece]], y[rows[piece]]


def row_numbers(source: Source, columns: Columns, n: int) -> Array:
    """Where in the file, from 0, the n rows are whose target is known."""
    if n == source.table.n_rows:
        return np.arange(n)
    table, name = (source.table, columns.target) if source.labels is None else (source.labels, None)
    known = [_known(frame.to_series()) for frame in table.chunks(name and [name])]
    return np.flatnonzero(np.concatenate(known))


def file_parts(
    columns: Columns | PlainColumns, source: Source, notes: dict[str, None]
) -> Iterator[Part]:
    """The rows whose truth is known, some at a time."""
    labels = None if source.labels is None else pl.concat(source.labels.chunks()).to_series()
    wanted = columns.names if labels is not None else (*columns.names, columns.target)
    first, unknown = 0, 0
    for frame in source.table.chunks(wanted):
        if labels is not None:
            frame = frame.with_columns(labels[first : first + len(frame)].alias(columns.target))
        known = _known(frame[columns.target])
        numbers = first + np.flatnonzero(known)
        first += len(frame)
        unknown += len(frame) - len(numbers)
        if len(numbers):
            frame = frame.filter(pl.Series(known))
            X, found = columns.features(frame)
            notes.update(dict.fromkeys(found))
            yield numbers, X, columns.targets(frame)
    if unknown:
        notes[f"left out {unknown:,} of {first:,} rows, whose target is missing"] = None


def _known(values: pl.Series) -> NDArray[np.bool_]:
    known = values.is_finite().fill_null(False) if values.dtype.is_float() else values.is_not_null()
    return known.to_numpy()


@dataclass(frozen=True)
class PlainColumns:
    """The columns of a model that was saved from Python and knows of no table: numbers, as they are."""

    names: tuple[str, ...]
    target: str

    def features(self, frame: pl.DataFrame) -> tuple[NDArray[np.float32], list[str]]:
        for name in self.names:
            if not (frame[name].dtype.is_numeric() or frame[name].dtype == pl.Boolean):
                raise TableError(
                    f"The column {name!r} must be of numbers, since the model was trained on a matrix. "
                    f"Got {frame[name].dtype}."
                )
        return frame.select(pl.col(self.names).cast(pl.Float32)).to_numpy(), []

    def targets(self, frame: pl.DataFrame) -> Array:
        return frame[self.target].to_numpy()


def open_for(
    model: Model, path: str, target: str | None, folder: Path | None
) -> tuple[Source, Columns | PlainColumns]:
    """A table, and how this model reads it."""
    stored = model.metadata_.get("columns")
    if stored is not None:
        columns = Columns.from_dict(stored)
        source = open_source(path, target, folder, test=True, text=columns.text_names)
        return source, columns if source.target is None else replace(columns, target=source.target)
    source = open_source(path, target, folder, test=True)
    truth, table = source.target or "y", source.table
    known = getattr(model, "feature_names_in_", None)
    names = [name for name in table.names if name != truth] if known is None else list(known)
    if len(names) != model.n_features_in_:
        raise TableError(
            f"{table.name} must have the {model.n_features_in_} columns the model was trained on, in "
            f"order. Got {len(names)} beside {truth!r}."
        )
    return source, PlainColumns(tuple(names), truth)
