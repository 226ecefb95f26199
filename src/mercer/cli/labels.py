"""Labels and names from the data on a screen: one line each, and no wider than their place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.cells import cell_len

from mercer.short_labels import ShortLabels, both_ends, line_of

# Columns of a screen that a label takes at most.
LABEL_WIDTH = 30


def short(label: Any, width: int = LABEL_WIDTH) -> str:
    """A label with both its ends, since labels often differ only at the end; JSON has the whole of it.

    The width is that of a terminal, where characters of some scripts take two columns.

    >>> short("one\\ntwo"), short("the first of many labels", 12), short("非常に長い日本語", 9)
    ('one two', 'the fir…bels', '非常…語')
    """
    return both_ends(line_of(label) or repr(label), width, cell_len)


def short_labels(labels: Iterable[Any]) -> ShortLabels:
    """Labels of one table, which can be told apart where they are shortened."""
    return ShortLabels(labels, cell_len)
