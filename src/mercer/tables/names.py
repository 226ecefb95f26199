"""Names of columns: no two are the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mercer.tables.wording import quoted


def numbered(given: Sequence[str]) -> tuple[list[str], frozenset[str]]:
    """The names, with a number after those that came before, and which names were repeated.

    >>> numbered(["a", "b", "a"])
    (['a', 'b', 'a (2)'], frozenset({'a'}))
    """
    names: list[str] = []
    taken, counts = set(given), Counter[str]()
    for name in given:
        counts[name] += 1
        unique = name
        while counts[name] > 1 and unique in taken:
            unique = f"{name} ({counts[name]})"
            counts[name] += unique in taken
        taken.add(unique)
        names.append(unique)
    return names, frozenset(name for name, count in Counter(given).items() if count > 1)


def about_repeated(repeated: frozenset[str]) -> tuple[str, ...]:
    """Notes on names that several columns had."""
    return tuple(
        f"several columns are named {quoted(name)}; from the second on they are called "
        f"{quoted(f'{name} (2)')} and so on"
        for name in sorted(repeated)
    )
