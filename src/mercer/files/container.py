"""Files: tensors and JSON in the safetensors format.  Nothing in a file is ever run.

A file carries a checksum of its contents, a version, and what it is: a model or a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from mercer.data.dealt_points import PassingRows
from mercer.files.tensor_file import TensorFile, check_nesting, parse_json, raw_parts, write_tensors
from mercer.files.whole import whole_file

FORMAT = "mercer"
FORMAT_VERSION = 3  # the first that later versions read; 1 and 2 were never released
# Longest part of an error that quotes a file, which may hold anything.
MOST_QUOTED = 300


def write_file(
    path: str | os.PathLike[str], kind: str, tensors: Mapping[str, Tensor | PassingRows], data: Any
) -> None:
    """Write a file whole or not at all."""
    tensors = {
        name: tensor.detach().cpu().contiguous() if isinstance(tensor, Tensor) else tensor
        for name, tensor in tensors.items()
    }
    check_nesting(data)
    text = json.dumps(data)
    header = {
        "format": FORMAT,
        "version": str(FORMAT_VERSION),
        "kind": kind,
        "data": text,
        "checksum": checksum(tensors, text),
    }
    with whole_file(path) as beside, beside.open("wb") as file:
        write_tensors(file, tensors, header)


def read_file(
    path: str | os.PathLike[str], kind: str, on_disk: Callable[[Any], Collection[str]] = lambda data: ()
) -> tuple[dict[str, Tensor], Any]:
    """The tensors and data of a file of this kind; refuses anything else.

    `on_disk` names, given the data, tensors that are too large for memory.
    """
    check_is_file(path, kind)
    with open(path, "rb") as file:
        try:
            stored = TensorFile(file)
            other = _other_than(kind, stored.texts)
            if other is None:
                text = stored.texts.get("data", "")
                data = parse_json(text)
                tensors = stored.tensors(on_disk(data))
        except ValueError as error:
            other = f"something that is cut short, damaged or of another format ({_one_line(error)})"
    # Of copies, which nobody else can change.
    if other is None and checksum(tensors, text) != stored.texts.get("checksum"):
        other = "one whose contents have changed: its checksum is wrong"
    if other is not None:
        raise ValueError(f"{os.fspath(path)!r} must be a whole Mercer {kind}. Got {other}.")
    return tensors, data


def check_is_file(path: str | os.PathLike[str], kind: str) -> None:
    """Refuse a folder, and what might never end or make the reader wait: pipes, devices, sockets."""
    mode = os.stat(path).st_mode
    if stat.S_ISREG(mode):
        return
    must_be = f"{os.fspath(path)!r} must be a file that holds a Mercer {kind}. Got"
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(f"{must_be} a folder: name a file in it.")
    found = "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
    raise OSError(f"{must_be} {found}: copy the {kind} to a file first.")


def _other_than(kind: str, texts: dict[str, str]) -> str | None:
    """What a file is, unless it is of this kind and of a version that is read."""
    if texts.get("format") != FORMAT:
        return "a safetensors file of another program"
    version = shortened(texts.get("version", ""))
    if not re.fullmatch("[0-9]{1,9}", version) or int(version) > FORMAT_VERSION:
        return (
            f"one of version {version}, and this Mercer reads versions up to {FORMAT_VERSION}: install "
            "a newer one"
        )
    if int(version) < FORMAT_VERSION:
        return f"one of version {version}, from before the first release: fit and save the model again"
    found = texts.get("kind", "")
    return None if found == kind else f"a Mercer {shortened(found)} instead"


@contextmanager
def contents_of(path: str | os.PathLike[str]) -> Iterator[None]:
    """In the block, an error in what was read names the file."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)!r} has invalid contents: {_one_line(error)}.") from error


def shortened(text: str) -> str:
    """Text of a file for an error: on one line, and not all of it if it is long."""
    text = " ".join(text[: 2 * MOST_QUOTED].encode(errors="replace").decode().split())
    return text if len(text) <= MOST_QUOTED else f"{text[:MOST_QUOTED]}…"


def _one_line(error: ValueError) -> str:
    return shortened(str(error)).rstrip(".")


def checksum(tensors: Mapping[str, Tensor | PassingRows], text: str) -> str:
    """Of all contents; protects from accidents, not from an author who means harm."""
    digest = hashlib.blake2b(_bytes(text), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(_bytes(f"{name} {tensor.dtype} {tuple(tensor.shape)}"))
        for part in raw_parts(tensor):
            digest.update(part)
    return digest.hexdigest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # JSON can hold what UTF-8 cannot
