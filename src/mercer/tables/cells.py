"""Cells as Python values, and the typed columns that they make."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import Any

import polars as pl

# Whole numbers that are smaller fit into 64 bits.
WHOLE_NUMBERS = 2**63
# Columns whose cells are all of these types have the type on the right; all others are text.
COLUMN_TYPES: tuple[tuple[set[type], pl.DataType], ...] = (
    ({bool}, pl.Boolean()),
    ({int}, pl.Int64()),
    ({int, float}, pl.Float64()),
    ({datetime.date}, pl.Date()),
    ({datetime.date, datetime.datetime}, pl.Datetime("us")),
    ({datetime.time}, pl.Time()),
    ({datetime.timedelta}, pl.Duration("us")),
)


class ColumnType:
    """Finds the type of a column from its cells."""

    def __init__(self) -> None:
        self.found: set[type] = set()

    def add(self, cell: Any) -> None:
        if cell is None or cell == "":
            return
        is_huge = type(cell) is int and not -WHOLE_NUMBERS <= cell < WHOLE_NUMBERS
        self.found.add(float if is_huge else type(cell))

    @property
    def dtype(self) -> pl.DataType:
        if not self.found:
            return pl.Float64()
        return next((dtype for types, dtype in COLUMN_TYPES if self.found <= types), pl.String())


def column(name: str, cells: Sequence[Any], dtype: pl.DataType) -> pl.Series:
    """Cells as a column of this type, which fits them all; None and empty text are missing values."""
    known: list[Any] = [None if cell == "" else cell for cell in cells]
    if dtype == pl.String():
        known = [None if cell is None else as_text(cell) for cell in known]
    elif dtype == pl.Float64():
        known = [None if cell is None else float(cell) for cell in known]
    elif dtype == pl.Datetime("us"):
        midnight = datetime.time()
        known = [
            datetime.datetime.combine(cell, midnight) if type(cell) is datetime.date else cell
            for cell in known
        ]
    return pl.Series(name, known, dtype)


def as_text(cell: Any) -> str:
    """A cell among others that are text.

    >>> as_text(12.0), as_text(True), as_text(datetime.date(2024, 1, 2))
    ('12', 'true', '2024-01-02')
    """
    if isinstance(cell, str):
        return cell
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    if isinstance(cell, (datetime.date, datetime.time)):
        return cell.isoformat()
    if isinstance(cell, (bool, list, dict)):
        return json.dumps(cell)
    return str(cell)
