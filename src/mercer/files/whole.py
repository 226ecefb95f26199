"""Atomic writing: after a crash, a file has its old contents or its new ones, never part of them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(place: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a path beside `place` to write to; move that file to `place` when the block succeeds.

    If the block or the move fails, the new file is removed and `place` is left as it was.  The result
    has the permissions of any new file under the user's umask.  A symbolic link at `place` is kept, and
    the file it points to is replaced.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with whole_file(f"{folder}/numbers.txt") as beside:
    ...         _ = beside.write_text("1 2 3")
    ...     Path(folder, "numbers.txt").read_text()
    '1 2 3'
    """
    target = Path(os.path.realpath(place))
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    beside.touch(exist_ok=False)
    try:
        mode = beside.stat().st_mode
        yield beside
        beside.chmod(mode)  # the block may have written it with the permissions of a temporary file
        with beside.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


def write_text_whole(place: str | os.PathLike[str], text: str) -> None:
    """Write text as UTF-8, completely or not at all."""
    with whole_file(place) as beside:
        beside.write_text(text, encoding="utf-8")
