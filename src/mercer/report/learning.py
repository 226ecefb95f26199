"""How a model learnt: in words, as curves, and as the plan it followed."""

from __future__ import annotations

import math
import re

import numpy as np
from sklearn.base import is_classifier

from mercer.estimators import KernelClassifier, KernelRegressor
from mercer.report.charts import Axis, Chart
from mercer.report.markup import Markup, element, figure, join, table
from mercer.report.numbers import duration, number, three_decimals, times
from mercer.training.loop import Epoch, History

# Eigenvalues drawn of a long spectrum, evenly on the logarithmic axis.
MOST_EIGENVALUES = 160
# Epochs up to which every one has its own dot on the learning curve.
MOST_EPOCH_DOTS = 30

Model = KernelClassifier | KernelRegressor


def in_words(model: Model, data_name: str, target: str) -> Markup:
    """What was learnt, as a paragraph without symbols."""
    plan, history = model.plan_, model.history_
    d = model.n_features_in_
    classes = f" ({len(model.classes_):,} classes)" if is_classifier(model) else ""
    parts: list[object] = [
        f"Mercer learnt from {plan.n:,} rows of ",
        element("bdi", data_name),
        " to predict ",
        element("bdi", target),
        f"{classes}, given {d:,} {'feature' if d == 1 else 'features'}. It compares a new row with "
        f"every row it learnt from; how alike two rows are is for the kernel to say, here {plan.kernel}",
    ]
    selection = model.selection_
    if selection is not None:
        tried, points = len(selection.candidates), selection.best.n_points
        parts.append(f", the best of {tried:,} settings by leave-one-out error on {points:,} rows")
    parts.append(
        ". No ridge was added, so it aims to meet every training row exactly. "
        if plan.ridge == 0
        else f". A ridge of {number(plan.ridge)} allows for noise in what is to be predicted. "
    )
    if not history.epochs:
        parts.append(f"Training ended within its first epoch: {model.stop_reason_}.")
        return join(*parts)
    count = len(history)
    seconds = sum(epoch.seconds for epoch in history.epochs)
    parts.append(
        f"Training passed over the rows {times(count)}, in {duration(seconds)}, and then ended: "
        f"{model.stop_reason_}."
    )
    best = best_epoch(history)
    if best is not None:
        parts.append(" The weights kept are those with the lowest held-out loss.")
    if not model.converged_:
        parts.append(" It had not converged, so more epochs may improve the model.")
    return join(*parts)


def learning(model: Model) -> Markup:
    """The learning curve and the spectrum, and the numbers of all epochs."""
    figures = element("div", _learning_curve(model), _spectrum(model), class_="pair")
    return join(figures, _epochs(model))


def _learning_curve(model: Model) -> Markup:
    epochs = model.history_.epochs
    title = "Learning curve"
    if len(epochs) < 2:
        return element("div", element("h3", title), element("p", _few_epochs(model.history_)))
    numbers, train, held_out = (
        np.array(model.history_.column(name), dtype=float)  # NaN for None
        for name in ("number", "train_loss", "validation_loss")
    )
    losses = np.concatenate([train, held_out])
    chart = Chart(
        Axis.around("epoch", numbers, kind="whole"),
        Axis.around("mean squared error", losses, log=True),
    )
    key = [("a dashed", "training")]
    chart.line(numbers, train, "a dashed")
    caption = "The training loss is that of each batch just before its step."
    best = best_epoch(model.history_)
    if best is not None and best.validation_loss is not None:
        key.append(("b", "held out"))
        chart.line(numbers, held_out, "b")
        chart.ring(best.number, best.validation_loss)
        score = f" ({_score_name(model)} {_score(model, best)})" if _score(model, best) else ""
        lowest = f"{number(best.validation_loss)} in epoch {best.number}{score}"
        caption += f" The ring is the lowest held-out loss, {lowest}."
    if len(epochs) <= MOST_EPOCH_DOTS:
        chart.dots(numbers, train, "a")
        chart.dots(numbers, held_out, "b")
    description = "; ".join(f"epoch {e.number}: {number(e.train_loss)}" for e in (epochs[0], epochs[-1]))
    return figure(title, chart.markup(title, f"Training loss, {description}."), caption, key)


