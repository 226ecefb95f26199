"""Run the examples of a page and compare what they print with what the page shows.

`python docs/outputs.py docs/tutorials/*.md` writes the present output into the pages.  Output is a block
marked `text` right after a block of Python.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path

BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"-?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")


def printed(page: Path) -> list[tuple[str | None, str]]:
    """For each Python block of a page in order: the output that is shown after it, and the real one."""
    text = page.read_text(encoding="utf-8")
    namespace = {"__name__": "__main__"}
    found = []
    for match in BLOCK.finditer(text):
        # Padded so that errors show the page's line numbers.
        source = "\n" * text.count("\n", 0, match.start(1)) + match[1]
        with contextlib.redirect_stdout(io.StringIO()) as stream:
            exec(compile(source, str(page), "exec"), namespace)
        found.append((match[2], stream.getvalue()))
    return found


def agree(shown: str, got: str) -> bool:
    """Whether two outputs have the same words, and numbers that another machine may have.

    Numbers may differ by a tenth, by 0.02, or if they count something by 3.
    """
    if NUMBER.sub("#", shown).split() != NUMBER.sub("#", got).split():
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(got), strict=True)
    return all(_near(a.replace(",", ""), b.replace(",", "")) for a, b in pairs)


def _near(shown: str, got: str) -> bool:
    absolute = 3.0 if "." not in shown else 0.02
    return abs(float(shown) - float(got)) <= max(absolute, 0.1 * abs(float(shown)))


def write(page: Path) -> None:
    outputs = iter(printed(page))

    def renewed(match: re.Match[str]) -> str:
        shown, got = next(outputs)
        if shown is None:
            return match[0]
        return (
            match[0].removesuffix(f"{shown}```") + "\n".join(map(str.rstrip, got.splitlines())) + "\n```"
        )

    text = page.read_text(encoding="utf-8")
    page.write_text(BLOCK.sub(renewed, text), encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write(Path(name))
