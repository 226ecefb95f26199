"""The page: all sections in order, and the file they are written to."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.resources import files
from pathlib import Path

import numpy as np
import sklearn
import torch
from sklearn.base import is_classifier

import mercer
from mercer.estimators.features import features_of
from mercer.files.whole import write_text_whole
from mercer.palette import BLUE, ORANGE, SKY_BLUE, VERMILION
from mercer.report.columns import columns
from mercer.report.errors import errors
from mercer.report.evaluation import Evaluation
from mercer.report.features import features
from mercer.report.headline import Headline, headline
from mercer.report.learning import Model, in_words, learning
from mercer.report.markup import Markup, bullets, element, facts, join, section
from mercer.report.numbers import duration
from mercer.report.plan import plan_table
from mercer.tables.columns import Decision

# The browser loads and runs nothing, whatever the data holds.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
# The two colours of report.css, on light and on dark paper.
COLOURS = (
    f":root {{ --a: {BLUE}; --b: {VERMILION}; }}\n"
    "@media screen and (prefers-color-scheme: dark) "
    f"{{ :root {{ --a: {SKY_BLUE}; --b: {ORANGE}; }} }}\n"
)


def write_report(
    path: Path,
    model: Model,
    evaluation: Evaluation | None,
    *,
    title: str,
    command: str,
    data_name: str,
    target: str,
    notes: Sequence[str],
    timings: Mapping[str, float],
    feature_names: Sequence[str] | None = None,
    categories: Mapping[str, Sequence[str]] | None = None,
    decisions: Sequence[Decision] = (),
) -> None:
    """Write the report on a fitted model to `path`, completely or not at all.

    `timings` are seconds by stage, `notes` are sentences about the data.  `feature_names` are those of
    the columns, if the model does not know them, and `categories` the names of the codes in some.
    `decisions` are those on the columns of the training table.
    """
    classes = model.classes_ if is_classifier(model) else None
    learned = model.machine_.inputs.importances is not None
    content = join(
        _header(title, headline(model, evaluation), data_name),
        section("Summary", element("p", in_words(model, data_name, target))),
        Markup("") if evaluation is None else errors(evaluation, classes),
        section("Features", features(features_of(model, feature_names, categories), learned)),
        section("Columns of the table", columns(decisions)),
        section("Training", learning(model)),
        section("Plan", plan_table(model.plan_)),
        section("Notes on the data", bullets(notes)),
        section("Time and versions", element("div", _timings(timings), _versions(model), class_="pair")),
        section("Command", element("pre", element("code", command))),
        element(
            "footer",
            f"Made by Mercer {mercer.__version__} on {datetime.now().astimezone():%Y-%m-%d at %H:%M}.",
            class_="soft",
        ),
    )
    write_text_whole(path, _page(title, content))


def _page(title: str, content: Markup) -> str:
    style = files("mercer.report").joinpath("report.css").read_text(encoding="utf-8")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),  # or browsers would request one
        element("title", title),
        element("style", Markup(COLOURS + style)),
    )
    return "<!doctype html>\n" + element("html", head, element("body", content), lang="en") + "\n"


def _header(title: str, result: Headline, data_name: str) -> Markup:
    figure = element(
        "div",
        result.figure,
        element("small", result.name) if result.name else "",
        class_="figure" if result.name else "figure none",
    )
    sentences = element("p", " ".join(filter(None, result.sentences)))
    return element(
        "header",
        element("p", "Mercer · ", element("bdi", data_name), class_="eyebrow"),
        element("h1", title),
        element("div", figure, sentences, class_="result"),
    )


def _timings(timings: Mapping[str, float]) -> Markup:
    total = sum(timings.values())
    rows = [
        element(
            "tr",
            element("td", name),
            element("td", duration(seconds), class_="n"),
            element(
                "td", element("span", class_="bar", style=f"width:{100 * seconds / (total or 1):.1f}%")
            ),
        )
        for name, seconds in timings.items()
    ]
    if len(rows) > 1:
        cells = (element("td", "total"), element("td", duration(total), class_="n"), element("td"))
        rows.append(element("tr", *cells))
    return element("table", element("tbody", *rows), class_="timings") if rows else Markup("")


def _versions(model: Model) -> Markup:
    plan = model.plan_
    return facts(
        [
            ("Mercer", mercer.__version__),
            ("Python", platform.python_version()),
            ("torch", torch.__version__),
            ("numpy", np.__version__),
            ("scikit-learn", sklearn.__version__),
            ("device", f"{plan.device} ({plan.device_name}), {plan.precision}"),
            ("system", f"{platform.system()} {platform.machine()}"),
        ]
    )
