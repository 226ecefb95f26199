"""`mercer predict`, `evaluate` and `report`: what a model says of a table; their options and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mercer.cli.app import app, example
from mercer.cli.option_groups import FileOptions, grouped
from mercer.cli.options import (
    Data,
    Force,
    Jobs,
    Json,
    ModelFile,
    OnError,
    OnErrorOption,
    Quiet,
    TrueTarget,
)


@app.command(
    short_help="Predict each row of a table.",
    epilog=example(
        "mercer predict house.mercer new.csv -o prices.csv",
        "mercer predict house.mercer new.csv --interval 0.9 --with id | head",
    ),
)
@grouped
def predict(
    model: ModelFile,
    data: Data,
    *,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write to this file, as its name says: .csv, .tsv, .xlsx, .json, .jsonl, .parquet or "
            ".arrow; - is standard output, as CSV.",
        ),
    ] = "-",
    proba: Annotated[bool, typer.Option("--proba", help="Add the probability of each class.")] = False,
    interval: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Add an interval for each number, or a set of classes, of this coverage, such as 0.9.",
        ),
    ] = None,
    far: Annotated[
        bool, typer.Option("--far", help="Mark rows that are far from all training rows.")
    ] = False,
    with_: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="COLUMN", help="Copy this column of the table. Can be repeated."),
    ] = None,
    allow_formulas: Annotated[
        bool,
        typer.Option(
            "--allow-formulas",
            help="Write text that begins with =, +, - or @ to CSV as it is. By default it gets a ' "
            "before it, so that no spreadsheet runs it as a formula.",
        ),
    ] = False,
    on_error: OnErrorOption = OnError.stop,
    file: FileOptions,
    n_jobs: Jobs = None,
    json: Json = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Predict each row of a table, in order. Columns are matched by name."""
    from mercer.cli import choices, launching, predicting, screens
    from mercer.cli.messages import CallError
    from mercer.cli.outputs import check_ending, claim

    speaks = launching.rank_here() == 0
    if output == "-" and json:
        raise CallError("--json needs -o FILE, since the predictions go to standard output.")
    bounds, layout = choices.bounds(file), choices.layout(file)
    check_ending(output)
    place = None if output == "-" else claim(output, "--output", force=force, inputs=[model, data])
    written = predicting.predict(
        model,
        data,
        place,
        proba=proba,
        interval=interval,
        far=far,
        copied=tuple(with_ or ()),
        guard=not allow_formulas,
        bounds=bounds,
        layout=layout,
        skip=on_error.value == "skip",
        n_jobs=n_jobs,
        quiet=quiet or not speaks,
    )
    if place is not None and speaks:
        screens.show_written(written, output, json)


@app.command(epilog=example("mercer evaluate house.mercer test.csv"))
@grouped
def evaluate(
    model: ModelFile,
    data: Data,
    *,
    target: TrueTarget = None,
    on_error: OnErrorOption = OnError.stop,
    file: FileOptions,
    n_jobs: Jobs = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure a model on a table whose target is known."""
    from mercer.cli import choices, launching, predicting, screens

    speaks = launching.rank_here() == 0
    bounds, layout = choices.bounds(file), choices.layout(file)
    measures, evaluation, notes = predicting.evaluate(
        model,
        data,
        target,
        bounds=bounds,
        layout=layout,
        skip=on_error.value == "skip",
        n_jobs=n_jobs,
        quiet=quiet or not speaks,
    )
    if speaks:
        screens.show_measures(measures, evaluation, notes, json)


@app.command(
    short_help="Write a report on a model to an HTML file.",
    epilog=example("mercer report house.mercer test.csv -o house.html"),
)
@grouped
def report(
    context: typer.Context,
    model: ModelFile,
    data: Data,
    *,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the page to this file. Default: the name of the model with .html.",
        ),
    ] = None,
    target: TrueTarget = None,
    on_error: OnErrorOption = OnError.stop,
    file: FileOptions,
    n_jobs: Jobs = None,
    json: Json = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Measure a model on a table whose target is known, and write a report on it to an HTML file."""
    from mercer.cli import choices, launching, reporting, screens
    from mercer.cli.outputs import claim

    speaks = launching.rank_here() == 0
    path = str(Path(model).with_suffix(".html")) if output is None else output
    place = claim(path, "--output", force=force, inputs=[model, data])
    found = reporting.report(
        model,
        data,
        target,
        place,
        command=str(context.obj),
        bounds=choices.bounds(file),
        layout=choices.layout(file),
        skip=on_error.value == "skip",
        n_jobs=n_jobs,
        quiet=quiet or not speaks,
    )
    if speaks:
        screens.show_measures(*found, json)
        if not json:
            screens.show_report_written(path)
