"""Rows in JSON: an array of objects by the names of columns, or of arrays in their order."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import polars as pl

from mercer.serve.faults import Fault
from mercer.serve.served import Served
from mercer.tables.cells import as_text
from mercer.tables.columns import Columns
from mercer.tables.errors import CellError
from mercer.tables.kinds import NAMES, Kind
from mercer.tables.wording import meant, quoted

# Features may be held in single precision.
LARGEST_NUMBER = float(np.finfo(np.float32).max)
NOTHING = type(None)
MICROSECONDS = 1e6


def rows_of_json(body: bytes, served: Served, most: int) -> pl.DataFrame:
    """The columns that a model needs, of at most so many rows; a single object is one row."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Fault(400, f"The body is not JSON: {_reason(error)}.") from error
    rows = [found] if isinstance(found, dict) else found
    if not isinstance(rows, list) or not rows:
        raise Fault(
            422, "The body must be an array of rows, one or more, each an object or an array of values."
        )
    check_rows(len(rows), most)
    names = served.columns.names
    cells = _cells(rows, names)
    return pl.DataFrame(
        [
            _column(name, kind, values, written)
            for (name, kind, written), values in zip(expected(served), cells, strict=True)
        ]
    )


def check_rows(count: int, most: int) -> None:
    if count > most:
        raise Fault(413, f"A request may have at most {most:,} rows. Got {count:,}.")


def expected(served: Served) -> list[tuple[str, Kind, bool]]:
    """For each column its name, its kind, and whether its values are written as text."""
    columns = served.columns
    if not isinstance(columns, Columns):
        return [(name, "number", False) for name in columns.names]
    return [(c.name, c.kind, c.notation is not None) for c in columns.columns]


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "arrays or objects are nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return "its text is not UTF-8"
    text = str(error).removeprefix("JSON is malformed: ")
    return text[:1].lower() + text[1:]


def _cells(rows: list[Any], names: Sequence[str]) -> list[list[Any]]:
    """The values of each column."""
    if all(type(row) is list and len(row) == len(names) for row in rows):
        return [list(values) for values in zip(*rows, strict=True)]
    try:
        return [[row[name] for row in rows] for name in names]
    except (KeyError, TypeError, IndexError):
        raise _first_fault(rows, names) from None


def _first_fault(rows: list[Any], names: Sequence[str]) -> Fault:
    """What is wrong with the first row that does not have all columns."""
    kind = type(rows[0])
    for number, row in enumerate(rows, 1):
        if type(row) is not kind or kind not in (dict, list):
            return Fault(
                422,
                f"Rows must be all objects or all arrays, but row {number:,} is {as_json_type(row)}.",
                row=number,
            )
        if kind is list and len(row) != len(names):
            return Fault(
                422,
                f"Row {number:,} has {len(row):,} values, but the model has {len(names):,} columns.",
                row=number,
            )
        absent = next((name for name in names if kind is dict and name not in row), None)
        if absent is not None:
            return Fault(
                422,
                f"Row {number:,} has no {quoted(absent)}. {meant(absent, list(row))}Use null where a "
                "value is missing.",
                row=number,
                column=absent,
            )
    raise AssertionError


def as_json_type(value: Any) -> str:
    """
    >>> as_json_type({}), as_json_type(True), as_json_type(1.5)
    ('an object', 'a boolean', 'a number')
    """
    names = {dict: "an object", list: "an array", str: "text", bool: "a boolean", NOTHING: "null"}
    return names.get(type(value), "a number")


def _column(name: str, kind: Kind, cells: list[Any], written: bool) -> pl.Series:
    """Values as a column of this kind, or as text that is read later where it is written so."""
    types = set(map(type, cells))
    if kind == "text":
        _check(name, kind, cells, (str, int, float, bool, NOTHING))
        texts = cells if types <= {str, NOTHING} else [c if c is None else as_text(c) for c in cells]
        return pl.Series(name, texts, pl.String())
    if kind == "date" or (written and str in types):
        _check(name, kind, cells, (str, NOTHING))
        return pl.Series(name, cells, pl.String())
    if kind == "boolean":
        _check(name, kind, cells, (bool, NOTHING))
        return pl.Series(name, cells, pl.Boolean())
    if kind == "time":
        _check(name, kind, cells, (str, NOTHING))
        return pl.Series(name, [_time(name, row, cell) for row, cell in enumerate(cells)], pl.Time())
    _check(name, kind, cells, (int, float, NOTHING))
    numbers = [None if cell is None else _float(cell) for cell in cells]
    for row, number in enumerate(numbers):
        if number is not None and abs(number) > LARGEST_NUMBER:
            expected = f"numbers of at most {LARGEST_NUMBER:.3g} in size"
            raise CellError(name, row, str(cells[row])[:LONGEST_NUMBER], expected)
    series = pl.Series(name, numbers, pl.Float64())
    return (series * MICROSECONDS).cast(pl.Duration("us")) if kind == "duration" else series


# Characters of a number in a message.
LONGEST_NUMBER = 40


def _check(name: str, kind: Kind, cells: list[Any], allowed: tuple[type, ...]) -> None:
    """Raise for the first value of another type."""
    if not set(map(type, cells)) <= set(allowed):
        row = next(i for i, cell in enumerate(cells) if type(cell) not in allowed)
        cell = cells[row]
        text = cell if isinstance(cell, str) else msgspec.json.encode(cell).decode()
        seconds = " in seconds" if kind == "duration" else ""
        raise CellError(name, row, text, f"{NAMES[kind]}{seconds}, or null")


def _float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # a whole number of any length
        return float("inf")


def _time(name: str, row: int, text: str | None) -> datetime.time | None:
    if text is None:
        return None
    try:
        return datetime.time.fromisoformat(text).replace(tzinfo=None)
    except ValueError:
        raise CellError(name, row, text, "times of day, such as 13:45:00") from None
