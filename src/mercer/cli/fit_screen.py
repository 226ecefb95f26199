"""What `fit` prints when it has finished: the score, the model, and what to try next."""

from __future__ import annotations

import os
import shlex
from typing import Any

from rich.padding import Padding

from mercer.cli.fitting import Fitted
from mercer.cli.labels import short
from mercer.cli.measuring import is_useless
from mercer.cli.printing import blank_line, show, show_json, text
from mercer.cli.score_screen import evaluation_data, measured_lines
from mercer.cli.screens import Model, importances, left_out_lines, model_data, task_line
from mercer.estimators.features import Feature, features_of
from mercer.metrics import ClassificationMeasures
from mercer.report.learning import solved_directly, stop_reason
from mercer.training.history import in_epochs


def show_fit(fitted: Fitted, as_json: bool) -> None:
    if as_json:
        show_json(_fit_data(fitted))
        return
    model, rows = fitted.model, fitted.rows
    stopping = f" ({rows['early_stopping']:,} more for early stopping)" if rows["early_stopping"] else ""
    if model.plan_.n_closing:
        stopping = f", and in the end on {rows['early_stopping']:,} more that were held out,"
    shares = importances(_features(fitted))
    lines: list[Any] = blank_line()
    if fitted.measures is not None and fitted.evaluation is not None:
        lines += [*measured_lines(fitted.measures, fitted.evaluation), ""]
    else:
        lines += left_out_lines(model)
    lines += [
        f"{task_line(model, fitted.columns.target)}: {model.kernel_}, ridge {model.ridge_:.3g}",
        *_course(model, f"{rows['train']:,} rows{stopping}", f"{fitted.seconds['training']:.1f} s"),
        *([f"Most important: {shares}."] if shares else []),
        *(["The model was then trained on the held-out rows as well."] if fitted.refitted else []),
        text("Saved the model to ", (_short(fitted.places.model), "bold"), "."),
    ]
    if fitted.places.report is not None:
        lines.append(text("Wrote the report to ", (_short(fitted.places.report), "bold"), "."))
    indented = (Padding(text(hint), (0, 0, 0, 2)) for hint in hints(fitted))
    show(*lines, "", text("What to try next", style="bold"), *indented)


def _course(model: Model, rows: str, seconds: str) -> list[str]:
    """How the model was trained."""
    if solved_directly(model):
        return [f"Trained on {rows} in {seconds}: the equations were solved directly."]
    return [
        f"Trained on {rows} for {in_epochs(model.n_iter_)} in {seconds}.",
        f"Stopped because {stop_reason(model)}.",
    ]


def _features(fitted: Fitted) -> list[Feature]:
    return features_of(fitted.model, fitted.columns.feature_names, fitted.columns.categories)


def _short(path: Any) -> str:
    """Relative to the current folder if that is shorter."""
    return str(min(str(path), os.path.relpath(path), key=len))


def hints(fitted: Fitted) -> list[str]:
    """What to try next, the most useful first."""
    model, measures, places = fitted.model, fitted.measures, fitted.places
    found = []
    again = fitted.command if "--force" in fitted.command else f"{fitted.command} --force"
    if fitted.interrupted and places.checkpoint is not None:
        resume = "" if places.resume else f" --resume {shlex.quote(_short(places.checkpoint))}"
        found.append(f"to continue training: {again}{resume}")
    elif not model.converged_ and not fitted.interrupted:
        found.append(f"--epochs {2 * model.n_iter_}: training had not converged")
    if measures is not None and is_useless(measures):
        found.append(
            "check --target and the notes on columns: the model is no better than a constant prediction"
        )
    elif isinstance(measures, ClassificationMeasures) and measures.lopsided:
        rare = [short(one.label) for one in measures.classes if one.rows and one.precision is None]
        found += [f"--class-weight balanced: {label} is never predicted" for label in rare[:1]]
    if model.plan_.bound == "memory":
        found.append(f"more --memory: {model.plan_.advice}")
    if measures is None:
        found.append("--holdout 0.2 or --test FILE: the model has not been measured on new rows")
    elif places.report is None:
        found.append("--report report.html: a page on the model's errors and its training")
    name = shlex.quote(_short(places.model))
    found.append(f"mercer predict {name} NEW.csv -o predictions.csv")
    return found


def _fit_data(fitted: Fitted) -> dict[str, Any]:
    model, places = fitted.model, fitted.places
    return {
        "model": str(places.model),
        "report": None if places.report is None else str(places.report),
        "task": fitted.columns.task,
        "target": fitted.columns.target,
        "rows": fitted.rows,
        "features": list(fitted.columns.feature_names),
        "measures": None if fitted.measures is None else fitted.measures.to_dict(),
        **evaluation_data(fitted.evaluation),
        "refitted": fitted.refitted,
        "epochs": model.n_iter_,
        "converged": model.converged_,
        "interrupted": fitted.interrupted,
        "stop_reason": model.stop_reason_,
        "seconds": fitted.seconds,
        "notes": list(fitted.notes),
        "next": hints(fitted),
        **model_data(model, _features(fitted)),
    }
