"""`mercer plan` and `mercer fit`: their options and help."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from mercer.cli.app import app, example
from mercer.cli.option_groups import (
    ClusterOptions,
    ColumnOptions,
    FileOptions,
    ModelOptions,
    TestOptions,
    grouped,
)
from mercer.cli.options import Data, Force, Json, Quiet


@app.command(
    short_help="Show the plan for training on a table, without training.",
    epilog=example(
        "mercer plan train.csv --target price",
        "mercer plan train.csv --target price --memory 12GB --capacity 1e10 --json",
        "mercer plan train.csv --target price --ranks 64 --device-memory 80GB",
    ),
)
@grouped
def plan(
    data: Data,
    columns: ColumnOptions,
    measured: TestOptions,
    machine: ModelOptions,
    *,
    capacity: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER",
            help="Plan for another machine with this capacity C_G, as mercer bench shows it there.",
        ),
    ] = None,
    cluster: ClusterOptions,
    file: FileOptions,
    json: Json = False,
) -> None:
    """Show the plan for training on a table, on this machine or another one, without training."""
    from mercer.cli import choices, fitting, screens

    made, found = fitting.plan(
        choices.data(data, columns, file),
        choices.parameters(machine),
        choices.test(measured, machine.seed),
        capacity,
        choices.cluster(cluster, machine.memory),
    )
    screens.show_plan(made, json, found.decisions)


@app.command(
    short_help="Train on a table and save the model to a file.",
    epilog=example(
        "mercer fit train.csv --target price -o house.mercer --report house.html",
        "mercer fit train.parquet -t species --test new.parquet -o species.mercer",
        "mercer fit train-images-idx3-ubyte.gz -t train-labels-idx1-ubyte.gz -o digits.mercer",
    ),
)
@grouped
def fit(
    context: typer.Context,
    data: Data,
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FILE", help="Save the model to this file."),
    ],
    columns: ColumnOptions,
    measured: TestOptions,
    machine: ModelOptions,
    *,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Save the state of training to this file, for --resume."),
    ] = None,
    checkpoint_minutes: Annotated[
        float, typer.Option(metavar="NUMBER", min=0, help="Minutes between two checkpoints.")
    ] = 10.0,
    resume: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Continue from this checkpoint, with the same data."),
    ] = None,
    report: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write a report on the model to this HTML file."),
    ] = None,
    refit: Annotated[
        bool,
        typer.Option(
            "--refit", help="Once the model is measured, train on the rows held out for it as well."
        ),
    ] = False,
    ranks: Annotated[
        int | None,
        typer.Option(metavar="NUMBER", min=1, help="Train on this many processes of this machine."),
    ] = None,
    restarts: Annotated[
        int,
        typer.Option(
            metavar="NUMBER",
            min=0,
            help="With --ranks, start them again up to this many times if one fails.",
        ),
    ] = 0,
    file: FileOptions,
    json: Json = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Train on a table, measure the model on held-out rows, and save it to a file.

    The task, the kernel and all parameters are chosen automatically unless given. Ctrl-C ends
    training early and saves the best model so far.
    """
    from mercer.cli import choices, fit_screen, fitting, launching
    from mercer.training.events.callbacks import Checkpoint

    speaks = launching.rank_here() == 0
    asked, scored_on = choices.data(data, columns, file), choices.test(measured, machine.seed)
    named = (data, columns.target, measured.test, measured.test_target, resume)
    places = choices.places(
        output, report, checkpoint, resume, force, [path for path in named if path is not None]
    )
    parameters = choices.parameters(machine)
    if ranks is not None:
        arguments = shlex.split(str(context.obj))[1:]
        raise typer.Exit(launching.launched(arguments, ranks, restarts, places.checkpoint))
    if places.checkpoint is not None:
        parameters["callbacks"] = [Checkpoint(places.checkpoint, checkpoint_minutes)]
    fitted = fitting.fit(
        asked,
        parameters,
        scored_on,
        places,
        command=str(context.obj),
        quiet=quiet or not speaks,
        refits=refit,
    )
    if speaks:
        fit_screen.show_fit(fitted, json)
