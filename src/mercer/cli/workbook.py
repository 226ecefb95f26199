"""Predictions as an Excel workbook with one sheet."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import date, datetime
from pathlib import Path
from typing import Any

import polars as pl

from mercer.tables.errors import TableError

MOST_EXCEL_ROWS = 1 << 20  # with the names of the columns
# Text is never taken for a formula, a link or a number.
AS_IT_IS = {f"strings_to_{other}": False for other in ("formulas", "urls", "numbers")}


def write_workbook(frames: Iterable[pl.DataFrame], path: Path) -> tuple[str, ...]:
    """Write a table part by part; only one row is in memory."""
    import xlsxwriter

    names: tuple[str, ...] = ()
    row = 0
    options = {"constant_memory": True, "tmpdir": str(path.parent), **AS_IT_IS}
    with xlsxwriter.Workbook(str(path), options) as book:
        sheet = book.add_worksheet("predictions")
        form = {
            datetime: book.add_format({"num_format": "yyyy-mm-dd hh:mm:ss"}),
            date: book.add_format({"num_format": "yyyy-mm-dd"}),
        }
        for frame in frames:
            if not names:
                names = tuple(frame.columns)
                sheet.write_row(0, 0, names, book.add_format({"bold": True}))
                sheet.freeze_panes(1, 0)
            if row + len(frame) >= MOST_EXCEL_ROWS:
                raise TableError(
                    f"An Excel file has at most {MOST_EXCEL_ROWS - 1:,} rows below the names. Write a "
                    "CSV or Parquet file."
                )
            for values in frame.iter_rows():
                row += 1
                for place, value in enumerate(values):
                    _write_cell(sheet, row, place, value, form.get(type(value)))
    return names


def _write_cell(sheet: Any, row: int, place: int, value: Any, form: Any) -> None:
    if isinstance(value, datetime):  # Excel has no time zones
        sheet.write_datetime(row, place, value.replace(tzinfo=None), form)
    elif isinstance(value, date):
        sheet.write_datetime(row, place, value, form)
    elif value is None or (isinstance(value, float) and not math.isfinite(value)):
        sheet.write_blank(row, place, None)
    elif isinstance(value, bool):
        sheet.write_boolean(row, place, value)
    elif isinstance(value, (int, float)):
        sheet.write_number(row, place, value)
    else:
        sheet.write_string(row, place, str(value))
