"""How results look: tables for people, JSON for programs, both on standard output.

Whatever came from the data is shown as text, never as markup; into a pipe, lines are not wrapped.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mercer.cli.bench import engine_figures, machine
from mercer.cli.demo import demonstrate
from mercer.cli.messages import say_notes
from mercer.estimators import KernelClassifier, KernelRegressor
from mercer.metrics import ClassificationMeasures, Measures
from mercer.planning.plan import Plan
from mercer.training.events.console import ConsoleProgress
from mercer.training.events.dispatch import INTERRUPTED

if TYPE_CHECKING:  # demo and bench need no tables
    from mercer.cli.workflow import Fitted, Written

Model = KernelClassifier | KernelRegressor
# Classes listed on a screen; of more, those with the most mistakes.
MOST_CLASSES = 20
# Characters of a label in a table.
LONGEST_LABEL = 30
# Characters of a value that has a column of its own in a plan.
LONGEST_VALUE = 12
# Wide enough for any line of ours where nobody's terminal sets the width.
PIPE_WIDTH = 1000


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, markup=False)


def _show(*parts: Any) -> None:
    console = _console()
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    for line in captured.get().splitlines():
        print(line.rstrip())


def _apart() -> list[str]:
    """A line between notes and progress, which are above in a terminal, and the result."""
    return [""] if sys.stdout.isatty() else []


def show_json(data: Any) -> None:
    """JSON that every reader takes: what is not finite becomes null."""
    print(json.dumps(_plain(data), indent=1, ensure_ascii=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def show_plan(plan: Plan, as_json: bool = False) -> None:
    if as_json:
        print(plan.to_json())
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", overflow="fold")
    table.add_column(style="dim", overflow="fold")
    for name, value, meaning in plan.rows():
        if len(value) > LONGEST_VALUE:  # one long value would push all the meanings to the right
            value, meaning = "", f"{value}; {meaning}"
        table.add_row(Text(name), Text(value), Text(meaning))
    _show(*_apart(), table)


def show_measures(
    measures: Measures,
    source: str,
    notes: Sequence[str],
    as_json: bool,
    data: dict[str, Any] | None = None,
) -> None:
    if as_json:
        show_json({**measures.to_dict(), "measured_on": source, "notes": list(notes), **(data or {})})
        return
    say_notes(notes)
    _show(*_apart(), *_measured(measures, source))


def _measured(measures: Measures, source: str) -> list[Any]:
    rows = f"{measures.rows:,} {'row' if measures.rows == 1 else 'rows'} ({source})"
    if not isinstance(measures, ClassificationMeasures):
        return [
            Text.assemble(("R² ", "bold"), (f"{measures.r2:.4f}", "bold green"), f" on {rows}"),
            f"off by {measures.mae:.4g} on average, {measures.rmse:.4g} in root mean square; "
            f"always the mean: {measures.deviation:.4g}",
        ]
    low, high = (f"{100 * bound:.2g} %" for bound in measures.interval)
    return [
        Text.assemble(("Error ", "bold"), (_percent(measures.error), "bold green"), f" on {rows}"),
        f"{low} to {high} with 95 % confidence; "
        f"always the commonest class: {_percent(measures.baseline_error)}",
        "",
        _class_table(measures),
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _class_table(measures: ClassificationMeasures) -> Table:
    shown = list(measures.classes)
    if len(shown) > MOST_CLASSES:
        worst = sorted(shown, key=lambda one: one.rows * (1 - (one.recall or 0)), reverse=True)
        shown = worst[:MOST_CLASSES]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("class", overflow="ellipsis")
    for name in ("rows", "recall", "precision"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("most often taken for")
    for one in shown:
        instead = f"{_label(one.mistaken_for)} ({one.mistakes:,} ×)" if one.mistakes else ""
        found, right = ("–" if v is None else f"{100 * v:.1f} %" for v in (one.recall, one.precision))
        table.add_row(Text(_label(one.label)), f"{one.rows:,}", found, right, Text(instead))
    if len(shown) < len(measures.classes):
        rest = len(measures.classes) - len(shown)
        table.add_row(Text(f"… and {rest:,} classes with fewer mistakes; --json has all", style="dim"))
    return table


def _label(label: Any) -> str:
    """On one line and not too long; the whole of it is in the JSON."""
    text = " ".join(str(label).split()) or repr(label)
    return text if len(text) <= LONGEST_LABEL else text[: LONGEST_LABEL - 1] + "…"


def show_fit(fitted: Fitted, as_json: bool) -> None:
    model = fitted.model
    if as_json:
        show_json(_fit_data(fitted))
        return
    rows = fitted.rows
    others = f", {rows['early_stopping']:,} more to stop by," if rows["early_stopping"] else ""
    epochs = f"{model.n_iter_} {'epoch' if model.n_iter_ == 1 else 'epochs'}"
    lines: list[Any] = _apart()
    if fitted.measures is not None:
        lines += [*_measured(fitted.measures, fitted.source), ""]
    lines += [
        f"{_task(model, fitted.columns.target)}: {model.kernel_}, ridge {model.ridge_:.3g}",
        f"Trained on {rows['train']:,} rows{others} for {epochs} ({fitted.seconds['training']:.1f} s).",
        f"Stopped because {_because(model)}.",
        Text.assemble("The model is in ", (_short(fitted.places.model), "bold"), "."),
    ]
    if fitted.places.report is not None:
        lines.append(Text.assemble("The report is in ", (_short(fitted.places.report), "bold"), "."))
    _show(*lines, "", Text("What to try next", style="bold"), *(f"  {hint}" for hint in hints(fitted)))


def _because(model: Model) -> str:
    return f"it was {model.stop_reason_}" if model.stop_reason_ == INTERRUPTED else model.stop_reason_


def _task(model: Model, target: str) -> str:
    if isinstance(model, KernelClassifier):
        return f"{len(model.classes_):,} classes of {target}"
    return f"{target}, a number"


def _short(path: Any) -> str:
    """As seen from here, where that is shorter."""
    return str(min(str(path), os.path.relpath(path), key=len))


def hints(fitted: Fitted) -> list[str]:
    """What to try next, the most useful first."""
    model, measures, places = fitted.model, fitted.measures, fitted.places
    found = []
    again = fitted.command if "--force" in fitted.command else f"{fitted.command} --force"
    if fitted.interrupted and places.checkpoint is not None:
        resume = "" if places.resume else f" --resume {shlex.quote(places.checkpoint)}"
        found.append(f"{again}{resume}   goes on where it was interrupted")
    elif not model.converged_ and not fitted.interrupted:
        found.append(f"--epochs {2 * model.n_iter_}: it had not converged")
    if measures is not None and _useless(measures):
        found.append(
            "check --target and the notes on columns: it is no better than always saying the same"
        )
    if model.plan_.bound == "memory":
        found.append(f"more --memory: {model.plan_.advice}")
    if measures is None:
        found.append("--holdout 0.2 or --test FILE: nothing was kept apart to measure it on")
    elif places.report is None:
        found.append("--report report.html: where it errs, and how training went")
    name = shlex.quote(_short(places.model))
    found.append(f"mercer predict {name} NEW.csv -o predictions.csv")
    return found


def _useless(measures: Measures) -> bool:
    if isinstance(measures, ClassificationMeasures):
        return measures.error >= measures.baseline_error > 0
    return not measures.r2 > 0


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
        "measured_on": fitted.source or None,
        "epochs": model.n_iter_,
        "converged": model.converged_,
        "interrupted": fitted.interrupted,
        "stop_reason": model.stop_reason_,
        "seconds": fitted.seconds,
        "notes": list(fitted.notes),
        "next": hints(fitted),
        **_model_data(model),
    }


def _model_data(model: Model) -> dict[str, Any]:
    return {
        "kernel": str(model.kernel_),
        "bandwidth": model.bandwidth_,
        "ridge": model.ridge_,
        "history": model.history_.to_dicts(),
        "plan": json.loads(model.plan_.to_json()),
    }


def show_written(written: Written, output: str, as_json: bool) -> None:
    if as_json:
        show_json({"output": output, **asdict(written)})
        return
    _show(Text.assemble(f"{written.rows:,} rows predicted. They are in ", (output, "bold"), "."))


def show_info(model: Model, path: str, as_json: bool) -> None:
    metadata = model.metadata_
    columns = metadata.get("columns")
    classes = model.classes_.tolist() if isinstance(model, KernelClassifier) else None
    if as_json:
        data = {
            "model": path,
            "bytes": os.path.getsize(path),
            "task": "regression" if classes is None else "classification",
            "classes": classes,
            "n_features": model.n_features_in_,
            "rows": len(model.machine_.alpha),
            "epochs": model.n_iter_,
            "converged": model.converged_,
            "stop_reason": model.stop_reason_,
            **_model_data(model),
            "metadata": metadata,
        }
        show_json(data)
        return
    target = "y" if columns is None else str(columns["target"])
    rows = [
        ("file", f"{path}, {os.path.getsize(path) / 1024**2:.1f} MiB"),
        ("predicts", _task(model, target)),
    ]
    if classes is not None:
        listed = ", ".join(map(_label, classes[:MOST_CLASSES]))
        rows.append(("classes", listed + (" …" if len(classes) > MOST_CLASSES else "")))
    rows += [
        ("kernel", f"{model.kernel_}, ridge {model.ridge_:.3g}"),
        ("trained on", f"{len(model.machine_.alpha):,} rows × {model.n_features_in_:,} features"),
        ("training", f"{model.n_iter_} epochs; stopped because {_because(model)}"),
    ]
    if metadata.get("measured"):
        score = metadata["measured"]
        value = f"R² {score['r2']:.4f}" if "r2" in score else f"error {_percent(score['error'])}"
        rows.append(("measured", f"{value} on {score['rows']:,} rows of {metadata['measured_on']}"))
    if columns is None:
        rows.append(("columns", "a plain matrix: it was saved from Python and knows of no table"))
    for name, key in (("data", "data"), ("made", "made"), ("by", "command"), ("Mercer", "mercer")):
        if key in metadata:
            rows.append((name, str(metadata[key])))
    for note in () if columns is None else columns.get("notes", ()):
        rows.append(("note", str(note)))
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    _show(table)


def show_demo(as_json: bool) -> None:
    if as_json:
        contenders = demonstrate(lambda text: None, lambda plan: None)
        show_json([asdict(one) for one in contenders])
        return
    demonstrate(lambda text: print(text, flush=True), show_plan)


def show_bench(device: str, as_json: bool) -> None:
    progress = ConsoleProgress()
    figures = engine_figures(device, progress.on_stage)
    progress.clear()
    if as_json:
        show_json({"machine": machine(), "figures": [asdict(figure) for figure in figures]})
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for figure in figures:
        value = f"{figure.value:.3g}" if figure.value < 1e4 else f"{figure.value:.2g}"
        table.add_row(figure.name, f"{value} {figure.unit}".strip(), figure.meaning)
    _show(machine(), "", table)
