"""Atomic writing: after a crash, a file has its old contents or its new ones, never part of them.

New contents are written in a private folder beside the file, and moved from there.  The writer holds a
lock on that folder.  So the next writer of the same file can remove what a killed process left behind,
and never what another process is still writing.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# Where folders cannot be locked, nobody uses one that has not changed for a week.
ABANDONED_SECONDS = 7 * 24 * 3600
# Errors of systems that cannot lock or sync a folder, or do not let this user.
UNSUPPORTED = {
    errno.EACCES,
    errno.EBADF,
    errno.EINVAL,
    errno.ENOLCK,
    errno.ENOSYS,
    errno.ENOTSUP,
    errno.EPERM,
}


@contextmanager
def whole_file(place: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a path to write to; move that file to `place` when the block succeeds.

    The path is in a private folder beside `place`, which is removed in any case.  If the block or the
    move fails, `place` is left as it was.  The result has the permissions of any new file under the
    user's umask.  A symbolic link at `place` is kept, and the file it points to is replaced.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with whole_file(f"{folder}/numbers.txt") as beside:
    ...         _ = beside.write_text("1 2 3")
    ...     Path(folder, "numbers.txt").read_text()
    '1 2 3'
    """
    target = Path(os.path.realpath(place))
    with folder_beside(target) as folder:
        beside = folder / target.name
        beside.touch()
        mode = beside.stat().st_mode
        yield beside
        beside.chmod(mode)  # the block may have written it with the permissions of a temporary file
        with beside.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(beside, target)
        _sync(target.parent)


def write_text_whole(place: str | os.PathLike[str], text: str) -> None:
    """Write text as UTF-8, completely or not at all."""
    with whole_file(place) as beside:
        beside.write_text(text, encoding="utf-8")


@contextmanager
def folder_beside(place: str | os.PathLike[str]) -> Iterator[Path]:
    """A private folder beside `place` for the length of the block.

    Folders that killed processes left for the same `place` are removed first.
    """
    target = Path(os.path.realpath(place))
    # Of the name only a digest, since a name may be as long as the system allows.
    prefix = f".mercer-{hashlib.blake2b(os.fsencode(target.name), digest_size=4).hexdigest()}-"
    _remove_abandoned(target.parent, prefix)
    folder, lock = _new_folder(target, prefix)
    try:
        yield folder
    finally:
        try:
            shutil.rmtree(folder, ignore_errors=True)  # what is left, the next writer removes
        finally:
            _release(lock)


def _new_folder(target: Path, prefix: str) -> tuple[Path, int | None]:
    """A new folder beside the target, and its lock."""
    while True:
        folder = target.with_name(prefix + secrets.token_hex(4))
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            continue
        except OSError as error:  # the user knows the file, not the folder
            raise OSError(error.errno, error.strerror, str(target)) from error
        try:
            lock = _lock(folder)
        except (BlockingIOError, FileNotFoundError):
            continue  # another writer took it for abandoned before it was locked
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if folder.exists():
            return folder, lock
        _release(lock)


def _remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove the folders of this prefix that no living process holds."""
    name = re.compile(re.escape(prefix) + "[0-9a-f]{8}")
    try:
        with os.scandir(parent) as entries:
            found = [
                Path(entry.path)
                for entry in entries
                if name.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
            ]
    except OSError:
        return  # one may be allowed to write to a folder and not to list it
    for folder in found:
        try:
            lock = _lock(folder)
        except OSError:
            continue  # in use, removed meanwhile, or of another user
        try:
            if lock is not None or _age(folder) > ABANDONED_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            _release(lock)


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock; None where folders have none.

    Raises BlockingIOError where another process holds it.
    """
    if fcntl is None:
        return None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in UNSUPPORTED:
            return None
        raise
    return descriptor


def _release(lock: int | None) -> None:
    if lock is not None:
        os.close(lock)


def _age(folder: Path) -> float:
    """Seconds since anything in the folder was written."""
    try:
        return time.time() - max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
    except OSError:
        return 0.0  # it is being changed


def _sync(folder: Path) -> None:
    """Make what was renamed in a folder last, on systems that can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
