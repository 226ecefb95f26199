"""Temporary copies of what cannot be read twice: standard input, pipes, gzip, members of an archive."""

from __future__ import annotations

import gzip
import itertools
import os
import shutil
import stat
import sys
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from mercer.planning.memory import TEMPORARY_SHARE, free_disk, in_words
from mercer.tables.bounds import Allowance
from mercer.tables.errors import TableError

GZIP_MAGIC = b"\x1f\x8b"
COPY_BYTES = 1 << 20
# Bytes of a line, more or less.
LINE_BYTES = 1 << 10


class Stream(Protocol):
    """What bytes can be read from."""

    def read(self, size: int, /) -> bytes: ...


class JoinedLines:
    """Lines as a stream."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self.lines = lines

    def read(self, size: int, /) -> bytes:
        return b"".join(itertools.islice(self.lines, max(1, size // LINE_BYTES)))


class TemporaryFiles:
    """A folder, made when first needed and deleted with the last reference to this object.

    An error in a `with` block deletes it at once: the traceback keeps references.
    """

    def __init__(self, parent: Path | None) -> None:
        self.parent = parent
        self.folder: Path | None = None
        self.unpacked = 0  # bytes

    def __enter__(self) -> TemporaryFiles:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None and self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def path(self, name: str) -> Path:
        """A place for a file."""
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="mercer-", dir=self.parent))
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        return self.folder / name

    def copy(
        self,
        stream: Stream,
        name: str,
        unpacking: Allowance | None = None,
    ) -> Path:
        """The contents of a binary stream as a file.

        All that is unpacked from a file counts, as it is written: sizes declared in it may be wrong.
        """
        path = self.path(name)
        room, size = TEMPORARY_SHARE * free_disk(path.parent), 0
        with path.open("wb") as file:
            while block := stream.read(COPY_BYTES):
                size += len(block)
                if unpacking is not None:
                    self.unpacked += len(block)
                    unpacking.check_unpacked(self.unpacked)
                if size > room:
                    raise TableError(
                        f"A temporary copy needs more than {in_words(room)}, and the disk of "
                        f"{path.parent.parent} has no more room for it. Free some space."
                    )
                file.write(block)
        return path


def regular_file(path: str, temporary: TemporaryFiles) -> Path:
    """The file at `path`, or a copy if it can be read only once; "-" is standard input."""
    if path == "-":
        return temporary.copy(sys.stdin.buffer, "input")
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise TableError(f"There is no file {path}. Check the spelling.") from error
    if stat.S_ISDIR(mode):
        raise TableError(f"{path} is a folder. Name a file in it.")
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):  # some never end
        raise TableError(f"{path} is a device. Name a file, or use - for standard input.")
    if stat.S_ISREG(mode):
        return Path(path)
    with open(path, "rb") as pipe:
        return temporary.copy(pipe, "input")


def unzipped(file: Path, allowance: Allowance, temporary: TemporaryFiles) -> Path:
    """The file itself, or what it holds if it is compressed by gzip."""
    with file.open("rb") as stream:
        if stream.read(len(GZIP_MAGIC)) != GZIP_MAGIC:
            return file
    with gzip.open(file) as unpacked:
        return temporary.copy(unpacked, "unpacked", allowance)
