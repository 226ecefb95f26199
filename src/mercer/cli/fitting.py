"""From a table to a plan, or to a trained and measured model in a file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import mercer
from mercer.cli.choices import (
    ClassWeights,
    Cluster,
    DataChoice,
    Model,
    Parameters,
    Places,
    TestChoice,
    estimator,
)
from mercer.cli.holdout import rows_to_hold_out
from mercer.cli.launching import rank_here
from mercer.cli.messages import CallError, Progress, say_notes
from mercer.cli.predicting import evaluate_parts, measured
from mercer.cli.sources import Source, file_parts, held_out_parts, open_source, row_numbers, same_rows
from mercer.estimators.row_share import RowShare
from mercer.estimators.shares import joined
from mercer.files.whole import folder_beside
from mercer.kernels import is_translation_invariant
from mercer.metrics import Measures
from mercer.planning.cost_model import with_estimated_seconds
from mercer.planning.memory import free_memory, parse_memory
from mercer.planning.plan import Plan
from mercer.planning.resource import Resource, find_device
from mercer.processes.group import Group
from mercer.processes.joining import alone, ranks
from mercer.processes.seats import sharing
from mercer.report import Coverage, Evaluation, write_report
from mercer.stopwatch import Stopwatch
from mercer.tables.array_files import has_test_arrays
from mercer.tables.arrays import Arrays, missing_targets, read_arrays, targets_only
from mercer.tables.columns import Columns
from mercer.tables.errors import TableError
from mercer.tables.survey import fit_columns
from mercer.tables.wording import listed, meant
from mercer.training.events.dispatch import INTERRUPTED

Array = NDArray[Any]


@dataclass(frozen=True)
class Fitted:
    """What `fit` did."""

    model: Model
    columns: Columns
    places: Places
    measures: Measures | None
    coverage: Coverage | None
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
    arrays: Arrays  # of the rows of this rank
    y: Array  # of all rows
    first: int  # the row of all with which those of this rank begin
    notes: tuple[str, ...]
    test: Source | None
    weights: Array | None  # of all rows, if a column has them
    held_out: Array  # rows that are kept out of training, sorted
    class_weight: ClassWeights

    @property
    def share(self) -> RowShare:
        return RowShare(self.arrays.X)

    @property
    def own(self) -> slice:
        """The rows of this rank."""
        return slice(self.first, self.first + len(self.arrays.X))

    def estimator(self, parameters: Parameters) -> Model:
        """One that knows which features are categories; it looks for some if there are none."""
        given: Parameters = {"categorical_features": self.columns.category_places or "auto"}
        if self.class_weight is not None:
            given["class_weight"] = self._class_weight()
        return estimator(self.columns.task, {**parameters, **given})

    def _class_weight(self) -> str | dict[Any, float]:
        """The weights of the classes by their labels."""
        if self.columns.task != "classification":
            raise CallError("--class-weight needs classes, but this is a regression. Leave it out.")
        if not isinstance(self.class_weight, dict):
            return str(self.class_weight)
        labels = {str(label): label for label in np.unique(self.y).tolist()}
        absent = next((label for label in self.class_weight if label not in labels), None)
        if absent is not None:
            raise CallError(
                f"--class-weight names {absent!r}, which is no class. {meant(absent, list(labels))}The "
                f"classes are {listed(list(labels))}."
            )
        return {labels[label]: weight for label, weight in self.class_weight.items()}

    def row_weights(self) -> Array | None:
        """Weights of all rows; a weight of 0 leaves a row out without copying all the others."""
        if self.weights is None and not len(self.held_out):
            return None
        weight = np.ones(len(self.y)) if self.weights is None else self.weights.copy()
        weight[self.held_out] = 0.0
        return weight


def plan(
    choice: DataChoice,
    parameters: Parameters,
    test: TestChoice,
    capacity: float | None,
    cluster: Cluster | None,
) -> tuple[Plan, Columns]:
    """The plan for this data on this machine, or on another one, or on several devices.

    It is that of `fit` with the same arguments: for the same rows, without those held out.
    """
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
        read = _read(choice, parameters, limit, test, None, folder)
        progress.on_stage("planning")
        weight = read.row_weights()
        made = read.estimator(parameters).plan(
            read.share,
            read.arrays.y,
            sample_weight=None if weight is None else weight[read.own],
            resource=resource,
        )
        if cluster is not None and not made.direct:
            made = with_estimated_seconds(made, cluster.device, cluster.memory, cluster.link)
    progress.clear()
    say_notes(read.notes)
    return made, read.columns


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
            read = _read(choice, parameters, memory, test, places.resume, folder)
        progress.clear()
        if not quiet:
            say_notes(read.notes)
        y, columns, held_out = read.y, read.columns, read.held_out
        model = read.estimator({**parameters, "verbose": int(not quiet)})
        with Stopwatch() as training:
            weight = read.row_weights()
            own = None if weight is None else weight[read.own]
            model.fit(read.share, read.arrays.y, sample_weight=own, resume=places.resume)
        model.verbose, model.callbacks = 0, ()
        evaluation, measures, notes = None, None, read.notes

        def save() -> None:
            progress.clear()
            model.n_jobs = None  # it belongs to this run and this machine
            model.save(places.model, _metadata(columns, choice, command, measures, evaluation))

        try:
            with Stopwatch() as measuring:
                stage("measuring on rows that training did not see")
                evaluation, found = _evaluation(model, read, held_out)
            if evaluation is not None:
                measures = measured(model, evaluation)
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
        "early_stopping": (len(y) if weight is None else int((weight > 0).sum())) - train,
        "test": 0 if evaluation is None else len(evaluation.y),
    }
    source = "" if evaluation is None else evaluation.source
    coverage = None if evaluation is None else evaluation.coverage
    return Fitted(model, columns, places, measures, coverage, source, rows, seconds, notes, command)


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
    choice: DataChoice,
    parameters: Parameters,
    memory: float | None,
    test: TestChoice,
    resume: str | None,
    folder: Path,
) -> _Input:
    """Read the table, and the first rows of the test file, so that its errors come before training.

    Each rank reads its share of the rows, as rank 0 says how.
    """
    kernel = parameters["kernel"]
    one_hot = not is_translation_invariant(kernel)
    if one_hot and choice.categorical:
        raise CallError(f"--category needs a kernel of distances. Got --kernel {kernel}.")
    open_one = partial(open_source, bounds=choice.bounds, layout=choice.layout)
    source = open_one(choice.path, choice.target, folder)
    unspecified = test.path is None and test.holdout is None and choice.target is None
    if unspecified and has_test_arrays(choice.path):
        test = replace(test, path=choice.path)

    def training_rows(columns: Columns) -> NDArray[np.bool_]:
        """Statistics of columns must not know the rows that the score is measured on."""
        chosen, y = targets_only(source.table, columns)
        labelled = np.flatnonzero(chosen)
        if len(labelled):
            chosen = chosen.copy()
            chosen[labelled[rows_to_hold_out(y, columns.task, test, resume)]] = False
        return chosen

    with ranks(find_device(parameters["device"])) as given:
        group = given or Group()
        columns = group.decided(
            lambda: fit_columns(
                source.table,
                source.target,
                task=choice.task,
                keep=choice.keep,
                drop=choice.drop,
                categorical=choice.categorical,
                wishes=choice.wishes,
                weight=choice.weight,
                training_rows=training_rows,
                one_hot=one_hot,
            )
        )
        n, name = source.table.n_rows, source.table.name
        part = source.table
        if group.size > 1:
            part = part.part(n * group.rank // group.size, n * (group.rank + 1) // group.size)
        free = free_memory(torch.device("cpu")) / sharing(group.seats, group.rank)
        budget = free if memory is None else memory
        arrays = read_arrays(part, columns, memory=budget, folder=folder, weight=choice.weight)
        lengths, dropped = group.gathered(len(arrays.X)), sum(group.gathered(arrays.dropped))
        if not sum(lengths):
            raise TableError(f"{name} has no rows with a target.")
        y = joined(arrays.y, given)
        weights = None if arrays.weights is None else joined(arrays.weights, given)
    notes = (*source.table.notes, *columns.notes, *arrays.notes)
    if dropped:
        notes = (*notes, missing_targets(dropped, n))
    held_out = rows_to_hold_out(y, columns.task, test, resume)
    first = sum(lengths[: group.rank])
    read = _Input(
        *(source, columns, arrays, y, first, notes, None, weights, held_out, choice.class_weight)
    )
    if test.path is None:
        return read
    test_source = open_one(test.path, test.target, folder, test=True, text=columns.text_names)
    if same_rows(test_source, test.path, choice.path):
        raise CallError("--test must have other rows than DATA. Got the same file.")
    next(file_parts(columns, test_source, {}), None)
    return replace(read, test=test_source)


def _evaluation(
    model: Model, read: _Input, held_out: Array
) -> tuple[Evaluation | None, tuple[str, ...]]:
    """Predictions of the test file or of the rows held out, and notes on the file."""
    if read.test is not None:
        notes: dict[str, None] = {}
        parts = file_parts(read.columns, read.test, notes)
        evaluation = evaluate_parts(model, parts, read.test.table.name)
        return evaluation, tuple(notes)
    if not len(held_out):
        return None, ()
    y, name = read.y, read.source.table.name
    numbers = row_numbers(read.source, read.columns, len(y))[held_out]
    source = f"{100 * len(held_out) / len(y):.3g} % of {name}, held out"

    def from_all(features: Array) -> Array:
        with ranks(model.machine_.device) as group:
            return joined(features, group)

    parts = held_out_parts(read.arrays.X, read.first, y, held_out, numbers, from_all)
    return evaluate_parts(model, parts, source), ()


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
