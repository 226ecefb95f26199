"""The page at /: how each model is asked, and a form to try it; it loads nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import shlex
from datetime import datetime, timezone
from importlib.resources import files
from typing import Any

import mercer
from mercer.palette import BLUE
from mercer.report.markup import Markup, element, join, label
from mercer.serve.json_rows import expected
from mercer.serve.limits import Limits
from mercer.serve.openapi import example, parameters
from mercer.serve.registry import Entry, Registry
from mercer.serve.served import Served
from mercer.tables.columns import Columns
from mercer.tables.kinds import Kind

# Columns and categories that are listed.
MOST_LISTED = 200
MOST_CATEGORIES = 12
# Lines of the example in the form that are visible.
MOST_LINES = 20
WORDS: dict[Kind, str] = {
    "number": "number",
    "boolean": "true or false",
    "date": "date, such as 2024-01-31 or 2024-01-31T13:45:00",
    "duration": "number of seconds",
    "time": "time of day, such as 13:45:00",
    "text": "text",
}


def _file(name: str) -> str:
    return files("mercer.serve").joinpath(name).read_text(encoding="utf-8")


SCRIPT, STYLE = _file("page.js"), f":root {{ --a: {BLUE}; }}\n" + _file("page.css")
_HASH = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
# The browser runs this script and no other, and sends requests to this server and no other.
SECURITY = {
    "Content-Security-Policy": f"default-src 'none'; script-src 'sha256-{_HASH}'; "
    "style-src 'unsafe-inline'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'; img-src data:",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def page(registry: Registry, limits: Limits, address: str) -> str:
    """The page as HTML; `address` is the one at which the client found it."""
    entries = list(registry.entries.values())
    several = len(entries) > 1
    content = join(
        element("h1", "Mercer"),
        element(
            "p",
            f"Predictions of {len(entries)} models." if several else "Predictions of one model.",
            " For programs there are the description in ",
            element("a", "OpenAPI", href="openapi.json"),
            ", the ",
            element("a", "health", href="health"),
            " and the ",
            element("a", "metrics", href="metrics"),
            " of the server.",
        ),
        element(
            "p",
            f"A request may have {limits.body:,} bytes and {limits.rows:,} rows, and is answered within "
            f"{limits.seconds:g} seconds.",
            class_="soft",
        ),
        *(_model(entry, several, address) for entry in entries),
        element("footer", element("p", f"Mercer {mercer.__version__}", class_="soft")),
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),  # or browsers would request one
        element("title", "Mercer: " + ", ".join(registry.entries)),
        element("style", Markup(STYLE)),
    )
    body = element("body", element("main", content), element("script", Markup(SCRIPT)))
    return "<!doctype html>\n" + element("html", head, body, lang="en") + "\n"


def _model(entry: Entry, several: bool, address: str) -> Markup:
    served = entry.served
    path = f"/models/{served.name}/predict" if several else "/predict"
    loaded = datetime.fromtimestamp(served.loaded, timezone.utc)
    kind = "classifier" if served.is_classifier else "regressor"
    problem = Markup("")
    if entry.problem is not None:
        problem = element(
            "p", f"The file was replaced and cannot be used: {entry.problem}", class_="fault"
        )
    return join(
        element("h2", served.name),
        element(
            "p",
            f"A {kind}, version ",
            element("code", served.version),
            f", read on {loaded:%Y-%m-%d at %H:%M} UTC. ",
            element("code", f"POST {path}"),
            " takes rows as JSON or CSV and answers in the same format.",
        ),
        problem,
        element("h3", "Columns"),
        _columns(served),
        _options(served),
        element("h3", "From a shell"),
        element("pre", element("code", _curl(served, address + path))),
        element("h3", "Try it"),
        _form(served, path),
    )


def _columns(served: Served) -> Markup:
    columns = expected(served)
    categories: dict[str, tuple[str, ...]] = {}
    if isinstance(served.columns, Columns):
        categories = {c.name: c.levels for c in served.columns.columns if c.kind == "text"}
    rows = []
    for name, kind, written in columns[:MOST_LISTED]:
        known = categories.get(name, ())
        words: list[object] = [WORDS[kind] + (", written as in training" if written else "")]
        if known:
            more = len(known) - MOST_CATEGORIES
            for i, one in enumerate(known[:MOST_CATEGORIES]):
                words += [", " if i else ": ", element("code", label(one))]
            words.append(f" and {more:,} more" if more > 0 else "")
        rows.append(element("tr", element("td", element("code", label(name))), element("td", *words)))
    table = element(
        "table",
        element("thead", element("tr", element("th", "name"), element("th", "value"))),
        element("tbody", *rows),
    )
    left = len(columns) - MOST_LISTED
    rest = element("p", f"and {left:,} more", class_="soft") if left > 0 else ""
    note = element("p", "A missing value is null; other columns are ignored.", class_="soft")
    return join(element("div", table, class_="wide"), rest, note)


def _options(served: Served) -> Markup:
    options = [(f"{o['name']}={_example_of(o)}", o["description"]) for o in parameters(served)]
    if not options:
        return Markup("")
    rows = [
        element("tr", element("td", element("code", option)), element("td", text))
        for option, text in options
    ]
    return join(
        element("h3", "Options in the address"),
        element("div", element("table", element("tbody", *rows), class_="options"), class_="wide"),
    )


def _curl(served: Served, address: str) -> str:
    body = json.dumps([example(served)], ensure_ascii=False)
    first = next(iter(parameters(served)), None)
    query = "" if first is None else f"?{first['name']}={_example_of(first)}"
    where = shlex.quote(address + query)
    return f"curl {where} -H 'Content-Type: application/json' -d {shlex.quote(body)}"


def _example_of(option: dict[str, Any]) -> str:
    return str(option["schema"].get("example", "true"))


def _form(served: Served, path: str) -> Markup:
    body = json.dumps([example(served)], indent=1, ensure_ascii=False)
    fields = []
    for option in parameters(served):
        name, schema = option["name"], option["schema"]
        if schema["type"] == "boolean":
            field = element("input", type="checkbox", name=name)
        else:
            field = element(
                "input",
                type="number",
                name=name,
                min="0",
                max=schema["maximum"],
                step="any",
                placeholder=schema["example"],
            )
        fields.append(element("label", field, name, title=option["description"]))
    return element(
        "form",
        element(
            "textarea",
            Markup(html.escape(body)),
            spellcheck="false",
            rows=min(MOST_LINES, body.count("\n") + 1),
            aria_label=f"Rows for {served.name}",
        ),
        element("div", *fields, element("button", "Predict", type="submit"), class_="row"),
        element("output", aria_live="polite"),
        action=path.lstrip("/"),
        method="post",
    )
