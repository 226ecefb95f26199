"""`mercer explore`: a table as a data set, and the page that explores it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from mercer.cli.choices import DataChoice
from mercer.cli.messages import CallError, Progress, say, say_notes
from mercer.cli.reading import chosen_columns
from mercer.cli.sources import Source, open_source
from mercer.explorer.dataset import About, Dataset, split
from mercer.planning.memory import free_memory
from mercer.tables.arrays import missing_targets, read_arrays, targets_only
from mercer.tables.columns import Columns
from mercer.tables.errors import TableError


def explore(choice: DataChoice, port: int, open_browser: bool) -> None:
    """Read the table, and serve the page until Ctrl-C."""
    try:
        from mercer.explorer.launching import Explorer
    except ImportError as error:
        raise CallError(
            "`mercer explore` needs Starlette and uvicorn. Install them with: pip install 'mercer[web]'."
        ) from error
    progress = Progress()
    progress.on_stage(f"reading {choice.path}")
    with tempfile.TemporaryDirectory(prefix="mercer-") as folder:
        data = read(choice, Path(folder))
        progress.clear()
        say_notes(data.about.notes)
        explorer = Explorer(data, port)
    with explorer:
        say(f"exploring at {explorer.url}")
        say("press Ctrl-C to end")
        if open_browser:
            explorer.open()
        explorer.wait()


def read(choice: DataChoice, folder: Path) -> Dataset:
    """The table as features and targets, with a part of its rows held out."""
    if choice.weight is not None or choice.class_weight is not None:
        raise CallError("`mercer explore` does not know weights. Leave out --weight and --class-weight.")
    source = open_source(choice.path, choice.target, folder, bounds=choice.bounds, layout=choice.layout)

    def training_rows(columns: Columns) -> NDArray[np.bool_]:
        """Statistics of columns must not know the rows that are held out."""
        chosen, y = targets_only(source.table, columns)
        labelled = np.flatnonzero(chosen)
        if len(labelled):
            chosen = chosen.copy()
            chosen[labelled[split(y, columns.task)[1]]] = False
        return chosen

    columns = chosen_columns(choice, source, training_rows)
    memory = free_memory(torch.device("cpu"))
    arrays = read_arrays(source.table, columns, memory=memory, folder=folder)
    source.table.forget()  # training needs the memory
    if not len(arrays.X):
        raise TableError(f"{source.table.name} has no rows with a target.")
    notes = (*source.table.notes, *columns.notes, *arrays.notes)
    if arrays.dropped:
        notes = (*notes, missing_targets(arrays.dropped, source.table.n_rows))
    return Dataset.of_columns(
        columns,
        arrays.X,
        arrays.y,
        About(
            title=os.path.basename(source.table.name),
            task=columns.task,
            target=columns.target,
            source=choice.path,
            command=_options(choice, source),
            members=_members(choice.path),
            notes=notes,
        ),
    )


def _members(path: str) -> tuple[str, str]:
    """The arrays of an NPZ file."""
    if not path.lower().endswith(".npz"):
        return "", ""
    with np.load(path) as found:
        return ("X_train", "y_train") if "X_train" in found.files else ("X", "y")


def _options(choice: DataChoice, source: Source) -> tuple[str, ...]:
    """The options that the table is read with, for `mercer fit`."""
    wishes, layout = choice.wishes, choice.layout
    single = {
        "--target": choice.target,
        "--task": choice.task,
        "--decimal": wishes.decimal,
        "--dates": wishes.dates,
        "--encoding": layout.encoding,
        "--sheet": layout.sheet,
    }
    words = [word for name, value in single.items() if value is not None for word in (name, str(value))]
    several = {
        "--keep": choice.keep,
        "--drop": choice.drop,
        "--category": choice.categorical,
        "--number": wishes.number,
    }
    words += [word for name, values in several.items() for value in values for word in (name, value)]
    if layout.header is not None:
        words.append("--header" if layout.header else "--no-header")
    return tuple(words)
