"""Arguments and options that several subcommands share.

Nothing heavy is imported here: `mercer --help` and shell completion must not wait for PyTorch.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import typer


class Kernel(str, Enum):
    """The names in `mercer.kernels.KERNELS` and `ALIASES`."""

    auto = "auto"
    cauchy = "cauchy"
    exponential_power = "exponential_power"
    gaussian = "gaussian"
    laplacian = "laplacian"
    l1_laplacian = "l1_laplacian"
    matern32 = "matern32"
    matern52 = "matern52"
    neural_tangent = "neural_tangent"
    rbf = "rbf"


class Scale(str, Enum):
    auto = "auto"
    none = "none"
    standard = "standard"
    rank = "rank"


class DecimalMark(str, Enum):
    point = "."
    comma = ","


class DateOrder(str, Enum):
    dmy = "dmy"
    mdy = "mdy"


class OnError(str, Enum):
    stop = "stop"
    skip = "skip"


class Task(str, Enum):
    classification = "classification"
    regression = "regression"


def _number(text: str) -> Any:
    """An option whose value is a number."""
    return typer.Option(metavar="NUMBER", help=text)


Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        show_default=False,
        help="Table to read: CSV, TSV, Excel, JSON, Parquet, Arrow, NPZ, NPY, svmlight or IDX, also "
        "gzipped; - reads standard input.",
    ),
]
ModelFile = Annotated[
    str,
    typer.Argument(metavar="MODEL", show_default=False, help="Model file written by mercer fit."),
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        metavar="COLUMN",
        help="Column to predict, or a file of labels. Default: y.",
    ),
]
TrueTarget = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        metavar="COLUMN",
        help="Column with the true values, or a file of labels. Default: the target of training.",
    ),
]
TaskOption = Annotated[
    Task | None,
    typer.Option(
        "--task",
        metavar="TASK",
        help="classification or regression. Default: depends on the values of the target.",
    ),
]
Drop = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN", help="Do not use this column. Can be repeated."),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN", help="Use this column even if it looks like an identifier. Can be repeated."
    ),
]
Category = Annotated[
    list[str] | None,
    typer.Option(
        "--category",
        "--categorical",
        metavar="COLUMN",
        help="The values of this column are categories, even if they are numbers. Can be repeated.",
    ),
]
Number = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN",
        help="This column holds numbers; its other values count as missing. Can be repeated.",
    ),
]
Decimal = Annotated[
    DecimalMark | None,
    typer.Option(
        metavar="MARK",
        help="The decimal mark, . or , where the file does not tell: 1,234 may be 1.234 or 1234.",
    ),
]
DatesOption = Annotated[
    DateOrder | None,
    typer.Option(
        "--dates",
        metavar="ORDER",
        help="dmy or mdy: whether days or months come first in dates such as 03/04/2024, where the file "
        "does not tell.",
    ),
]
KernelOption = Annotated[
    Kernel,
    typer.Option(
        metavar="NAME",
        help=f"One of {', '.join(kernel.value for kernel in Kernel)} (the same as gaussian).",
    ),
]
Bandwidth = Annotated[
    float | None,
    _number("Length scale of the kernel. Default: the one with the lowest leave-one-out error."),
]
Ridge = Annotated[
    float | None,
    _number(
        "Regularization; 0 interpolates the training data. Default: the one with the lowest "
        "leave-one-out error."
    ),
]
ScaleOption = Annotated[
    Scale,
    typer.Option(
        metavar="NAME",
        help="How numbers are scaled: none, standard, by rank, or auto, the one with the lowest "
        "leave-one-out error.",
    ),
]
Metric = Annotated[
    bool,
    typer.Option(
        "--metric/--no-metric",
        help="Learn how much each feature counts, where that lowers the leave-one-out error.",
    ),
]
Centers = Annotated[
    str,
    typer.Option(
        metavar="NUMBER",
        help="Centres of the model: a number, all for every row, or auto: every row if that takes no "
        "more than two minutes, otherwise as many as do.",
    ),
]
Memory = Annotated[str, typer.Option(metavar="SIZE", help="Memory limit, such as 4GB.")]
Device = Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda, cuda:1 or mps.")]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--n-jobs",
        metavar="NUMBER",
        help="Number of CPU threads; -1 uses all cores. Default: PyTorch's setting.",
    ),
]
Seed = Annotated[int, typer.Option(metavar="NUMBER", help="Seed of the random number generators.")]
DemoRows = Annotated[int, typer.Option("--rows", min=100, help="Rows to train on.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show progress.")]
MaxColumns = Annotated[
    int,
    typer.Option(
        metavar="NUMBER", min=1, max=10_000_000, help="Refuse tables that have more columns than this."
    ),
]
MaxUnpacked = Annotated[
    str,
    typer.Option(
        metavar="SIZE",
        help="Refuse files that take more than this once unpacked, such as 20GB. Default: 100 times the "
        "size of a compressed file, 1000 times for the values of a table, and at least 256 MiB.",
    ),
]
OnErrorOption = Annotated[
    OnError,
    typer.Option(
        "--on-error",
        metavar="WHAT",
        help="stop, or skip: leave rows out in which a value cannot be read, and say how many.",
    ),
]
Holdout = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="Share of the rows held out for the final score. Default: 0.2, at most 10,000 rows.",
    ),
]
Test = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Measure the final score on this table instead."),
]
TestTarget = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Labels of --test, if they are in a separate file."),
]
Epochs = Annotated[int, typer.Option(metavar="NUMBER", min=1, help="Maximum number of epochs.")]
Weight = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="Column with the weight of each row in training."),
]
ClassWeight = Annotated[
    list[str] | None,
    typer.Option(
        metavar="WEIGHT",
        help="balanced, or LABEL=NUMBER, which can be repeated: how much the rows of a class count.",
    ),
]
Encoding = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Encoding of a text file, such as latin-1. Default: UTF-8."),
]
Header = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        help="Whether the first line has the names of the columns. Default: unless all are numbers.",
        show_default=False,
    ),
]
Sheet = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Sheet of an Excel file. Default: the first."),
]
Ranks = Annotated[
    int | None,
    typer.Option(
        metavar="NUMBER",
        min=1,
        help="Plan for this many devices that train together; needs --device-memory.",
    ),
]
DeviceMemory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Plan for devices with this much memory each, such as 80GB."),
]
DeviceFlops = Annotated[
    float | None,
    _number("Peak float32 operations a second of such a device. Default: those of an A100, 19.5e12."),
]
DeviceTraffic = Annotated[
    float | None,
    _number("Peak bytes a second to and from its memory. Default: those of an A100, 2.039e12."),
]
LinkRate = Annotated[
    float | None,
    _number("Peak bytes a second from one device to another. Default: those of InfiniBand NDR, 50e9."),
]
LinkLatency = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS", help="Time that a message between devices takes at least. Default: 1e-5."
    ),
]
