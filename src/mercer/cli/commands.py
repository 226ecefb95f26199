"""The subcommands of `mercer`, in the order of its help; the larger ones have files of their own.

The modules that do the work are imported only when a subcommand runs: `mercer --help` and shell
completion must not wait for PyTorch.
"""

from __future__ import annotations

from typing import Annotated

import typer

from mercer.cli import fit_commands, predict_commands
from mercer.cli.app import app, example
from mercer.cli.option_groups import ColumnOptions, FileOptions, grouped
from mercer.cli.options import Data, DemoRows, Device, Force, Jobs, Json, ModelFile

# Those of the other files come first, in the order in which they are imported.
__all__ = ["app", "fit_commands", "predict_commands"]


@app.command(
    short_help="Explore a table in the browser: models train while you look.",
    epilog=example("mercer explore train.csv --target price"),
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


@app.command(epilog=example("mercer info house.mercer"))
def info(model: ModelFile, json: Json = False) -> None:
    """Show what is in a model file."""
    from mercer.cli import predicting, screens

    screens.show_info(predicting.load_model(model), model, json)


@app.command(
    short_help="Answer requests for predictions over HTTP.",
    epilog=example(
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
    epilog=example("mercer export house.mercer house.onnx"),
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


@app.command(epilog=example("mercer demo"))
def demo(rows: DemoRows = 30_000, json: Json = False) -> None:
    """Train on made data and compare (takes a minute)."""
    from mercer.cli import screens

    screens.show_demo(rows, json)


@app.command(epilog=example("mercer bench"))
def bench(device: Device = "auto", json: Json = False) -> None:
    """Measure the speed of this machine (takes seconds)."""
    from mercer.cli import screens

    screens.show_bench(device, json)
