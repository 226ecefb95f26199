"""The plan of a model as a table, with symbols as in the paper."""

from __future__ import annotations

import re

from mercer.planning.plan import Plan
from mercer.report.markup import Markup, element, join


def plan_table(plan: Plan) -> Markup:
    """Every chosen number and its meaning."""
    rows = (
        element(
            "tr",
            element("th", _symbols(name, letters=True), scope="row"),
            element("td", value, class_="v"),
            element("td", _symbols(meaning), class_="m"),
        )
        for name, value, meaning in plan.rows()
    )
    return element("table", element("tbody", *rows), class_="plan")


def _symbols(text: str, letters: bool = False) -> Markup:
    """Typeset the symbols of the paper: m_G with an index, beta and eta as Greek letters.

    With `letters`, single letters are symbols too, as in the names of a plan; in its explanations they
    may be words.
    """
    text = re.sub(r"\bbeta\b", "β", re.sub(r"\beta\b", "η", text))
    index = "(?:_([A-Z]))?" if letters else "_([A-Z])"
    parts = re.split(rf"(?<![\w'])([A-Za-zβη]){index}(?!\w)", text)
    words, symbols, indices = parts[::3], parts[1::3], parts[2::3]
    set_in_print = (
        join(element("i", symbol), element("sub", index) if index else "", after)
        for symbol, index, after in zip(symbols, indices, words[1:], strict=True)
    )
    return join(words[0], *set_in_print)
