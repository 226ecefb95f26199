"""What a notebook shows: tables as HTML, and one line of progress that is replaced."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any
from uuid import uuid4

from mercer.digits import in_digits


def html_table(heads: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> str:
    """A table; numbers are shortened, None is left empty, and texts are escaped.

    >>> html_table(["a"], [["x < y"], [0.123456]])[41:]
    '<tbody><tr><td>x &lt; y</td></tr><tr><td>0.1235</td></tr></tbody></table>'
    """
    head = "".join(f"<th>{html.escape(name)}</th>" for name in heads)
    cells = ("".join(f"<td>{html.escape(_cell(value))}</td>" for value in row) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return in_digits(value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


class NotebookLine:
    """A line of plain text below the cell.  Standard error would be a red block of all its versions."""

    def __init__(self, display: Any) -> None:
        self._display = display
        self._id: str | None = None

    @classmethod
    def of(cls, stream: Any) -> NotebookLine | None:
        """None where the stream does not belong to a notebook."""
        if not type(stream).__module__.startswith("ipykernel"):
            return None
        try:
            return cls(import_module("IPython.display").display)
        except ImportError:
            return None

    def show(self, text: str) -> None:
        """Show the text in place of the last one."""
        known = self._id is not None
        if not known:
            if not text:
                return
            self._id = f"mercer-{uuid4()}"
        self._display({"text/plain": text}, raw=True, display_id=self._id, update=known)
