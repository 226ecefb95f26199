"""From a table to a plan, or to a trained and measured model in a file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import mercer
from mercer.cli.choices import Cluster, DataChoice, Model, Parameters, Places, TestChoice, estimator
from mercer.cli.holdout import rows_to_hold_out
from mercer.cli.launching import rank_here
from mercer.cli.messages import CallError, Progress, say_notes
from mercer.cli.predicting import evaluate_parts
from mercer.cli.sources import Source, file_parts, held_out_parts, open_source, row_numbers, same_rows
from mercer.files.whole import folder_beside
from mercer.kernels import is_translation_invariant
from mercer.metrics import Measures, measure
from mercer.planning.cost_model import with_estimated_seconds
from mercer.planning.memory import free_memory, parse_memory
from mercer.planning.plan import Plan
from mercer.planning.resource import Resource, find_device
from mercer.processes.joining import alone
from mercer.report import Evaluation, write_report
from mercer.stopwatch import Stopwatch
from mercer.tables.arrays import Arrays, read_arrays
from mercer.tables.columns import Columns
from mercer.tables.survey import fit_columns
from mercer.training.events.dispatch import INTERRUPTED

Array = NDArray[Any]


@dataclass(frozen=True)
class Fitted:
    """What `fit` did."""

    model: Model
    columns: Columns
    places: Places
    measures: Measures | None
    source: str  # of the rows measured on
    rows: dict[str, int]  # train, early_stopping, test
    seconds: dict[str, float]  # reading, training, measuring
    notes: tuple[str, ...]
    command: str

    @property
    def interrupted(self) -> bool:
        return bool(self.model.stop_reason_ == INTERRUPTED)


@dataclass(frozen=True)
class _Input:
    """The table that was read, and the test file if there is one."""

    source: Source
    columns: Columns
    arrays: Arrays
    test: Source | None

    def estimator(self, parameters: Parameters) -> Model:
        """One that knows which features are categories; it looks for some if there are none."""
        given = {"categorical_features": self.columns.category_places or "auto"}
        return estimator(self.columns.task, {**parameters, **given})

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.columns.notes, *self.arrays.notes)


def plan(
    choice: DataChoice, parameters: Parameters, capacity: float | None, cluster: Cluster | None
) -> Plan:
    """The plan for this data on this machine, or on another one, or on several devices."""
    progress = Progress()
    memory = parse_memory(parameters["memory_limit"])
    resource = None
    if capacity is not None:
        if not capacity > 0:
            raise CallError(f"--capacity must be positive. Got {capacity}.")
        here = free_memory(find_device(parameters["device"]))
        resource = Resource(capacity, here if memory is None else memory, name="another machine")
    if cluster is not None:
        resource = Resource(
            capacity or float("inf"),
            cluster.ranks * cluster.memory,
            name="user-specified devices",
            ranks=cluster.ranks,
        )
    progress.on_stage(f"reading {choice.path}")
    with _temporary_folder(None) as folder:
        # The memory of another machine is no limit for reading the table on this one.
        limit = None if resource is not None else memory
        read = _read(choice, parameters["kernel"], limit, None, folder)
        progress.on_stage("planning")
        made = read.estimator(parameters).plan(read.arrays.X, read.arrays.y, resource=resource)
        if cluster is not None and not made.direct:
            made = with_estimated_seconds(made, cluster.device, cluster.memory, cluster.link)
    progress.clear()
    say_notes(read.notes)
    return made


def fit(
    choice: DataChoice,
    parameters: Parameters,
    test: TestChoice,
    places: Places,
    *,
    command: str,
    quiet: bool,
) -> Fitted:
    """Train, measure on rows that training did not see, and save that same model."""
    progress = Progress()

    def stage(text: str) -> None:
        if not quiet:
            progress.on_stage(text)

    with _temporary_folder(places.model) as folder:
        with Stopwatch() as reading:
            stage(f"reading {choice.path}")
            memory = parse_memory(parameters["memory_limit"])
            read = _read(choice, parameters["kernel"], memory, test, folder)
        progress.clear()
        if not quiet:
            say_notes(read.notes)
        y, columns = read.arrays.y, read.columns
        held_out = rows_to_hold_out(y, columns.task, test, places.resume)
        model = read.estimator({**parameters, "verbose": int(not quiet)})
        with Stopwatch() as training:
            weight = None
            if len(held_out):  # a weight of 0 leaves a row out without copying all the others
                weight = np.ones(len(y))
                weight[held_out] = 0.0
            model.fit(read.arrays.X, y, sample_weight=weight, resume=places.resume)
        model.verbose, model.callbacks = 0, ()
        evaluation, measures, notes = None, None, read.notes

        def save() -> None:
            progress.clear()
            model.n_jobs = None  # it belongs to this run and this machine
            model.save(places.model, _metadata(columns, choice, command, measures, evaluation))

        try:
            with Stopwatch() as measuring:
                stage("measuring on rows that training did not see")
                evaluation, found = _evaluation(model, read, held_out, places.report is not None)
            if evaluation is not None:
                measures = measure(columns.task, evaluation.y, evaluation.predicted)
                notes = (*notes, *found)
        except BaseException:  # do not lose what took the longest
            save()
            say_notes([f"the model is in {places.model}, but it could not be measured"])
            raise
        save()
        seconds = {
            "reading": reading.seconds,
            "training": training.seconds,
            "measuring": measuring.seconds,
        }
        if places.report is not None and rank_here() == 0:
            stage("writing the report")
            name = read.source.table.name
            with alone():
                write_report(
                    places.report,
                    model,
                    evaluation,
                    title=f"{columns.target} from {os.path.basename(name)}",
                    command=command,
                    data_name=name,
                    target=columns.target,
                    notes=notes,
                    timings=seconds,
                    feature_names=columns.feature_names,
                    categories=columns.categories,
                )
            progress.clear()
    train = len(model.machine_.alpha)
    rows = {
        "train": train,
        "early_stopping": len(y) - len(held_out) - train,
        "test": 0 if evaluation is None else len(evaluation.y),
    }
    source = "" if evaluation is None else evaluation.source
    return Fitted(model, columns, places, measures, source, rows, seconds, notes, command)


@contextmanager
def _temporary_folder(beside: Path | None) -> Iterator[Path]:
    """A folder for data larger than memory: beside the output, since /tmp may be kept in memory."""
    if beside is not None:
        with folder_beside(beside) as folder:
            yield folder
        return
    with tempfile.TemporaryDirectory(prefix="mercer-") as name:
        yield Path(name)


def _read(
    choice: DataChoice, kernel: str, memory: float | None, test: TestChoice | None, folder: Path
) -> _Input:
    """Read the table, and the first rows of the test file, so that its errors come before training."""
    one_hot = not is_translation_invariant(kernel)
    if one_hot and choice.categorical:
        raise CallError(f"--categorical needs a kernel of distances. Got --kernel {kernel}.")
    source = open_source(choice.path, choice.target, folder, bounds=choice.bounds)
    columns = fit_columns(
        source.table,
        source.target,
        task=choice.task,
        keep=choice.keep,
        drop=choice.drop,
        categorical=choice.categorical,
        one_hot=one_hot,
    )
    budget = free_memory(torch.device("cpu")) if memory is None else memory
    arrays = read_arrays(source.table, columns, memory=budget, folder=folder)
    if test is None or test.path is None:
        return _Input(source, columns, arrays, None)
    test_source = open_source(
        test.path, test.target, folder, test=True, text=columns.text_names, bounds=choice.bounds
    )
    if same_rows(test_source, test.path, choice.path):
        raise CallError("--test must have other rows than DATA. Got the same file.")
    next(file_parts(columns, test_source, {}), None)
    return _Input(source, columns, arrays, test_source)


def _evaluation(
    model: Model, read: _Input, held_out: Array, wants_probabilities: bool
) -> tuple[Evaluation | None, tuple[str, ...]]:
    """Predictions of the test file or of the rows held out, and notes on the file."""
    if read.test is not None:
        notes: dict[str, None] = {}
        parts = file_parts(read.columns, read.test, notes)
        evaluation = evaluate_parts(model, parts, read.test.table.name, wants_probabilities)
        return evaluation, tuple(notes)
    if not len(held_out):
        return None, ()
    X, y, name = read.arrays.X, read.arrays.y, read.source.table.name
    numbers = row_numbers(read.source, read.columns, len(y))[held_out]
    source = f"{100 * len(held_out) / len(y):.3g} % of {name}, held out"
    parts = held_out_parts(X, y, held_out, numbers)
    return evaluate_parts(model, parts, source, wants_probabilities), ()


def _metadata(
    columns: Columns,
    choice: DataChoice,
    command: str,
    measures: Measures | None,
    evaluation: Evaluation | None,
) -> dict[str, Any]:
    score = None if measures is None else {k: v for k, v in measures.to_dict().items() if k != "classes"}
    return {
        "columns": columns.to_dict(),
        "data": choice.path,
        "command": command,
        "measured": score,
        "measured_on": None if evaluation is None else evaluation.source,
        "made": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "mercer": mercer.__version__,
    }
