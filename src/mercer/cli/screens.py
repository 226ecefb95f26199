"""What the other subcommands print: plans, scores, model files, the demo and the benchmark."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

from mercer.cli.bench import engine_figures, machine
from mercer.cli.demo import demonstrate
from mercer.cli.labels import LABEL_WIDTH, short
from mercer.cli.messages import say_notes
from mercer.cli.printing import blank_line, explained, facts, show, show_json, text
from mercer.cli.score_screen import MOST_CLASSES_LISTED, evaluation_data, measured_lines, percent_of
from mercer.estimators import KernelClassifier, KernelRegressor
from mercer.estimators.features import Feature, by_importance, features_of
from mercer.metrics import Measures
from mercer.planning.plan import Plan
from mercer.report import Evaluation
from mercer.report.headline import left_out
from mercer.report.learning import solved_directly, stop_reason
from mercer.training.events.console import ConsoleProgress
from mercer.training.history import in_epochs

if TYPE_CHECKING:  # demo and bench need no tables
    from mercer.cli.predicting import Written
    from mercer.tables.columns import Decision

Model = KernelClassifier | KernelRegressor
# Columns of a table listed on a screen.
MOST_COLUMNS_LISTED = 40
# Features on the line of importances.
MOST_IMPORTANT = 6
# Characters of a value in the middle column of a plan.
LONGEST_VALUE = 12


def show_plan(plan: Plan, as_json: bool = False, decisions: Sequence[Decision] = ()) -> None:
    """The plan, below what was decided about each column of the table."""
    if as_json:
        columns = [asdict(decision) for decision in decisions]
        show_json({**json.loads(plan.to_json()), "columns": columns})
        return
    if decisions:
        show(*blank_line(), _column_table(decisions), "")
    # One long value would push all meanings to the right.
    rows = (
        (name, value, meaning) if len(value) <= LONGEST_VALUE else (name, "", f"{value}; {meaning}")
        for name, value, meaning in plan.rows()
    )
    show(*blank_line(), explained(rows))


def _column_table(decisions: Sequence[Decision]) -> Table:
    from mercer.tables.decisions import ROLE_LEFT_OUT

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("column", overflow="ellipsis", no_wrap=True, max_width=LABEL_WIDTH)
    table.add_column("used as", no_wrap=True)
    table.add_column("why, and how", overflow="fold")
    # The target and what is left out are never among those that are not shown.
    ranked = sorted(decisions, key=lambda one: one.role not in ("target", "weight", ROLE_LEFT_OUT))
    shown = set(ranked[:MOST_COLUMNS_LISTED])
    for one in decisions:
        if one in shown:
            style = "dim" if one.role == ROLE_LEFT_OUT else "bold" if one.role == "target" else ""
            table.add_row(text(short(one.name), style=style), text(one.role, style=style), text(one.why))
    if len(decisions) > len(shown):
        rest = len(decisions) - len(shown)
        table.add_row(text(f"… and {rest:,} more; --json lists all", style="dim"))
    return table


def show_measures(
    measures: Measures, evaluation: Evaluation, notes: Sequence[str], as_json: bool
) -> None:
    if as_json:
        show_json({**measures.to_dict(), **evaluation_data(evaluation), "notes": list(notes)})
        return
    say_notes(notes)
    show(*blank_line(), *measured_lines(measures, evaluation))


def left_out_lines(model: Model) -> list[Any]:
    """The leave-one-out score of the search, for a model that nothing else was measured of."""
    found = left_out(model)
    if found is None:
        return []
    name = found.name.capitalize()
    return [
        text((f"{name} ", "bold"), (found.figure, "bold green"), f" by {found.source}"),
        "No rows were held out; the same rows chose the kernel and its parameters.",
        "",
    ]


def task_line(model: Model, target: str) -> str:
    if isinstance(model, KernelClassifier):
        return f"Classification of {target} ({len(model.classes_):,} classes)"
    return f"Regression of {target}"


def model_data(model: Model, features: Sequence[Feature]) -> dict[str, Any]:
    """What JSON says of every model."""
    found = left_out(model)
    return {
        "kernel": str(model.kernel_),
        "bandwidth": model.bandwidth_,
        "ridge": model.ridge_,
        "left_out": None if found is None else {"score": found.score, "rows": found.rows},
        "feature_importances": None
        if all(f.importance is None for f in features)
        else [{"name": f.name, "importance": f.importance, "treatment": f.treatment} for f in features],
        "history": model.history_.to_dicts(),
        "plan": json.loads(model.plan_.to_json()),
    }


def features_in(model: Model) -> list[Feature]:
    """The features of a model, with the names of the table's columns and categories if it had one."""
    stored = model.metadata_.get("columns")
    if stored is None:
        return features_of(model)
    from mercer.tables.columns import Columns

    columns = Columns.from_dict(stored)
    if len(columns.feature_names) != model.n_features_in_:  # a damaged file
        return features_of(model)
    return features_of(model, columns.feature_names, columns.categories)


