"""A run as Python and as a command, to be copied."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import Any

from mercer.explorer.dataset import About
from mercer.explorer.settings import SCALE_NAMES, Parameters, Settings

# How a table is read in Python, by the end of its name.
POLARS_READERS = {
    ".csv": "read_csv",
    ".parquet": "read_parquet",
    ".arrow": "read_ipc",
    ".jsonl": "read_ndjson",
    ".json": "read_json",
    ".xlsx": "read_excel",
}


def as_python(about: About, settings: Settings, given: Parameters) -> str:
    """A script that trains on all rows with the parameters of this run."""
    kind = "KernelClassifier" if about.task == "classification" else "KernelRegressor"
    names = [about.fields[i].name for i in settings.columns]
    some = len(names) < len(about.fields)
    lines, frame = _reading(about)
    if some and frame:
        lines.append(f"X = X.select({names!r})")
    elif some:
        lines.append(f"X = X[:, {list(settings.columns)!r}]")
    if "categorical_features" in given:
        given = {**given, "categorical_features": _categories(about, settings, frame)}
    arguments = ", ".join(f"{name}={value!r}" for name, value in given.items() if value != [])
    return "\n".join(
        [
            *lines,
            f"# Explored with {settings.rows:,} rows; this trains on all of X.",
            f"model = mercer.{kind}({arguments})",
            "model.fit(X, y)",
            "",
        ]
    )


def _categories(about: About, settings: Settings, frame: bool) -> list[Any]:
    """Those of numbers; text needs no mention."""
    if frame:
        return [about.fields[i].name for i in settings.categories]
    return [settings.columns.index(i) for i in settings.categories if i in settings.columns]


def _reading(about: About) -> tuple[list[str], bool]:
    """Lines that make X and y, and whether X is then a frame of Polars."""
    reader = POLARS_READERS.get(os.path.splitext(about.source)[1].lower())
    if about.members[0]:
        first, second = about.members
        lines = ["import numpy as np", "import mercer", "", f"data = np.load({about.source!r})"]
        shape = "X = data[{!r}].reshape(len(data[{!r}]), -1)"
        return [*lines, shape.format(first, first), f"y = data[{second!r}]"], False
    if reader is not None:
        lines = ["import polars as pl", "import mercer", "", f"table = pl.{reader}({about.source!r})"]
        return [*lines, f"X, y = table.drop({about.target!r}), table[{about.target!r}]"], True
    if about.source:
        return ["import mercer", "", f"# Read {about.source!r} to X and y."], about.columns is not None
    lines = ["import mercer", "", "# X and y are those that mercer.explore was given."]
    return lines, about.columns is not None


def as_command(about: About, settings: Settings, given: Parameters) -> str:
    """The command that trains on all rows of the file; "" for data that is in no file."""
    if not about.source:
        return ""
    words = ["mercer", "fit", about.source, *about.command]
    chosen = {about.fields[i].name for i in settings.columns}
    words += _options("--drop", [field.name for field in about.fields if field.name not in chosen])
    words += _options("--category", [about.fields[i].name for i in settings.categories])
    if not settings.auto:
        scale = next(name for name, value in SCALE_NAMES.items() if value == given["scale"])
        words += ["--kernel", given["kernel"], "--bandwidth", f"{given['bandwidth']:.12g}"]
        words += ["--ridge", f"{given['ridge']:.12g}", "--scale", scale]
    if not settings.metric:
        words.append("--no-metric")
    stem = os.path.basename(about.source).split(".")[0]
    words += ["--epochs", str(settings.epochs), "--output", f"{stem}.mercer"]
    return shlex.join(words)


def _options(name: str, values: Sequence[str]) -> list[str]:
    return [word for value in values for word in (name, value)]
