"""The page: the headline, all sections in order, and the file they are written to."""

from __future__ import annotations

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
from mercer.palette import BLUE, ORANGE, SKY_BLUE, VERMILION
from mercer.report.errors import errors
from mercer.report.evaluation import Evaluation, rms
from mercer.report.learning import Model, best_weights, in_words, learning, name_of_loss
from mercer.report.markup import Markup, bullets, element, facts, join, section
from mercer.report.numbers import duration, number, percent, three_decimals
from mercer.report.plan import plan_table

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
) -> None:
    """Write the report on a fitted model to `path`, completely or not at all.

    `timings` are seconds by stage, `notes` are sentences about the data.  Without an `evaluation` the
    headline is the result on the rows that were held out for early stopping, if there were any.
    """
    classes = model.classes_ if is_classifier(model) else None
    content = join(
        _header(title, _result(model, evaluation), data_name),
        section("Summary", element("p", in_words(model, data_name, target))),
        Markup("") if evaluation is None else errors(evaluation, classes),
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
        wrong = int((~evaluation.correct).sum())
        low, high = wilson_interval(wrong, m)
        common = np.unique(evaluation.y, return_counts=True)[1].max()
        guess = percent(1 - common / m, m)
        return _Result(
            percent(wrong / m, m),
            "error",
            [
                f"{wrong:,} of {source} are misclassified.",
                f"The 95 % confidence interval of the error is {percent(low, m)} to {percent(high, m)}.",
                f"Predicting the most frequent class would give an error of {guess}.",
            ],
        )
    y = np.asarray(evaluation.y, dtype=float)
    typical, spread = rms(evaluation.residuals), rms(y - y.mean())
    sentence = (
        f"On {source} the root mean square error (RMSE) is {number(typical)}; predicting their mean "
        f"would give {number(spread)}."
    )
    if spread == 0:
        return _Result(number(typical), "RMSE", [sentence])
    share = 1 - (typical / spread) ** 2
    explained = f"The model explains {percent(share, 1000)} of the variance." if share > 0 else ""
    return _Result(three_decimals(share), "R²", [explained, sentence])


def _held_out_result(model: Model) -> _Result:
    """The result on the rows that decided when to stop, if nothing else was measured."""
    best = best_weights(model)
    if best is None:
        return _Result(
            "Not measured", "", ["No rows were held out, so the error on new rows is unknown."]
        )
    m = len(model.dual_coef_) - model.plan_.n  # 0 if the held-out rows were passed separately
    rows = f"{m:,} rows that were held out" if m else "the held-out rows"
    sentences = [
        f"Measured on {rows}, with the weights reached {best.when}.",
        "The same rows decided when to stop training, so the estimate is slightly optimistic.",
    ]
    if best.score is None:
        return _Result(number(best.loss), f"held-out loss ({name_of_loss(model)})", sentences)
    if is_classifier(model):
        return _Result(percent(1 - best.score, m or 1000), "error", sentences)
    return _Result(three_decimals(best.score), "R²", sentences)


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
