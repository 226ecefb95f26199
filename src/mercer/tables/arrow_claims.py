"""What an Arrow file or stream claims: rows and sizes of buffers, checked before Polars reads it.

Polars allocates what a compressed buffer says that it unpacks to, and a process cannot recover from an
allocation that fails.  Batches are described by tables of FlatBuffers: a table begins with the distance
to its list of fields, which gives the place of each field relative to the table.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mercer.tables.bounds import Allowance
from mercer.tables.errors import TableError

MAGIC_BYTES = 6  # ARROW1, at the end of a file
CONTINUED = 0xFFFFFFFF  # before the length of a message
# Types of messages, and numbers of fields in Message.fbs and File.fbs.
DICTIONARY_BATCH, RECORD_BATCH = 2, 3
HEADER_TYPE, HEADER, BODY_LENGTH = 1, 2, 3  # of a message
NODES, BUFFERS, COMPRESSION = 1, 2, 3  # of a batch of records
DICTIONARY_DATA = 1  # of a batch of a dictionary
DICTIONARIES, RECORDS = 2, 3  # of the footer
NODE, BUFFER, BLOCK = struct.Struct("<qq"), struct.Struct("<qq"), struct.Struct("<qi4xq")


@dataclass(frozen=True)
class _Table:
    data: mmap.mmap
    place: int

    def field(self, number: int) -> int | None:
        """The place of a field; None if the table does not have it."""
        fields = self.place - _integer(self.data, "<i", self.place)
        inside = 4 + 2 * number
        if inside >= _integer(self.data, "<H", fields):
            return None
        distance = _integer(self.data, "<H", fields + inside)
        return self.place + distance if distance else None

    def number(self, number: int, kind: str) -> int:
        place = self.field(number)
        return 0 if place is None else _integer(self.data, kind, place)

    def table(self, number: int) -> _Table | None:
        place = self.field(number)
        return None if place is None else _Table(self.data, place + _integer(self.data, "<I", place))

    def records(self, number: int, record: struct.Struct) -> Iterator[tuple[Any, ...]]:
        """The elements of a vector of structures."""
        place = self.field(number)
        if place is None:
            return iter(())
        start = place + _integer(self.data, "<I", place)
        count = _integer(self.data, "<I", start)
        if start + 4 + count * record.size > len(self.data):
            raise ValueError("a vector beyond the end of the file")
        return record.iter_unpack(self.data[start + 4 : start + 4 + count * record.size])


def check_arrow(file: Path, allowance: Allowance, is_stream: bool) -> None:
    """Raise if the batches of a file claim too much, or lie outside of it."""
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        values = unpacked = 0
        try:
            for message, body in _stream(data) if is_stream else _file(data):
                more = _claims(message, body)
                values, unpacked = values + more[0], unpacked + more[1]
        except (struct.error, ValueError) as error:
            raise TableError(
                f"{allowance.name} cannot be read: it is damaged, or not an Arrow file."
            ) from error
    allowance.check_pieces(values, unpacked)


def _stream(data: mmap.mmap) -> Iterator[tuple[_Table, int]]:
    """Each message of a stream, and where its body begins."""
    place = 0
    while place < len(data):
        message, body = _message(data, place)
        if message is None:
            return
        yield message, body
        place = body + _positive(message.number(BODY_LENGTH, "<q"))


def _file(data: mmap.mmap) -> Iterator[tuple[_Table, int]]:
    """Each batch that the footer of a file lists, and where its body begins."""
    end = len(data) - MAGIC_BYTES - 4
    start = end - _positive(_integer(data, "<i", end))
    footer = _Table(data, start + _integer(data, "<I", start))
    for number in (DICTIONARIES, RECORDS):
        for place, length, _ in footer.records(number, BLOCK):
            message, _ = _message(data, place)
            if message is not None:
                yield message, place + length


def _message(data: mmap.mmap, place: int) -> tuple[_Table | None, int]:
    """The message at a place, None at the end of a stream, and where its body begins."""
    length = _integer(data, "<I", place)
    place += 4
    if length == CONTINUED:
        length, place = _integer(data, "<I", place), place + 4
    return (_Table(data, place + _integer(data, "<I", place)) if length else None), place + length


def _claims(message: _Table, body: int) -> tuple[int, int]:
    """The values and the unpacked bytes of a message."""
    kind, batch = message.number(HEADER_TYPE, "<B"), message.table(HEADER)
    if batch is not None and kind == DICTIONARY_BATCH:
        batch = batch.table(DICTIONARY_DATA)
    if batch is None or kind not in (DICTIONARY_BATCH, RECORD_BATCH):
        return 0, 0
    values = sum(_positive(length) for length, _ in batch.records(NODES, NODE))
    packed = batch.field(COMPRESSION) is not None
    unpacked = 0
    for place, length in batch.records(BUFFERS, BUFFER):
        if min(body, place, length) < 0 or body + place + length > len(message.data):
            raise ValueError("a buffer beyond the end of the file")
        # A compressed buffer begins with its unpacked length; -1 means that it is not compressed.
        if packed and length >= 8:
            unpacked += max(0, _integer(message.data, "<q", body + place))
    return values, unpacked


def _integer(data: mmap.mmap, kind: str, place: int) -> int:
    return int(struct.unpack_from(kind, data, _positive(place))[0])


def _positive(number: int) -> int:
    if number < 0:
        raise ValueError("a negative place or length")
    return number
