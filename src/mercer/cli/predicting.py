"""Predict a table with a saved model, or measure the model on one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mercer.cli.choices import Model, check_jobs
from mercer.cli.launching import rank_here
from mercer.cli.messages import CallError, Progress, say_notes
from mercer.cli.outputs import write_frames
from mercer.cli.sources import LeftOut, Part, PlainColumns, file_parts, open_for, same_rows
from mercer.estimators import KernelClassifier, KernelRegressor, load
from mercer.estimators.preparation import of_features
from mercer.metrics import Measures, measure
from mercer.report import Evaluation
from mercer.tables.bounds import Bounds
from mercer.tables.columns import Columns
from mercer.tables.errors import CellError, TableError, rows_from
from mercer.tables.layout import Layout
from mercer.tables.table import Table

Array = NDArray[Any]
PREDICTION = "prediction"  # name of the column with the result


@dataclass(frozen=True)
class Written:
    """What `predict` wrote."""

    rows: int
    columns: tuple[str, ...]
    notes: tuple[str, ...]


def load_model(path: str, n_jobs: int | None = None) -> Model:
    check_jobs(n_jobs)
    if not os.path.exists(path):
        raise ValueError(f"There is no model file {path!r}. Check the spelling.")
    model: Model = of_features(load(path))
    model.n_jobs = n_jobs
    return model


def evaluate(
    path: str,
    data: str,
    target: str | None,
    *,
    bounds: Bounds,
    layout: Layout,
    skip: bool,
    n_jobs: int | None,
    quiet: bool,
) -> tuple[Measures, str, tuple[str, ...]]:
    """Measures of a model on a table, what they were measured on, and notes."""
    model = load_model(path, n_jobs)
    progress = Progress()
    notes: dict[str, None] = {}
    if not quiet:
        progress.on_stage(f"predicting {data}")
    source, columns = open_for(model, data, target, None, bounds, layout)
    with _way_out():
        parts = file_parts(columns, source, notes, LeftOut() if skip else None)
        evaluation = evaluate_parts(model, parts, source.table.name)
    progress.clear()
    if same_rows(source, data, model.metadata_.get("data", "")):
        notes[f"the model was trained on {data}, so new rows may be predicted less well"] = None
    task = "classification" if isinstance(model, KernelClassifier) else "regression"
    return measure(task, evaluation.y, evaluation.predicted), evaluation.source, tuple(notes)


def predict(
    path: str,
    data: str,
    place: Path | None,
    *,
    proba: bool,
    copied: tuple[str, ...],
    guard: bool,
    bounds: Bounds,
    layout: Layout,
    skip: bool,
    n_jobs: int | None,
    quiet: bool,
) -> Written:
    """Predict a table chunk by chunk to a file, or as CSV to standard output if `place` is None.

    With `skip`, rows with a value that cannot be read are left out.

    Of several ranks, each predicts some rows of every chunk, and the first writes them all.
    """
    model = load_model(path, n_jobs)
    if proba and not isinstance(model, KernelClassifier):
        raise CallError("--proba needs a classifier, but this model predicts numbers. Leave it out.")
    if PREDICTION in copied:
        raise CallError(f"--with cannot copy a column named {PREDICTION!r}: the result has that name.")
    notes: dict[str, None] = {}
    progress = Progress()
    count = 0

    def frames(table: Table, columns: Columns | PlainColumns) -> Iterator[pl.DataFrame]:
        nonlocal count
        start, left_out = 0, LeftOut()
        for chunk in table.chunks(list(dict.fromkeys([*columns.names, *copied]))):
            frame = chunk
            if skip:
                frame = chunk.filter(pl.Series(left_out.readable(chunk, columns, start)))
            with rows_from(start):
                X, found = columns.features(frame)
            start += len(chunk)
            if not len(frame):
                continue
            notes.update(dict.fromkeys(found))
            yield _answers(model, X, [frame[name] for name in copied], proba)
            count += len(frame)
            if not quiet and place is not None:  # it would appear among the predictions
                progress.on_stage(f"{count:,} rows predicted")
        notes.update(dict.fromkeys(left_out.notes()))
        if not count:
            raise TableError(f"{table.name} has no row that can be read.")

    folder = None if place is None else place.parent
    source, columns = open_for(model, data, None, folder, bounds, layout)
    notes.update(dict.fromkeys(source.table.notes))
    if not source.table.n_rows:
        raise TableError(f"{source.table.name} has no rows.")
    answers = frames(source.table, columns)
    with _way_out():
        if rank_here() == 0:
            names = write_frames(answers, place, guard=guard)
        else:
            names = [tuple(frame.columns) for frame in answers][-1]
    progress.clear()
    if rank_here() == 0:
        say_notes(notes)
    return Written(count, names, tuple(notes))


@contextmanager
def _way_out() -> Iterator[None]:
    """Inside the block, errors about single values say how to go on without them."""
    try:
        yield
    except CellError as error:
        raise TableError(
            f"{error} Correct it, or use --on-error skip to leave such rows out."
        ) from error


def evaluate_parts(
    model: Model, parts: Iterable[Part], source: str, wants_probabilities: bool = False
) -> Evaluation:
    """Predict part by part; only one part's features are in memory at a time."""
    rows, truth, predicted, probabilities = [], [], [], []
    for numbers, X, y in parts:
        answers, p = _predictions(model, X, wants_probabilities)
        rows.append(numbers + 1)
        truth.append(y)
        predicted.append(answers)
        if p is not None:
            probabilities.append(p)
    if not rows:
        raise TableError(f"{source} has no rows with a target to measure on.")
    return Evaluation(
        np.concatenate(truth),
        np.concatenate(predicted),
        np.concatenate(probabilities) if probabilities else None,
        np.concatenate(rows),
        source,
    )


def _predictions(model: Model, X: Array, wants_probabilities: bool) -> tuple[Array, Array | None]:
    """Predictions, and the probabilities of all classes from the same evaluation of the kernel."""
    if isinstance(model, KernelRegressor) or not wants_probabilities:
        return model.predict(X), None
    probabilities = model.predict_proba(X).astype(np.float32)
    return model.classes_[probabilities.argmax(1)], probabilities


def _answers(model: Model, X: Array, copied: list[pl.Series], proba: bool) -> pl.DataFrame:
    answers, probabilities = _predictions(model, X, proba)
    series = [*copied, pl.Series(PREDICTION, answers)]
    if probabilities is not None:
        series += [
            pl.Series(f"probability of {label}", column)
            for label, column in zip(model.classes_, probabilities.T, strict=True)
        ]
    return pl.DataFrame(series)
