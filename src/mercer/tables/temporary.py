"""Temporary copies of what cannot be read twice: standard input, pipes, gzip, members of an archive."""

from __future__ import annotations

import gzip
import os
import shutil
import sys
import tempfile
import weakref
from pathlib import Path
from typing import IO

from mercer.tables.table import TableError

GZIP_MAGIC = b"\x1f\x8b"
COPY_BYTES = 1 << 20


class TemporaryFiles:
    """A folder, made when first needed and deleted with the last reference to this object."""

    def __init__(self, parent: Path | None) -> None:
        self.parent = parent
        self.folder: Path | None = None

    def copy(self, stream: IO[bytes] | gzip.GzipFile, name: str) -> Path:
        """The contents of a binary stream as a file."""
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="mercer-", dir=self.parent))
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        path = self.folder / name
        with path.open("wb") as file:
            shutil.copyfileobj(stream, file, COPY_BYTES)
        return path


def plain_file(path: str, temporary: TemporaryFiles) -> Path:
    """A regular, uncompressed file with the contents of `path`; "-" is standard input."""
    if path == "-":
        file = temporary.copy(sys.stdin.buffer, "input")
    elif not os.path.exists(path):
        raise TableError(f"There is no file {path}. Check the spelling.")
    elif os.path.isdir(path):
        raise TableError(f"{path} is a folder. Name a file in it.")
    elif not os.path.isfile(path):  # a pipe, which can be read only once
        with open(path, "rb") as pipe:
            file = temporary.copy(pipe, "input")
    else:
        file = Path(path)
    with file.open("rb") as stream:
        if stream.read(len(GZIP_MAGIC)) == GZIP_MAGIC:
            with gzip.open(file) as unpacked:
                return temporary.copy(unpacked, "unpacked")
    return file
