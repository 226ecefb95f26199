"""How the model was trained: in words, as curves, and as a table of epochs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from sklearn.base import is_classifier

from mercer.estimators import KernelClassifier, KernelRegressor
from mercer.report.charts import Axis, Chart
from mercer.report.markup import Markup, element, figure, join, table
from mercer.report.numbers import duration, number, three_decimals
from mercer.training.events.dispatch import INTERRUPTED
from mercer.training.history import Epoch, in_epochs, loss_name

# Points drawn of a long spectrum, evenly spaced on the logarithmic axis.
MOST_EIGENVALUES = 160
SOLVED_AT_ONCE = "Nothing was levelled: few rows or centres have their equations solved directly."
# Most epochs that are drawn with a dot each on the learning curve.
MOST_EPOCH_DOTS = 30

Model = KernelClassifier | KernelRegressor


@dataclass(frozen=True)
class Best:
    """Where training reached the weights that the model has, and how good they are."""

    epoch: float  # a fraction within the first epoch
    loss: float  # held-out
    score: float | None  # held-out; known only at the end of an epoch

    @property
    def when(self) -> str:
        """
        >>> Best(3.0, 0.1, 0.9).when, Best(0.375, 0.1, None).when
        ('at the end of epoch 3', 'after 0.38 epochs')
        """
        return (
            f"at the end of epoch {self.epoch:.0f}"
            if self.epoch >= 1
            else (f"after {number(self.epoch, 2)} epochs")
        )


def best_weights(model: Model) -> Best | None:
    """The best weights, which are the model's; None if no rows were held out.

    The history may not have them: they can be reached within the first epoch, or in an epoch that
    diverged later and was repeated with a smaller step.
    """
    epoch, loss = model.best_epoch_, model.best_loss_
    if loss is None:
        return None
    scores = (
        e.validation_score
        for e in model.history_.epochs
        if (e.number, e.validation_loss) == (epoch, loss)
    )
    score = next(scores, None)
    return Best(epoch, loss, score if score is not None and math.isfinite(score) else None)


def in_words(model: Model, data_name: str, target: str) -> Markup:
    """A summary as a paragraph without symbols."""
    plan, history, selection = model.plan_, model.history_, model.selection_
    d = model.n_features_in_
    classes = f" ({len(model.classes_):,} classes)" if is_classifier(model) else ""
    parts: list[object] = [
        f"The model was trained on {plan.n:,} rows of ",
        element("bdi", data_name),
        " to predict ",
        element("bdi", target),
        f"{classes} from {d:,} {'feature' if d == 1 else 'features'}. The kernel is {plan.kernel}",
    ]
    if selection is not None:
        best = selection.best
        parts.append(f", the best of {len(selection.candidates):,} settings ")
        parts.append(
            f"when trained on {best.n_points:,} rows and judged on others"
            if best.left_out == "rows"
            else f"by leave-one-out error on {best.n_points:,} rows"
        )
    parts.append(
        ". There is no ridge, so training aims to interpolate the data. "
        if plan.ridge == 0
        else f". A ridge of {number(plan.ridge)} allows for noise in the target. "
    )
    if not history.epochs:
        parts.append(f"Training stopped within the first epoch because {stop_reason(model)}.")
    else:
        seconds = duration(sum(epoch.seconds for epoch in history.epochs))
        parts.append(
            f"The equations were solved directly ({seconds})."
            if solved_directly(model)
            else f"Training ran for {in_epochs(len(history))} ({seconds}) and stopped because "
            f"{stop_reason(model)}."
        )
    best = best_weights(model)
    if solved_directly(model):
        if plan.n_closing:
            parts.append(f" Then they were solved again, with the {plan.n_closing:,} held-out rows.")
    elif best is not None and plan.n_closing:
        parts.append(f" The lowest held-out loss was reached {best.when}. From the weights of then, ")
        parts.append(f"training went on with the {plan.n_closing:,} held-out rows as well.")
    elif best is not None:
        parts.append(f" The weights are those with the lowest held-out loss, reached {best.when}.")
    if not model.converged_:
        parts.append(" Training had not converged, so more epochs may improve the model.")
    return join(*parts)


def solved_directly(model: Model) -> bool:
    return bool(model.plan_.direct and model.converged_)


def stop_reason(model: Model) -> str:
    """A clause that follows "because"."""
    reason = str(model.stop_reason_)
    return f"it was {reason}" if reason == INTERRUPTED else reason


def name_of_loss(model: Model) -> str:
    return loss_name(model.plan_.n_outputs, is_classifier(model))


def learning(model: Model) -> Markup:
    """The learning curve, the spectrum, and a table of all epochs."""
    figures = element("div", _learning_curve(model), _spectrum(model), class_="pair")
    return join(figures, _epochs(model))


def _learning_curve(model: Model) -> Markup:
    epochs, best = model.history_.epochs, best_weights(model)
    title = "Learning curve"
    if len(epochs) < 2 or solved_directly(model):
        return element("div", element("h3", title), element("p", _few_epochs(model)))
    numbers, train, held_out = (
        np.array(model.history_.column(name), dtype=float)  # NaN for None
        for name in ("number", "train_loss", "validation_loss")
    )
    ring = [] if best is None else [best]
    chart = Chart(
        Axis.around("epoch", [*numbers, *(b.epoch for b in ring)], kind="whole"),
        Axis.around(name_of_loss(model), [*train, *held_out, *(b.loss for b in ring)], log=True),
    )
    key = [("a dashed", "training")]
    chart.line(numbers, train, "a dashed")
    caption = "The training loss of a batch is measured just before its step."
    if best is not None:
        key.append(("b", "held out"))
        chart.line(numbers, held_out, "b")
        chart.ring(best.epoch, best.loss)
        score = "" if best.score is None else f", {_score_name(model)} {_score(model, best.score)}"
        whose = "best" if model.plan_.n_closing else "final"
        caption += f" The ring marks the {whose} weights: held-out loss {number(best.loss)}{score}, "
        caption += f"reached {best.when}."
        if model.plan_.n_closing:
            caption += " The epochs without a held-out loss trained on all rows."
    if len(epochs) <= MOST_EPOCH_DOTS:
        chart.dots(numbers, train, "a")
        chart.dots(numbers, held_out, "b")
    description = "; ".join(f"epoch {e.number}: {number(e.train_loss)}" for e in (epochs[0], epochs[-1]))
    return figure(title, chart.markup(title, f"Training loss, {description}."), caption, key)


def _few_epochs(model: Model) -> str:
    epochs = model.history_.epochs
    if not epochs:
        return "Training stopped before the end of the first epoch, so there is no curve."
    epoch = epochs[0]
    held_out = epoch.validation_loss
    also = "" if held_out is None else f", the held-out loss {number(held_out)}"
    why = "The equations were solved directly" if solved_directly(model) else "There was only one epoch"
    return f"{why}, so there is no curve. The training loss was {number(epoch.train_loss)}{also}."


def _spectrum(model: Model) -> Markup:
    plan, q = model.plan_, model.plan_.preconditioner_rank
    values = np.asarray(model.eigenvalues_, dtype=float)
    if len(values) < 2:
        return Markup("")
    index = np.arange(1, len(values) + 1)
    last = min(q, len(values))
    spread = np.geomspace(1, len(values), MOST_EIGENVALUES).round().astype(int)
    shown = np.unique([*spread, *([last] * bool(last))]) - 1
    y = Axis.around("eigenvalue λᵢ of K / n", values, log=True)
    chart = Chart(Axis("index i", 1, len(values), log=len(values) > 5), y)
    caption, key = SOLVED_AT_ONCE, [("a", "kernel")]
    if q:
        levelled = np.minimum(values, values[last - 1])
        chart.line(index[shown], levelled[shown], "b wide")
        chart.line([last, last], [y.low, y.high], "soft dashed")
        before, after = number(plan.critical_batch_size_plain, 2), number(plan.critical_batch_size, 2)
        caption = (
            f"Levelling lowers the first q = {q:,} eigenvalues (dashed line) to the last of them. This "
            f"raises the critical batch size from {before} to {after} rows."
        )
        key.append(("b wide", "levelled kernel"))
    chart.line(index[shown], values[shown], "a")
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
        "Step size#",
    ]
    keep = [i for i in range(len(heads)) if scored or i not in (2, 3)]

    def cells(e: Epoch) -> list[str]:
        losses = [number(e.train_loss), "" if e.validation_loss is None else number(e.validation_loss)]
        score = _score(model, e.validation_score)
        return [str(e.number), *losses, score, f"{e.seconds:.2f}", number(e.step_size)]

    rows = ([cells(epoch)[i] for i in keep] for epoch in history.epochs)
    names = [heads[i] for i in keep]
    return element("details", element("summary", f"All {len(history)} epochs"), table(names, rows))


def _score(model: Model, score: float | None) -> str:
    if score is None or not math.isfinite(score):
        return ""
    return f"{100 * (1 - score):.2f}\u00a0%" if is_classifier(model) else three_decimals(score)


def _score_name(model: Model) -> str:
    return "error" if is_classifier(model) else "R²"
