"""The rows that are explored: features with the columns they come from, targets, and rows held out.

The server writes them to a folder once, and each training process maps them from there, so that a
process that was ended is replaced without reading the table again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from mercer.files.records import from_data, to_data
from mercer.tables.columns import Columns

Array = NDArray[Any]
Task = Literal["classification", "regression"]

# Rows that are never trained on: a share of all, and no more than take a moment to predict each epoch.
HELD_OUT_SHARE = 0.2
MOST_HELD_OUT_ROWS = 1_000
# Rows that show whether neighbouring columns are pixels, and how much more alike these are than others.
PIXEL_ROWS = 400
LEAST_SIDE = 5
NEIGHBOURS_ALIKE = 1.5
# Rows that show which columns vary, and how many of these are named.
SPREAD_ROWS = 2_000
MOST_FIRST_COLUMNS = 20
# Whole numbers with at most this many values may be codes of categories.
MOST_CODE_VALUES = 64


@dataclass(frozen=True)
class Field:
    """One column of the data, as the page offers it."""

    name: str
    places: tuple[int, ...]  # of its features
    levels: tuple[str, ...] = ()  # names of the codes 0, 1, …, of text
    may_be_category: bool = False  # numbers that may be codes


@dataclass(frozen=True)
class About:
    """All of a data set but its rows."""

    title: str
    task: Task
    target: str
    fields: tuple[Field, ...] = ()
    n_rows: int = 0  # that may be trained on
    n_held_out: int = 0
    side: int = 0  # of square images, one pixel a column; 0: no images
    source: str = ""  # the file, "" for arrays of a program
    members: tuple[str, str] = ("", "")  # of an NPZ file
    columns: dict[str, Any] | None = None  # of a table, as a model file has them
    command: tuple[str, ...] = ()  # options that the table was read with
    notes: tuple[str, ...] = ()
    first_columns: tuple[int, ...] = ()  # to show the function along, until importances are known


@dataclass(frozen=True)
class Dataset:
    about: About
    X: Array  # (n, d)
    y: Array  # (n,)
    train: NDArray[np.int64]  # rows that may be trained on, in random order
    held_out: NDArray[np.int64]

    @classmethod
    def of_columns(cls, columns: Columns, X: Array, y: Array, about: About) -> Dataset:
        """A table, whose columns become the features X."""
        about = replace(about, columns=columns.to_dict())
        return cls.of_fields(fields_of_columns(columns), X, y, about)

    @classmethod
    def of_fields(cls, fields: tuple[Field, ...], X: Array, y: Array, about: About) -> Dataset:
        train, held_out = split(y, about.task)
        side = image_side(X, fields)
        about = replace(
            about,
            fields=fields if side else with_codes(fields, X),
            n_rows=len(train),
            n_held_out=len(held_out),
            side=side,
            first_columns=telling_columns(fields, X, by_spread=bool(side)),
        )
        return cls(about, X, y, train, held_out)

    def write(self, folder: Path) -> None:
        """Write everything to files that `read_dataset` maps."""
        np.save(folder / "X.npy", np.ascontiguousarray(self.X), allow_pickle=False)
        y = self.y.astype(str) if self.y.dtype.kind == "O" else self.y
        np.save(folder / "y.npy", y, allow_pickle=False)
        np.savez(folder / "rows.npz", train=self.train, held_out=self.held_out)
        (folder / "about.json").write_text(json.dumps(to_data(self.about)), encoding="utf-8")

    @cached_property
    def table_columns(self) -> Columns | None:
        stored = self.about.columns
        return None if stored is None else Columns.from_dict(stored)

    def features_of(self, fields: Sequence[int]) -> list[int]:
        """Places of the features that these columns become, ascending."""
        return sorted(place for i in fields for place in self.about.fields[i].places)

    def columns_of(self, fields: Sequence[int]) -> Columns | None:
        """How these columns of a table become features."""
        columns = self.table_columns
        if columns is None:
            return None
        names = {self.about.fields[i].name for i in fields}
        return replace(columns, columns=tuple(c for c in columns.columns if c.name in names))


def read_dataset(folder: Path) -> Dataset:
    """What `Dataset.write` wrote; the rows are mapped."""
    about = from_data(About, json.loads((folder / "about.json").read_text("utf-8")), "The data set")
    rows = np.load(folder / "rows.npz")
    X, y = np.load(folder / "X.npy", mmap_mode="r"), np.load(folder / "y.npy")
    return Dataset(about, X, y, rows["train"], rows["held_out"])


def split(y: Array, task: Task, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows to train on, in random order, and rows held out; each class keeps its share in both."""
    rows, labels = np.arange(len(y)), None
    if task == "classification":
        _, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
        rows = rows[counts[codes] > 1]  # the only row of a class is trained on
        labels = codes[rows]
    wanted = min(MOST_HELD_OUT_ROWS, round(HELD_OUT_SHARE * len(y)))
    if not 0 < wanted < len(rows) - 1:
        raise ValueError(f"There must be at least 5 rows, with a target, to explore. Got {len(y)}.")
    if labels is not None and min(wanted, len(rows) - wanted) < len(np.unique(labels)):
        labels = None
    _, held_out = train_test_split(rows, test_size=wanted, random_state=seed, stratify=labels)
    if task == "classification":  # a class is held out only if it can be learnt
        seen = np.unique(np.delete(y, held_out))
        held_out = held_out[np.isin(y[held_out], seen)]
    train = np.setdiff1d(np.arange(len(y)), held_out)
    return np.random.default_rng(seed).permutation(train), np.sort(held_out)


