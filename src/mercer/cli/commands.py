"""What can be typed after `mercer`: subcommands, their options and help.

Nothing here does the work, and nothing heavy is imported before a subcommand runs: `mercer --help` and
shell completion must not wait for PyTorch.
"""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="mercer",
    help="Kernel machines that adapt to your hardware: from a file to a model to predictions.",
    epilog="Example: mercer fit train.csv --target price -o house.mercer",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


class Kernel(str, Enum):
    """The kernels by name, which are `mercer.kernels.KERNELS`."""

    auto = "auto"
    cauchy = "cauchy"
    exponential_power = "exponential_power"
    gaussian = "gaussian"
    laplacian = "laplacian"
    matern32 = "matern32"
    matern52 = "matern52"
    neural_tangent = "neural_tangent"


class Task(str, Enum):
    classification = "classification"
    regression = "regression"


def _example(*lines: str) -> str:
    # The mark keeps the lines apart.
    return "\n".join(
        ["\b", "Examples:" if len(lines) > 1 else "Example:", *(f"  {line}" for line in lines)]
    )


Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        show_default=False,
        help="CSV, TSV, Parquet, Arrow, NPZ, NPY, svmlight or IDX; also gzip-ed; - is standard input.",
    ),
]
Model = Annotated[
    str, typer.Argument(metavar="MODEL", show_default=False, help="A file that fit wrote.")
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        metavar="COLUMN",
        help="The column to learn, or a file of labels. Default: y, where there is one.",
    ),
]
TaskOption = Annotated[
    Task | None,
    typer.Option(
        metavar="TASK",
        help="classification or regression. Default: seen from the target.",
    ),
]
Drop = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN", help="Leave this column out. May be repeated."),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN", help="Use it even if it looks useless. May be repeated."),
]
KernelOption = Annotated[
    Kernel,
    typer.Option(
        metavar="NAME",
        help=f"{', '.join(kernel.value for kernel in Kernel)}.",
    ),
]
Bandwidth = Annotated[
    float | None,
    typer.Option(metavar="NUMBER", help="Of the kernel. Default: by leave-one-out error."),
]
Ridge = Annotated[
    float | None,
    typer.Option(
        metavar="NUMBER",
        help="Noise of a target; 0 interpolates. Default: by leave-one-out error.",
    ),
]
Memory = Annotated[
    str,
    typer.Option(metavar="SIZE", help="What may be used, such as 4GB."),
]
Device = Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda, cuda:1 or mps.")]
Seed = Annotated[int, typer.Option(metavar="NUMBER", help="Of all that is random.")]
Json = Annotated[bool, typer.Option("--json", help="The result as JSON on standard output.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


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
        typer.Option("--version", callback=_version, is_eager=True, help="Say which version this is."),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    # --debug is taken out, wherever it stands, before typer sees it.
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


@app.command(
    short_help="Show what would be chosen for a table, without training.",
    epilog=_example(
        "mercer plan train.csv --target price",
        "mercer plan train.csv --target price --memory 12GB --capacity 1e10 --json",
    ),
)
def plan(
    data: Data,
    target: Target = None,
    task: TaskOption = None,
    drop: Drop = None,
    keep: Keep = None,
    kernel: KernelOption = Kernel.auto,
    bandwidth: Bandwidth = None,
    ridge: Ridge = None,
    memory: Memory = "auto",
    capacity: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER",
            help="C_G of another machine: operations in flight that saturate it; see mercer bench.",
        ),
    ] = None,
    device: Device = "auto",
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Show what would be chosen for this data, here or on another machine, without training."""
    from mercer.cli import screens, workflow

    settings = {"memory_limit": workflow.size(memory), "device": device, "random_state": seed}
    made = workflow.plan(
        workflow.DataChoice(data, target, _value(task), tuple(keep or ()), tuple(drop or ())),
        workflow.settings(kernel.value, bandwidth, ridge, **settings),
        capacity,
    )
    screens.show_plan(made, json)


@app.command(
    short_help="Train on a table and keep the model in a file.",
    epilog=_example(
        "mercer fit train.csv --target price -o house.mercer --report house.html",
        "mercer fit train.parquet -t species --test new.parquet -o species.mercer",
        "mercer fit train-images-idx3-ubyte.gz -t train-labels-idx1-ubyte.gz -o digits.mercer",
    ),
)
def fit(
    context: typer.Context,
    data: Data,
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FILE", help="Where to keep the model."),
    ],
    target: Target = None,
    task: TaskOption = None,
    drop: Drop = None,
    keep: Keep = None,
    holdout: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Part not trained on, for the final score. Default: 0.2, at most 10,000 rows.",
        ),
    ] = None,
    test: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Rows for the final score instead."),
    ] = None,
    test_target: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Labels of --test, if in a file apart."),
    ] = None,
    kernel: KernelOption = Kernel.auto,
    bandwidth: Bandwidth = None,
    ridge: Ridge = None,
    epochs: Annotated[int, typer.Option(metavar="NUMBER", min=1, help="At most so many.")] = 100,
    memory: Memory = "auto",
    device: Device = "auto",
    seed: Seed = 0,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Keep the state of training there, for --resume."),
    ] = None,
    checkpoint_minutes: Annotated[
        float, typer.Option(metavar="NUMBER", min=0, help="How often.")
    ] = 10.0,
    resume: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Go on from this checkpoint, on the same data."),
    ] = None,
    report: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="An HTML page about the model."),
    ] = None,
    json: Json = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Train on a table, measure on rows it has not seen, and keep the model in a file.

    Classification or regression, kernel, bandwidth, ridge and all numbers of the method are chosen
    for you. Ctrl-C ends training early and keeps the best model so far.
    """
    from mercer.cli import screens, workflow
    from mercer.cli.messages import CallError
    from mercer.cli.outputs import claim

    if holdout is not None and not 0 <= holdout < 1:
        raise CallError(f"--holdout must be at least 0 and less than 1. Got {holdout}.")
    if holdout and test is not None:
        raise CallError("--holdout and --test exclude each other. Got both.")
    if test_target is not None and test is None:
        raise CallError("--test-target goes with --test. Got it alone.")
    if resume is not None and not os.path.isfile(resume):
        raise CallError(f"--resume must be a checkpoint. Got {resume!r}, which is not there.")
    inputs = [path for path in (data, target, test, test_target, resume) if path is not None]
    places = workflow.Places(
        model=claim(output, "--output", force=force, inputs=inputs),
        report=None if report is None else claim(report, "--report", force=force, inputs=inputs),
        # The checkpoint gone on from is brought up to date, unless another is named.
        checkpoint=resume if checkpoint is None else str(_checkpoint(checkpoint, resume, force, inputs)),
        resume=resume,
    )
    places.must_differ()
    fitted = workflow.fit(
        workflow.DataChoice(data, target, _value(task), tuple(keep or ()), tuple(drop or ())),
        workflow.settings(
            kernel.value,
            bandwidth,
            ridge,
            max_iter=epochs,
            memory_limit=workflow.size(memory),
            device=device,
            random_state=seed,
            callbacks=workflow.checkpointing(places.checkpoint, checkpoint_minutes),
        ),
        workflow.TestChoice(holdout, test, test_target, seed),
        places,
        command=str(context.obj),
        quiet=quiet,
    )
    screens.show_fit(fitted, json)


def _checkpoint(checkpoint: str, resume: str | None, force: bool, inputs: list[str]) -> Path:
    from mercer.cli.outputs import claim

    same = checkpoint == resume
    others = [path for path in inputs if path != resume]
    return claim(checkpoint, "--checkpoint", force=force or same, inputs=others)


@app.command(
    short_help="Predict each row of a table.",
    epilog=_example(
        "mercer predict house.mercer new.csv -o prices.csv",
        "mercer predict species.mercer new.csv --proba --with id | head",
    ),
)
def predict(
    model: Model,
    data: Data,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="CSV, or Parquet by its ending; - is standard output.",
        ),
    ] = "-",
    proba: Annotated[bool, typer.Option("--proba", help="Also the probability of each class.")] = False,
    with_: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="COLUMN", help="Copy this column too. May be repeated."),
    ] = None,
    json: Json = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Predict each row of a table, in order, with columns found by name."""
    from mercer.cli import screens, workflow
    from mercer.cli.messages import CallError
    from mercer.cli.outputs import claim

    if output == "-" and json:
        raise CallError("--json needs -o FILE. Got both results and JSON for standard output.")
    place = None if output == "-" else claim(output, "--output", force=force, inputs=[model, data])
    written = workflow.predict(model, data, place, proba=proba, copied=tuple(with_ or ()), quiet=quiet)
    if place is not None:
        screens.show_written(written, output, json)


@app.command(epilog=_example("mercer evaluate house.mercer test.csv"))
def evaluate(
    model: Model,
    data: Data,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "-t",
            metavar="COLUMN",
            help="The column with the truth, or a file of labels. Default: the one learnt from.",
        ),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure a model on a table whose answers are known."""
    from mercer.cli import screens, workflow

    measures, source, notes = workflow.evaluate(model, data, target, quiet=quiet)
    screens.show_measures(measures, source, notes, json)


@app.command(epilog=_example("mercer info house.mercer"))
def info(model: Model, json: Json = False) -> None:
    """Show what is in a model file."""
    from mercer.cli import screens, workflow

    screens.show_info(workflow.load_model(model), model, json)


@app.command(short_help="Learn handwritten digits, in seconds.", epilog=_example("mercer demo"))
def demo(json: Json = False) -> None:
    """Learn handwritten digits, and compare with a support vector machine (seconds)."""
    from mercer.cli import screens

    screens.show_demo(json)


@app.command(short_help="Measure this machine, in seconds.", epilog=_example("mercer bench"))
def bench(device: Device = "auto", json: Json = False) -> None:
    """Measure how fast this machine is, and how close training comes to it (seconds)."""
    from mercer.cli import screens

    screens.show_bench(device, json)


def _value(task: Task | None) -> str | None:
    return None if task is None else task.value
