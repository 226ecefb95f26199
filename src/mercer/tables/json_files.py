"""JSON lines, and JSON with an array of records or with columns."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import polars as pl

from mercer.tables.bounds import Allowance
from mercer.tables.cells import ColumnType, column
from mercer.tables.errors import TableError
from mercer.tables.table import Contents
from mercer.tables.temporary import JoinedLines, TemporaryFiles

Record = dict[str, Any]


def json_table(
    file: Path, text: Collection[str], allowance: Allowance, temporary: TemporaryFiles
) -> Contents:
    """The records of a file: JSON lines are read a chunk at a time; other JSON becomes lines first."""
    if not _has_lines(file):
        lines = (json.dumps(record).encode() + b"\n" for record in _records(file, allowance.name))
        file = temporary.copy(JoinedLines(lines), "records")
    types: dict[str, ColumnType] = {}
    n_rows = 0
    for record in _parsed(file, allowance.name):
        n_rows += 1
        for name, cell in record.items():
            if name not in types:
                types[name] = ColumnType()
                allowance.check_columns(len(types))
            types[name].add(cell)
    allowance.check_table(n_rows, len(types))
    dtypes = {name: pl.String() if name in text else found.dtype for name, found in types.items()}

    def read(columns: tuple[str, ...], rows: int) -> Iterator[pl.DataFrame]:
        records = _parsed(file, allowance.name)
        while chunk := list(itertools.islice(records, rows)):
            yield pl.DataFrame(
                [column(name, [record.get(name) for record in chunk], dtypes[name]) for name in columns]
            )

    return Contents(tuple(types), n_rows, read)


def _has_lines(file: Path) -> bool:
    """Whether the first line is a whole record; a single line may also be the whole table."""
    with file.open("rb") as stream:
        lines = filter(bytes.strip, stream)
        first, second = next(lines, b""), next(lines, b"")
    try:
        record = json.loads(first)
    except ValueError:
        return False
    is_table = not second and isinstance(record, dict) and (_is_columns(record) or _tables(record))
    return isinstance(record, dict) and not is_table


def _parsed(file: Path, name: str) -> Iterator[Record]:
    with file.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if not isinstance(record, dict):
                raise TableError(f"{name} cannot be read: line {number:,} is not an object in JSON.")
            yield record


def _records(file: Path, name: str) -> Iterable[Record]:
    """The records of JSON that is not in lines."""
    try:
        found = json.loads(file.read_bytes())
    except json.JSONDecodeError as error:
        raise TableError(
            f"{name} cannot be read: it is not JSON at line {error.lineno:,}, column {error.colno:,}."
        ) from error
    if isinstance(found, dict):
        if _is_columns(found):
            return _rows_of(found)
        found = next(iter(_tables(found)), found)
    if isinstance(found, list) and all(isinstance(record, dict) for record in found):
        return found
    raise TableError(
        f"{name} has no table: it must be an array of objects, an object of columns, or one object in "
        "each line."
    )


def _tables(found: Record) -> list[list[Record]]:
    """The arrays of objects in an object."""
    lists = (value for value in found.values() if isinstance(value, list) and value)
    return [value for value in lists if all(isinstance(one, dict) for one in value)]


def _is_columns(found: Record) -> bool:
    """Whether an object has columns: arrays, or objects by the number of the row as pandas writes."""
    values = list(found.values())
    arrays = all(isinstance(value, list) for value in values)
    if arrays and len(values) == 1 and all(isinstance(one, dict) for one in values[0]):
        return False  # records with a name
    by_row = all(isinstance(value, dict) and value.keys() == values[0].keys() for value in values)
    same = arrays and len({len(value) for value in values}) == 1
    return bool(values) and (same or (by_row and bool(values[0])))


def _rows_of(columns: Record) -> Iterator[Record]:
    lists = [list(v.values()) if isinstance(v, dict) else v for v in columns.values()]
    for row in zip(*lists, strict=True):
        yield dict(zip(columns, row, strict=True))
