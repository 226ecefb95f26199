"""From the files that the user names to the rows of a fit: in memory, on disk, or as a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mercer.cli.choices import ClassWeights, DataChoice, Model, Parameters, TestChoice, estimator
from mercer.cli.holdout import rows_to_hold_out
from mercer.cli.messages import CallError
from mercer.cli.sources import (
    Part,
    Source,
    file_parts,
    held_out_parts,
    open_source,
    row_numbers,
    same_rows,
)
from mercer.estimators.chunks import StreamOf
from mercer.estimators.row_share import RowShare
from mercer.estimators.shares import joined
from mercer.kernels import is_translation_invariant
from mercer.planning.memory import GIB, feature_bytes, free_memory, stay_in_memory
from mercer.planning.plan import Plan
from mercer.planning.resource import Resource, find_device
from mercer.processes.group import Group
from mercer.processes.joining import ranks
from mercer.processes.seats import sharing
from mercer.tables.array_files import has_test_arrays
from mercer.tables.arrays import Arrays, missing_targets, read_arrays, targets_only
from mercer.tables.columns import Columns
from mercer.tables.errors import TableError
from mercer.tables.survey import fit_columns
from mercer.tables.table_stream import TableStream
from mercer.tables.wording import listed, meant

Array = NDArray[Any]


@dataclass(frozen=True)
class Input:
    """The table that was read, and the test file if there is one."""

    source: Source
    columns: Columns
    rows: SomeRows | TableStream
    n_rows: int  # with a target
    labels: Array  # that occur, of a classification
    held_out: Array  # rows that are kept out of training, sorted
    notes: tuple[str, ...]
    class_weight: ClassWeights
    test: Source | None = None

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
        labels = {str(label): label for label in self.labels.tolist()}
        absent = next((label for label in self.class_weight if label not in labels), None)
        if absent is not None:
            raise CallError(
                f"--class-weight names {absent!r}, which is no class. {meant(absent, list(labels))}The "
                f"classes are {listed(list(labels))}."
            )
        return {labels[label]: weight for label, weight in self.class_weight.items()}

    @property
    def later_notes(self) -> tuple[str, ...]:
        """What was found while the rows were trained on."""
        return tuple(self.rows.notes) if isinstance(self.rows, TableStream) else ()

    def plan(self, model: Model, resource: Resource | None) -> Plan:
        if isinstance(self.rows, TableStream):
            return model.plan(StreamOf(self.rows, self.held_out), resource=resource)
        share, y, weight = self.rows.given(self.held_out)
        return model.plan(share, y, sample_weight=weight, resource=resource)

    def fit(self, model: Model, resume: str | None) -> None:
        if isinstance(self.rows, TableStream):
            model.fit(StreamOf(self.rows, self.held_out), resume=resume)
            return
        share, y, weight = self.rows.given(self.held_out)
        model.fit(share, y, sample_weight=weight, resume=resume)

    def held_out_parts(self, device: torch.device) -> Iterator[Part]:
        """The rows held out, a chunk at a time."""
        if isinstance(self.rows, TableStream):
            return self.rows.some(self.held_out)
        numbers = row_numbers(self.source, self.columns, self.n_rows)[self.held_out]
        rows = self.rows

        def from_all(features: Array) -> Array:
            with ranks(device) as group:
                return joined(features, group)

        return held_out_parts(rows.arrays.X, rows.first, rows.y, self.held_out, numbers, from_all)


@dataclass(frozen=True)
class SomeRows:
    """Rows as arrays: all of them, or those of this rank."""

    arrays: Arrays
    first: int  # the row of all with which these begin
    y: Array  # of all rows
    weights: Array | None  # likewise, if a column has them

    def given(self, held_out: Array) -> tuple[RowShare, Array, Array | None]:
        """What `fit` takes; a weight of 0 leaves a row out without copying all the others."""
        share = RowShare(self.arrays.X)
        if self.weights is None and not len(held_out):
            return share, self.arrays.y, None
        weight = np.ones(len(self.y)) if self.weights is None else self.weights.copy()
        weight[held_out] = 0.0
        return share, self.arrays.y, weight[self.first : self.first + len(self.arrays.X)]


def chosen_columns(
    choice: DataChoice,
    source: Source,
    training_rows: Callable[[Columns], NDArray[np.bool_]],
    *,
    one_hot: bool = False,
) -> Columns:
    """How the columns become features, as the options say; statistics are those of `training_rows`."""
    return fit_columns(
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


def read_input(
    choice: DataChoice,
    parameters: Parameters,
    memory: float | None,
    test: TestChoice,
    resume: str | None,
    folder: Path,
) -> Input:
    """Read the table, and the first rows of the test file, so that its errors come before training.

    Features that take too much memory are read from the table in every pass, if the model may have fewer
    centres than rows, and otherwise from a file.  Each rank reads its share of the rows, as rank 0 says.
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

    seen: dict[str, Any] = {}  # what the survey finds out about the rows

    def training_rows(columns: Columns) -> NDArray[np.bool_]:
        """Statistics of columns must not know the rows that the score is measured on."""
        chosen, y = targets_only(source.table, columns)
        labelled = np.flatnonzero(chosen)
        if len(labelled):
            chosen = chosen.copy()
            seen["held_out"] = rows_to_hold_out(y, columns.task, test, resume)
            chosen[labelled[seen["held_out"]]] = False
        seen["n"], seen["labels"] = len(y), _labels(y, columns)
        return chosen

    with ranks(find_device(parameters["device"])) as given:
        group = given or Group()
        columns = group.decided(lambda: chosen_columns(choice, source, training_rows, one_hot=one_hot))
        n, name = source.table.n_rows, source.table.name
        part = source.table
        if group.size > 1:
            part = part.part(n * group.rank // group.size, n * (group.rank + 1) // group.size)
        free = free_memory(torch.device("cpu")) / sharing(group.seats, group.rank)
        budget = free if memory is None else memory
        size = feature_bytes(n, len(columns.feature_names))
        notes = (*source.table.notes, *columns.notes)
        rows: SomeRows | TableStream
        if group.size == 1 and parameters["n_centers"] is not None and not stay_in_memory(size, budget):
            rows, dropped = TableStream(source.table, columns, choice.weight), n - seen["n"]
            held_out, labels = seen.get("held_out", np.zeros(0, dtype=int)), seen["labels"]
            notes = (*notes, f"the features take {size / GIB:.2g} GiB and are read anew in every pass")
        else:
            arrays = read_arrays(part, columns, memory=budget, folder=folder, weight=choice.weight)
            lengths, dropped = group.gathered(len(arrays.X)), sum(group.gathered(arrays.dropped))
            y = joined(arrays.y, given)
            weights = None if arrays.weights is None else joined(arrays.weights, given)
            rows = SomeRows(arrays, sum(lengths[: group.rank]), y, weights)
            notes = (*notes, *arrays.notes)
            labels = _labels(y, columns)
            held_out = rows_to_hold_out(y, columns.task, test, resume) if len(y) else labels
        source.table.forget()  # training needs the memory
        if dropped == n:
            raise TableError(f"{name} has no rows with a target.")
    if dropped:
        notes = (*notes, missing_targets(dropped, n))
    read = Input(source, columns, rows, n - dropped, labels, held_out, notes, choice.class_weight)
    if test.path is None:
        return read
    test_source = open_one(test.path, test.target, folder, test=True, text=columns.text_names)
    if same_rows(test_source, test.path, choice.path):
        raise CallError("--test must have other rows than DATA. Got the same file.")
    next(file_parts(columns, test_source, {}), None)
    test_source.table.forget()
    return replace(read, test=test_source)


def _labels(y: Array, columns: Columns) -> Array:
    """The classes that occur, if these are labels; an array of its own, which keeps no targets."""
    return np.unique(y) if columns.task == "classification" else np.zeros(0)
