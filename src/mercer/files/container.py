"""Files: tensors as safetensors, all else as JSON in their header.  Nothing in a file is ever run.

A file is written beside its place and moved there when it is whole, so that a crash leaves the old one.
It carries a checksum of its contents, a version, and what it is: a model or a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mercer.data.bytes import Grid
from mercer.data.inputs import Preparation
from mercer.data.points import Points, byte_points
from mercer.kernels import Custom, kernel_from_dict
from mercer.model.machine import KernelMachine

FORMAT = "mercer"
VERSION = 2  # 1 had float centres without their norms
_PREPARATION_ARRAYS = ("columns", "constants", "shift", "scale", "projection")


def write_file(path: str | os.PathLike[str], kind: str, tensors: dict[str, Tensor], data: Any) -> None:
    """Write a file whole or not at all."""
    path = Path(path)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(data)
    header = {
        "format": FORMAT,
        "version": str(VERSION),
        "kind": kind,
        "data": text,
        "checksum": _checksum(tensors, text),
    }
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        beside.touch(exist_ok=False)
        mode = beside.stat().st_mode  # as the user's umask has it, not as for a temporary file
        save_file(tensors, beside, header)
        beside.chmod(mode)
        with beside.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def read_file(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Tensor], Any]:
    """The tensors and data of a file of this kind; refuses anything else."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise ValueError(f"{_is_not(path, kind)} a safetensors file of another program.")
            if not header.get("version", "").isdigit() or int(header["version"]) > VERSION:
                raise ValueError(
                    f"{_is_not(path, kind)} one of version {header.get('version')}, and this Mercer "
                    f"reads versions up to {VERSION}: install a newer one."
                )
            if header.get("kind") != kind:
                raise ValueError(f"{_is_not(path, kind)} a Mercer {header.get('kind')} instead.")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"{_is_not(path, kind)} something that is cut short, damaged or of another format ({error})."
        ) from error
    if _checksum(tensors, header.get("data", "")) != header.get("checksum"):
        raise ValueError(
            f"{_is_not(path, kind)} one whose contents have been changed: its checksum is off."
        )
    return tensors, json.loads(header["data"])


def _is_not(path: str | os.PathLike[str], kind: str) -> str:
    return f"{os.fspath(path)!r} must be a whole Mercer {kind}. Got"


def _checksum(tensors: dict[str, Tensor], text: str) -> str:
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def machine_parts(machine: KernelMachine) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A machine as tensors and plain data; `machine_from` is the inverse."""
    if isinstance(machine.kernel, Custom):
        raise ValueError(
            "The kernel of a model to be saved must be one of Mercer's. Got a function of your own, "
            "which a file without code cannot hold: use pickle, or save `dual_coef_` and the data."
        )
    preparation = machine.preparation
    tensors = {
        f"preparation.{name}": torch.from_numpy(np.asarray(getattr(preparation, name)))
        for name in _PREPARATION_ARRAYS
        if getattr(preparation, name) is not None
    }
    # As they lie in memory, so that a file larger than memory is written and read without a copy.
    centres = machine.centres
    tensors["centres" if centres.extended is None else "extended_centres"] = centres.rows
    tensors |= {"alpha": machine.alpha, "offset": machine.offset}
    data = {
        "kernel": machine.kernel.to_dict(),
        "n_features": preparation.n_features,
        "lossless": preparation.lossless,
        "grid": None if preparation.grid is None else asdict(preparation.grid),
    }
    return tensors, data


def machine_from(
    tensors: dict[str, Tensor], data: dict[str, Any], *, in_place: bool = False
) -> KernelMachine:
    """The machine; `in_place`: its centres stay in the file and are read as they are needed."""
    kernel = kernel_from_dict(data["kernel"])
    if not in_place:  # a product may round by where in memory its matrices begin
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    alpha = tensors["alpha"]
    if "extended_centres" in tensors:
        centres = Points.of_whole(tensors["extended_centres"])
    else:
        x = tensors["centres"]
        centres = byte_points(x, alpha.dtype) if x.dtype == torch.int8 else kernel.points(x)
    return KernelMachine(kernel, preparation_from(tensors, data), centres, alpha, tensors["offset"])


def preparation_from(tensors: dict[str, Tensor], data: dict[str, Any]) -> Preparation:
    arrays: dict[str, Any] = {
        name: tensors[f"preparation.{name}"].numpy() if f"preparation.{name}" in tensors else None
        for name in _PREPARATION_ARRAYS
    }
    grid = None if data["grid"] is None else Grid(**data["grid"])
    return Preparation(n_features=data["n_features"], lossless=data["lossless"], grid=grid, **arrays)
