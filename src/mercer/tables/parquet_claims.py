"""What a Parquet file claims: rows, values and sizes of pages, checked before Polars reads it.

Polars allocates what the header of a page says, and a process cannot recover from an allocation that
fails.  The footer and the headers of the pages are structures of Thrift's compact protocol: a byte with
the type and the number of each field, integers of seven bits a byte, the zero byte at the end.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from mercer.tables.bounds import Allowance
from mercer.tables.errors import TableError

Record = dict[int, Any]  # values by the number of their field

TRUE, FALSE, BYTE, SHORT, INT, LONG, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
# Numbers of fields in parquet.thrift.
ROW_GROUPS = 4  # of the footer
COLUMNS, GROUP_ROWS = 1, 3  # of a row group
METADATA = 3  # of a column
VALUES, DATA_PLACE, DICTIONARY_PLACE = 5, 9, 11  # of a column's metadata
UNPACKED, PACKED, DATA_PAGE, DATA_PAGE_2 = 2, 3, 5, 8  # of a page's header
PAGE_VALUES = 1  # of the two kinds of data pages
TAIL = struct.Struct("<I4s")  # the length of the footer, and the magic bytes
# What a structure that is cut short, or has other fields than it should, leads to.
DAMAGED = (IndexError, KeyError, ValueError, TypeError, AttributeError, RecursionError, struct.error)


def check_parquet(file: Path, allowance: Allowance) -> None:
    """Raise if the rows or pages of a file claim too much, or contradict one another."""
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            values, unpacked = _claims(data)
        except DAMAGED as error:
            raise TableError(
                f"{allowance.name} cannot be read: it is damaged, or not a Parquet file."
            ) from error
    allowance.check_pieces(values, unpacked)


def _claims(data: mmap.mmap) -> tuple[int, int]:
    """The values and the unpacked bytes of all pages."""
    size, _ = TAIL.unpack(data[-TAIL.size :])
    footer, _ = _read_struct(data, _inside(len(data) - TAIL.size - size, data))
    values = unpacked = 0
    for group in footer[ROW_GROUPS]:
        for column in group[COLUMNS]:
            metadata = column[METADATA]
            place, total, seen = (
                metadata.get(DICTIONARY_PLACE, metadata[DATA_PLACE]),
                metadata[VALUES],
                0,
            )
            values += max(total, group[GROUP_ROWS])
            while seen < total:
                header, place = _read_struct(data, _inside(place, data))
                page = header.get(DATA_PAGE) or header.get(DATA_PAGE_2)
                count = page[PAGE_VALUES] if page else 0
                if (
                    min(count, header[UNPACKED], header[PACKED], group[GROUP_ROWS]) < 0
                    or seen + count > total
                ):
                    raise ValueError("the header of a page is wrong")
                seen += count
                unpacked += header[UNPACKED]
                place += header[PACKED]
    return values, unpacked


def _inside(place: int, data: mmap.mmap) -> int:
    if not 0 <= place < len(data):
        raise IndexError("a place outside of the file")
    return place


def _read_struct(data: mmap.mmap, place: int) -> tuple[Record, int]:
    """A structure, and where it ends."""
    record: Record = {}
    number = 0
    while (head := data[place]) != 0:
        place += 1
        if head >> 4:
            number += head >> 4
        else:
            number, place = _read_integer(data, place)
        record[number], place = _read_value(data, place, head & 0x0F)
    return record, place + 1


def _read_value(data: mmap.mmap, place: int, kind: int, in_list: bool = False) -> tuple[Any, int]:
    if kind in (TRUE, FALSE):  # in a structure, the type is the value
        return kind == TRUE, _inside(place + in_list, data)
    if kind == BYTE:
        return data[place], place + 1
    if kind in (SHORT, INT, LONG):
        return _read_integer(data, place)
    if kind == DOUBLE:
        return None, _inside(place + 8, data)
    if kind == BINARY:
        length, place = _read_unsigned(data, place)
        return None, _inside(place + length, data)
    if kind in (LIST, SET):
        head, place = data[place], place + 1
        count = head >> 4
        if count == 0x0F:
            count, place = _read_unsigned(data, place)
        items = []
        for _ in range(count):
            item, place = _read_value(data, place, head & 0x0F, in_list=True)
            items.append(item)
        return items, place
    if kind == STRUCT:
        return _read_struct(data, place)
    raise ValueError("Parquet has no maps")


def _read_unsigned(data: mmap.mmap, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
        if shift > 63:
            raise ValueError("an integer of more than 64 bits")


def _read_integer(data: mmap.mmap, place: int) -> tuple[int, int]:
    value, place = _read_unsigned(data, place)
    return (value >> 1) ^ -(value & 1), place  # signs alternate
