"""A table in memory, so that a file is parsed once for all passes over it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import polars as pl
from polars.selectors import by_name

from mercer.tables.table import Contents, Reader, between


class Remembered:
    """The rows of a file, until they are forgotten; then the file is read again."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self.frame: pl.DataFrame | None = frame

    def forget(self) -> None:
        self.frame = None

    def contents(self, found: Contents) -> Contents:
        """The same contents, read from memory as long as they are there."""
        from_middle = partial(between, found.read) if found.cut is None else found.cut

        def read(columns: tuple[str, ...], rows: int) -> Iterator[pl.DataFrame]:
            if self.frame is None:
                return found.read(columns, rows)
            return self.frame.select(by_name(*columns)).iter_slices(rows)

        def cut(first: int, stop: int) -> Reader:
            def some(columns: tuple[str, ...], rows: int) -> Iterator[pl.DataFrame]:
                if self.frame is None:
                    return from_middle(first, stop)(columns, rows)
                return self.frame[first:stop].select(by_name(*columns)).iter_slices(rows)

            return some

        return found._replace(read=read, cut=cut, forget=(self.forget,))
