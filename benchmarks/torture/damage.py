"""Damaged model files and checkpoints, made from whole ones.

Half of the damage is to bytes: flips, cuts, splices.  The other half is to what a file means, in its
JSON or its tensors, with the checksum made right again, so that the checks behind it are reached.  The
same file and random state always give the same damage.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

NUMPY = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I8": "<i1"}
NAMES = {np.dtype(dtype): name for name, dtype in NUMPY.items()}
TORCH = {"F64": "torch.float64", "F32": "torch.float32", "I64": "torch.int64", "I8": "torch.int8"}
# Stands in a JSON text for nesting that Python itself could not write.
DEEP = "deeply nested"
DEPTHS = (20, 99, 150, 990, 20_000)
HUGE_TEXT = 1_000_000
STRANGE: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    7,
    0.5,
    2**31,
    2**63,
    -(2**63),
    10**30,
    10**4000,
    1e-320,
    1e-30,
    1e30,
    1e308,
    -1e308,
    float("nan"),
    float("inf"),
    float("-inf"),
    "",
    "x",
    "auto",
    "Infinity",
    "float64",
    "object",
    "U999999999",
    "V99999999999",
    "i4,i4",
    "\ud800",
    "\x00",
    "/etc/hostname",
    "../elsewhere",
    "a" * HUGE_TEXT,
    DEEP,
    [],
    [[]],
    [None],
    [[1, 2], [3]],
    ["a", 1, None],
    [0] * 100_000,
    {},
    {"name": "gaussian"},
    {"name": ["gaussian"], "bandwidth": "wide"},
    {"": {"": {}}},
)
PATHS = ("checkpoint", "callbacks", "device", "n_jobs", "memory_limit", "resume", "verbose")


@dataclass(frozen=True)
class Contents:
    """A file taken apart."""

    texts: dict[str, str]
    data: Any
    tensors: dict[str, Array]


def unpack(raw: bytes) -> Contents:
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    texts = header.pop("__metadata__")
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        tensors[name] = np.frombuffer(raw[begin:end], NUMPY[entry["dtype"]]).reshape(entry["shape"])
    return Contents(texts, json.loads(texts["data"]), tensors)


def pack(contents: Contents, rng: np.random.Generator) -> bytes:
    """The file, with a checksum that is right."""
    text = json.dumps(contents.data)
    depth = int(rng.choice(DEPTHS))
    text = text.replace(json.dumps(DEEP), "[" * depth + "]" * depth)
    tensors = {name: np.ascontiguousarray(values) for name, values in contents.tensors.items()}
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16)
    header: dict[str, Any] = {"__metadata__": {**contents.texts, "data": text}}
    body, end = b"", 0
    for name in sorted(tensors):
        values, kind = tensors[name], NAMES[tensors[name].dtype]
        digest.update(f"{name} {TORCH[kind]} {values.shape}".encode())
        digest.update(values.tobytes())
        header[name] = {"dtype": kind, "shape": list(values.shape)}
        header[name]["data_offsets"] = [end, end + values.nbytes]
        body, end = body + values.tobytes(), end + values.nbytes
    header["__metadata__"]["checksum"] = digest.hexdigest()
    if rng.random() < 0.05:  # what the header claims of a tensor
        _strange_inside(header, rng)
    begin = json.dumps(header).encode()
    return len(begin).to_bytes(8, "little") + begin + body


def damaged(raw: bytes, other: bytes, rng: np.random.Generator) -> bytes:
    """The file with one to three kinds of damage; `other` is another file, to splice in."""
    if rng.random() < 0.5:
        for _ in range(rng.integers(1, 4)):
            raw = _bytes(raw, other, rng)
        return raw
    contents = unpack(raw)
    for _ in range(rng.integers(1, 4)):
        contents = _meaning(contents, rng)
    return pack(contents, rng)


def _bytes(raw: bytes, other: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(raw)
    at = int(rng.integers(len(raw) + 1))
    length = int(rng.integers(1, 64))
    kind = rng.integers(7)
    if kind == 0 and at < len(raw):
        changed[at] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        changed[at : at + length] = rng.bytes(length)
    elif kind == 2:
        del changed[at:]
    elif kind == 3:
        del changed[at : at + length]
    elif kind == 4:
        changed[at:at] = rng.bytes(length)
    elif kind == 5:
        changed[at:] = other[int(rng.integers(len(other) + 1)) :]
    else:
        changed[: len(raw) % 8 + 1] = rng.bytes(len(raw) % 8 + 1)
    return bytes(changed)


def _meaning(contents: Contents, rng: np.random.Generator) -> Contents:
    data, tensors = json.loads(json.dumps(contents.data)), dict(contents.tensors)
    kind = rng.integers(4)
    if kind == 0 and tensors:
        name = str(rng.choice(sorted(tensors)))
        values = _tensor(tensors[name], rng)
        if values is None:
            del tensors[name]
        else:
            tensors[name] = values
    elif kind == 1 and isinstance(data, dict):
        known = data.get("parameters")
        if isinstance(known, dict):
            known[str(rng.choice(PATHS))] = _strange(rng)
        data[str(rng.choice(sorted(data)))] = _strange(rng)
    else:
        _strange_inside(data, rng)
    return replace(contents, data=data, tensors=tensors)


def _strange(rng: np.random.Generator) -> Any:
    return STRANGE[int(rng.integers(len(STRANGE)))]


def _strange_inside(data: Any, rng: np.random.Generator) -> None:
    """Put something strange in a random place of nested data, or take something away."""
    while isinstance(data, (dict, list)) and data:
        keys: list[Any] = sorted(data) if isinstance(data, dict) else list(range(len(data)))
        key = keys[int(rng.integers(len(keys)))]
        inner = data[key]
        if isinstance(inner, (dict, list)) and inner and rng.random() < 0.8:
            data = inner
            continue
        if rng.random() < 0.2:
            del data[key]
        else:
            data[key] = _strange(rng)
        return


def _tensor(values: Array, rng: np.random.Generator) -> Array | None:
    """Other numbers, another shape or another type; None for none at all."""
    kind = rng.integers(9)
    values = values.copy()
    flat = values.reshape(-1)
    if kind == 0:
        return None
    if kind == 1 and flat.size:
        extreme = [np.nan, np.inf, 1e38, -1e38, 1e-38] if values.dtype.kind == "f" else [-1, 2**62, 127]
        wanted = extreme[int(rng.integers(len(extreme)))]
        with np.errstate(all="ignore"):
            flat[int(rng.integers(flat.size))] = np.asarray(wanted).astype(values.dtype)
        return values
    if kind == 2:
        with np.errstate(all="ignore"):
            return values * (np.asarray(3e37).astype(values.dtype) if values.dtype.kind == "f" else 3)
    if kind == 3:
        return np.ascontiguousarray(values.T)
    if kind == 4:
        return flat
    if kind == 5:
        return values[: int(rng.integers(len(values) + 1))]
    if kind == 6:
        return np.concatenate([values, values])
    if kind == 7:
        with np.errstate(all="ignore"):
            return values.astype(list(NUMPY.values())[int(rng.integers(len(NUMPY)))])
    return values[..., None] if rng.random() < 0.5 else np.zeros_like(values)
