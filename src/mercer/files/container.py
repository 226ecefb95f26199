"""Files: tensors as safetensors, all else as JSON in their header.  Nothing in a file is ever run.

A file carries a checksum of its contents, a version, and what it is: a model or a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mercer.files.whole import whole_file

FORMAT = "mercer"
FORMAT_VERSION = 3  # the first that later versions read; 1 and 2 were never released


def write_file(path: str | os.PathLike[str], kind: str, tensors: dict[str, Tensor], data: Any) -> None:
    """Write a file whole or not at all."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(data)
    header = {
        "format": FORMAT,
        "version": str(FORMAT_VERSION),
        "kind": kind,
        "data": text,
        "checksum": _checksum(tensors, text),
    }
    with whole_file(path) as beside:
        save_file(tensors, beside, header)


def read_file(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Tensor], Any]:
    """The tensors and data of a file of this kind; refuses anything else."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise ValueError(f"{_is_not(path, kind)} a safetensors file of another program.")
            _check_version(path, kind, header.get("version", ""))
            if header.get("kind") != kind:
                raise ValueError(f"{_is_not(path, kind)} a Mercer {header.get('kind')} instead.")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"{_is_not(path, kind)} something that is cut short, damaged or of another format ({error})."
        ) from error
    if _checksum(tensors, header.get("data", "")) != header.get("checksum"):
        raise ValueError(
            f"{_is_not(path, kind)} one whose contents have changed: its checksum is wrong."
        )
    return tensors, json.loads(header["data"])


def _check_version(path: str | os.PathLike[str], kind: str, version: str) -> None:
    if not version.isdigit() or int(version) > FORMAT_VERSION:
        raise ValueError(
            f"{_is_not(path, kind)} one of version {version}, and this Mercer reads versions up to "
            f"{FORMAT_VERSION}: install a newer one."
        )
    if int(version) < FORMAT_VERSION:
        raise ValueError(
            f"{_is_not(path, kind)} one of version {version}, from before the first release: fit and "
            "save the model again."
        )


def _is_not(path: str | os.PathLike[str], kind: str) -> str:
    return f"{os.fspath(path)!r} must be a whole Mercer {kind}. Got"


def _checksum(tensors: dict[str, Tensor], text: str) -> str:
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
