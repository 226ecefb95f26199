"""Kinds of columns, and their values as numbers.

Types of Polars are known by name, so that a model file can be read and a matrix prepared without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from mercer.tables.errors import CellError, TableError
from mercer.tables.notation import (
    PLAIN_DATES,
    PLAIN_NUMBERS,
    Notation,
    has_no_value,
    read_dates,
    stripped,
)
from mercer.tables.wording import excerpt, quoted, similar

if TYPE_CHECKING:
    import polars as pl

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
# The kinds of all types that are not numeric.
KINDS_OF_TYPES: dict[str, Kind] = {
    "Boolean": "boolean",
    "Date": "date",
    "Datetime": "date",
    "Duration": "duration",
    "Time": "time",
    "String": "text",
    "Categorical": "text",
    "Enum": "text",
    "Null": "number",
}
# Kinds of values that can be read from text.
WRITTEN: tuple[Kind, ...] = ("number", "date", "boolean")
# The type given to a column without any value, whose own type says nothing.
EMPTY: dict[Kind, str] = {
    "number": "Float64",
    "boolean": "Boolean",
    "date": "Datetime",
    "duration": "Duration",
    "time": "Time",
    "text": "String",
}
NOT_IN_NUMPY = ("Decimal", "Int128", "UInt128", "Null")


def kind_of(dtype: pl.DataType) -> Kind | None:
    """The kind of a Polars type; None for lists, structures and other types without single values."""
    return "number" if dtype.is_numeric() else KINDS_OF_TYPES.get(type(dtype).__name__)


def of_kinds(
    frame: pl.DataFrame, kinds: Mapping[str, Kind], notations: Mapping[str, Notation] | None = None
) -> pl.DataFrame:
    """Select columns by name; raise if one does not exist or has a value of another kind.

    Numbers, dates and booleans in text are read as `notations` say, by default as most files have them.
    """
    import polars as pl

    schema, changes = frame.schema, []
    for name, kind in kinds.items():
        if name not in schema:
            raise no_column(name, kind, list(schema))
        if kind_of(schema[name]) == kind:
            if kind == "text":
                changes.append(frame[name].cast(pl.String))
        elif frame[name].null_count() == len(frame):
            changes.append(
                pl.Series(name, dtype=getattr(pl, EMPTY[kind])).extend_constant(None, len(frame))
            )
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
    return _selected(frame, kinds, changes)


def no_column(name: str, kind: Kind, names: Sequence[str]) -> TableError:
    """The error for a column that a table with these names does not have."""
    return TableError(
        f"The table has no column {quoted(name)}, which the model needs ({NAMES[kind]})."
        f"{similar(name, names)}"
    )


def unreadable_rows(
    frame: pl.DataFrame, kinds: Mapping[str, Kind], notations: Mapping[str, Notation]
) -> pl.Series:
    """Which rows have a value that `of_kinds` would raise for."""
    import polars as pl

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
    import polars as pl

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
    return frame.select(pl.coalesce(*PLAIN_DATES)).to_series().alias(text.name)


def _unreadable(text: pl.Series, values: pl.Series, notation: Notation | None) -> pl.Series:
    import polars as pl

    if notation is not None and notation.others_missing:
        return pl.repeat(False, len(text), eager=True)
    return values.is_null() & ~has_no_value(stripped(text))


def to_numbers(frame: pl.DataFrame, kinds: Mapping[str, Kind]) -> NDArray[Any]:
    """Columns as numbers, (m, p), dates and times in days; NaN for what float32 cannot hold.

    Only columns that need a conversion are converted one by one, since there may be very many others.
    """
    import polars as pl

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
        elif type(schema[name]).__name__ in NOT_IN_NUMPY:
            changes.append(column.cast(pl.Float64))
    A = _selected(frame, kinds, changes).to_numpy()  # (m, p)
    if A.dtype.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):  # a NaN may be a signalling one
            odd = ~np.isfinite(A.astype(np.float32))
        if odd.any():
            A = np.where(odd, np.nan, A)
    return A


def _selected(
    frame: pl.DataFrame, names: Mapping[str, Kind], changes: Sequence[pl.Series]
) -> pl.DataFrame:
    """Columns by name, some of them replaced; without expressions, which take long for a single row."""
    found = frame[list(names)]
    place = {name: i for i, name in enumerate(names)} if changes else {}
    for series in changes:
        found.replace_column(place[series.name], series)
    return found


def is_known(values: pl.Series) -> pl.Series:
    """Which values are neither missing nor infinite."""
    return values.is_finite().fill_null(False) if values.dtype.is_float() else values.is_not_null()


def known(values: pl.Series) -> pl.Series:
    """The values that are neither missing nor infinite."""
    return values.filter(is_known(values))
