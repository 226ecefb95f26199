"""Progress, messages and notes on standard error; messages replace a progress line that may be there."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable

from mercer.training.events.console import CLEAR, ConsoleProgress
from mercer.visible import visible


class CallError(ValueError):
    """Invalid options; the message is one sentence, shown to the user."""

    exit_code = 2


class Progress(ConsoleProgress):
    """Progress whose stages may name files and columns."""

    def on_stage(self, text: str) -> None:
        super().on_stage(visible(text))


def say(text: str, who: str = "mercer") -> None:
    """Print one line; a terminal gets it wrapped between words."""
    line = visible(f"{who}: {text}")
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - 1
        line = CLEAR + textwrap.fill(
            line,
            width,
            subsequent_indent=" " * len(f"{who}: "),
            break_long_words=False,
            break_on_hyphens=False,
        )
    print(line, file=sys.stderr, flush=True)


def say_notes(notes: Iterable[object]) -> None:
    for note in notes:
        say(str(note), "note")
