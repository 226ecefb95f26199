"""Characters that a terminal or a browser would obey or hide, shown as escapes.

Text from data files, their names and model files may move the cursor, set the title of the terminal or
reverse the direction of writing, and so make a screen or a page show what is not there.  All text that
is printed goes through here, in `cli.messages` and `cli.printing`, and so does that of the report, in
`report.markup`.
"""

from __future__ import annotations

import json
import re
import unicodedata

# The zero-width joiner and non-joiner: invisible, but part of some scripts and emoji.
JOINERS = "\u200c\u200d"


def visible(text: str, keep: str = "") -> str:
    r"""The text with hidden characters as Python writes them, except those in `keep`.

    Hidden are control and format characters, halves of surrogate pairs, line and paragraph separators,
    and characters without a meaning in Unicode, unassigned or for private use.

    >>> print(visible("red \x1b[31m, reversed \u202e, ü"))
    red \x1b[31m, reversed \u202e, ü
    """
    if text.isprintable():
        return text
    return "".join(c.encode("unicode_escape").decode() if _is_hidden(c, keep) else c for c in text)


def visible_json(text: str) -> str:
    r"""JSON in which hidden characters are escaped, so that programs read the same strings.

    >>> print(visible_json('"\u202e"'))
    "\u202e"
    """
    return re.sub(r"[^ -~\n]", lambda found: _escaped(found[0]), text)


def _escaped(character: str) -> str:
    return json.dumps(character)[1:-1] if _is_hidden(character) else character


def _is_hidden(character: str, keep: str = "") -> bool:
    shown = character.isprintable() or unicodedata.category(character) == "Zs"  # wide and other blanks
    return not shown and character not in JOINERS + keep
