"""The page: the headline, all parts in the order a reader asks for them, and the file it goes to."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from pathlib import Path

import numpy as np
import sklearn
import torch
from sklearn.base import is_classifier

import mercer
from mercer.files.whole import write_text_whole
from mercer.metrics import wilson_interval
from mercer.report.errors import Evaluation, errors, rms
from mercer.report.learning import Model, best_epoch, in_words, learning, plan_table
from mercer.report.markup import Markup, bullets, element, facts, join, section
from mercer.report.numbers import duration, number, percent, three_decimals

# Nothing may be loaded or run, whatever the data holds.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


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
) -> None:
    """Write the report of a fitted model to `path`, whole or not at all.

    `timings` are seconds by what they were spent on, `notes` sentences about the data.  Without an
    `evaluation` the page shows the result of the part that training held out, if there was one.
    """
    classes = model.classes_ if is_classifier(model) else None
    content = join(
        _header(title, _result(model, evaluation), data_name),
        section("What was learnt", element("p", in_words(model, data_name, target))),
        Markup("") if evaluation is None else errors(evaluation, classes),
        section("How it learnt", learning(model)),
        section("The plan", plan_table(model)),
        section("Notes on the data", bullets(notes)),
        section("Time and versions", element("div", _timings(timings), _versions(model), class_="pair")),
        section("The command", element("pre", element("code", command))),
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
        element("link", rel="icon", href="data:,"),  # else browsers ask the server for one
        element("title", title),
        element("style", Markup(style)),
    )
    return "<!doctype html>\n" + element("html", head, element("body", content), lang="en") + "\n"


@dataclass(frozen=True)
class _Result:
    figure: str
    name: str
    sentences: Sequence[str]


def _header(title: str, result: _Result, data_name: str) -> Markup:
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


def _result(model: Model, evaluation: Evaluation | None) -> _Result:
    if evaluation is None:
        return _held_out_result(model)
    m, source = len(evaluation.y), f"{len(evaluation.y):,} rows ({evaluation.source})"
    if is_classifier(model):
        wrong = int((~evaluation.right).sum())
        low, high = wilson_interval(wrong, m)
        common = np.unique(evaluation.y, return_counts=True)[1].max()
        guess = percent(1 - common / m, m)
        return _Result(
            percent(wrong / m, m),
            "error",
            [
                f"{wrong:,} of {source} are classified wrongly.",
                f"On new rows like these the error lies between {percent(low, m)} and "
                f"{percent(high, m)} (95 % interval).",
                f"Always naming the commonest class would be wrong in {guess} of them.",
            ],
        )
    y = np.asarray(evaluation.y, dtype=float)
    typical, spread = rms(evaluation.residuals), rms(y - y.mean())
    sentence = (
        f"On {source} the typical error (root of the mean square) is {number(typical)}; "
        f"always predicting their mean would give {number(spread)}."
    )
    if spread == 0:
        return _Result(number(typical), "typical error", [sentence])
    share = 1 - (typical / spread) ** 2
    explained = f"The model explains {percent(share, 1000)} of the variance." if share > 0 else ""
    return _Result(three_decimals(share), "R²", [explained, sentence])


def _held_out_result(model: Model) -> _Result:
    """The result of the part that decided when to stop, where nothing else was measured."""
    best = best_epoch(model.history_)
    if best is None or best.validation_score is None or not math.isfinite(best.validation_score):
        return _Result(
            "Not measured",
            "",
            ["No rows were held out, so this page cannot say how well the model does on new ones."],
        )
    m = len(model.dual_coef_) - model.plan_.n  # 0 where the held-out rows were given apart
    rows = f"{m:,} rows that training held out" if m else "the rows held out"
    caution = "The same rows decided when to stop, so the figure is a little flattering."
    if is_classifier(model):
        error = 1 - best.validation_score
        return _Result(percent(error, m or 1000), "error", [f"Measured on {rows}.", caution])
    return _Result(three_decimals(best.validation_score), "R²", [f"Measured on {rows}.", caution])


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
        cells = (element("td", "in all"), element("td", duration(total), class_="n"), element("td"))
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
