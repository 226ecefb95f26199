"""Printing results to standard output: text for people, JSON for programs.

Text from the data is never interpreted as markup or by the terminal: `text` makes all that is printed.
Lines are not wrapped when the output is a pipe.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mercer.visible import visible, visible_json

# Wide enough for any line, for output that is not a terminal.
PIPE_WIDTH = 1000


def screen_width() -> int:
    """Columns of the terminal; of output that is not one, enough for any line."""
    return Console().width if sys.stdout.isatty() else PIPE_WIDTH


def show(*parts: Any) -> None:
    """Print texts and tables, without blanks at the ends of lines."""
    console = Console(width=screen_width(), highlight=False, markup=False)
    with console.capture() as captured:
        for part in parts:
            console.print(text(part) if isinstance(part, str) else part)
    for line in captured.get().splitlines():
        print(line.rstrip())


def text(*parts: str | tuple[str, str], style: str = "") -> Text:
    """Parts of a line, each with its style or without; hidden characters are shown as escapes."""
    pairs = ((part, "") if isinstance(part, str) else part for part in parts)
    return Text.assemble(*((visible(words), look) for words, look in pairs), style=style)


def blank_line() -> list[str]:
    """In a terminal, an empty line between notes or progress and the result."""
    return [""] if sys.stdout.isatty() else []


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """A table of names and values."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*map(text, row))
    return table


def explained(rows: Iterable[Sequence[str]]) -> Table:
    """A table of names, values and what they mean."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    for row in rows:
        table.add_row(*map(text, row))
    return table


def show_json(data: Any) -> None:
    """Standard JSON: numbers that are not finite become null."""
    print(visible_json(json.dumps(_plain(data), indent=1, ensure_ascii=False)))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
