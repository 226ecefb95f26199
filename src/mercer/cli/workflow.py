"""From a file to a model to predictions: the work behind the subcommands.

Nothing here parses arguments or prints results; notes and progress go to standard error.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

import mercer
from mercer.cli.messages import CallError, say_notes
from mercer.cli.outputs import write_frames
from mercer.cli.sources import (
    Part,
    PlainColumns,
    Source,
    file_parts,
    held_out_parts,
    open_for,
    open_source,
    row_numbers,
    same_rows,
)
from mercer.engine import parse_memory
from mercer.estimators import KernelClassifier, KernelRegressor, load
from mercer.files.container import read_file
from mercer.metrics import Measures, measure
from mercer.planning.plan import Plan
from mercer.planning.resource import Resource, find_device, free_memory
from mercer.report import Evaluation, write_report
from mercer.tables.arrays import read_arrays
from mercer.tables.columns import Columns
from mercer.tables.survey import fit_columns
from mercer.tables.table import Table, TableError
from mercer.training.events.callbacks import Checkpoint
from mercer.training.events.console import ConsoleProgress
from mercer.training.events.dispatch import INTERRUPTED

Array = NDArray[Any]
Model = KernelClassifier | KernelRegressor
Settings = dict[str, Any]  # parameters of an estimator

# Held out for the final score unless the user says how much.  At 10,000 rows the error of an error rate
# is below half a percent; more would only be lost to training.
HOLDOUT = 0.2
MOST_HELD_OUT = 10_000


@dataclass(frozen=True)
class DataChoice:
    """Which table, and what of it."""

    path: str
    target: str | None
    task: str | None
    keep: tuple[str, ...]
    drop: tuple[str, ...]


@dataclass(frozen=True)
class TestChoice:
    """What the final score is measured on: a share of the rows, or a file."""

    __test__ = False  # not a test of pytest's

    holdout: float | None  # None is the default share
    path: str | None
    target: str | None
    seed: int


@dataclass(frozen=True)
class Places:
    """Where `fit` writes."""

    model: Path
    report: Path | None
    checkpoint: str | None
    resume: str | None

    def must_differ(self) -> None:
        places = [self.model, self.report, self.checkpoint and Path(os.path.realpath(self.checkpoint))]
        named = [place for place in places if place is not None]
        if len(set(named)) < len(named):
            raise CallError("Model, report and checkpoint must be different files. Got one name twice.")


@dataclass(frozen=True)
class Fitted:
    """What `fit` did."""

    model: Model
    columns: Columns
    places: Places
    measures: Measures | None
    source: str  # of the rows measured on
    rows: dict[str, int]  # train, early stopping, test
    seconds: dict[str, float]
    notes: tuple[str, ...]
    command: str

    @property
    def interrupted(self) -> bool:
        return bool(self.model.stop_reason_ == INTERRUPTED)


def settings(kernel: str, bandwidth: float | None, ridge: float | None, **others: Any) -> Settings:
    """Parameters of an estimator, "auto" where nothing was asked for."""
    chosen = {"bandwidth": bandwidth, "ridge": ridge}
    return {"kernel": kernel, **{k: "auto" if v is None else v for k, v in chosen.items()}, **others}


def size(memory: str) -> str:
    """The text as it is, if it is a size."""
    found = parse_memory(memory)
    if found is not None and not 0 < found < float("inf"):
        raise CallError(f'--memory must be a size such as 4GB or 500MB, or "auto". Got {memory!r}.')
    return memory


def checkpointing(path: str | None, minutes: float) -> tuple[Checkpoint, ...]:
    return () if path is None else (Checkpoint(path, minutes),)


def _estimator(task: str, parameters: Settings) -> Model:
    kind = KernelClassifier if task == "classification" else KernelRegressor
    return kind(**parameters)


def _budget(memory: str | None) -> float:
    given = None if memory is None else parse_memory(memory)
    return free_memory(torch.device("cpu")) if given is None else given


@contextmanager
def _scratch(beside: Path | None) -> Iterator[Path]:
    """A folder for what does not fit in memory: beside the output, since /tmp may itself be memory."""
    with tempfile.TemporaryDirectory(
        prefix=".mercer-", dir=None if beside is None else beside.parent
    ) as name:
        yield Path(name)


def plan(choice: DataChoice, parameters: Settings, capacity: float | None) -> Plan:
    """The plan for this data; with a capacity, that of a machine with it instead of this one."""
    progress = ConsoleProgress()
    memory = parse_memory(parameters["memory_limit"])
    there = None
    if capacity is not None:
        if not capacity > 0:
            raise CallError(f"--capacity must be positive. Got {capacity}.")
        here = free_memory(find_device(parameters["device"]))
        there = Resource(capacity, here if memory is None else memory, name="another machine")
    progress.on_stage(f"reading {choice.path}")
    source = open_source(choice.path, choice.target)
    columns = _fit_columns(source, choice)
    with _scratch(None) as folder:
        # Another machine's memory says nothing about what may be used here.
        budget = _budget(None if capacity is not None else parameters["memory_limit"])
        arrays = read_arrays(source.table, columns, memory=budget, folder=folder)
        progress.on_stage("planning")
        made = _estimator(columns.task, parameters).plan(arrays.X, arrays.y, resource=there)
    progress.clear()
    say_notes([*columns.notes, *arrays.notes])
    return made


def _fit_columns(source: Source, choice: DataChoice) -> Columns:
    return fit_columns(
        source.table,
        source.target,
        task=choice.task,
        keep=choice.keep,
        drop=choice.drop,
    )


def fit(
    choice: DataChoice,
    parameters: Settings,
    test: TestChoice,
    places: Places,
    *,
    command: str,
    quiet: bool,
) -> Fitted:
    """Read, train, measure on rows that training did not see, and keep that very model."""
    progress = ConsoleProgress()
    seconds: dict[str, float] = {}
    wants_probabilities = places.report is not None

    def stage(text: str) -> None:
        if not quiet:
            progress.on_stage(text)

    with _scratch(places.model) as folder:
        with _timed(seconds, "reading"):
            stage(f"reading {choice.path}")
            source = open_source(choice.path, choice.target, folder)
            columns = _fit_columns(source, choice)
            budget = _budget(parameters["memory_limit"])
            arrays = read_arrays(source.table, columns, memory=budget, folder=folder)
            # Begun now: what is wrong with this file must not be found out about after training.
            test_source = None
            if test.path is not None:
                test_source = open_source(
                    test.path, test.target, folder, test=True, text=columns.text_names
                )
                if same_rows(test_source, test.path, choice.path):
                    raise CallError("--test must be other rows than DATA. Got the same file.")
                next(file_parts(columns, test_source, {}), None)
        progress.clear()
        notes = (*columns.notes, *arrays.notes)
        if not quiet:
            say_notes(notes)
        apart = _rows_apart(arrays.y, columns.task, test, places.resume)
        model = _estimator(columns.task, {**parameters, "verbose": int(not quiet)})
        with _timed(seconds, "training"):
            weight = None
            if len(apart):  # a weight of 0 leaves a row out, without a copy of all the others
                weight = np.ones(len(arrays.y))
                weight[apart] = 0.0
            model.fit(arrays.X, arrays.y, sample_weight=weight, resume=places.resume)
        model.verbose, model.callbacks = 0, ()  # of this run, not of the model
        evaluation, measures = None, None

        def keep() -> None:
            progress.clear()
            model.save(places.model, _metadata(columns, choice, command, measures, evaluation))

        try:
            with _timed(seconds, "measuring"):
                stage("measuring on rows that training did not see")
                if test_source is not None:
                    found: dict[str, None] = {}
                    parts = file_parts(columns, test_source, found)
                    evaluation = _evaluation(model, parts, test_source.table.name, wants_probabilities)
                    notes = (*notes, *found)
                elif len(apart):
                    numbers = row_numbers(source, columns, len(arrays.y))[apart]
                    name = f"{100 * len(apart) / len(arrays.y):.3g} % of {source.table.name}, held out"
                    parts = held_out_parts(arrays.X, arrays.y, apart, numbers)
                    evaluation = _evaluation(model, parts, name, wants_probabilities)
            if evaluation is not None:
                measures = measure(columns.task, evaluation.y, evaluation.predicted)
        except BaseException:  # training is what took the time
            keep()
            say_notes([f"the model is in {places.model}, but measuring it did not end"])
            raise
        keep()
        if places.report is not None:
            stage("writing the report")
            write_report(
                places.report,
                model,
                evaluation,
                title=f"{columns.target} from {os.path.basename(source.table.name)}",
                command=command,
                data_name=source.table.name,
                target=columns.target,
                notes=notes,
                timings=seconds,
            )
            progress.clear()
    train = len(model.machine_.alpha)
    tested = 0 if evaluation is None else len(evaluation.y)
    return Fitted(
        model,
        columns,
        places,
        measures,
        "" if evaluation is None else evaluation.source,
        {
            "train": train,
            "early_stopping": len(arrays.y) - len(apart) - train,
            "test": tested,
        },
        seconds,
        notes,
        command,
    )


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[name] = time.perf_counter() - start


def _rows_apart(y: Array, task: str, test: TestChoice, resume: str | None) -> Array:
    """Rows to be kept from training for the final score."""
    if resume is not None:  # those that the interrupted run kept from it, whatever is asked for now
        tensors, _ = read_file(resume, "checkpoint")
        seen = torch.cat([tensors["rows"], tensors["held_out"]]).numpy()
        return np.setdiff1d(np.arange(len(y)), seen)
    if test.path is not None or test.holdout == 0:
        return np.zeros(0, dtype=int)
    share = HOLDOUT if test.holdout is None else test.holdout
    rows, labels = np.arange(len(y)), None
    if task == "classification":
        _, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
        # The only row of its class has nothing to teach anywhere but in training.
        rows = rows[counts[codes] > 1]
        labels = codes[rows]
    wanted = max(1, round(share * len(y)))
    if test.holdout is None:
        wanted = min(wanted, MOST_HELD_OUT)
    if not 0 < wanted < len(rows):
        raise TableError(
            f"There must be rows to train on and rows to measure on. Got {len(y)}, of which {wanted} "
            "would be held out: use --holdout 0, or give more rows."
        )
    if labels is not None and min(wanted, len(rows) - wanted) < len(np.unique(labels)):
        labels = None  # too few for one of each class
    _, apart = train_test_split(rows, test_size=wanted, random_state=test.seed, stratify=labels)
    return np.sort(apart)


def _evaluation(
    model: Model, parts: Iterable[Part], source: str, wants_probabilities: bool = False
) -> Evaluation:
    """Predict part by part; of the features, no more than a part is in memory."""
    rows, truth, predicted, probabilities = [], [], [], []
    for numbers, X, y in parts:
        said, p = _predictions(model, X, wants_probabilities)
        rows.append(numbers + 1)
        truth.append(y)
        predicted.append(said)
        if p is not None:
            probabilities.append(p)
    if not rows:
        raise TableError(f"There must be rows with a target to measure on. Got none in {source}.")
    return Evaluation(
        np.concatenate(truth),
        np.concatenate(predicted),
        np.concatenate(probabilities) if probabilities else None,
        np.concatenate(rows),
        source,
    )


def _predictions(model: Model, X: Array, wants_probabilities: bool) -> tuple[Array, Array | None]:
    """Numbers or labels, and probabilities of all classes from the same evaluation of the kernel."""
    if isinstance(model, KernelRegressor) or not wants_probabilities:
        return model.predict(X), None
    probabilities = model.predict_proba(X).astype(np.float32)
    return model.classes_[probabilities.argmax(1)], probabilities


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


def load_model(path: str) -> Model:
    if not os.path.isfile(path):
        raise ValueError(f"The model must be a file. Got {path!r}, which is not there.")
    return load(path)


def evaluate(
    path: str, data: str, target: str | None, *, quiet: bool
) -> tuple[Measures, str, tuple[str, ...]]:
    """Measures of a model on a table, what they were measured on, and notes."""
    model = load_model(path)
    progress = ConsoleProgress()
    notes: dict[str, None] = {}
    if not quiet:
        progress.on_stage(f"predicting {data}")
    source, columns = open_for(model, data, target, None)
    evaluation = _evaluation(model, file_parts(columns, source, notes), source.table.name)
    progress.clear()
    if same_rows(source, data, model.metadata_.get("data", "")):
        notes[f"{data} is what the model was trained on, so that this says little about new rows"] = None
    task = "classification" if isinstance(model, KernelClassifier) else "regression"
    return measure(task, evaluation.y, evaluation.predicted), evaluation.source, tuple(notes)


@dataclass(frozen=True)
class Written:
    """What `predict` wrote."""

    rows: int
    columns: tuple[str, ...]
    notes: tuple[str, ...]


def predict(
    path: str, data: str, place: Path | None, *, proba: bool, copied: tuple[str, ...], quiet: bool
) -> Written:
    """Predict a table part by part to a file, or as CSV to standard output where `place` is None."""
    model = load_model(path)
    if proba and not isinstance(model, KernelClassifier):
        raise CallError("--proba goes with classes. Got a model that predicts numbers: leave it out.")
    if "prediction" in copied:
        raise CallError("--with must not name a column `prediction`. Got it: that is the result's own.")
    notes: dict[str, None] = {}
    progress = ConsoleProgress()
    count = 0

    def frames(table: Table, columns: Columns | PlainColumns) -> Iterator[pl.DataFrame]:
        nonlocal count
        for frame in table.chunks(list(dict.fromkeys([*columns.names, *copied]))):
            X, found = columns.features(frame)
            notes.update(dict.fromkeys(found))
            yield _answers(model, X, frame.select(copied), proba)
            count += len(frame)
            if not quiet and place is not None:  # it would stand between the predictions
                progress.on_stage(f"{count:,} rows predicted")

    source, columns = open_for(model, data, None, None if place is None else place.parent)
    if not source.table.n_rows:
        raise TableError(f"{source.table.name} must have rows. Got none.")
    names = write_frames(frames(source.table, columns), place)
    progress.clear()
    say_notes(notes)
    return Written(count, names, tuple(notes))


def _answers(model: Model, X: Array, copied: pl.DataFrame, proba: bool) -> pl.DataFrame:
    said, probabilities = _predictions(model, X, proba)
    series = [*copied, pl.Series("prediction", said)]
    if probabilities is not None:
        series += [
            pl.Series(f"probability of {label}", column)
            for label, column in zip(model.classes_, probabilities.T, strict=True)
        ]
    return pl.DataFrame(series)
