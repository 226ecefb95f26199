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

import mercer
from mercer.cli.choices import (
    Cluster,
    DataChoice,
    Model,
    Parameters,
    Places,
    TestChoice,
)
from mercer.cli.launching import rank_here
from mercer.cli.measuring import measure
from mercer.cli.messages import CallError, Progress, say_notes
from mercer.cli.reading import SomeRows, read_input
from mercer.cli.refitting import refit
from mercer.files.whole import folder_beside
from mercer.metrics import Measures
from mercer.planning.cost_model import with_estimated_seconds
from mercer.planning.memory import free_memory, parse_memory
from mercer.planning.plan import Plan
from mercer.planning.resource import Resource, find_device
from mercer.processes.joining import alone
from mercer.report import Evaluation, write_report
from mercer.stopwatch import Stopwatch
from mercer.tables.columns import Columns
from mercer.training.events.dispatch import INTERRUPTED


@dataclass(frozen=True)
class Fitted:
    """What `fit` did."""

    model: Model
    columns: Columns
    places: Places
    measures: Measures | None
    evaluation: Evaluation | None  # the predictions that were measured
    refitted: bool  # on all rows, after it was measured
    rows: dict[str, int]  # train, early_stopping, test
    seconds: dict[str, float]  # reading, training, measuring
    notes: tuple[str, ...]
    command: str

    @property
    def interrupted(self) -> bool:
        return bool(self.model.stop_reason_ == INTERRUPTED)


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
        read = read_input(choice, parameters, limit, test, None, folder)
        progress.on_stage("planning")
        made = read.plan(read.estimator(parameters), resource)
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
    refits: bool = False,
) -> Fitted:
    """Train, measure on rows that training did not see, and save the model.

    It is the same model, unless `refits` asks for one that is trained on those rows as well.
    """
    progress = Progress()

    def stage(text: str) -> None:
        if not quiet:
            progress.on_stage(text)

    with _temporary_folder(places.model) as folder:
        with Stopwatch() as reading:
            stage(f"reading {choice.path}")
            memory = parse_memory(parameters["memory_limit"])
            read = read_input(choice, parameters, memory, test, places.resume, folder)
        progress.clear()
        if refits and not (len(read.held_out) and isinstance(read.rows, SomeRows)):
            raise CallError(
                "--refit trains on the rows held out for the score, but none are, or the table does not "
                "fit into memory. Leave it out."
            )
        if not quiet:
            say_notes(read.notes)
        columns = read.columns
        model = read.estimator({**parameters, "verbose": int(not quiet)})
        with Stopwatch() as training:
            read.fit(model, places.resume)
        model.verbose, model.callbacks = 0, ()
        evaluation, measures, notes = None, None, (*read.notes, *read.later_notes)

        def save() -> None:
            progress.clear()
            model.n_jobs = None  # it belongs to this run and this machine
            model.save(places.model, _metadata(columns, choice, command, measures, evaluation))

        try:
            with Stopwatch() as measuring:
                stage("measuring on rows that training did not see")
                found = measure(model, read)
            if found is not None:
                evaluation, measures = found.evaluation, found.measures
                notes = (*notes, *found.notes)
            with Stopwatch() as again:
                if refits and found is not None and found.features is not None:
                    stage("training on all rows")
                    refit(model, read, found.features)
        except BaseException:  # do not lose what took the longest
            save()
            say_notes([f"the model is in {places.model}, but it could not be measured"])
            raise
        save()
        seconds = {
            "reading": reading.seconds,
            "training": training.seconds + again.seconds,
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
                    decisions=columns.decisions,
                )
            progress.clear()
    rows = {
        "train": model.plan_.n,
        "early_stopping": model.plan_.n_held_out,
        "test": 0 if evaluation is None else len(evaluation.y),
    }
    return Fitted(model, columns, places, measures, evaluation, refits, rows, seconds, notes, command)


@contextmanager
def _temporary_folder(beside: Path | None) -> Iterator[Path]:
    """A folder for data larger than memory: beside the output, since /tmp may be kept in memory."""
    if beside is not None:
        with folder_beside(beside) as folder:
            yield folder
        return
    with tempfile.TemporaryDirectory(prefix="mercer-") as name:
        yield Path(name)


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