def importances(features: Sequence[Feature]) -> str:
    """The most important features and their shares, on one line; empty without a metric."""
    if all(feature.importance is None for feature in features):
        return ""
    ranked = by_importance(features)
    shown, rest = ranked[:MOST_IMPORTANT], ranked[MOST_IMPORTANT:]
    parts = [f"{short(one.name)} {100 * (one.importance or 0.0):.0f} %" for one in shown]
    if rest:
        share = sum(one.importance or 0.0 for one in rest)
        parts.append(f"{len(rest):,} {'other' if len(rest) == 1 else 'others'} {100 * share:.0f} %")
    return ", ".join(parts)


def show_written(written: Written, output: str, as_json: bool) -> None:
    if as_json:
        show_json({"output": output, **asdict(written)})
        return
    show(text(f"Wrote {written.rows:,} predictions to ", (output, "bold"), "."))


def show_report_written(path: str) -> None:
    show("", text("Wrote the report to ", (path, "bold"), "."))


def show_info(model: Model, path: str, as_json: bool) -> None:
    classes = model.classes_.tolist() if isinstance(model, KernelClassifier) else None
    if not as_json:
        show(facts(_info_rows(model, path, classes)))
        return
    show_json(
        {
            "model": path,
            "bytes": os.path.getsize(path),
            "task": "regression" if classes is None else "classification",
            "classes": classes,
            "n_features": model.n_features_in_,
            "rows": len(model.machine_.alpha),
            "epochs": model.n_iter_,
            "converged": model.converged_,
            "stop_reason": model.stop_reason_,
            **model_data(model, features_in(model)),
            "metadata": model.metadata_,
        }
    )


def _course(model: Model) -> str:
    if solved_directly(model):
        return "equations solved directly"
    return f"{in_epochs(model.n_iter_)}; stopped because {stop_reason(model)}"


def _info_rows(model: Model, path: str, classes: list[Any] | None) -> list[tuple[str, str]]:
    metadata = model.metadata_
    columns = metadata.get("columns")
    target = "y" if columns is None else str(columns["target"])
    rows = [
        ("file", f"{path}, {os.path.getsize(path) / 1024**2:.1f} MiB"),
        ("task", task_line(model, target)),
    ]
    if classes is not None:
        listed = ", ".join(map(short, classes[:MOST_CLASSES_LISTED]))
        rows.append(("classes", listed + (" …" if len(classes) > MOST_CLASSES_LISTED else "")))
    rows += [
        ("kernel", f"{model.kernel_}, ridge {model.ridge_:.3g}"),
        ("trained on", f"{len(model.machine_.alpha):,} rows × {model.n_features_in_:,} features"),
        ("training", _course(model)),
        ("features", model.plan_.preparation),
    ]
    shares = importances(features_in(model))
    if shares:
        rows.append(("importances", shares))
    if metadata.get("measured"):
        score = metadata["measured"]
        value = f"R² {score['r2']:.4f}" if "r2" in score else f"error {percent_of(score['error'])}"
        rows.append(("score", f"{value} on {score['rows']:,} rows ({metadata['measured_on']})"))
    found = left_out(model)
    if found is not None:
        rows.append(("left out", f"{found.name} {found.figure} by {found.source}"))
    if columns is None:
        rows.append(("columns", "a plain matrix: the model was saved from Python, without a table"))
    for name, key in (("data", "data"), ("made", "made"), ("by", "command"), ("Mercer", "mercer")):
        if key in metadata:
            rows.append((name, str(metadata[key])))
    notes = () if columns is None else columns.get("notes", ())
    return [*rows, *(("note", str(note)) for note in notes)]


def show_demo(rows: int, as_json: bool) -> None:
    if as_json:
        contenders = demonstrate(lambda line: None, lambda plan: None, rows)
        show_json([asdict(one) for one in contenders])
        return
    demonstrate(lambda line: print(line, flush=True), show_plan, rows)


def show_bench(device: str, as_json: bool) -> None:
    progress = ConsoleProgress()
    figures = engine_figures(device, progress.on_stage)
    progress.clear()
    if as_json:
        show_json({"machine": machine(), "figures": [asdict(figure) for figure in figures]})
        return
    rows = []
    for figure in figures:
        value = f"{figure.value:.3g}" if figure.value < 1e4 else f"{figure.value:.2g}"
        rows.append((figure.name, f"{value} {figure.unit}".strip(), figure.meaning))
    show(machine(), "", explained(rows))
