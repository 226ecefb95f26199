"""How messages and notes name and count columns, and how much of the data they show."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

MOST_NAMES = 8
# Share of equal characters from which a name may be another one with a spelling mistake.
ALIKE = 0.75
# Names that one with a spelling mistake is compared with, which takes some microseconds each.
MOST_SIMILAR_NAMES = 5_000
# Characters of a name or a value in a message.
LONGEST_EXCERPT = 60


def excerpt(text: str, most: int = LONGEST_EXCERPT) -> str:
    """The beginning of a text, on one line.

    >>> excerpt("one\\ntwo"), excerpt("a long text", 7)
    ('one two', 'a long…')
    """
    # Blanks are joined only in what may be shown: the text can be as large as its file.
    line = " ".join(text[: 4 * most].split())
    return line if len(line) <= most and len(text) <= 4 * most else line[: most - 1] + "…"


def quoted(name: str) -> str:
    """
    >>> quoted("price"), quoted("x" * 100)[-5:]
    ("'price'", "xxx…'")
    """
    return repr(name if len(name) <= LONGEST_EXCERPT else name[: LONGEST_EXCERPT - 1] + "…")


def listed(names: Sequence[str]) -> str:
    """The first few names, quoted, and how many more there are.

    >>> listed(["a", "b"]), listed([])
    ("'a', 'b'", 'none')
    """
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return (", ".join(map(quoted, names[:MOST_NAMES])) or "none") + more


def meant(name: str, names: Sequence[str]) -> str:
    """A question for a name that does not exist, with the one that it resembles; empty without one.

    >>> meant("Incom", ["age", "income"]), meant("colour", ["age", "income"])
    ("Did you mean 'income'? ", '')
    """
    found = _closest(name, names)
    return "" if found is None else f"Did you mean {quoted(found)}? "


def similar(name: str, names: Sequence[str]) -> str:
    """What to do if a column that is needed has a name that resembles another; empty without one.

    >>> similar("income", ["age", "Income"]), similar("income", ["age", "size"])
    (" If 'Income' is meant, rename it.", '')
    """
    found = _closest(name, names)
    return "" if found is None else f" If {quoted(found)} is meant, rename it."


def _closest(name: str, names: Sequence[str]) -> str | None:
    folded: dict[str, str] = {}
    for one in names[:MOST_SIMILAR_NAMES]:
        folded.setdefault(one.strip().casefold(), one)
    close = get_close_matches(name.strip().casefold()[:LONGEST_EXCERPT], folded, 1, ALIKE)
    return folded[close[0]] if close else None


def count_columns(count: int) -> str:
    """
    >>> count_columns(1), count_columns(1000)
    ('1 column', '1,000 columns')
    """
    return f"{count:,} column{'' if count == 1 else 's'}"