def fields_of_columns(columns: Columns) -> tuple[Field, ...]:
    """The columns of a table, each with its features."""
    owners = columns.owners
    return tuple(
        Field(
            column.name,
            tuple(i for i, owner in enumerate(owners) if owner == column.name),
            column.categories if column.kind == "text" else (),
        )
        for column in columns.columns
    )


def with_codes(fields: tuple[Field, ...], X: Array) -> tuple[Field, ...]:
    """The same; those of whole numbers with few values may be categories."""

    def may_be(field: Field) -> bool:
        if len(field.places) != 1 or field.levels:
            return False
        values = np.unique(X[:, field.places[0]])
        return 2 < len(values) <= MOST_CODE_VALUES and bool((values == np.round(values)).all())

    return tuple(replace(field, may_be_category=may_be(field)) for field in fields)


def telling_columns(fields: Sequence[Field], X: Array, *, by_spread: bool) -> tuple[int, ...]:
    """Some columns that vary: the first of them, or those that vary the most."""
    A = np.asarray(X[:: max(1, len(X) // SPREAD_ROWS)], dtype=float)  # (m, d)
    spread = A.std(0)  # (d,)
    spreads = np.array([spread[list(field.places)].max() for field in fields])
    keys = -spreads if by_spread else spreads == 0
    return tuple(np.argsort(keys, kind="stable")[:MOST_FIRST_COLUMNS].tolist())


def image_side(X: Array, fields: Sequence[Field]) -> int:
    """The side of square images of which each column is a pixel; 0 if the columns are something else.

    Pixels are alike if they are neighbours, below one another too, which columns of a table are not.
    """
    d = X.shape[1]
    side = round(d**0.5)
    plain = all(len(field.places) == 1 and not field.levels for field in fields)
    if side * side != d or side < LEAST_SIDE or not plain or len(X) < 20:
        return 0
    A = np.asarray(X[:: max(1, len(X) // PIXEL_ROWS)], dtype=float)  # (m, d)
    varying = np.flatnonzero(A.std(0) > 0)
    if len(varying) < d / 2:
        return 0
    R = np.zeros((d, d))
    R[np.ix_(varying, varying)] = np.abs(np.corrcoef(A[:, varying], rowvar=False))
    all_pairs = R[np.ix_(varying, varying)].mean()
    below, beside = np.diagonal(R, side), np.diagonal(R, 1)  # neighbours
    known = [pairs[pairs > 0].mean() for pairs in (below, beside) if (pairs > 0).any()]
    return side if len(known) == 2 and min(known) > NEIGHBOURS_ALIKE * all_pairs else 0
