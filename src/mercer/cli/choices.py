"""What the options of a command ask for, checked before any work begins."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mercer.cli.messages import CallError
from mercer.cli.option_groups import (
    ClusterOptions,
    ColumnOptions,
    FileOptions,
    ModelOptions,
    TestOptions,
)
from mercer.cli.outputs import claim
from mercer.estimators import KernelClassifier, KernelRegressor
from mercer.files.container import check_is_file
from mercer.planning.cost_model import (
    A100_FLOPS,
    A100_TRAFFIC,
    NDR_LATENCY,
    NDR_RATE,
    DeviceCosts,
    LinkCosts,
    usable_memory,
)
from mercer.planning.memory import parse_memory
from mercer.tables.bounds import Bounds
from mercer.tables.errors import TableError
from mercer.tables.layout import Layout
from mercer.tables.recognition import Wishes

Model = KernelClassifier | KernelRegressor
Parameters = dict[str, Any]  # of an estimator
ClassWeights = Literal["balanced"] | dict[str, float] | None
# What the estimator calls the values of --scale.
SCALES = {"auto": "auto", "none": False, "standard": True, "rank": "rank"}


@dataclass(frozen=True)
class DataChoice:
    """Which table to learn from, and which of its columns."""

    path: str
    target: str | None
    task: str | None
    keep: tuple[str, ...]
    drop: tuple[str, ...]
    categorical: tuple[str, ...]
    wishes: Wishes
    weight: str | None
    class_weight: ClassWeights
    bounds: Bounds
    layout: Layout


def data(path: str, columns: ColumnOptions, file: FileOptions) -> DataChoice:
    """The table and its columns, as the options of a command name them."""
    category, number = tuple(columns.category or ()), tuple(columns.number or ())
    keep, drop = tuple(columns.keep or ()), tuple(columns.drop or ())
    weight = () if columns.weight is None else (columns.weight,)
    _check_contradictions({"--category": category, "--number": number})
    for option, named in (("--drop", drop), ("--weight", weight)):
        for other, names in (("--category", category), ("--number", number), ("--keep", keep)):
            _check_contradictions({option: named, other: names})
    _check_contradictions({"--drop": drop, "--weight": weight})
    decimal, dates = columns.decimal, columns.dates
    return DataChoice(
        path,
        columns.target,
        columns.task and columns.task.value,
        keep,
        drop,
        category,
        Wishes(number, decimal=decimal and decimal.value, dates=dates and dates.value),
        columns.weight,
        _class_weights(columns.class_weight or ()),
        bounds(file),
        layout(file),
    )


def _check_contradictions(named: dict[str, tuple[str, ...]]) -> None:
    """Raise if a column is named by both of two options."""
    (one, some), (other, others) = named.items()
    both = sorted(set(some) & set(others))
    if both:
        raise CallError(f"{one} and {other} both name {both[0]!r}. Leave one of them out.")


def _class_weights(given: Sequence[str]) -> ClassWeights:
    """ "balanced", or the weight of each label as it was written."""
    if list(given) == ["balanced"]:
        return "balanced"
    weights: dict[str, float] = {}
    for one in given:
        label, equals, number = one.rpartition("=")
        try:
            weights[label] = float(number)
        except ValueError:
            equals = ""
        if not equals or not 0 <= weights[label] < float("inf"):
            raise CallError(f"--class-weight must be balanced or LABEL=NUMBER. Got {one!r}.")
    return weights or None


@dataclass(frozen=True)
class TestChoice:
    """Which rows the final score is measured on: a share of the table, or another file."""

    __test__ = False  # pytest would collect it

    holdout: float | None  # None is the default share
    path: str | None
    target: str | None
    seed: int

    def __post_init__(self) -> None:
        if self.holdout is not None and not 0 <= self.holdout < 1:
            raise CallError(f"--holdout must be at least 0 and less than 1. Got {self.holdout}.")
        if self.holdout and self.path is not None:
            raise CallError("--holdout and --test cannot be used together. Leave one of them out.")
        if self.target is not None and self.path is None:
            raise CallError("--test-target can only be used with --test.")


def test(given: TestOptions, seed: int) -> TestChoice:
    """The rows that the options of a command measure on."""
    return TestChoice(given.holdout, given.test, given.test_target, seed)


@dataclass(frozen=True)
class Places:
    """The files that `fit` writes, and the checkpoint it continues from."""

    model: Path
    report: Path | None
    checkpoint: str | None
    resume: str | None

    def __post_init__(self) -> None:
        places = [self.model, self.report, self.checkpoint and Path(os.path.realpath(self.checkpoint))]
        named = [place for place in places if place is not None]
        if len(set(named)) < len(named):
            raise CallError("Model, report and checkpoint must be different files. Rename one of them.")


def places(
    output: str,
    report: str | None,
    checkpoint: str | None,
    resume: str | None,
    force: bool,
    inputs: Sequence[str],
) -> Places:
    """The files that the options of `fit` name; none of them may replace one that is read."""
    if resume is not None:
        if not os.path.exists(resume):
            raise CallError(f"There is no checkpoint {resume!r} to --resume from. Check the spelling.")
        check_is_file(resume, "checkpoint")
    if checkpoint is not None:
        others = [path for path in inputs if path != resume]
        claimed = claim(checkpoint, "--checkpoint", force=force or checkpoint == resume, inputs=others)
        checkpoint = str(claimed)
    return Places(
        model=claim(output, "--output", force=force, inputs=inputs),
        report=None if report is None else claim(report, "--report", force=force, inputs=inputs),
        # By default, resuming keeps the same checkpoint up to date.
        checkpoint=resume if checkpoint is None else checkpoint,
        resume=resume,
    )


def parameters(given: ModelOptions) -> Parameters:
    """Parameters of an estimator, "auto" for what was not given."""
    bandwidth, ridge = given.bandwidth, given.ridge
    if bandwidth is not None and not 0 < bandwidth < float("inf"):
        raise CallError(f"--bandwidth must be a positive number. Got {bandwidth}.")
    if ridge is not None and not 0 <= ridge < float("inf"):
        raise CallError(f"--ridge must be at least 0. Got {ridge}.")
    check_jobs(given.n_jobs)
    size_of(given.memory, "--memory")
    return {
        "kernel": given.kernel.value,
        "bandwidth": "auto" if bandwidth is None else bandwidth,
        "ridge": "auto" if ridge is None else ridge,
        "scale": SCALES[given.scale.value],
        "metric": "auto" if given.metric else False,
        "n_centers": number_of_centers(given.centers),
        "memory_limit": given.memory,
        "device": given.device,
        "n_jobs": given.n_jobs,
        "random_state": given.seed,
        "max_iter": given.epochs,
    }


@dataclass(frozen=True)
class Cluster:
    """Devices that are not here, to plan for."""

    ranks: int
    memory: float  # of each device
    device: DeviceCosts
    link: LinkCosts


def cluster(options: ClusterOptions, memory_limit: str) -> Cluster | None:
    """The devices that the options describe; None if there are no such options."""
    ranks, memory = options.ranks, options.device_memory
    flops, traffic = options.device_flops, options.device_traffic
    rate, latency = options.link_rate, options.link_latency
    rates = {
        "--device-flops": flops,
        "--device-traffic": traffic,
        "--link-rate": rate,
        "--link-latency": latency,
    }
    given = [name for name, value in rates.items() if value is not None]
    given = (["--ranks"] if ranks is not None else []) + given
    if memory is None:
        if given:
            raise CallError(
                f"{given[0]} needs --device-memory, the memory of each device, such as 80GB."
            )
        return None
    if memory_limit != "auto":
        raise CallError("--memory and --device-memory cannot be used together. Leave one of them out.")
    for name, value in rates.items():
        if value is not None and not 0 < value < float("inf"):
            raise CallError(f"{name} must be a positive number. Got {value}.")
    size = parse_memory(memory)
    if size is None or not 0 < size < float("inf"):
        raise CallError(f"--device-memory must be a size such as 80GB. Got {memory!r}.")
    return Cluster(
        ranks or 1,
        usable_memory(size),
        DeviceCosts.published(flops or A100_FLOPS, traffic or A100_TRAFFIC),
        LinkCosts.published(rate or NDR_RATE, latency or NDR_LATENCY),
    )


def bounds(file: FileOptions) -> Bounds:
    """How much a data file may claim."""
    return Bounds(file.max_columns, size_of(file.max_unpacked, "--max-unpacked"))


def layout(file: FileOptions) -> Layout:
    """How a data file is laid out."""
    try:
        return Layout(file.encoding, file.header, file.sheet)
    except TableError as error:
        raise CallError(str(error)) from error


def size_of(text: str, option: str) -> float | None:
    """Bytes; None for "auto"."""
    size = parse_memory(text)
    if size is not None and not 0 < size < float("inf"):
        raise CallError(f'{option} must be a size such as 4GB or 500MB, or "auto". Got {text!r}.')
    return size


def check_jobs(n_jobs: int | None) -> None:
    if n_jobs is not None and n_jobs != -1 and n_jobs < 1:
        raise CallError(f"--n-jobs must be at least 1, or -1 for all cores. Got {n_jobs}.")


def estimator(task: str, parameters: Parameters) -> Model:
    """An estimator that is ready to be fitted."""
    kind = KernelClassifier if task == "classification" else KernelRegressor
    return kind(**parameters)


def number_of_centers(given: str) -> int | str | None:
    """The value of --centers as the estimator's parameter."""
    if given in ("auto", "all"):
        return None if given == "all" else given
    if not given.isdecimal() or not int(given):
        raise CallError(f"--centers must be a whole number, at least 1, all or auto. Got {given!r}.")
    return int(given)
