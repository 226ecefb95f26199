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
INFINITY = "Infinity"  # JSON has no numbers for it, nor for what is no number
NOT_A_NUMBER = "NaN"


def to_data(record: Any) -> Any:
    """A dataclass as what JSON can hold."""
    return _as_json(asdict(record))


def from_data(kind: type[Record], data: Any, name: str) -> Record:
    """The record that `to_data` wrote; `name` says in errors what was read."""
    try:
        # Not strictly: where a number is expected, and only there, a text may stand for infinity.
        return msgspec.convert(data, kind, strict=False)
    except (msgspec.ValidationError, OverflowError, UnicodeError) as error:
        raise ValueError(f"{name} has invalid contents: {error}.") from error


def _as_json(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _as_json(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_as_json(value) for value in data]
    if isinstance(data, float) and not math.isfinite(data):
        return NOT_A_NUMBER if math.isnan(data) else INFINITY if data > 0 else f"-{INFINITY}"
    return data
