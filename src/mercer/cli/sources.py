"""The tables of the user: opened with their labels, and read in parts of bounded size."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mercer.estimators import KernelClassifier, KernelRegressor
from mercer.planning.memory import chunk_rows
from mercer.tables.arrays import missing_targets
from mercer.tables.bounds import Bounds
from mercer.tables.columns import Columns
from mercer.tables.errors import TableError, rows_from
from mercer.tables.formats import DEFAULT_BOUNDS, DEFAULT_LAYOUT, open_table
from mercer.tables.layout import Layout
from mercer.tables.plain_columns import PlainColumns
from mercer.tables.table import DEFAULT_TARGET, Table, with_labels
from mercer.tables.wording import quoted

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
    layout: Layout = DEFAULT_LAYOUT,
) -> Source:
    """Open a table; `target` names a column or a file of labels.

    With `test`, the test arrays are read from a file that has some.
    """
    table, is_test = None, False
    if test and path.lower().endswith(".npz"):
        with suppress(TableError):  # it has only one pair of arrays
            table, is_test = open_table(path, member="test", folder=folder, bounds=bounds), True
    if table is None:
        table = open_table(path, folder=folder, text=text, bounds=bounds, layout=layout)
    if target is not None and target not in table.names and os.path.isfile(target):
        labels = open_table(target, folder=folder, text=text, bounds=bounds, layout=layout)
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


class LeftOut:
    """Rows that are left out because a value in them cannot be read."""

    def __init__(self) -> None:
        self.count = 0
        self.first = 0  # of the rows, from 0

    def readable(
        self, frame: pl.DataFrame, columns: Columns | PlainColumns, start: int
    ) -> NDArray[np.bool_]:
        """Which rows of a chunk that begins at row `start` can be read."""
        wrong = columns.unreadable(frame).to_numpy()
        if wrong.any() and not self.count:
            self.first = start + int(wrong.argmax())
        self.count += int(wrong.sum())
        return ~wrong

    def notes(self) -> Iterator[str]:
        if self.count:
            rows = "1 row" if self.count == 1 else f"{self.count:,} rows"
            yield f"left out {rows} with a value that cannot be read, first row {self.first + 1:,}"


def file_parts(
    columns: Columns | PlainColumns,
    source: Source,
    notes: dict[str, None],
    left_out: LeftOut | None = None,
) -> Iterator[Part]:
    """The rows whose target is known, a chunk at a time; `left_out` takes those that cannot be read."""
    if source.target is not None:
        columns = replace(columns, target=source.target)
    first, dropped = 0, 0
    for frame in source.table.chunks((*columns.names, columns.target)):
        rows = np.arange(first, first + len(frame))
        if left_out is not None:
            fine = left_out.readable(frame, columns, first)
            frame, rows = frame.filter(pl.Series(fine)), rows[fine]
        with rows_from(first):
            known = columns.has_target(frame)
            first += len(fine) if left_out is not None else len(frame)
            dropped += len(frame) - int(known.sum())
            if not known.any():
                continue
            labelled = frame.filter(known)
            X, found = columns.features(labelled)
            notes.update(dict.fromkeys(found))
        yield rows[known.to_numpy()], X, columns.targets(labelled)
    if dropped:
        notes[missing_targets(dropped, first)] = None
    if left_out is not None:
        notes.update(dict.fromkeys(left_out.notes()))


def open_for(
    model: Model,
    path: str,
    target: str | None,
    folder: Path | None,
    bounds: Bounds = DEFAULT_BOUNDS,
    layout: Layout = DEFAULT_LAYOUT,
) -> tuple[Source, Columns | PlainColumns]:
    """Open a table, with the columns as this model expects them."""
    open_one = partial(open_source, test=True, bounds=bounds, layout=layout)
    stored = model.metadata_.get("columns")
    if stored is not None:
        columns = Columns.from_dict(stored)
        if len(columns.feature_names) != model.n_features_in_:
            raise TableError(
                f"The model file describes columns with {len(columns.feature_names)} features, but its "
                f"model has {model.n_features_in_}: it is damaged."
            )
        return open_one(path, target, folder, text=columns.text_names), columns
    notation = next(iter(model._target_notations), None)
    source = open_one(path, target, folder, text=() if notation is None else (target or DEFAULT_TARGET,))
    truth, table = source.target or DEFAULT_TARGET, source.table
    known = getattr(model, "feature_names_in_", None)
    names = [name for name in table.names if name != truth] if known is None else list(known)
    if len(names) != model.n_features_in_:
        raise TableError(
            f"{table.name} must have the {model.n_features_in_} columns that the model was trained on, "
            f"in the same order. Got {len(names)} besides {quoted(truth)}."
        )
    return source, PlainColumns(tuple(names), truth, notation)
