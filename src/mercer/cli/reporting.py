"""A report on a saved model, measured on a table."""

from __future__ import annotations

import os
from pathlib import Path

from mercer.cli.launching import rank_here
from mercer.cli.predicting import evaluate_table, load_model, measured
from mercer.metrics import Measures
from mercer.processes.joining import alone
from mercer.report import Evaluation, write_report
from mercer.stopwatch import Stopwatch
from mercer.tables.bounds import Bounds
from mercer.tables.columns import Columns, Decision
from mercer.tables.layout import Layout


def report(
    path: str,
    data: str,
    target: str | None,
    place: Path,
    *,
    command: str,
    bounds: Bounds,
    layout: Layout,
    skip: bool,
    n_jobs: int | None,
    quiet: bool,
) -> tuple[Measures, Evaluation, tuple[str, ...]]:
    """Write the page; the measures on it, the predictions they come from, and notes."""
    model = load_model(path, n_jobs)
    with Stopwatch() as measuring:
        found = evaluate_table(model, data, target, bounds, layout, skip, quiet)
    columns = found.columns
    notes, names, categories = found.notes, columns.names, None
    decisions: tuple[Decision, ...] = ()
    if isinstance(columns, Columns):
        notes = (*columns.notes, *notes)
        names, categories, decisions = columns.feature_names, columns.categories, columns.decisions
    if rank_here() == 0:
        with alone():
            write_report(
                place,
                model,
                found.evaluation,
                title=f"{columns.target} from {os.path.basename(data)}",
                command=command,
                data_name=str(model.metadata_.get("data", "a matrix")),
                target=columns.target,
                notes=notes,
                timings={"measuring": measuring.seconds},
                feature_names=names,
                categories=categories,
                decisions=decisions,
            )
    return measured(model, found.evaluation), found.evaluation, found.notes
