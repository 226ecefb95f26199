"""Rows in CSV: a header with the names of columns, and values as files have them."""

from __future__ import annotations

import codecs
import csv
import io

import polars as pl

from mercer.serve.faults import Fault
from mercer.serve.json_rows import MICROSECONDS, check_rows, expected
from mercer.serve.served import Served
from mercer.tables.errors import CellError, TableError
from mercer.tables.kinds import Kind
from mercer.tables.notation import MISSING
from mercer.tables.text_lines import SEPARATORS, first_fault, look


def rows_of_csv(body: bytes, served: Served, most: int) -> pl.DataFrame:
    """The columns that a model needs, of at most so many rows."""
    body = body.removeprefix(codecs.BOM_UTF8)
    head = body.partition(b"\n")[0]
    separator = max(SEPARATORS, key=lambda mark: head.count(mark.encode()))
    lines = look(io.BytesIO(body), separator)
    try:
        frame = _texts(body, separator, lines.are_even)
    except TableError as error:
        raise Fault(400, str(error)) from error
    if not len(frame):
        raise Fault(422, "The table has no rows, only a header.")
    check_rows(len(frame), most)
    wanted = expected(served)
    if not served.named and not {name for name, *_ in wanted} <= set(frame.columns):
        frame = _by_position(frame, [name for name, *_ in wanted])
    known = [(name, kind) for name, kind, written in wanted if not written and name in frame.columns]
    return frame.with_columns(_typed(frame[name], kind) for name, kind in known)


def _texts(body: bytes, separator: str, are_even: bool) -> pl.DataFrame:
    """All columns as text."""
    fault = None if are_even else first_fault(io.BytesIO(body), separator)
    if fault is not None:
        raise TableError(f"The body cannot be read: {_without_option(fault)}.")
    try:
        first = body.partition(b"\n")[0].decode()
    except UnicodeDecodeError as error:
        raise TableError("The body cannot be read: it is not UTF-8.") from error
    try:
        names = next(csv.reader([first], delimiter=separator), [])
    except csv.Error:  # a carriage return within the line, or a name of more than 128 KiB
        names = []
    if not names:
        raise TableError("The body cannot be read: its first line must name the columns.")
    try:
        frame = pl.read_csv(body, separator=separator, infer_schema=False, null_values=list(MISSING))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise TableError("The body cannot be read: it is not CSV in UTF-8 with a header.") from error
    if len(names) == frame.width and len({name.strip() for name in names}) == len(names):
        frame.columns = [name.strip() for name in names]
    return frame


def _without_option(fault: str) -> str:
    """A fault of a file in words for a body, whose encoding is not an option."""
    return fault.partition("; name its encoding")[0]


def _by_position(frame: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    """The columns of a model that was trained without names."""
    if frame.width != len(names):
        raise Fault(
            422,
            f"The table must have the {len(names):,} columns that the model was trained on, in the same "
            f"order. Got {frame.width:,}.",
        )
    frame.columns = names
    return frame


def _typed(text: pl.Series, kind: Kind) -> pl.Series:
    """Values whose text needs no further reading; others stay text, to be read or refused later."""
    if kind == "number":
        numbers = text.cast(pl.Float64(), strict=False)
        return numbers if numbers.null_count() == text.null_count() else text
    if kind == "duration":
        seconds = text.cast(pl.Float64(), strict=False)
        _refuse(text, seconds, "numbers of seconds")
        return (seconds * MICROSECONDS).cast(pl.Duration("us"))
    if kind == "time":
        times = text.str.to_time(strict=False)
        _refuse(text, times, "times of day, such as 13:45:00")
        return times
    return text


def _refuse(text: pl.Series, values: pl.Series, expected: str) -> None:
    """Raise for the first text that has no value."""
    wrong = values.is_null() & text.is_not_null()
    if wrong.any():
        row = int(wrong.arg_true()[0])
        raise CellError(text.name, row, str(text[row]), expected)
