"""A table: named columns that can be read any number of times, in chunks of bounded size."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import polars as pl

from mercer.planning.memory import CHUNK_ROWS, chunk_rows
from mercer.tables.wording import count_columns, listed

# What the readers of Polars, NumPy, scikit-learn and the standard library raise for a damaged file.
UNREADABLE = (pl.exceptions.PolarsError, OSError, EOFError, ValueError, zlib.error, zipfile.BadZipFile)

# Takes the names of columns and the rows of a chunk; yields the chunks from the first row on.
Reader = Callable[[tuple[str, ...], int], Iterator[pl.DataFrame]]
# What a format finds in a file: the names of its columns, the number of rows, and a reader.
Contents = tuple[tuple[str, ...], int, Reader]


class TableError(ValueError):
    """Invalid table; the message is one sentence, shown to the user."""


@dataclass(frozen=True)
class Table:
    """A file with named columns; every call of `chunks` reads it from the beginning."""

    name: str  # for messages
    names: tuple[str, ...]  # of the columns, in order
    n_rows: int
    read: Reader = field(repr=False, compare=False)
    # Owner of the temporary files that `read` needs; they are deleted with it.
    files: object = field(default=None, repr=False, compare=False)

    def chunks(
        self, columns: Sequence[str] | None = None, rows: int = CHUNK_ROWS
    ) -> Iterator[pl.DataFrame]:
        """The rows in order, at most `rows` at a time, and fewer if there are very many columns."""
        wanted = self.names if columns is None else tuple(columns)
        self.require(wanted)
        rows = min(rows, chunk_rows(len(wanted)))
        with reading_errors(self.name):
            yield from (frame for frame in self.read(wanted, rows) if len(frame))

    def require(self, columns: Sequence[str]) -> None:
        """Raise if one of these columns does not exist."""
        known = set(self.names)
        absent = next((column for column in columns if column not in known), None)
        if absent is not None:
            raise TableError(
                f"{self.name} has no column {absent!r}. Its columns are {listed(self.names)}."
            )


def with_labels(table: Table, labels: Table) -> Table:
    """The table with the only column of another one added; it replaces a column of the same name."""
    if len(labels.names) != 1 or labels.n_rows != table.n_rows:
        raise TableError(
            f"The labels in {labels.name} must be one column with {table.n_rows:,} rows, one for each "
            f"row of {table.name}. Got {count_columns(len(labels.names))} and {labels.n_rows:,} rows."
        )
    target = labels.names[0]

    def read(columns: tuple[str, ...], rows: int) -> Iterator[pl.DataFrame]:
        others = tuple(column for column in columns if column != target)
        if not others:
            yield from labels.chunks(columns, rows)
        elif target not in columns:
            yield from table.chunks(columns, rows)
        else:
            values, first = pl.concat(labels.chunks()).to_series(), 0
            for frame in table.chunks(others, rows):
                yield frame.with_columns(values[first : first + len(frame)]).select(columns)
                first += len(frame)

    names = (*(name for name in table.names if name != target), target)
    return Table(table.name, names, table.n_rows, read, (table, labels))


@contextmanager
def reading_errors(name: str) -> Iterator[None]:
    """Inside the block, errors of the readers become a `TableError` of one line."""
    try:
        yield
    except TableError:
        raise
    except UNREADABLE as error:
        reason = " ".join(str(error).split("\n\n")[0].split()).rstrip(".") or type(error).__name__
        raise TableError(f"{name} cannot be read: {reason}.") from error
