"""Messages and notes on standard error; they replace a progress line that may be there."""

from __future__ import annotations

import sys
from collections.abc import Iterable

CLEAR = "\r\x1b[K"


class CallError(ValueError):
    """Invalid options; the message is one sentence, shown to the user."""

    exit_code = 2


def say(text: str, who: str = "mercer") -> None:
    print(f"{CLEAR if sys.stderr.isatty() else ''}{who}: {text}", file=sys.stderr, flush=True)


def say_notes(notes: Iterable[object]) -> None:
    for note in notes:
        say(str(note), "note")
