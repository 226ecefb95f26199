"""How messages and notes name and count columns."""

from __future__ import annotations

from collections.abc import Sequence

MOST_NAMES = 8


def listed(names: Sequence[str]) -> str:
    """The first few names, quoted, and how many more there are.

    >>> listed(["a", "b"]), listed([])
    ("'a', 'b'", 'none')
    """
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return (", ".join(map(repr, names[:MOST_NAMES])) or "none") + more


def count_columns(count: int) -> str:
    """
    >>> count_columns(1), count_columns(1000)
    ('1 column', '1,000 columns')
    """
    return f"{count:,} column{'' if count == 1 else 's'}"
