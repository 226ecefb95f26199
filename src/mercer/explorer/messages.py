"""Messages as JSON that a page can show: finite numbers, and no hidden characters in texts."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from mercer.visible import visible

# Texts that are copied rather than shown.
COPIED = ("python", "command")


def to_json(message: dict[str, Any]) -> str:
    """One line."""
    return json.dumps(shown(message), default=_plain, allow_nan=False)


def shown(value: Any) -> Any:
    """The same, with None for numbers that JSON does not have, and escapes for hidden characters."""
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {key: item if key in COPIED else shown(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown(item) for item in value]
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no plain data")
