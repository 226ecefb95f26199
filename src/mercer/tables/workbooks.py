"""Excel workbooks (.xlsx): one sheet is a table."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import polars as pl

from mercer.tables.bounds import Allowance
from mercer.tables.cells import ColumnType, as_text, column
from mercer.tables.columnar import from_polars
from mercer.tables.errors import TableError
from mercer.tables.layout import Layout
from mercer.tables.names import about_repeated, numbered
from mercer.tables.table import Contents
from mercer.tables.temporary import TemporaryFiles
from mercer.tables.wording import listed, meant, quoted

NEEDS_EXCEL = "Excel files need an extra package. Install it with pip install 'mercer[excel]'."
CELL = re.compile(rb"<(?:\w+:)?c(?: [^>]*?r=\"([A-Z]{1,3})(\d{1,7})\")?[ >/]")
ROW = re.compile(rb"<(?:\w+:)?row[ >/]")
SHARED = re.compile(rb"<(?:\w+:)?si[ >/]")


def workbook(
    file: Path,
    text: Collection[str],
    allowance: Allowance,
    layout: Layout,
    temporary: TemporaryFiles,
) -> Contents:
    """The cells of a sheet from the first row that has any; that row has the names."""
    try:
        from python_calamine import CalamineWorkbook
    except ImportError as error:
        raise TableError(f"{allowance.name} cannot be read: {NEEDS_EXCEL}") from error
    checked = _checked(file, allowance, temporary)
    try:
        book = CalamineWorkbook.from_path(str(checked))
        sheet, notes = _chosen(book.sheet_names, layout.sheet, allowance.name)
        rows = book.get_sheet_by_name(sheet).to_python(skip_empty_area=True)
    except TableError:
        raise
    except BaseException as error:  # a panic of the reader is no Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit, MemoryError)):
            raise
        raise TableError(f"{allowance.name} cannot be read: it is a damaged Excel file.") from error
    rows = [row for row in rows if any(cell != "" for cell in row)]
    if not rows:
        raise TableError(f"The sheet {quoted(sheet)} of {allowance.name} is empty.")
    has_header = layout.header
    if has_header is None:
        has_header = not all(isinstance(cell, (int, float)) for cell in rows[0])
    cells = rows[1:] if has_header else rows
    width = max(map(len, rows))
    given = [_name(rows[0], i) if has_header else f"x{i}" for i in range(width)]
    names, repeated = numbered(given)
    frame = pl.DataFrame(
        [_column(name, [row[i] for row in cells], name in text) for i, name in enumerate(names)]
    )
    empty = [
        name
        for i, name in enumerate(names)
        if (not has_header or rows[0][i] == "") and frame[name].null_count() == len(frame)
    ]
    frame = frame.drop(empty)
    contents = from_polars(frame.lazy(), len(frame), allowance)
    return contents._replace(notes=(*notes, *about_repeated(repeated)), repeated=repeated)


def _chosen(names: list[str], wanted: str | None, file: str) -> tuple[str, tuple[str, ...]]:
    """The name of a sheet, and a note if there are several to choose from."""
    if not names:
        raise TableError(f"{file} has no sheets.")
    if wanted is None:
        note = f"read the sheet {quoted(names[0])}, the first of {len(names)}; --sheet names another"
        return names[0], (note,) if len(names) > 1 else ()
    if wanted not in names:
        raise TableError(
            f"{file} has no sheet {quoted(wanted)}. {meant(wanted, names)}Its sheets are "
            f"{listed(names)}."
        )
    return wanted, ()


def _name(header: list[Any], place: int) -> str:
    name = as_text(header[place]).strip()
    return name or f"column {place + 1}"


def _column(name: str, cells: list[Any], is_text: bool) -> pl.Series:
    """A column of cells; all numbers of Excel are floats, whole ones too."""
    whole = [int(c) if type(c) is float and c.is_integer() else c for c in cells]
    found = ColumnType()
    for cell in whole:
        found.add(cell)
    return column(name, whole, pl.String() if is_text else found.dtype)


def _checked(file: Path, allowance: Allowance, temporary: TemporaryFiles) -> Path:
    """A copy that has only what it declares: the reader unpacks all, and has every cell in between."""
    copy = temporary.path("workbook.xlsx")
    with zipfile.ZipFile(file) as archive, zipfile.ZipFile(copy, "w") as plain:
        members = archive.infolist()
        allowance.check_unpacked(sum(member.file_size for member in members))
        longest = 0
        sheets = []
        for member in members:
            data = archive.read(member)
            if member.filename.endswith("sharedStrings.xml"):
                longest = max(map(len, SHARED.split(data)))
            if "worksheets/" in member.filename and member.filename.endswith(".xml"):
                sheets.append(data)
            plain.writestr(member.filename, data)
    for data in sheets:
        _check_sheet(data, longest, allowance)
    return copy


def _check_sheet(data: bytes, longest: int, allowance: Allowance) -> None:
    """Raise if the cells of a sheet, and the empty ones between them, take too much memory."""
    cells = CELL.findall(data)
    last_row = max((int(row) for _, row in cells if row), default=0)
    last_column = max((_number(letters) for letters, _ in cells if letters), default=0)
    parts = ROW.split(data)
    widest = max(len(CELL.findall(part)) for part in parts) if last_column == 0 else 0
    allowance.check_table(max(last_row, len(parts) - 1), max(last_column, widest))
    allowance.check_pieces(len(cells), len(cells) * longest)


def _number(letters: bytes) -> int:
    """
    >>> _number(b"A"), _number(b"AA"), _number(b"XFD")
    (1, 27, 16384)
    """
    number = 0
    for letter in letters:
        number = 26 * number + letter - ord("A") + 1
    return number