def _few_epochs(history: History) -> str:
    if not history.epochs:
        return "Training ended before its first epoch was over, so there is no curve."
    epoch = history.epochs[0]
    loss = number(epoch.train_loss)
    text = f"A single epoch was trained, so there is no curve: the training loss was {loss}"
    if epoch.validation_loss is not None:
        text += f", the held-out loss {number(epoch.validation_loss)}"
    return text + "."


def _spectrum(model: Model) -> Markup:
    plan, q = model.plan_, model.plan_.preconditioner_rank
    values = np.asarray(model.eigenvalues_, dtype=float)
    if len(values) < 2:
        return Markup("")
    index = np.arange(1, len(values) + 1)
    levelled = np.minimum(values, values[min(q, len(values)) - 1])
    spread = np.geomspace(1, len(values), MOST_EIGENVALUES).round().astype(int)
    shown = np.unique([*spread, min(q, len(values))]) - 1
    y = Axis.around("eigenvalue λᵢ of K / n", values, log=True)
    chart = Chart(Axis("index i", 1, len(values), log=len(values) > 5), y)
    chart.line(index[shown], levelled[shown], "b wide")
    chart.line(index[shown], values[shown], "a")
    at = min(q, len(values))
    chart.line([at, at], [y.low, y.high], "soft dashed")
    before, after = number(plan.critical_batch_size_plain, 2), number(plan.critical_batch_size, 2)
    caption = (
        f"Levelling brings the first q = {q:,} eigenvalues (dashed line) down to the last of them; the "
        f"largest batch that is still useful grows from {before} to {after} rows."
    )
    key = [("a", "kernel as given"), ("b wide", "levelled")]
    title = "Spectrum of the kernel"
    description = f"Eigenvalues from {number(values[0])} down to {number(values[-1])}."
    return figure(title, chart.markup(title, description), caption, key)


def _epochs(model: Model) -> Markup:
    history = model.history_
    if len(history) < 2:
        return Markup("")
    scored = any(epoch.validation_score is not None for epoch in history.epochs)
    heads = [
        "Epoch#",
        "Training loss#",
        "Held-out loss#",
        f"Held-out {_score_name(model)}#",
        "Seconds#",
        "Step#",
    ]
    keep = [i for i in range(len(heads)) if scored or i not in (2, 3)]

    def cells(e: Epoch) -> list[str]:
        losses = [number(e.train_loss), "" if e.validation_loss is None else number(e.validation_loss)]
        return [str(e.number), *losses, _score(model, e), f"{e.seconds:.2f}", number(e.step_size)]

    rows = ([cells(epoch)[i] for i in keep] for epoch in history.epochs)
    names = [heads[i] for i in keep]
    return element("details", element("summary", f"All {len(history)} epochs"), table(names, rows))


def _score(model: Model, epoch: Epoch) -> str:
    score = epoch.validation_score
    if score is None or not math.isfinite(score):
        return ""
    return f"{100 * (1 - score):.2f}\u00a0%" if is_classifier(model) else three_decimals(score)


def _score_name(model: Model) -> str:
    return "error" if is_classifier(model) else "R²"


def best_epoch(history: History) -> Epoch | None:
    """The epoch of the lowest held-out loss, if any was held out."""
    measured = [epoch for epoch in history.epochs if epoch.validation_loss is not None]
    return min(measured, key=lambda epoch: epoch.validation_loss or 0.0, default=None)


def plan_table(model: Model) -> Markup:
    """Every chosen number and what it means."""
    rows = (
        element(
            "tr",
            element("th", _symbols(name, letters=True), scope="row"),
            element("td", value, class_="v"),
            element("td", _symbols(meaning), class_="m"),
        )
        for name, value, meaning in model.plan_.rows()
    )
    return element("table", element("tbody", *rows), class_="plan")


def _symbols(text: str, letters: bool = False) -> Markup:
    """The paper's symbols as they are set in print: m_G with an index, beta and eta in Greek.

    Single `letters` are symbols in the names of a plan, but may be words in what explains them.
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
