"""Labels that are too long for their place, shortened so that they can still be told apart.

Long labels often begin alike, end alike, or differ by a word in the middle.  A label is shortened in the
first of three ways that leaves no other label looking the same:

- without what all labels have at their beginning, by its two ends,
- without what all have at their end as well, by its two ends,
- by the first letters of each word that not all labels have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from mercer.visible import visible


class ShortLabels:
    """All labels of a table, any of which can be had at any width.

    >>> labels = ShortLabels(f"a report on {a} and x in general" for a in ("owls", "auks"))
    >>> labels.at("a report on owls and x in general", 12)
    '…owls a…eral'

    Parameters
    ----------
    length : how much room a text takes
    """

    def __init__(self, labels: Iterable[object], length: Callable[[str], int] = len) -> None:
        self._lines = sorted({line_of(label) for label in labels})
        self._length = length
        self._start = _shared(self._lines, " /")
        rest = [line[self._start :][::-1] for line in self._lines]
        self._stop = _shared(sorted(rest), " /,")
        every = set.intersection(*(set(line.split()) for line in self._lines)) if self._lines else set()
        self._idle = every if len(self._lines) > 1 else set()
        self._known: dict[int, dict[str, str]] = {}

    def at(self, label: object, width: int) -> str:
        """The label as one line, no wider than that."""
        line = line_of(label)
        if self._length(line) <= width:
            return line
        if width not in self._known:
            self._known[width] = self._all_at(width)
        return self._known[width].get(line) or both_ends(line, width, self._length)

    def _all_at(self, width: int) -> dict[str, str]:
        """How each line that is too long is shown."""
        found: dict[str, str] = {}
        long = [line for line in self._lines if self._length(line) > width]
        for way in (self._end, self._middle, self._words):
            shown = {line: way(line, width) for line in long if line not in found}
            taken = Counter([*shown.values(), *found.values()])
            found |= {line: text for line, text in shown.items() if taken[text] == 1}
        return found | {line: self._end(line, width) for line in long if line not in found}

    def _end(self, line: str, width: int) -> str:
        text = f"…{line[self._start :]}" if self._start else line
        return both_ends(text, width, self._length)

    def _middle(self, line: str, width: int) -> str:
        if not self._stop:
            return self._end(line, width)
        inner = line[self._start : len(line) - self._stop].strip()
        return both_ends(f"{'…' if self._start else ''}{inner}…", width, self._length)

    def _words(self, line: str, width: int) -> str:
        words = [word for word in line.split() if word not in self._idle]
        for letters in range(max(map(len, words), default=0), 0, -1):
            text = "…" + " ".join(word[:letters] for word in words)
            if self._length(text) <= width:
                return text
        return self._end(line, width)


def line_of(label: object) -> str:
    """A label as one line of visible characters."""
    return visible(" ".join(str(label).split()))


def both_ends(line: str, width: int, length: Callable[[str], int] = len) -> str:
    """Both ends of a text that is too wide, more of its beginning.

    >>> both_ends("the first of many labels", 12)
    'the fir…bels'
    """
    if length(line) <= width:
        return line
    tail = (width - 1) * 2 // 5
    end = _within(line[::-1], tail, length)[::-1]
    return f"{_within(line, width - 1 - tail, length)}…{end}"


def _within(line: str, width: int, length: Callable[[str], int]) -> str:
    """As many characters from the beginning as fit."""
    taken = 0
    for i, character in enumerate(line):
        taken += length(character)
        if taken > width:
            return line[:i]
    return line


def _shared(lines: list[str], marks: str) -> int:
    """Characters at the beginning that all sorted lines share, up to the last mark among them."""
    if len(lines) < 2:
        return 0
    # What the first and the last in order share, all between them share too.
    pairs = enumerate(zip(lines[0], lines[-1], strict=False))
    stop = next((i for i, (a, b) in pairs if a != b), min(len(lines[0]), len(lines[-1])))
    return max(lines[0].rfind(mark, 0, stop) + 1 for mark in marks)
