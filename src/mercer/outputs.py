"""Files that a command writes: whole or not at all, and never over another one by accident."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class OutputError(ValueError):
    """A place where nothing may be written; a wrong call, to be found before any work is done."""

    exit_code = 2


def claim(path: str, option: str, *, force: bool, inputs: Iterable[str] = ()) -> Path:
    """Where to write what `option` names, once it is certain that it may be written there.

    >>> claim("no-such-folder/model.mercer", "--output", force=False)
    Traceback (most recent call last):
        ...
    mercer.outputs.OutputError: The folder of --output must exist. Got 'no-such-folder': make it first.
    """
    place = Path(os.path.realpath(path))  # a link stays a link, to the new file
    if not place.parent.is_dir():
        raise OutputError(
            f"The folder of {option} must exist. Got {os.path.dirname(path)!r}: make it first."
        )
    if not os.access(place.parent, os.W_OK):
        raise OutputError(f"The folder of {option} must be writable. Got {str(place.parent)!r}.")
    if place.exists():
        if not place.is_file():
            raise OutputError(f"{option} must be a file. Got {path!r}, which is a folder or a device.")
        if any(os.path.exists(given) and os.path.samefile(given, place) for given in inputs):
            raise OutputError(f"{option} must not be a file that is read. Got {path!r}: name another.")
        if not force:
            raise OutputError(
                f"{option} must be a new file. Got {path!r}, which is there already: name another, or "
                "overwrite it with --force."
            )
    return place


@contextmanager
def whole_file(place: Path) -> Iterator[Path]:
    """A path beside `place` to write to; moved there when the block has ended well, else removed."""
    beside = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    beside.touch(exist_ok=False)
    try:
        yield beside
        os.replace(beside, place)
    finally:
        beside.unlink(missing_ok=True)
