"""Records that last: dataclasses as plain data, readable by later versions.

A field that a newer version added is ignored by an older one, and a field that an older file does not
have takes its default.  So a field may be added, with a default, without making any file unreadable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeVar

import msgspec

Record = TypeVar("Record")
INFINITY = "Infinity"  # JSON has no number for it


def to_data(record: Any) -> Any:
    """A dataclass as what JSON can hold."""
    return _without_infinity(asdict(record))


def from_data(kind: type[Record], data: Any, name: str) -> Record:
    """The record that `to_data` wrote; `name` says in errors what was read."""
    try:
        return msgspec.convert(_with_infinity(data), kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"{name} has invalid contents: {error}.") from error


def _without_infinity(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _without_infinity(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_without_infinity(value) for value in data]
    return INFINITY if isinstance(data, float) and data == math.inf else data


def _with_infinity(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _with_infinity(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_with_infinity(value) for value in data]
    return math.inf if data == INFINITY else data
