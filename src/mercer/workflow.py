"""From a file to a model to predictions: the work behind the subcommands.

Nothing here parses arguments or prints results; notes and progress go to standard error.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

import mercer
from mercer.columns import Arrays, Columns, fit_columns, read_arrays
from mercer.estimators import INTERRUPTED, KernelClassifier, KernelRegressor, load
from mercer.fitting import parse_memory
from mercer.measures import Measures, measure
from mercer.messages import say_notes
from mercer.outputs import OutputError, write_frames
from mercer.plan import Plan
from mercer.progress import ConsoleProgress
from mercer.report import Evaluation, write_report
from mercer.resource import Resource, find_device, free_memory
from mercer.saving import read_file
from mercer.tables import Table, TableError, open_table

Array = NDArray[Any]
Model = KernelClassifier | KernelRegressor
Settings = dict[str, Any]  # parameters of an estimator

# Held out for the final score unless the user says how much.  At 10,000 rows the error of an error rate
# is below half a percent; more would only be lost to training.
HOLDOUT = 0.2
MOST_HELD_OUT = 10_000
# Bytes of features that are predicted at a time.
PREDICTED_BYTES = 1 << 26


class CallError(ValueError):
    """A wrong call, found once the libraries are loaded."""

    exit_code = 2


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
            raise OutputError(
                "Model, report and checkpoint must be different files. Got one name twice."
            )


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


@dataclass(frozen=True)
class _Source:
    """A table, and the second one that its labels may be in."""

    table: Table
    target: str | None
    labels: Table | None


def _open(
    path: str,
    target: str | None,
    folder: Path | None = None,
    *,
    test: bool = False,
    text: Collection[str] = (),
) -> _Source:
    """Open a table, `test` preferring the test arrays of a file that has them."""
    table = _open_table(path, folder, test, text)
    if target is None or target in table.names or not os.path.isfile(target):
        return _Source(table, target, None)
    labels = _open_table(target, folder, test, text)
    if len(labels.names) != 1 or labels.n_rows != table.n_rows:
        raise TableError(
            f"A file of labels must be one column, with a row for each of {path}. Got "
            f"{len(labels.names)} columns and {labels.n_rows:,} rows for {table.n_rows:,} in {target}."
        )
    return _Source(table, None, labels)


def _open_table(path: str, folder: Path | None, test: bool, text: Collection[str]) -> Table:
    if test and path.lower().endswith(".npz"):
        with suppress(TableError):  # it has only one pair of arrays
            return open_table(path, member="test", folder=folder)
    return open_table(path, folder=folder, text=text)


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
    memory = parse_memory(parameters["memory"])
    if capacity is not None:
        if not capacity > 0:
            raise CallError(f"--capacity must be positive. Got {capacity}.")
        here = free_memory(find_device(parameters["device"]))
        there = Resource(capacity, here if memory is None else memory, name="another machine")
        parameters = {**parameters, "resource": there}
    progress.on_stage(f"reading {choice.path}")
    source = _open(choice.path, choice.target)
    columns = _fit_columns(source, choice)
    with _scratch(None) as folder:
        # Another machine's memory says nothing about what may be used here.
        budget = _budget(None if capacity is not None else parameters["memory"])
        arrays = read_arrays(source.table, columns, memory=budget, folder=folder, labels=source.labels)
        progress.on_stage("planning")
        made = _estimator(columns.task, parameters).plan(arrays.X, arrays.y)
    progress.clear()
    say_notes([*columns.notes, *arrays.notes])
    return made


def _fit_columns(source: _Source, choice: DataChoice) -> Columns:
    return fit_columns(
        source.table,
        source.target,
        task=choice.task,
        keep=choice.keep,
        drop=choice.drop,
        labels=source.labels,
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

    def stage(text: str) -> None:
        if not quiet:
            progress.on_stage(text)

    with _scratch(places.model) as folder:
        with _timed(seconds, "reading"):
            stage(f"reading {choice.path}")
            source = _open(choice.path, choice.target, folder)
            columns = _fit_columns(source, choice)
            budget = _budget(parameters["memory"])
            arrays = read_arrays(
                source.table, columns, memory=budget, folder=folder, labels=source.labels
            )
            # Begun now: what is wrong with this file must not be found out about after training.
            test_source = None
            if test.path is not None:
                test_source = _open(test.path, test.target, folder, test=True, text=columns.text_names)
                next(_parts(columns, test_source, {}), None)
        progress.clear()
        notes = (*columns.notes, *arrays.notes)
        if not quiet:
            say_notes(notes)
        assert arrays.y is not None
        apart = _rows_apart(arrays.y, columns.task, test, places.resume)
        model = _estimator(columns.task, {**parameters, "verbose": int(not quiet)})
        with _timed(seconds, "training"):
            weight = None
            if len(apart):  # a weight of 0 leaves a row out, without a copy of all the others
                weight = np.ones(len(arrays.y))
                weight[apart] = 0.0
            model.fit(arrays.X, arrays.y, sample_weight=weight, resume=places.resume)
        model.verbose, model.checkpoint = 0, None  # of this run, not of the model
        evaluation, measures = None, None
        try:
            with _timed(seconds, "measuring"):
                stage("measuring on rows that training did not see")
                if test_source is not None:
                    found: dict[str, None] = {}
                    parts = _parts(columns, test_source, found)
                    evaluation = _evaluation(model, parts, test.path or "")
                    notes = (*notes, *found)
                elif len(apart):
                    numbers = _row_numbers(source, columns, len(arrays.y))[apart]
                    evaluation = _held_out_evaluation(model, arrays, apart, numbers, choice.path)
            if evaluation is not None:
                measures = measure(columns.task, evaluation.y, evaluation.predicted)
        finally:  # also where measuring is interrupted or fails: training is what took the time
            progress.clear()
            model.save(places.model, _metadata(columns, source, choice, command, measures, evaluation))
        if places.report is not None:
            stage("writing the report")
            write_report(
                places.report,
                model,
                evaluation,
                title=f"{columns.target} from {os.path.basename(choice.path)}",
                command=command,
                data_name=choice.path,
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


def _row_numbers(source: _Source, columns: Columns, n: int) -> Array:
    """Where in the file, from 0, the n rows are whose target is known."""
    if n == source.table.n_rows:
        return np.arange(n)
    table, name = (source.table, columns.target) if source.labels is None else (source.labels, None)
    known = [_known(frame.to_series()) for frame in table.chunks(name and [name])]
    return np.flatnonzero(np.concatenate(known))


def _held_out_evaluation(
    model: Model, arrays: Arrays, rows: Array, numbers: Array, data: str
) -> Evaluation:
    assert arrays.y is not None
    step = max(1, PREDICTED_BYTES // (4 * arrays.X.shape[1]))
    pieces = [slice(start, start + step) for start in range(0, len(rows), step)]
    parts = ((numbers[one], arrays.X[rows[one]], arrays.y[rows[one]]) for one in pieces)
    return _evaluation(model, parts, f"{100 * len(rows) / len(arrays.y):.3g} % of {data}, held out")


def _evaluation(model: Model, parts: Iterable[tuple[Array, Array, Array]], source: str) -> Evaluation:
    """Of parts of rows (their numbers from 0, features, truth); no more than a part is kept of X."""
    rows, truth, predicted, probabilities = [], [], [], []
    for numbers, X, y in parts:
        said, p = _predictions(model, X)
        rows.append(numbers + 1)
        truth.append(y)
        predicted.append(said)
        if p is not None:
            probabilities.append(p)
    if not sum(map(len, rows)):
        raise TableError(f"There must be rows with a target to measure on. Got none in {source}.")
    return Evaluation(
        np.concatenate(truth),
        np.concatenate(predicted),
        np.concatenate(probabilities) if probabilities else None,
        np.concatenate(rows),
        source,
    )


def _parts(
    columns: Columns | PlainColumns, source: _Source, notes: dict[str, None]
) -> Iterator[tuple[Array, Array, Array]]:
    """Numbers, features and truth of the rows whose truth is known, some at a time."""
    labels = None if source.labels is None else pl.concat(source.labels.chunks()).to_series()
    wanted = columns.names if labels is not None else (*columns.names, columns.target)
    first, unknown = 0, 0
    for frame in source.table.chunks(wanted):
        if labels is not None:
            frame = frame.with_columns(labels[first : first + len(frame)].alias(columns.target))
        known = _known(frame[columns.target])
        numbers = first + np.flatnonzero(known)
        first += len(frame)
        unknown += len(frame) - len(numbers)
        if len(numbers):
            frame = frame.filter(pl.Series(known))
            X, found = columns.features(frame)
            notes.update(dict.fromkeys(found))
            yield numbers, X, columns.targets(frame)
    if unknown:
        notes[f"left out {unknown:,} of {first:,} rows, whose target is missing"] = None


def _known(values: pl.Series) -> NDArray[np.bool_]:
    known = values.is_finite().fill_null(False) if values.dtype.is_float() else values.is_not_null()
    return known.to_numpy()


def _predictions(model: Model, X: Array) -> tuple[Array, Array | None]:
    """Labels and their probabilities from one evaluation of the kernel, or numbers."""
    if isinstance(model, KernelRegressor):
        return model.predict(X), None
    probabilities = model.predict_proba(X).astype(np.float32)
    return model.classes_[probabilities.argmax(1)], probabilities


def _metadata(
    columns: Columns,
    source: _Source,
    choice: DataChoice,
    command: str,
    measures: Measures | None,
    evaluation: Evaluation | None,
) -> dict[str, Any]:
    score = None if measures is None else {k: v for k, v in measures.to_dict().items() if k != "classes"}
    return {
        "columns": columns.to_dict(),
        "data": choice.path if choice.path == "-" else os.path.realpath(choice.path),
        "rows": source.table.n_rows,
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


@dataclass(frozen=True)
class PlainColumns:
    """The columns of a model that was saved from Python and knows of no table: numbers, as they are."""

    names: tuple[str, ...]
    target: str

    def features(self, frame: pl.DataFrame) -> tuple[NDArray[np.float32], list[str]]:
        for name in self.names:
            if not (frame[name].dtype.is_numeric() or frame[name].dtype == pl.Boolean):
                raise TableError(
                    f"The column {name!r} must be of numbers, since the model was trained on a matrix. "
                    f"Got {frame[name].dtype}."
                )
        return frame.select(pl.col(self.names).cast(pl.Float32)).to_numpy(), []

    def targets(self, frame: pl.DataFrame) -> Array:
        return frame[self.target].to_numpy()


def _open_for(
    model: Model, path: str, target: str | None, folder: Path | None
) -> tuple[_Source, Columns | PlainColumns]:
    """A table, and how this model reads it."""
    stored = model.metadata_.get("columns")
    if stored is not None:
        columns = Columns.from_dict(stored)
        source = _open(path, target, folder, test=True, text=columns.text_names)
        return source, columns if source.target is None else replace(columns, target=source.target)
    source = _open(path, target, folder, test=True)
    truth, table = source.target or "y", source.table
    known = getattr(model, "feature_names_in_", None)
    names = [name for name in table.names if name != truth] if known is None else list(known)
    if len(names) != model.n_features_in_:
        raise TableError(
            f"{table.name} must have the {model.n_features_in_} columns the model was trained on, in "
            f"order. Got {len(names)} beside {truth!r}."
        )
    return source, PlainColumns(tuple(names), truth)


def evaluate(
    path: str, data: str, target: str | None, *, quiet: bool
) -> tuple[Measures, str, tuple[str, ...]]:
    """Measures of a model on a table, what they were measured on, and notes."""
    model = load_model(path)
    progress = ConsoleProgress()
    notes: dict[str, None] = {}
    if not quiet:
        progress.on_stage(f"predicting {data}")
    source, columns = _open_for(model, data, target, None)
    evaluation = _evaluation(model, _parts(columns, source, notes), data)
    progress.clear()
    trained = model.metadata_.get("data")
    if trained == os.path.realpath(data) and source.table.n_rows == model.metadata_["rows"]:
        notes[f"{data} is what the model was trained on, so that this says little about new rows"] = None
    task = "classification" if isinstance(model, KernelClassifier) else "regression"
    return measure(task, evaluation.y, evaluation.predicted), data, tuple(notes)


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

    source, columns = _open_for(model, data, None, None if place is None else place.parent)
    if not source.table.n_rows:
        raise TableError(f"{data} must have rows. Got none.")
    names = write_frames(frames(source.table, columns), place)
    progress.clear()
    say_notes(notes)
    return Written(count, names, tuple(notes))


def _answers(model: Model, X: Array, copied: pl.DataFrame, proba: bool) -> pl.DataFrame:
    if not proba:
        return pl.DataFrame([*copied, pl.Series("prediction", model.predict(X))])
    said, probabilities = _predictions(model, X)
    assert probabilities is not None
    return pl.DataFrame(
        [
            *copied,
            pl.Series("prediction", said),
            *(
                pl.Series(f"probability of {label}", column)
                for label, column in zip(model.classes_, probabilities.T, strict=True)
            ),
        ]
    )
