"""Labels and names from the data on a screen: one line each, and no wider than their place."""

from __future__ import annotations

from typing import Any

from rich.cells import cell_len

from mercer.visible import visible

# Columns of a screen that a label takes at most.
LABEL_WIDTH = 30


def short(label: Any, width: int = LABEL_WIDTH, skipped: int = 0) -> str:
    """A label with both its ends, since labels often differ only at the end; JSON has the whole of it.

    The width is that of a terminal, where characters of some scripts take two columns.  Where a label is
    too wide, `skipped` characters at its beginning are left out first.

    >>> short("one\\ntwo"), short("the first of many labels", 12), short("非常に長い日本語", 9)
    ('one two', 'the fir…bels', '非常…語')
    """
    line = _line(label)
    if cell_len(line) <= width:
        return line
    if skipped:
        return short(f"…{str(label)[skipped:]}", width)
    tail = (width - 1) * 2 // 5
    end = _within(line[::-1], tail)[::-1]
    return f"{_within(line, width - 1 - tail)}…{end}"


def _line(label: Any) -> str:
    return visible(" ".join(str(label).split())) or repr(label)


def _within(line: str, width: int) -> str:
    """As many characters from the beginning as fit."""
    taken = 0
    for i, character in enumerate(line):
        taken += cell_len(character)
        if taken > width:
            return line[:i]
    return line
