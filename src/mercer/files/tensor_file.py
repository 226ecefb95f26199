"""Tensors and texts in one file, in the safetensors format.

The first eight bytes are the length of a JSON header, which names each tensor's type, shape and place;
the numbers follow.  A file is copied to memory of this process and never mapped, so it does not matter
who changes it afterwards.  All that the header claims is checked against the size of the file before
anything is allocated.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from mercer.data.dealt_points import PassingRows
from mercer.data.rows import room
from mercer.files.records import from_data

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
TEXTS = "__metadata__"
LENGTH_BYTES = 8
# Tensors begin at multiples of this.
ALIGNMENT = 8
# Longest header: a model of a million named features has one, and its JSON still parses in a second.
MOST_HEADER_BYTES = 1 << 25
# Deepest nesting of JSON: far more than Mercer writes, far less than would exhaust the stack.
MOST_NESTING = 100
# Most dimensions and numbers of a tensor, beyond which PyTorch cannot count.
MOST_DIMENSIONS = 8
MOST_NUMBERS = 1 << 56


@dataclass(frozen=True)
class Entry:
    """What the header says of one tensor."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def write_tensors(
    file: BinaryIO, tensors: dict[str, Tensor | PassingRows], texts: dict[str, str]
) -> None:
    """Write contiguous tensors on the CPU, those with the largest elements first, so that all align."""
    header: dict[str, Any] = {TEXTS: texts}
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    end = 0
    for name in names:
        tensor, begin = tensors[name], end
        end += tensor.nbytes
        header[name] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    if len(text) > MOST_HEADER_BYTES:
        raise ValueError(
            f"All but the arrays of a file must take at most {MOST_HEADER_BYTES:,} bytes as JSON. Got "
            f"{len(text):,}: store less `metadata`."
        )
    file.write(len(text).to_bytes(LENGTH_BYTES, "little") + text)
    for name in names:
        for part in raw_parts(tensors[name]):
            file.write(part)


class TensorFile:
    """An open file whose header has been read and checked; `texts` is what it has beside tensors."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        self._start = LENGTH_BYTES + length
        if not 0 < length <= MOST_HEADER_BYTES or self._start > size:
            raise ValueError("its header has no sensible length")
        header = parse_json(file.read(length).decode())
        if not isinstance(header, dict):
            raise ValueError("its header is not a JSON object")
        self.texts = from_data(dict[str, str], header.pop(TEXTS, {}), "its header")
        self._entries = from_data(dict[str, Entry], header, "its header")
        end = 0
        for entry in sorted(self._entries.values(), key=lambda entry: entry.data_offsets):
            end = _end(entry, end)
        if self._start + end != size:
            raise ValueError(f"it has {size:,} bytes, and its header asks for {self._start + end:,}")

    def tensors(self, on_disk: Collection[str] = ()) -> dict[str, Tensor]:
        """All tensors, copied to memory or, those named, to temporary files that are memory-mapped."""
        return {
            name: self._read(entry, 0.0 if name in on_disk else math.inf)
            for name, entry in self._entries.items()
        }

    def _read(self, entry: Entry, memory: float) -> Tensor:
        like = torch.empty(0, dtype=DTYPES[entry.dtype])
        tensor = room((1, math.prod(entry.shape)), like, memory).view(entry.shape)
        self._file.seek(self._start + entry.data_offsets[0])
        numbers = raw(tensor)
        done = 0
        while done < len(numbers):
            count = self._file.readinto(numbers[done:])  # type: ignore[attr-defined]
            if not count:
                raise ValueError("it was cut short while it was read")
            done += count
        return tensor


def raw(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, shared with it."""
    return tensor.numpy().reshape(-1).view(np.uint8).data


def raw_parts(tensor: Tensor | PassingRows) -> Iterator[memoryview]:
    """All bytes of a tensor, in order."""
    if isinstance(tensor, Tensor):
        yield raw(tensor)
    else:
        for part in tensor.parts():
            yield raw(part.cpu().contiguous())


def parse_json(text: str) -> Any:
    """What a JSON text holds; ValueError where it is no JSON, or nested deeper than Mercer reads."""
    try:
        data = json.loads(text)
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    check_nesting(data)
    return data


TOO_DEEP = f"JSON must be nested at most {MOST_NESTING} levels deep. Got more"


def check_nesting(data: Any) -> None:
    """Refuse nesting that could not be read again."""
    level = [data]
    for _ in range(MOST_NESTING + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list, tuple))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise ValueError(TOO_DEEP)


def _end(entry: Entry, begin: int) -> int:
    """Where a tensor ends that must begin here."""
    dtype = DTYPES.get(entry.dtype)
    if dtype is None:
        raise ValueError(f"it has a tensor of the unknown type {entry.dtype!r}")
    lengths = [max(1, length) for length in entry.shape]  # torch counts an empty tensor's strides so
    if (
        len(lengths) > MOST_DIMENSIONS
        or min(entry.shape, default=0) < 0
        or math.prod(lengths) > MOST_NUMBERS
    ):
        raise ValueError("it has a tensor of an impossible shape")
    end = begin + math.prod(entry.shape) * dtype.itemsize
    if entry.data_offsets != (begin, end):
        raise ValueError("its tensors overlap, or have gaps between them")
    return end
