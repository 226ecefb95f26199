"""Kinds of columns, and their values as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.selectors import by_name

from mercer.tables.errors import CellError, TableError
from mercer.tables.notation import (
    PLAIN_DATES,
    PLAIN_NUMBERS,
    Notation,
    has_no_value,
    read_dates,
    stripped,
)
from mercer.tables.wording import excerpt, quoted

Kind = Literal["number", "boolean", "date", "duration", "time", "text"]

DAY = 86_400e6  # microseconds
NAMES = {
    "number": "numbers",
    "boolean": "booleans",
    "date": "dates",
    "duration": "durations",
    "time": "times of day",
    "text": "text",
}
# The type given to a column without any value, whose own type says nothing.
EMPTY: dict[Kind, pl.DataType] = {
    "number": pl.Float64(),
    "boolean": pl.Boolean(),
    "date": pl.Datetime("us"),
    "duration": pl.Duration("us"),
    "time": pl.Time(),
    "text": pl.String(),
}
# Kinds of values that can be read from text.
WRITTEN: tuple[Kind, ...] = ("number", "date", "boolean")
NOT_IN_NUMPY = (pl.Decimal, pl.Int128, pl.UInt128, pl.Null)


def kind_of(dtype: pl.DataType) -> Kind | None:
    """The kind of a Polars type; None for lists, structures and other types without single values."""
    if dtype.is_numeric():
        return "number"
    kinds: dict[type[pl.DataType], Kind] = {
        pl.Boolean: "boolean",
        pl.Date: "date",
        pl.Datetime: "date",
        pl.Duration: "duration",
        pl.Time: "time",
        pl.String: "text",
        pl.Categorical: "text",
        pl.Enum: "text",
        pl.Null: "number",
    }
    return kinds.get(type(dtype))


def of_kinds(
    frame: pl.DataFrame, kinds: Mapping[str, Kind], notations: Mapping[str, Notation] | None = None
) -> pl.DataFrame:
    """Select columns by name; raise if one does not exist or has a value of another kind.

    Numbers, dates and booleans in text are read as `notations` say, by default as most files have them.
    """
    schema, changes = frame.schema, []
    for name, kind in kinds.items():
        if name not in schema:
            raise TableError(
                f"The table has no column {quoted(name)}, which the model needs ({NAMES[kind]})."
            )
        if kind_of(schema[name]) == kind:
            if kind == "text":
                changes.append(frame[name].cast(pl.String))
        elif frame[name].null_count() == len(frame):
            changes.append(pl.Series(name, dtype=EMPTY[kind]).extend_constant(None, len(frame)))
        elif kind_of(schema[name]) == "text" and kind in WRITTEN:
            notation = (notations or {}).get(name)
            values = _read(frame[name], kind, notation)
            wrong = _unreadable(frame[name], values, notation)
            if wrong.any():
                row = int(wrong.arg_true()[0])
                form = notation.describe() if notation is not None else ""
                expected = NAMES[kind] + (f" ({form})" if form else "")
                raise CellError(name, row, str(frame[name][row]), f"{expected}, as in training")
            changes.append(values)
        else:
            raise TableError(
                f"The column {quoted(name)} must hold {NAMES[kind]}, as in training. Got "
                f"{excerpt(str(schema[name]))}."
            )
    return frame.select(by_name(*kinds)).with_columns(changes)


def unreadable_rows(
    frame: pl.DataFrame, kinds: Mapping[str, Kind], notations: Mapping[str, Notation]
) -> pl.Series:
    """Which rows have a value that `of_kinds` would raise for."""
    wrong = pl.repeat(False, len(frame), eager=True)
    for name, kind in kinds.items():
        if name in frame.columns and kind_of(frame.schema[name]) == "text" and kind in WRITTEN:
            notation = notations.get(name)
            wrong |= _unreadable(frame[name], _read(frame[name], kind, notation), notation)
    return wrong


def as_written(frame: pl.DataFrame, notations: Mapping[str, Notation]) -> pl.DataFrame:
    """The frame with columns of text read as their notations say; null for what cannot be read."""
    return frame.with_columns(
        notation.read(frame[name]) for name, notation in notations.items() if name in frame.columns
    )


def _read(text: pl.Series, kind: Kind, notation: Notation | None) -> pl.Series:
    """Values in text, null where there are none and where they are not of this kind."""
    if kind == "boolean":
        words = stripped(text).str.to_lowercase()
        return words.replace_strict(
            {"true": True, "false": False}, default=None, return_dtype=pl.Boolean
        )
    if notation is not None:
        return notation.read(text)
    if kind == "number":
        return PLAIN_NUMBERS.read(text)
    bare = stripped(text)
    frame = pl.DataFrame([read_dates(bare, form).alias(form) for form in PLAIN_DATES])
    return frame.select(pl.coalesce(by_name(*PLAIN_DATES))).to_series().alias(text.name)


def _unreadable(text: pl.Series, values: pl.Series, notation: Notation | None) -> pl.Series:
    if notation is not None and notation.others_missing:
        return pl.repeat(False, len(text), eager=True)
    return values.is_null() & ~has_no_value(stripped(text))


def to_numbers(frame: pl.DataFrame, kinds: Mapping[str, Kind]) -> NDArray[Any]:
    """Columns as numbers, (m, p), dates and times in days; NaN for what float32 cannot hold.

    Only columns that need a conversion are converted one by one, since there may be very many others.
    """
    if not kinds:  # a frame without columns has no rows
        return np.empty((len(frame), 0), np.float32)
    schema, changes = frame.schema, []
    for name, kind in kinds.items():
        column = frame[name]
        if kind == "boolean":
            changes.append(column.cast(pl.UInt8))
        elif kind == "date":
            changes.append(column.dt.epoch("us") / DAY)
        elif kind == "duration":
            changes.append(column.dt.total_microseconds() / DAY)
        elif kind == "time":
            changes.append(column.to_physical() / (1_000 * DAY))
        elif schema[name] in NOT_IN_NUMPY:
            changes.append(column.cast(pl.Float64))
    A = frame.select(by_name(*kinds)).with_columns(changes).to_numpy()  # (m, p)
    if A.dtype.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):  # a NaN may be a signalling one
            odd = ~np.isfinite(A.astype(np.float32))
        if odd.any():
            A = np.where(odd, np.nan, A)
    return A


def is_known(values: pl.Series) -> pl.Series:
    """Which values are neither missing nor infinite."""
    return values.is_finite().fill_null(False) if values.dtype.is_float() else values.is_not_null()


def known(values: pl.Series) -> pl.Series:
    """The values that are neither missing nor infinite."""
    return values.filter(is_known(values))
