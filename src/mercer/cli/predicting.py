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
from mercer.cli.far_rows import FarRows
from mercer.cli.launching import rank_here
from mercer.cli.messages import CallError, Progress, say_notes
from mercer.cli.outputs import write_frames
from mercer.cli.sources import LeftOut, Part, file_parts, open_for, same_rows
from mercer.cli.worst_rows import with_values
from mercer.estimators import KernelClassifier, load
from mercer.estimators.all_answers import AllAnswers, all_answers
from mercer.estimators.answer_table import FAR, LABEL_SET, LOWER, PREDICTION, UPPER, answer_table
from mercer.estimators.preparation import of_features
from mercer.metrics import Measures, class_places, measure
from mercer.report import Coverage, Evaluation
from mercer.tables.bounds import Bounds
from mercer.tables.columns import Columns
from mercer.tables.errors import CellError, TableError, rows_from
from mercer.tables.layout import Layout
from mercer.tables.plain_columns import PlainColumns
from mercer.tables.table import Table

Array = NDArray[Any]
# Coverage of the intervals and sets that are measured.
MEASURED_COVERAGE = 0.9


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
) -> tuple[Measures, Evaluation, tuple[str, ...]]:
    """Measures of a model on a table, the predictions they come from, and notes."""
    model = load_model(path, n_jobs)
    found = evaluate_table(model, data, target, bounds, layout, skip, quiet)
    return measured(model, found.evaluation), found.evaluation, found.notes


@dataclass(frozen=True)
class TableEvaluation:
    """A model's predictions of a table whose target is known."""

    evaluation: Evaluation
    columns: Columns | PlainColumns
    notes: tuple[str, ...]


def evaluate_table(
    model: Model,
    data: str,
    target: str | None,
    bounds: Bounds,
    layout: Layout,
    skip: bool,
    quiet: bool,
) -> TableEvaluation:
    """Predict a table, with notes on it."""
    progress = Progress()
    notes: dict[str, None] = {}
    if not quiet:
        progress.on_stage(f"predicting {data}")
    source, columns = open_for(model, data, target, None, bounds, layout)
    with _way_out():
        parts = file_parts(columns, source, notes, LeftOut() if skip else None)
        evaluation = evaluate_parts(model, parts, source.table.name)
    evaluation = with_values(evaluation, model, source, columns)
    progress.clear()
    if same_rows(source, data, model.metadata_.get("data", "")):
        notes[f"the model was trained on {data}, so new rows may be predicted less well"] = None
    return TableEvaluation(evaluation, columns, tuple(notes))


def measured(model: Model, evaluation: Evaluation) -> Measures:
    """All measures of the predictions of a model."""
    if not isinstance(model, KernelClassifier):
        return measure("regression", evaluation.y, evaluation.predicted)
    found = (evaluation.y, evaluation.predicted, evaluation.probabilities, model.classes_)
    return measure("classification", *found)


def predict(
    path: str,
    data: str,
    place: Path | None,
    *,
    proba: bool,
    interval: float | None,
    far: bool,
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
    if interval is not None and not 0 < interval < 1:
        raise CallError(f"--interval must be between 0 and 1, such as 0.9. Got {interval}.")
    if (interval is not None or far) and not model.is_calibrated:
        raise CallError(
            "--interval and --far need a model that knows its errors on rows it was not trained on. "
            "This one does not: fit it with this version, and without giving --ridge."
        )
    taken = {PREDICTION, *((LOWER, UPPER, LABEL_SET) if interval else ()), *((FAR,) if far else ())}
    for name in copied:
        if name in taken:
            raise CallError(f"--with cannot copy a column named {name!r}: the result has that name.")
    far_rows = FarRows.of(model, far)
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
            answers = all_answers(
                model, X, probabilities=proba, coverage=interval, far=far_rows is not None
            )
            if far_rows is not None and answers.far_shares is not None:
                far_rows.add(answers.far_shares)
            yield answer_table(model, answers, [frame[name] for name in copied], far)
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
        if far_rows is not None:
            notes.update(dict.fromkeys(far_rows.notes()))
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


def evaluate_parts(model: Model, parts: Iterable[Part], source: str) -> Evaluation:
    """Predict part by part; only one part's features are in memory at a time."""
    rows, truth, found = [], [], []
    coverage = MEASURED_COVERAGE if model.can_cover(MEASURED_COVERAGE) else None
    classifies = isinstance(model, KernelClassifier)
    for numbers, X, y in parts:
        answers = all_answers(model, X, probabilities=classifies, coverage=coverage)
        rows.append(numbers + 1)
        truth.append(y)
        found.append(answers)
    if not rows:
        raise TableError(f"{source} has no rows with a target to measure on.")
    y = np.concatenate(truth)
    probabilities = None
    if classifies:
        each = (one.probabilities for one in found if one.probabilities is not None)
        probabilities = np.concatenate([values.astype(np.float32) for values in each])
    return Evaluation(
        y,
        np.concatenate([one.predicted for one in found]),
        probabilities,
        np.concatenate(rows),
        source,
        None if coverage is None else _covered(model, y, found, coverage),
    )


def _covered(model: Model, y: Array, found: list[AllAnswers], coverage: float) -> Coverage:
    """Whether the true values lie in the intervals or sets."""
    if isinstance(model, KernelClassifier):
        sets = np.concatenate([one.sets for one in found if one.sets is not None])  # (m, n_classes)
        places = class_places(model.classes_, y)
        return Coverage(coverage, (places >= 0) & sets[np.arange(len(y)), places], sets.sum(1))
    low, high = np.concatenate([one.intervals for one in found if one.intervals is not None]).T
    return Coverage(coverage, (low <= y) & (y <= high), high - low)
