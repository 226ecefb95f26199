"""Objects that ranks send one another, as bytes.

A tensor on a device is sent from the memory of the CPU and arrives on the device of its receiver, which
may be another one.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def packed(thing: Any) -> bytes:
    """The object as bytes."""
    file = io.BytesIO()
    _Packer(file, pickle.HIGHEST_PROTOCOL).dump(thing)
    return file.getvalue()


def unpacked(data: bytes, device: Callable[[], torch.device]) -> Any:
    """The object that was packed, its tensors on the CPU or on this device.

    >>> unpacked(packed({"a": torch.ones(2)}), lambda: torch.device("cpu"))
    {'a': tensor([1., 1.])}
    """
    return _Unpacker(io.BytesIO(data), device).load()


class _Packer(pickle.Pickler):
    def persistent_id(self, thing: Any) -> Tensor | None:
        away = isinstance(thing, Tensor) and thing.device.type != "cpu"
        return thing.cpu() if away else None


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, device: Callable[[], torch.device]) -> None:
        super().__init__(file)
        self._device = device

    def persistent_load(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._device())
