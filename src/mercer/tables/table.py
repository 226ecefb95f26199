"""A table: named columns that can be read any number of times, in chunks of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import polars as pl
from polars.selectors import by_name

from mercer.planning.memory import CHUNK_ROWS, chunk_rows
from mercer.tables.errors import TableError, reading_errors
from mercer.tables.wording import count_columns, listed, meant, quoted

DEFAULT_TARGET = "y"

# Takes the names of columns and the rows of a chunk; yields the chunks from the first row on.
Reader = Callable[[tuple[str, ...], int], Iterator[pl.DataFrame]]
# Takes a first row and the row after the last; reads only the rows between them.
Cut = Callable[[int, int], Reader]


class Contents(NamedTuple):
    """What a format finds in a file."""

    names: tuple[str, ...]  # of the columns
    n_rows: int
    read: Reader
    cut: Cut | None = None  # where a file need not be read from its beginning
    shows_points: bool = False  # its numbers have decimal points, as far as they show
    notes: tuple[str, ...] = ()  # on how the file was read
    repeated: frozenset[str] = frozenset()  # names that several columns had
    forget: tuple[Callable[[], None], ...] = ()  # free the memory in which rows are kept
    doubtful_header: bool = False  # the first line may be data


@dataclass(frozen=True)
class Table:
    """A file with named columns; every call of `chunks` reads it from the beginning."""

    name: str  # for messages
    names: tuple[str, ...]  # of the columns, in order
    n_rows: int
    read: Reader = field(repr=False, compare=False)
    cut: Cut | None = field(default=None, repr=False, compare=False)
    shows_points: bool = False
    notes: tuple[str, ...] = ()
    repeated: frozenset[str] = frozenset()
    kept: tuple[Callable[[], None], ...] = field(default=(), repr=False, compare=False)
    doubtful_header: bool = False
    # Owner of the temporary files that `read` needs; they are deleted with it.
    files: object = field(default=None, repr=False, compare=False)

    def chunks(
        self, columns: Sequence[str] | None = None, rows: int = CHUNK_ROWS
    ) -> Iterator[pl.DataFrame]:
        """The rows in order, at most `rows` at a time, and fewer if there are very many columns."""
        wanted = self.names if columns is None else tuple(columns)
        self.require(wanted)
        rows = min(rows, chunk_rows(len(wanted)))
        frames, seen = self.read(wanted, rows), 0
        while True:
            with reading_errors(self.name):
                frame = next(frames, None)
            seen += 0 if frame is None else len(frame)
            if seen > self.n_rows or (frame is None and seen < self.n_rows):
                raise TableError(
                    f"{self.name} is damaged, or was changed while it was read: it should have "
                    f"{self.n_rows:,} rows, but has {'more' if seen > self.n_rows else f'{seen:,}'}."
                )
            if frame is None:
                return
            if len(frame):
                yield frame

    def part(self, first: int, stop: int) -> Table:
        """Some of the rows as a table of their own; of most formats, no others are read."""
        read = between(self.read, first, stop) if self.cut is None else self.cut(first, stop)
        return replace(self, n_rows=stop - first, read=read, cut=None)

    def forget(self) -> None:
        """Free the memory in which rows are kept between passes; the file is read in later ones."""
        for free in self.kept:
            free()

    def require(self, columns: Sequence[str]) -> None:
        """Raise if one of these columns does not exist."""
        known = set(self.names)
        absent = next((column for column in columns if column not in known), None)
        if absent is not None:
            raise TableError(
                f"{self.name} has no column {quoted(absent)}. {meant(absent, self.names)}Its columns "
                f"are {listed(self.names)}.{self._about_header()}"
            )

    def _about_header(self) -> str:
        """A way out for a file whose names seem to be values."""
        hint = " If these are values, use --no-header; columns are then called 'x0', 'x1' and so on."
        return hint if self.doubtful_header else ""

    def target_named(self, target: str | None) -> str:
        """The name of the target, "y" by default; raise if there is no such column, or several."""
        if target is None and DEFAULT_TARGET not in self.names:
            raise TableError(
                f"{self.name} has no column {DEFAULT_TARGET!r}, the default target. Name the column to "
                f"predict with --target: {listed(self.names)}.{self._about_header()}"
            )
        found = DEFAULT_TARGET if target is None else target
        self.require([found])
        if found in self.repeated:
            raise TableError(
                f"{self.name} has several columns named {quoted(found)}, so the target is unclear. "
                "Rename all but one of them."
            )
        return found


def between(read: Reader, first: int, stop: int) -> Reader:
    """A reader that drops all rows but those from `first` to before `stop`."""

    def some(columns: tuple[str, ...], rows: int) -> Iterator[pl.DataFrame]:
        begin = 0
        for frame in read(columns, rows):
            if begin >= stop:
                return
            yield frame[max(0, first - begin) : max(0, stop - begin)]
            begin += len(frame)

    return some


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
        if not table.n_rows:
            return
        if not others:
            yield from labels.chunks(columns, rows)
        elif target not in columns:
            yield from table.chunks(columns, rows)
        else:
            values, first = pl.concat(labels.chunks()).to_series(), 0
            for frame in table.chunks(others, rows):
                yield frame.with_columns(values[first : first + len(frame)]).select(by_name(*columns))
                first += len(frame)

    def cut(first: int, stop: int) -> Reader:
        return with_labels(table.part(first, stop), labels.part(first, stop)).read

    names = (*(name for name in table.names if name != target), target)
    kept = (*table.kept, *labels.kept)
    return replace(table, names=names, read=read, cut=cut, kept=kept, files=(table, labels))
