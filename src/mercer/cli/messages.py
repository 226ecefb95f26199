"""What the command says on standard error, in place of a live line that may stand there."""

from __future__ import annotations

import sys
from collections.abc import Iterable

CLEAR = "\r\x1b[K"


class CallError(ValueError):
    """A wrong call that only the command itself can tell, in one sentence."""

    exit_code = 2


def say(text: str, who: str = "mercer") -> None:
    print(f"{CLEAR if sys.stderr.isatty() else ''}{who}: {text}", file=sys.stderr, flush=True)


def say_notes(notes: Iterable[object]) -> None:
    for note in notes:
        say(str(note), "note")
