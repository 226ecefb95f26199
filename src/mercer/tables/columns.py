"""What is done to the columns of a table before the kernel sees numbers.

One pass over the table decides it; the decision is plain data that is kept with the model:

    numbers, booleans   as they are; the mean where one is missing, and an indicator of that
    dates               days since the first one; sine and cosine of the day, week and year
                        where the column spans several of them
    times of day        sine and cosine of the day
    text                one column a category, 0 or 1; a missing value is a category, rare ones share one

Columns of one value, row numbers and text that hardly ever repeats can teach nothing and are left out.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mercer.tables.formats import Table, TableError, chunk_rows

Kind = Literal["number", "boolean", "date", "duration", "time", "text"]
Task = Literal["classification", "regression"]

# A category is rare with fewer rows than this, both in number and as a share of all rows.
RARE_ROWS = 10
RARE_SHARE = 0.01
# Categories of a column beyond the most frequent ones are rare as well: each of them is a feature.
MOST_LEVELS = 50
# Rare categories remembered, so as to be told from those that were never seen.
MOST_RARE_NAMES = 1_000
# Text of which so large a share of the rows is distinct names the rows.
IDENTIFIER_SHARE = 0.9
# Fewer whole numbers in a row from 0 or 1 may be there by design.
FEWEST_NUMBERED = 20
# Distinct values, and bytes of them, that are all counted; beyond it only the more frequent ones are.
MOST_DISTINCT = 100_000
MOST_DISTINCT_BYTES = 1 << 26
# So few distinct whole numbers are labels rather than amounts, if each has a second row on average.
FEW_DISTINCT = 30
# One output each: with more the weights alone would be larger than most data.
MOST_CLASSES = 10_000
# Of the memory budget that features may take: training makes a copy of them and keeps kernel values.
FEATURES_SHARE = 0.25
# Cycles of a date in days, and how many of them a column must span before one can be seen to return.
CYCLES = {"day": 1.0, "week": 7.0, "year": 365.2425}
FEWEST_CYCLES = 2
DAY = 86_400e6  # microseconds

WORDS = {
    "number": "numbers",
    "boolean": "booleans",
    "date": "dates",
    "duration": "durations",
    "time": "times of day",
    "text": "text",
}
# What stands for a column without any value, whose type nobody can know.
EMPTY: dict[Kind, pl.DataType] = {
    "number": pl.Float64(),
    "boolean": pl.Boolean(),
    "date": pl.Datetime("us"),
    "duration": pl.Duration("us"),
    "time": pl.Time(),
    "text": pl.String(),
}
NOT_IN_NUMPY = (pl.Decimal, pl.Int128, pl.UInt128, pl.Null)


@dataclass(frozen=True)
class Column:
    """One column of the table, and how it becomes features."""

    name: str
    kind: Kind
    varies: bool = True  # otherwise only whether it is missing is of use
    missing: bool = False  # some were, in the table this was fitted on
    fill: float = 0.0  # the mean, where a value is missing
    origin: float = 0.0  # of dates, in days
    cycles: tuple[str, ...] = ()  # of dates and times
    levels: tuple[str, ...] = ()  # categories with a feature of their own
    rare: tuple[str, ...] | None = ()  # categories that share one; None: all others do

    @property
    def is_plain(self) -> bool:
        """Whether its value is its feature."""
        return self.varies and self.kind in ("number", "boolean")

    def derived(self) -> Iterator[str]:
        """Names of the features other than the value itself and the indicator."""
        if self.kind in ("date", "duration") and self.varies:
            yield f"{self.name} (days)"
        for cycle in self.cycles:
            yield f"{self.name} (sine of the {cycle})"
            yield f"{self.name} (cosine of the {cycle})"
        if self.kind == "text":
            yield from (f"{self.name}={level}" for level in self.levels)
            if self.rare is None or self.rare:
                yield f"{self.name} (rare)"
            if self.missing:
                yield f"{self.name} (missing)"

    def to_dict(self) -> dict[str, Any]:
        given = {
            f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default
        }
        return {k: list(v) if isinstance(v, tuple) else v for k, v in given.items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Column:
        given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        return cls(**given)


@dataclass(frozen=True)
class Columns:
    """How a table becomes features and targets; columns are found by name, others are ignored."""

    target: str
    task: Task
    target_kind: Kind
    notes: tuple[str, ...]
    columns: tuple[Column, ...]

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        return (
            *(column.name for column in self.columns if column.is_plain),
            *(name for column in self.columns for name in column.derived()),
            *(f"{c.name} (missing)" for c in self.columns if c.missing and c.kind != "text"),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Columns of the table that are needed, without the target."""
        return tuple(column.name for column in self.columns)

    @property
    def text_names(self) -> tuple[str, ...]:
        """Columns, the target among them, to be taken as text even where all of it is digits."""
        names = [column.name for column in self.columns if column.kind == "text"]
        return (*names, self.target) if self.target_kind == "text" else tuple(names)

    def to_dict(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "task": self.task,
            "target_kind": self.target_kind,
            "notes": list(self.notes),
            "columns": [column.to_dict() for column in self.columns],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Columns:
        return cls(
            data["target"],
            data["task"],
            data["target_kind"],
            tuple(data["notes"]),
            tuple(Column.from_dict(column) for column in data["columns"]),
        )

    def features(self, frame: pl.DataFrame) -> tuple[NDArray[np.float32], list[str]]:
        """The matrix (m, d), and notes on values that the table this was fitted on did not have."""
        frame = _of_kinds(frame, {column.name: column.kind for column in self.columns})
        measured = [column for column in self.columns if column.kind != "text"]
        A = _numbers(frame, {column.name: column.kind for column in measured})  # (m, p)
        missing = np.isnan(A)  # (m, p)
        notes = []
        for j in np.flatnonzero(missing.any(axis=0)):
            A[missing[:, j], j] = measured[j].fill
            if not measured[j].missing:
                notes.append(
                    f"{measured[j].name!r} has missing values, which it had not in training; they are "
                    "taken as its mean"
                )
        X = np.zeros((len(frame), len(self.feature_names)), np.float32)  # (m, d)
        plain = [j for j, column in enumerate(measured) if column.is_plain]
        X[:, : len(plain)] = A if len(plain) == len(measured) else A[:, plain]
        indicated = [j for j, column in enumerate(measured) if column.missing]
        X[:, X.shape[1] - len(indicated) :] = missing[:, indicated]
        place = {column.name: j for j, column in enumerate(measured)}
        start = len(plain)
        for column in self.columns:
            width = len(list(column.derived()))
            part = X[:, start : start + width]
            if column.kind == "text":
                notes += _encode(frame[column.name], column, part)
            elif width:
                _unroll(A[:, place[column.name]], column, part)
            start += width
        return X, notes

    def targets(self, frame: pl.DataFrame) -> NDArray[Any]:
        """Labels as they are, or numbers; there must be one in every row."""
        values = _known(_of_kinds(frame, {self.target: self.target_kind}).to_series())
        if len(values) < len(frame):
            raise TableError(
                f"The target {self.target!r} must be known in every row. "
                f"Got {len(frame) - len(values):,} rows without it: leave them out."
            )
        if self.task == "regression" or values.dtype.is_decimal():
            return values.cast(pl.Float64).to_numpy()
        return values.to_numpy().astype(str) if self.target_kind == "text" else values.to_numpy()


def _kind(dtype: pl.DataType) -> Kind | None:
    """None for what holds several values, or nobody knows what."""
    if dtype.is_numeric():
        return "number"
    kinds: dict[type[pl.DataType], Kind] = {
        pl.Boolean: "boolean",
        pl.Date: "date",
        pl.Datetime: "date",
        pl.Duration: "duration",
        pl.Time: "time",
        pl.String: "text",
        pl.Categorical: "text",
        pl.Enum: "text",
        pl.Null: "number",
    }
    return kinds.get(type(dtype))


def _of_kinds(frame: pl.DataFrame, kinds: Mapping[str, Kind]) -> pl.DataFrame:
    """These columns, which must be there and of these kinds."""
    schema, changes = frame.schema, []
    for name, kind in kinds.items():
        if name not in schema:
            raise TableError(
                f"The table must have the column {name!r}, of {WORDS[kind]}. Got no column of that name."
            )
        if _kind(schema[name]) == kind:
            if kind == "text":
                changes.append(pl.col(name).cast(pl.String))
        elif frame[name].null_count() == len(frame):
            changes.append(pl.lit(None, dtype=EMPTY[kind]).alias(name))
        else:
            raise TableError(
                f"The column {name!r} must be of {WORDS[kind]}, as in training. Got {schema[name]}."
            )
    return frame.select(list(kinds)).with_columns(changes)


def _numbers(frame: pl.DataFrame, kinds: Mapping[str, Kind]) -> NDArray[Any]:
    """Columns as numbers, (m, p), dates in days; NaN where there is no finite one in single precision.

    Work for each column is only done on those that need it: there may be very many others.
    """
    if not kinds:  # a frame without columns has forgotten its rows
        return np.empty((len(frame), 0), np.float32)
    schema, changes = frame.schema, []
    for name, kind in kinds.items():
        column = pl.col(name)
        if kind == "boolean":
            changes.append(column.cast(pl.UInt8))
        elif kind == "date":
            changes.append(column.dt.epoch("us") / DAY)
        elif kind == "duration":
            changes.append(column.dt.total_microseconds() / DAY)
        elif kind == "time":
            changes.append(column.to_physical() / (1_000 * DAY))
        elif schema[name] in NOT_IN_NUMPY:
            changes.append(column.cast(pl.Float64))
    A = frame.select(list(kinds)).with_columns(changes).to_numpy()  # (m, p)
    if A.dtype.kind == "f":
        with np.errstate(over="ignore"):
            odd = ~np.isfinite(A.astype(np.float32))
        if odd.any():
            A = np.where(odd, np.nan, A)
    return A


def _known(values: pl.Series) -> pl.Series:
    """Values that are neither missing nor infinite."""
    return values.filter(_is_known(values))


def _is_known(values: pl.Series) -> pl.Series:
    return values.is_finite().fill_null(False) if values.dtype.is_float() else values.is_not_null()


def _unroll(days: NDArray[Any], column: Column, out: NDArray[np.float32]) -> None:
    """Days and the phases of their cycles, (m, 1 + 2 cycles)."""
    place = 0
    if column.kind != "time":
        out[:, 0] = days - column.origin
        place = 1
    for cycle in column.cycles:
        phase = 2 * np.pi * (days / CYCLES[cycle] % 1.0)
        out[:, place], out[:, place + 1] = np.sin(phase), np.cos(phase)
        place += 2


def _encode(values: pl.Series, column: Column, out: NDArray[np.float32]) -> list[str]:
    """One category a column, (m, levels + rare + missing)."""
    notes = []
    codes = values.cast(pl.Enum(column.levels), strict=False).to_physical()
    rows = codes.is_not_null()
    out[rows.to_numpy(), codes.drop_nulls().to_numpy()] = 1.0
    others = ~rows & values.is_not_null()
    if column.rare is None or column.rare:
        rare = others if column.rare is None else values.is_in(column.rare).fill_null(False)
        out[:, len(column.levels)] = rare.to_numpy()
        others &= ~rare
    if column.missing:
        out[:, -1] = values.is_null().to_numpy()
    elif values.null_count():
        notes.append(
            f"{column.name!r} has missing values, which it had not in training; they are taken as none "
            "of its categories"
        )
    if others.any():
        notes.append(
            f"{column.name!r} has categories that were not in the training data; they are taken as none "
            "of those that were"
        )
    return notes


def fit_columns(
    table: Table,
    target: str | None,
    *,
    task: str | None = None,
    keep: Collection[str] = (),
    drop: Collection[str] = (),
    labels: Table | None = None,
) -> Columns:
    """Decide what is done to each column, in one pass over the table and with bounded memory.

    `labels` is a table of its own, with the targets in its only column; otherwise `target` names a
    column, "y" if it is None.  Columns in `keep` are not left out for looking like an identifier.
    """
    if labels is not None:
        _must_match(table, labels)
        target = labels.names[0]
    target = "y" if target is None else target
    own = () if labels is not None else (target,)
    _must_be_there(table, [*own, *keep, *drop])
    names = [name for name in table.names if name not in (*own, *drop)]
    survey, aim = _Survey(names), _Target(target)
    for frame in table.chunks([*names, *own]):
        survey.add(frame)
        if labels is None:
            aim.add(frame[target])
    for frame in () if labels is None else labels.chunks():
        aim.add(frame.to_series())
    if not survey.n_rows:
        raise TableError(f"{table.name} must have rows. Got none.")
    decided, sentence = aim.task(task)
    columns, notes = survey.columns(set(keep))
    if not columns:
        raise TableError(
            f"{table.name} must have a column to learn from beside {target!r}. Got none that varies "
            "and does not look like an identifier: ask for one to be kept if it is of use."
        )
    assert aim.kind is not None
    return Columns(target, decided, aim.kind, (sentence, *notes), tuple(columns))


def _must_be_there(table: Table, names: Iterable[str]) -> None:
    for name in names:
        if name not in table.names:
            raise TableError(
                f"{table.name} must have the column {name!r}. Got {_some(table.names)}: choose one."
            )


class _Counts:
    """How often each value occurs; once there are too many distinct ones, only the more frequent."""

    def __init__(self) -> None:
        self.n_known = 0
        self.n_missing = 0
        self.frame: pl.DataFrame | None = None  # value, n
        self.share_at_limit: float | None = None  # distinct values a row, when there were too many

    def add(self, values: pl.Series) -> None:
        known = _known(values).alias("value")
        self.n_known += len(known)
        self.n_missing += len(values) - len(known)
        fresh = known.value_counts(name="n")
        if self.frame is not None:
            fresh = pl.concat([self.frame, fresh]).group_by("value").agg(pl.col("n").sum())
        if len(fresh) > MOST_DISTINCT or fresh.estimated_size() > MOST_DISTINCT_BYTES:
            if self.share_at_limit is None:
                self.share_at_limit = len(fresh) / self.n_known
            fresh = fresh.top_k(len(fresh) // 2, by="n")
        self.frame = fresh

    @property
    def distinct(self) -> int:
        return 0 if self.frame is None else len(self.frame)

    @property
    def distinct_share(self) -> float:
        return self.share_at_limit or self.distinct / max(1, self.n_known)

    def levels(self, even_rare: bool) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
        """Categories with a feature of their own, and those that share one."""
        if self.frame is None:
            return (), ()
        ranked = self.frame.sort(["n", "value"], descending=[True, False])
        few = 0 if even_rare else min(RARE_ROWS, RARE_SHARE * (self.n_known + self.n_missing))
        own = int((ranked["n"][:MOST_LEVELS] >= few).sum())
        if own == len(ranked) - 1 < MOST_LEVELS:  # one that would share with nobody
            own += 1
        rare = ranked["value"][own:]
        forgotten = self.share_at_limit is not None or len(rare) > MOST_RARE_NAMES
        return tuple(sorted(ranked["value"][:own])), None if forgotten else tuple(sorted(rare))


class _Survey:
    """What one pass over the table finds out about its columns."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.n_rows = 0
        self.kinds: dict[str, Kind | None] = {}
        self.measured: dict[str, Kind] = {}  # all but text
        self.texts: dict[str, _Counts] = {}
        self.next_number: dict[str, int] = {}  # of columns that have been row numbers so far
        self.has_hours: set[str] = set()
        self.known = self.total = self.low = self.high = np.zeros(0)  # of each measured column

    def add(self, frame: pl.DataFrame) -> None:
        if not self.n_rows:
            self._begin(frame)
        for name, counts in self.texts.items():
            counts.add(frame[name].cast(pl.String))
        A = _numbers(frame, self.measured)  # (m, p)
        if self.measured:
            known = ~np.isnan(A)
            self.known = self.known + known.sum(axis=0)
            self.total = self.total + A.sum(axis=0, where=known, dtype=np.float64)
            self.low = np.fmin(self.low, np.fmin.reduce(A, axis=0))
            self.high = np.fmax(self.high, np.fmax.reduce(A, axis=0))
        for j, (name, kind) in enumerate(self.measured.items()):
            if kind == "date" and (A[known[:, j], j] % 1.0).any():
                self.has_hours.add(name)
        for name, following in list(self.next_number.items()):
            numbers = frame[name]
            if numbers.null_count() or numbers[0] != following or not (numbers.diff()[1:] == 1).all():
                del self.next_number[name]
            else:
                self.next_number[name] = numbers[-1] + 1
        self.n_rows += len(frame)

    def _begin(self, frame: pl.DataFrame) -> None:
        schema = frame.schema
        self.kinds = {name: _kind(schema[name]) for name in self.names}
        self.measured = {name: kind for name, kind in self.kinds.items() if kind and kind != "text"}
        self.texts = {name: _Counts() for name, kind in self.kinds.items() if kind == "text"}
        whole = [name for name in self.measured if schema[name].is_integer()]
        self.next_number = {name: frame[name][0] for name in whole if frame[name][0] in (0, 1)}
        self.known = self.total = np.zeros(len(self.measured))
        self.low = self.high = np.full(len(self.measured), np.nan)

    def columns(self, keep: set[str]) -> tuple[list[Column], list[str]]:
        """The columns of use, and sentences about the others and about what is done."""
        found: dict[str, Column] = {}
        left_out: dict[str, list[str]] = {}
        for i, (name, kind) in enumerate(self.measured.items()):
            missing, varies = bool(self.known[i] < self.n_rows), bool(self.low[i] < self.high[i])
            if not varies and (not missing or not self.known[i]):
                left_out.setdefault("with one value only", []).append(name)
            elif name in self.next_number and self.n_rows >= FEWEST_NUMBERED and name not in keep:
                left_out.setdefault("with the number of the row", []).append(name)
            else:
                fill = float(self.total[i] / self.known[i])
                low, high = float(self.low[i]), float(self.high[i])
                origin = low if kind == "date" else 0.0
                cycles = self._cycles(name, kind, high - low) if varies else ()
                found[name] = Column(name, kind, varies, missing, fill, origin, cycles)
        for name, counts in self.texts.items():
            levels, rare = counts.levels(even_rare=name in keep)
            missing = counts.n_missing > 0
            if not counts.n_known or (counts.distinct == 1 and not missing):
                left_out.setdefault("with one value only", []).append(name)
            elif counts.distinct_share >= IDENTIFIER_SHARE and counts.n_known > 2 and name not in keep:
                left_out.setdefault("with text that hardly repeats", []).append(name)
            elif not levels and not missing:
                left_out.setdefault("with text that has no frequent value", []).append(name)
            else:
                found[name] = Column(name, "text", missing=missing, levels=levels, rare=rare)
        nested = [name for name, kind in self.kinds.items() if kind is None]
        if nested:
            left_out["of a type that is not one value"] = nested
        columns = [found[name] for name in self.names if name in found]
        return columns, [*_about_left_out(left_out), *_about(columns)]

    def _cycles(self, name: str, kind: Kind, span: float) -> tuple[str, ...]:
        if kind == "time":
            return ("day",)
        if kind != "date":
            return ()
        spanned = [cycle for cycle, days in CYCLES.items() if span >= FEWEST_CYCLES * days]
        return tuple(c for c in spanned if c != "day" or name in self.has_hours)


class _Target:
    """What one pass over the targets finds out about them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kind: Kind | None = None
        self.counts = _Counts()
        self.fractions = False
        self.too_many = False

    def add(self, values: pl.Series) -> None:
        if self.kind is None:
            self.kind = _kind(values.dtype)
            if self.kind not in ("number", "boolean", "text"):
                raise TableError(
                    f"The target {self.name!r} must be of numbers, text or booleans. Got {values.dtype}."
                )
        if self.kind == "text":
            values = values.cast(pl.String)
        elif values.dtype.is_float() or values.dtype.is_decimal():
            known = _known(values.cast(pl.Float64))
            self.fractions = self.fractions or bool((known != known.floor()).any())
        if not self.too_many:
            self.counts.add(values)
            self.too_many = self.counts.distinct > MOST_CLASSES

    def task(self, forced: str | None) -> tuple[Task, str]:
        """Classification or regression, and a sentence that says why."""
        distinct, rows = self.counts.distinct, self.counts.n_known
        many = self.too_many or (distinct > FEW_DISTINCT and 2 * distinct > rows)
        how_many = f"more than {MOST_CLASSES:,}" if self.too_many else f"{distinct:,}"
        if distinct < 2:
            raise TableError(
                f"The target {self.name!r} must have at least two values. Got {distinct} in the "
                f"{rows:,} rows where it is known."
            )
        if forced not in (None, "classification", "regression"):
            raise TableError(f'The task must be "classification" or "regression". Got {forced!r}.')
        words = {"text": "labels", "boolean": "booleans"}.get(str(self.kind), "whole numbers")
        found = f"{how_many} distinct {words}"
        as_asked = "" if forced is None else ", as asked for"
        amounts = self.fractions or many or distinct > FEW_DISTINCT or 2 * distinct > rows
        if forced == "regression" or (forced is None and self.kind == "number" and amounts):
            if self.kind == "text":
                raise TableError(
                    f"The target {self.name!r} must be of numbers for regression. Got text: use "
                    "classification."
                )
            found = "numbers with fractions" if self.fractions else found
            return "regression", f"{self.name!r} has {found}: regression{as_asked}"
        if self.fractions:
            raise TableError(
                f"The target {self.name!r} must have labels for classification. Got numbers with "
                "fractions: use regression."
            )
        if many:
            first = "the first " if self.too_many else ""
            raise TableError(
                f"The target {self.name!r} must have classes of several rows each, and at most "
                f"{MOST_CLASSES:,} of them. Got {found} in {first}{rows:,} rows: choose another target, "
                f"or put values together{', or use regression' if self.kind == 'number' else ''}."
            )
        return "classification", f"{self.name!r} has {found}: classification{as_asked}"


def _about_left_out(left_out: dict[str, list[str]]) -> Iterator[str]:
    for why, names in left_out.items():
        yield f"left out {_columns(len(names))} {why}: {_some(names)}"


def _about(columns: Sequence[Column]) -> Iterator[str]:
    filled = [c.name for c in columns if c.missing and c.kind != "text"]
    if filled:
        yield (
            f"missing values in {_columns(len(filled))} are replaced by the mean, with an indicator: "
            f"{_some(filled)}"
        )
    texts = [c for c in columns if c.kind == "text"]
    if texts:
        width = sum(len(list(c.derived())) for c in texts)
        pooled = [c.name for c in texts if c.rare is None or c.rare]
        yield (
            f"{_columns(len(texts))} of categories became {width} of 0 and 1: "
            f"{_some([c.name for c in texts])}"
        )
        if pooled:
            yield f"rare categories are taken as one in {_some(pooled)}"
    dates = [c.name for c in columns if c.kind in ("date", "duration", "time")]
    if dates:
        yield f"dates and times became days and phases of day, week and year: {_some(dates)}"


def _columns(count: int) -> str:
    return f"{count:,} column{'' if count == 1 else 's'}"


def _some(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(map(repr, names[:most])) + (
        f" and {len(names) - most} more" if len(names) > most else ""
    )


@dataclass(frozen=True)
class Arrays:
    """A whole table as arrays."""

    X: NDArray[np.float32]  # (n, d)  in memory, or a memory-mapped file
    y: NDArray[Any] | None  # (n,)
    notes: tuple[str, ...]


def read_arrays(
    table: Table,
    columns: Columns,
    *,
    memory: float,
    folder: Path,
    with_targets: bool = True,
    labels: Table | None = None,
) -> Arrays:
    """Features and targets of a table; features that take too much of `memory` go to a file in `folder`.

    That file is left to the caller, who owns the folder.
    """
    d = len(columns.feature_names)
    size = 4 * table.n_rows * d
    targets = None
    if with_targets and labels is not None:
        _must_match(table, labels)
        targets = pl.concat(labels.chunks()).to_series()
    wanted = list(columns.names)
    if with_targets and targets is None:
        wanted.append(columns.target)
    notes: dict[str, None] = {}
    parts_of_y: list[NDArray[Any]] = []

    def parts() -> Iterator[NDArray[np.float32]]:
        first, left_out = 0, 0
        for frame in table.chunks(wanted, rows=chunk_rows(d)):
            if targets is not None:
                frame = frame.with_columns(targets[first : first + len(frame)].alias(columns.target))
            first += len(frame)
            if with_targets:
                known = frame.filter(_is_known(frame[columns.target]))
                left_out += len(frame) - len(known)
                frame = known
                parts_of_y.append(columns.targets(frame))
            X, found = columns.features(frame)
            notes.update(dict.fromkeys(found))
            yield X
        if left_out:
            notes[f"left out {left_out:,} of {first:,} rows, whose target is missing"] = None

    X = _in_memory(parts(), table.n_rows, d) if size <= FEATURES_SHARE * memory else None
    if X is None:
        X = _in_file(parts(), size, d, folder)
        notes[f"the features take {size / 1024**3:.2g} GiB and are read from disk"] = None
    if not len(X):
        raise TableError(f"{table.name} must have rows with a target. Got none.")
    return Arrays(X, np.concatenate(parts_of_y) if with_targets else None, tuple(notes))


def _must_match(table: Table, labels: Table) -> None:
    if len(labels.names) != 1 or labels.n_rows != table.n_rows:
        raise TableError(
            f"{labels.name} must have one column, with a label for each of the {table.n_rows:,} rows of "
            f"{table.name}. Got {_columns(len(labels.names))} and {labels.n_rows:,} rows."
        )


def _in_memory(parts: Iterable[NDArray[np.float32]], n: int, d: int) -> NDArray[np.float32]:
    X = np.empty((n, d), np.float32)
    filled = 0
    for part in parts:
        X[filled : filled + len(part)] = part
        filled += len(part)
    return X[:filled]


def _in_file(
    parts: Iterable[NDArray[np.float32]], size: int, d: int, folder: Path
) -> NDArray[np.float32]:
    """Written rather than mapped while it grows, so that none of it stays resident."""
    free = shutil.disk_usage(folder).free
    if size > free:
        raise TableError(
            f"There must be room for {size / 1024**3:.1f} GiB of features in {folder}. Got "
            f"{free / 1024**3:.1f} GiB free: make room, raise the memory budget, or drop columns."
        )
    n = 0
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".float32", delete=False) as file:
        for part in parts:
            file.write(part.data)
            n += len(part)
    if not n:
        return np.empty((0, d), np.float32)
    # Copied where it is written to, as PyTorch wants to be able to; the file stays as it is.
    return np.memmap(file.name, np.float32, "c", shape=(n, d))
