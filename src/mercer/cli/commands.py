"""The subcommands of `mercer`, their options and help.

The modules that do the work are imported only when a subcommand runs: `mercer --help` and shell
completion must not wait for PyTorch.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from mercer.cli.option_groups import (
    ClusterOptions,
    ColumnOptions,
    FileOptions,
    ModelOptions,
    TestOptions,
    grouped,
)
from mercer.cli.options import (
    Data,
    DemoRows,
    Device,
    Force,
    Jobs,
    Json,
    ModelFile,
    OnError,
    OnErrorOption,
    Quiet,
    TrueTarget,
)

app = typer.Typer(
    name="mercer",
    help="Kernel machines that adapt to your hardware: from a file to predictions.",
    epilog="Example: mercer fit train.csv --target price -o house.mercer",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _example(*lines: str) -> str:
    # The mark keeps the lines apart.
    return "\n".join(
        ["\b", "Examples:" if len(lines) > 1 else "Example:", *(f"  {line}" for line in lines)]
    )


def _version(wanted: bool) -> None:
    if wanted:
        from mercer import __version__

        typer.echo(f"mercer {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _mercer(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit."),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    # `main` removes --debug, wherever it stands, before typer sees it.
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


@app.command(
    short_help="Show the plan for training on a table, without training.",
    epilog=_example(
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
    epilog=_example(
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


@app.command(
    short_help="Predict each row of a table.",
    epilog=_example(
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


@app.command(epilog=_example("mercer evaluate house.mercer test.csv"))
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
    epilog=_example("mercer report house.mercer test.csv -o house.html"),
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


@app.command(
    short_help="Explore a table in the browser: models train while you look.",
    epilog=_example("mercer explore train.csv --target price"),
)
@grouped
def explore(
    data: Data,
    columns: ColumnOptions,
    *,
    port: Annotated[
        int, typer.Option(metavar="NUMBER", min=0, max=65_535, help="Port; 0 takes a free one.")
    ] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")
    ] = True,
    file: FileOptions,
) -> None:
    """Open a local page on which models train on a table while you look, until Ctrl-C.

    Pick columns, kernel, bandwidth, ridge and the number of rows, and compare the runs. The page can be
    reached from this machine only.
    """
    from mercer.cli import choices, exploring

    exploring.explore(choices.data(data, columns, file), port, browser)


@app.command(epilog=_example("mercer info house.mercer"))
def info(model: ModelFile, json: Json = False) -> None:
    """Show what is in a model file."""
    from mercer.cli import predicting, screens

    screens.show_info(predicting.load_model(model), model, json)


@app.command(
    short_help="Answer requests for predictions over HTTP.",
    epilog=_example(
        "mercer serve house.mercer",
        "mercer serve house.mercer churn=models/2024-05.mercer --port 9000",
    ),
)
def serve(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            show_default=False,
            help="Model files; NAME=FILE gives a model another name than that of its file.",
        ),
    ],
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen at. 0.0.0.0 is every address.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="NUMBER", help="Port to listen at. 0 takes one that is free.")
    ] = 8000,
    max_body: Annotated[
        str, typer.Option(metavar="SIZE", help="Bytes that a request may have.")
    ] = "16MB",
    max_rows: Annotated[
        int, typer.Option(metavar="NUMBER", min=1, help="Rows that a request may have.")
    ] = 100_000,
    max_queue: Annotated[
        int, typer.Option(metavar="NUMBER", min=1, help="Requests that may be in work at a time.")
    ] = 256,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time that an answer may take.")
    ] = 30.0,
    n_jobs: Jobs = None,
) -> None:
    """Answer requests for predictions over HTTP until Ctrl-C or SIGTERM.

    POST rows as JSON or CSV to /predict, or to /models/NAME/predict if there are several models. The
    page at / shows how. A model file that is replaced is read again; the old model answers until the
    new one is ready.
    """
    from mercer.cli import serving

    serving.serve(
        models,
        host=host,
        port=port,
        max_body=max_body,
        max_rows=max_rows,
        max_queue=max_queue,
        timeout=timeout,
        n_jobs=n_jobs,
    )


@app.command(
    short_help="Write a model as an ONNX file.",
    epilog=_example("mercer export house.mercer house.onnx"),
)
def export(
    model: ModelFile,
    output: Annotated[
        str, typer.Argument(metavar="FILE", show_default=False, help="ONNX file to write.")
    ],
    force: Force = False,
) -> None:
    """Write a model as an ONNX file, which other programs run without Python."""
    from mercer.cli.outputs import claim
    from mercer.estimators import load

    place = claim(output, "FILE", force=force, inputs=[model])
    load(model).to_onnx(place)


@app.command(epilog=_example("mercer demo"))
def demo(rows: DemoRows = 30_000, json: Json = False) -> None:
    """Train on made data and compare (takes a minute)."""
    from mercer.cli import screens

    screens.show_demo(rows, json)


@app.command(epilog=_example("mercer bench"))
def bench(device: Device = "auto", json: Json = False) -> None:
    """Measure the speed of this machine (takes seconds)."""
    from mercer.cli import screens

    screens.show_bench(device, json)
