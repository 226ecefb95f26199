"""Errors of data files: one sentence, whatever the library that reads the file raised or printed."""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from mercer.tables.wording import excerpt, quoted

# Characters of another library's message; it may quote the data.
LONGEST_REASON = 200
STDERR = 2
# By name, so that errors can be imported without Polars.
PANIC = "PanicException"


class TableError(ValueError):
    """Invalid table; the message is one sentence, shown to the user."""


class CellError(TableError):
    """A value that is not what its column must hold."""

    def __init__(self, column: str, row: int, value: str, expected: str) -> None:
        self.parts = (column, row, value, expected)
        super().__init__(
            f"The column {quoted(column)} must hold {expected}, but row {row + 1:,} holds "
            f"{quoted(value)}."
        )


@contextmanager
def rows_from(first: int) -> Iterator[None]:
    """Inside the block, rows of a chunk are named by their number in the table."""
    try:
        yield
    except CellError as error:
        column, row, value, expected = error.parts
        raise CellError(column, first + row, value, expected) from None


@contextmanager
def reading_errors(name: str) -> Iterator[None]:
    """Inside the block, what the readers raise becomes a `TableError` of one line.

    A damaged file can make a reader raise any exception.  Running out of memory is not the file's fault:
    what a file may claim is limited before.
    """
    try:
        with _native_output.held_back():
            yield
    except (TableError, MemoryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not _is_panic(error):
            raise
        raise TableError(f"{name} cannot be read: {_reason(error)}.") from error


def _is_panic(error: BaseException) -> bool:
    """Whether Polars met what it does not support; its own class, which is no `Exception`."""
    return type(error).__name__ == PANIC


def _reason(error: BaseException) -> str:
    if _is_panic(error):
        return "it is damaged, or it has something that Polars does not support"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    # Polars adds advice in further paragraphs, and the fields of its own errors in braces.
    first = excerpt(re.split(r"\n\n|[:(]? ?Error \{", str(error))[0], LONGEST_REASON).rstrip(".")
    return first or f"it is damaged ({type(error).__name__})"


class _NativeOutput:
    """Standard error of the process, held back while a file is read.

    Polars prints several lines before it raises a `PanicException`.  Standard error belongs to all
    threads, and several may read at once: the first of them redirects it, and the last one restores it
    and writes what was held back, unless Polars panicked.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers = 0
        self._panicked = False
        self._kept = -1  # the true standard error
        self._held: IO[bytes] | None = None

    @contextmanager
    def held_back(self) -> Iterator[None]:
        self._enter()
        try:
            yield
        except BaseException as error:
            self._panicked = self._panicked or _is_panic(error)
            raise
        finally:
            self._leave()

    def _enter(self) -> None:
        with self._lock:
            self._readers += 1
            if self._readers > 1:
                return
            with suppress(OSError):  # the process may have none
                self._kept, self._panicked = os.dup(STDERR), False
                self._held = tempfile.TemporaryFile()  # noqa: SIM115
                os.dup2(self._held.fileno(), STDERR)

    def _leave(self) -> None:
        with self._lock:
            self._readers -= 1
            if self._readers or self._kept < 0:
                return
            os.dup2(self._kept, STDERR)
            if self._held is not None:
                if not self._panicked:
                    self._held.seek(0)
                    with suppress(OSError):
                        os.write(STDERR, self._held.read())
                self._held.close()
            os.close(self._kept)
            self._kept, self._held = -1, None


_native_output = _NativeOutput()
