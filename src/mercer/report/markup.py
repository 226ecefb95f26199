"""HTML elements, and the parts that a page consists of.

`element` escapes every child and attribute that is not already `Markup`, so that text from the data
never becomes markup.  Invisible characters, such as control characters, are shown as escapes.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from mercer.short_labels import both_ends
from mercer.visible import visible

VOID = ("br", "input", "link", "meta")
# Characters of a label; a longer one is shortened in the middle.
LONGEST_LABEL = 70
# Labels longer than this need a line of their own on a phone.
LONGEST_IN_COLUMN = 12


class Markup(str):
    """Text that is already markup, and is not escaped again."""

    __slots__ = ()


def element(name: str, /, *children: object, **attributes: object) -> Markup:
    """One element; children that are not markup are escaped, attributes that are None are left out.

    >>> element("p", "a < b", element("br"), class_="note")
    '<p class="note">a &lt; b<br></p>'
    """
    opening = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_escaped(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID:
        return Markup(f"<{name}{opening}>")
    return Markup(f"<{name}{opening}>{join(*children)}</{name}>")


def join(*children: object) -> Markup:
    """Concatenate children, escaping those that are not markup."""
    return Markup("".join(c if isinstance(c, Markup) else _escaped(c) for c in children))


def _escaped(value: object) -> str:
    return html.escape(visible(str(value)))


def label(value: object, longest: int = LONGEST_LABEL) -> Markup:
    """A label from the data, isolated from the direction of the text around it."""
    text = shortened(value, longest)
    return element("bdi", text) if text.strip() else element("span", "(empty)", class_="soft")


def shortened(value: object, longest: int) -> str:
    """Both ends of a long text, since labels often differ only at the end."""
    return both_ends(visible(str(value)), longest)


def any_long(*labels: object) -> bool:
    """Whether a table with these labels should be stacked on a phone."""
    return any(len(visible(str(label))) > LONGEST_IN_COLUMN for label in labels)


def section(title: str, *content: Markup) -> Markup:
    """A section, or nothing if it would be empty."""
    filled = [part for part in content if part]
    return element("section", element("h2", title), *filled) if filled else Markup("")


def table(
    heads: Sequence[str], rows: Iterable[Sequence[object]], *, caption: str = "", stacked: bool = False
) -> Markup:
    """A table that scrolls if the page is narrower; a head that ends in "#" marks a column of numbers.

    `stacked` puts the cells of a row below one another on a phone, for tables with long text.
    """
    names = [head.rstrip("#") for head in heads]
    classes = ["n" if head.endswith("#") else None for head in heads]
    top = (element("th", n, scope="col", class_=c) for n, c in zip(names, classes, strict=True))

    def line(row: Sequence[object]) -> Markup:
        cells = zip(row, names, classes, strict=True)
        return element(
            "tr",
            *(element("td", v, class_=c, data_label=n if stacked else None) for v, n, c in cells),
        )

    table = element(
        "table",
        element("thead", element("tr", *top)),
        element("tbody", *map(line, rows)),
        class_="stacked" if stacked else None,
    )
    below = element("p", caption, class_="soft") if caption else ""
    return join(element("div", table, class_="scroll"), below)


def figure(title: str, chart: Markup, caption: object, key: Sequence[tuple[str, str]] = ()) -> Markup:
    """A chart with its title, a key to its lines, and a caption."""
    keys = (element("span", _swatch(kind), text) for kind, text in key)
    legend = element("div", *keys, class_="key soft") if key else ""
    return element("figure", element("h3", title), legend, chart, element("figcaption", caption))


def _swatch(kind: str) -> Markup:
    path = element("path", d="M1 5H21", class_=f"line {kind}")
    return element("svg", path, viewBox="0 0 22 10", aria_hidden="true")


def bullets(items: Sequence[str]) -> Markup:
    return element("ul", *(element("li", item) for item in items)) if items else Markup("")


def facts(rows: Iterable[tuple[str, object]]) -> Markup:
    pairs = (join(element("dt", name), element("dd", value)) for name, value in rows)
    return element("dl", *pairs, class_="facts")
