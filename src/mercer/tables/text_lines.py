"""The lines of a text file before they are parsed: their encoding, comments, and numbers of fields."""

from __future__ import annotations

import codecs
import csv
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from mercer.tables.errors import TableError
from mercer.tables.temporary import JoinedLines, TemporaryFiles

UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
SEPARATORS = ",\t;|"
COMMENT = b"#"
# Lines that are searched for a fault, which takes some seconds.
MOST_LINES_SEARCHED = 5_000_000
# Bytes read at a time to count lines.
LINE_BLOCK = 1 << 20
QUOTE, NEW_LINE = b'"'[0], b"\n"[0]


class Lines(NamedTuple):
    """What a fast look at all lines has found; `"` is taken for a quote wherever it is."""

    n_lines: int
    has_comments: bool  # some begin with the mark of comments
    are_even: bool  # all records but blank ones have as many separators as the first


def in_utf8(
    file: Path, head: bytes, encoding: str | None, name: str, temporary: TemporaryFiles
) -> tuple[Path, str | None]:
    """The text in UTF-8, and the encoding that it had, if it was another one."""
    if encoding is None and head.startswith(UTF_16):
        encoding = "utf-16"
    if encoding is None or codecs.lookup(encoding).name == "utf-8":
        return file, None
    with file.open("rb") as stream:
        try:
            return temporary.copy(codecs.EncodedFile(stream, "utf-8", encoding), "decoded"), encoding
        except UnicodeError as error:
            raise TableError(
                f"{name} cannot be read: its text is not encoded in {encoding}. Use another --encoding."
            ) from error


def look(stream: BinaryIO, separator: str) -> Lines:
    """Count lines and compare their numbers of separators, some hundred megabytes a second."""
    count, comments, even = 0, False, True
    expected: int | None = None
    inside, before, length, at_start = 0, 0, 0, True  # of the record that goes on from the last block
    for block in iter(lambda: stream.read(LINE_BLOCK), b""):
        a = np.frombuffer(block, np.uint8)
        new_lines = a == NEW_LINE
        count += int(np.count_nonzero(new_lines))
        starts = np.flatnonzero(new_lines[:-1]) + 1
        comments |= bool((a[starts] == COMMENT[0]).any()) or (at_start and a[0] == COMMENT[0])
        at_start = bool(new_lines[-1])
        if not even:
            continue
        marks = a == ord(separator)
        if inside or bytes([QUOTE]) in block:
            outside = (np.cumsum(a == QUOTE) + inside) % 2 == 0
            inside = int(not outside[-1])
            new_lines &= outside
            marks &= outside
        ends, places = np.flatnonzero(new_lines), np.flatnonzero(marks)
        if len(ends):
            totals = np.searchsorted(places, ends)  # separators before each end
            fields = np.diff(totals, prepend=-before)
            lengths = np.diff(ends, prepend=-1 - length)
            expected = int(fields[0]) if expected is None else expected
            even = bool(((fields == expected) | (lengths <= len("\r\n"))).all())
            before, length = len(places) - int(totals[-1]), len(a) - 1 - int(ends[-1])
        else:
            before, length = before + len(places), length + len(a)
    if length and expected is not None:  # a last line without an end
        even = even and before == expected
    return Lines(count, comments, even)


class NewLines:
    """A stream with new lines in place of carriage returns."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream

    def read(self, size: int, /) -> bytes:
        return self.stream.read(size).replace(b"\r", b"\n")


def with_new_lines(file: Path, temporary: TemporaryFiles) -> Path:
    """A copy of a file whose lines end with a carriage return alone, with usual ends."""
    with file.open("rb") as stream:
        return temporary.copy(NewLines(stream), "ended")


def without_first_line(file: Path, temporary: TemporaryFiles) -> Path:
    """A copy without the first line."""
    with file.open("rb") as stream:
        stream.readline()
        return temporary.copy(stream, "shortened")


def without_comments(
    file: Path, separator: str, temporary: TemporaryFiles
) -> tuple[Path, tuple[int, ...]]:
    """A copy without lines of comments, and their numbers from 1.

    Lines that begin with #, outside of quotes, are comments if they are the first of the file or have
    other fields than the data.  The last one before the data may be the header.
    """
    above, data = 0, b""
    with file.open("rb") as stream:
        header = b""
        for data in stream:
            if not data.startswith(COMMENT):
                break
            above, header = above + 1, data
    width, removed = _width(data, separator), []
    has_header = above > 0 and _is_header(header, data, separator)

    def kept() -> Iterator[bytes]:
        inside = False
        with file.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                if number == above and has_header:
                    yield line.removeprefix(COMMENT + b" ")
                    continue
                is_first = number <= above
                is_odd = not inside and line.startswith(COMMENT) and _width(line, separator) != width
                if is_first or is_odd:
                    removed.append(number)
                    continue
                inside ^= line.count(b'"') % 2 == 1
                yield line

    copy = temporary.copy(JoinedLines(kept()), "uncommented")
    return copy, tuple(removed)


def _is_header(line: bytes, data: bytes, separator: str) -> bool:
    """Whether a line that begins with # names the columns of the data below it.

    A comment in words has a blank after the #, and so has a header that numpy.savetxt writes; numbers
    follow a header.
    """
    if _width(line, separator) != _width(data, separator):
        return False
    fields = data.strip().split(separator.encode())
    return not line.startswith(COMMENT + b" ") or any(map(is_number, fields))


def is_number(text: str | bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def first_fault(stream: BinaryIO, separator: str, removed: tuple[int, ...] = ()) -> str | None:
    """What is wrong with the first line that cannot be split into fields, if there is one.

    Lines are counted with those that were `removed`.
    """

    def numbered(line: int) -> str:
        for number in removed:
            line += number <= line
        return f"line {line:,}"

    lines = itertools.islice(stream, MOST_LINES_SEARCHED)
    records = csv.reader((line.decode("utf-8-sig") for line in lines), delimiter=separator, strict=True)
    width, begin = None, 1
    try:
        for fields in records:
            width = len(fields) if width is None else width
            if fields and len(fields) != width:
                wrong = "ends early" if len(fields) < width else "goes on after the last column"
                return (
                    f"{numbered(begin)} has {len(fields):,} field{'' if len(fields) == 1 else 's'}, "
                    f"and the first line has {width:,}; it {wrong}, or has a separator too few or "
                    "too many"
                )
            begin = records.line_num + 1
    except csv.Error:
        line = numbered(begin)
        return f"a quote in {line} is never closed, or is followed by more than a separator"
    except UnicodeDecodeError:
        line = numbered(records.line_num + 1)
        return f"{line} is not UTF-8; name its encoding with --encoding, such as latin-1"
    return None


def _width(line: bytes, separator: str) -> int:
    return re.sub(rb'"[^"]*"', b"", line).count(separator.encode())
