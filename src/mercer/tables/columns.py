"""How the columns of a table become features and targets.

    numbers, booleans   as they are; missing values become the mean, with an indicator column
    dates               days since the first one; sine and cosine of the day, week and year
                        if the column spans several of them
    times of day        sine and cosine of the day
    text                one column with the code of the category, which the estimator one-hot encodes;
                        missing is a category, rare ones share one

A kernel that does not depend on distances has no use for codes.  For it, and in models of earlier
versions, text has one 0/1 column per category.

`survey.fit_columns` decides this in one pass over a table.  The decision is plain data, saved with the
model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from mercer.files.records import from_data, to_data
from mercer.tables.errors import TableError
from mercer.tables.kinds import Kind, is_known, known, of_kinds, to_numbers, unreadable_rows
from mercer.tables.notation import Notation
from mercer.tables.wording import quoted

if TYPE_CHECKING:  # a model file can be read, and a matrix prepared, without Polars
    import polars as pl

Task = Literal["classification", "regression"]

# NumPy gives every label the room of the longest one.
MOST_LABEL_CHARACTERS = 256
# Cycles of a date, in days.
CYCLES = {"day": 1.0, "week": 7.0, "year": 365.2425}
# The code of text that is none of the categories.  The estimator has never seen it either.
UNSEEN = -1
# Rows whose categories are looked up one by one, which takes less time than a call into Polars.
FEW_ROWS = 64
# How notes name columns that are dropped without a loss.
SINGLE_VALUE = "with a single value"
# How they name columns of text that may be a mistake.
READ_AS_TEXT = "is read as text, although most of its values are"


@dataclass(frozen=True)
class Column:
    """One column of the table, and how it becomes features."""

    name: str
    kind: Kind
    varies: bool = True  # if not, only the indicator of missing values is used
    missing: bool = False  # the training table had missing values
    fill: float = 0.0  # the mean, which replaces missing values
    origin: float = 0.0  # first date, in days
    cycles: tuple[str, ...] = ()  # of dates and times
    levels: tuple[str, ...] = ()  # categories with a code or a feature each
    rare: tuple[str, ...] | None = ()  # categories that share one; None: all others do
    coded: bool = False  # its feature is the code of a category
    notation: Notation | None = None  # how numbers or dates are written, if the table has them as text

    @property
    def is_plain(self) -> bool:
        """Whether the value itself is the feature."""
        return self.varies and self.kind in ("number", "boolean")

    @property
    def has_rare(self) -> bool:
        return self.rare is None or len(self.rare) > 0

    @property
    def is_indicated(self) -> bool:
        """Whether there is an indicator of missing numbers."""
        return self.missing and self.kind != "text" and not self.coded

    @property
    def categories(self) -> tuple[str, ...]:
        """Names of the codes 0, 1, … of text."""
        rare = ("(rare)",) if self.has_rare else ()
        return (*self.levels, *rare, *(("(missing)",) if self.missing else ()))

    @cached_property
    def codes(self) -> dict[str | None, int]:
        """The codes of the categories, of rare ones and, as None, of missing values."""
        found: dict[str | None, int] = dict.fromkeys(self.rare or (), len(self.levels))
        found |= {level: i for i, level in enumerate(self.levels)}
        return found | {None: len(self.categories) - 1} if self.missing else found

    def derived(self) -> Iterator[str]:
        """Names of the features other than the value itself and the indicator of missing numbers."""
        if self.kind in ("date", "duration") and self.varies:
            yield f"{self.name} (days)"
        for cycle in self.cycles:
            yield f"{self.name} (sine of the {cycle})"
            yield f"{self.name} (cosine of the {cycle})"
        if self.kind == "text" and self.coded:
            yield self.name
        elif self.kind == "text":
            yield from (f"{self.name}={level}" for level in self.levels)
            if self.has_rare:
                yield f"{self.name} (rare)"
            if self.missing:
                yield f"{self.name} (missing)"

    def to_dict(self) -> dict[str, Any]:
        given = {
            f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default
        }
        if self.notation is not None:
            given["notation"] = to_data(self.notation)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in given.items()}


@dataclass(frozen=True)
class Decision:
    """What was decided about one column of the training table."""

    name: str
    role: str  # such as "number", "category" or "left out"
    why: str


@dataclass(frozen=True)
class Columns:
    """How a table becomes features and targets.  Columns are found by name; others are ignored."""

    target: str
    task: Task
    target_kind: Kind
    notes: tuple[str, ...]
    columns: tuple[Column, ...]
    target_notation: Notation | None = None
    decisions: tuple[Decision, ...] = ()  # on all columns of the training table

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        return (
            *(column.name for column in self.columns if column.is_plain),
            *(name for column in self.columns for name in column.derived()),
            *(f"{c.name} (missing)" for c in self.columns if c.is_indicated),
        )

    @property
    def owners(self) -> tuple[str, ...]:
        """The column that each feature comes from."""
        return (
            *(column.name for column in self.columns if column.is_plain),
            *(column.name for column in self.columns for _ in column.derived()),
            *(column.name for column in self.columns if column.is_indicated),
        )

    @property
    def are_numbers(self) -> bool:
        """Whether all columns hold numbers or booleans, and not as text."""
        kinds = ("number", "boolean")
        return all(column.kind in kinds and not column.notation for column in self.columns)

    @property
    def losses(self) -> tuple[str, ...]:
        """The notes on columns that were dropped although their values differ, or read as text."""
        return tuple(
            note
            for note in self.notes
            if (note.startswith("dropped ") and SINGLE_VALUE not in note) or READ_AS_TEXT in note
        )

    @property
    def category_places(self) -> list[int]:
        """The features that are codes of categories."""
        coded = {column.name for column in self.columns if column.coded}
        return [i for i, name in enumerate(self.feature_names) if name in coded]

    @property
    def categories(self) -> dict[str, tuple[str, ...]]:
        """Names of the codes 0, 1, … of each feature that was text."""
        return {c.name: c.categories for c in self.columns if c.coded and c.kind == "text"}

    @property
    def names(self) -> tuple[str, ...]:
        """Columns of the table that are needed, without the target."""
        return tuple(column.name for column in self.columns)

    @property
    def text_names(self) -> tuple[str, ...]:
        """Columns, including the target, to be read as text even if all their values are digits."""
        names = [column.name for column in self.columns if column.kind == "text" or column.notation]
        is_text = self.target_kind == "text" or self.target_notation is not None
        return (*names, self.target) if is_text else tuple(names)

    @property
    def kinds(self) -> dict[str, Kind]:
        return {column.name: column.kind for column in self.columns}

    @property
    def notations(self) -> dict[str, Notation]:
        """How the columns are written whose numbers or dates are text in the table."""
        return {c.name: c.notation for c in self.columns if c.notation is not None}

    def to_dict(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "task": self.task,
            "target_kind": self.target_kind,
            "notes": list(self.notes),
            "columns": [column.to_dict() for column in self.columns],
            "target_notation": None if self.target_notation is None else to_data(self.target_notation),
            "decisions": [to_data(decision) for decision in self.decisions],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Columns:
        return from_data(cls, data, "The description of the columns in the model file")

    def features(self, frame: pl.DataFrame) -> tuple[NDArray[np.float32], list[str]]:
        """The features, (m, d), and notes on values that the training table did not have."""
        frame = of_kinds(frame, self.kinds, self.notations)
        measured = [column for column in self.columns if column.kind != "text"]
        A = to_numbers(frame, {column.name: column.kind for column in measured})  # (m, p)
        X, notes = self._with_numbers(A, measured, np.float32)
        plain = [column for column in measured if column.is_plain]
        place = {column.name: j for j, column in enumerate(measured)}
        start = len(plain)
        for column in self.columns:
            width = len(list(column.derived()))
            part = X[:, start : start + width]
            if column.kind == "text" and column.coded:
                notes += _to_codes(frame[column.name], column, part)
            elif column.kind == "text":
                notes += _encode(frame[column.name], column, part)
            elif width:
                _unroll(A[:, place[column.name]], column, part)
            start += width
        return X, notes

    def unreadable(self, frame: pl.DataFrame) -> pl.Series:
        """Which rows have a value that `features` or `targets` would raise for."""
        kinds, notations = self.kinds | {self.target: self.target_kind}, self.notations
        if self.target_notation is not None:
            notations = notations | {self.target: self.target_notation}
        return unreadable_rows(frame, kinds, notations)

    def has_target(self, frame: pl.DataFrame) -> pl.Series:
        """Which rows have a target."""
        return is_known(self._target(frame))

    def _target(self, frame: pl.DataFrame) -> pl.Series:
        notations = {} if self.target_notation is None else {self.target: self.target_notation}
        return of_kinds(frame, {self.target: self.target_kind}, notations).to_series()

    def features_of_numbers(self, A: NDArray[Any]) -> NDArray[Any]:
        """The features of a table that holds only numbers, (m, p) to (m, d), in the precision of A."""
        return self._with_numbers(A.copy(), self.columns, A.dtype)[0]

    def _with_numbers(
        self, A: NDArray[Any], measured: Sequence[Column], dtype: Any
    ) -> tuple[NDArray[Any], list[str]]:
        """The features, (m, d), with only numbers and indicators written so far, and notes.

        Fills what is missing in A, (m, p), the columns that are not text.
        """
        missing = np.isnan(A)  # (m, p)
        notes = []
        for j in map(int, np.flatnonzero(missing.any(axis=0))):
            A[missing[:, j], j] = measured[j].fill
            if not measured[j].missing:
                notes.append(_newly_missing(measured[j]))
        X = np.zeros((len(A), len(self.feature_names)), dtype)  # (m, d)
        plain = [j for j, column in enumerate(measured) if column.is_plain]
        X[:, : len(plain)] = A if len(plain) == len(measured) else A[:, plain]
        indicated = [j for j, column in enumerate(measured) if column.is_indicated]
        X[:, X.shape[1] - len(indicated) :] = missing[:, indicated]
        return X, notes

    def targets(self, frame: pl.DataFrame) -> NDArray[Any]:
        """The targets, (m,): labels as they are, or numbers.  None may be missing."""
        import polars as pl

        values = known(self._target(frame))
        if len(values) < len(frame):
            raise TableError(
                f"The target {quoted(self.target)} is missing in {len(frame) - len(values):,} rows. "
                "Remove those rows."
            )
        if self.task == "regression" or values.dtype.is_decimal():
            return values.cast(pl.Float64).to_numpy()
        if self.target_kind != "text":
            return values.to_numpy()
        longest = values.str.len_chars().to_numpy().max(initial=0)
        if longest > MOST_LABEL_CHARACTERS:
            raise TableError(
                f"A label can have at most {MOST_LABEL_CHARACTERS} characters, but the target "
                f"{quoted(self.target)} has one of {longest:,}. Shorten it, or choose another target."
            )
        return values.to_numpy().astype(str)


def _unroll(days: NDArray[Any], column: Column, out: NDArray[np.float32]) -> None:
    """Write days and the phases of their cycles to `out`, (m, 1 + 2 cycles)."""
    place = 0
    if column.kind != "time":
        out[:, 0] = days - column.origin
        place = 1
    for cycle in column.cycles:
        phase = 2 * np.pi * (days / CYCLES[cycle] % 1.0)
        out[:, place], out[:, place + 1] = np.sin(phase), np.cos(phase)
        place += 2


def _encode(values: pl.Series, column: Column, out: NDArray[np.float32]) -> list[str]:
    """Write 0/1 indicators of the categories to `out`, (m, levels + rare + missing)."""
    codes = np.zeros((len(values), 1), np.float32)
    notes = _to_codes(values, column, codes)
    rows = np.flatnonzero(codes[:, 0] != UNSEEN)
    out[rows, codes[rows, 0].astype(int)] = 1.0
    return notes


def _to_codes(values: pl.Series, column: Column, out: NDArray[np.float32]) -> list[str]:
    """Write the places of the categories in `column.categories` to `out`, (m, 1)."""
    import polars as pl

    if len(values) <= FEW_ROWS:
        return _few_to_codes(values.to_list(), column, out)
    notes = []
    places = values.cast(pl.Enum(column.levels), strict=False).to_physical().cast(pl.Float32)
    codes = places.fill_null(UNSEEN).to_numpy().copy()  # (m,)
    others = places.is_null() & values.is_not_null()
    if column.has_rare:
        rare = others if column.rare is None else values.is_in(column.rare).fill_null(False)
        codes[rare.to_numpy()] = len(column.levels)
        others &= ~rare
    if column.missing:
        codes[values.is_null().to_numpy()] = len(column.categories) - 1
    elif values.null_count():
        notes.append(_newly_missing(column))
    out[:, 0] = codes
    if others.any():
        notes.append(_unseen(column))
    return notes


def _few_to_codes(values: list[str | None], column: Column, out: NDArray[np.float32]) -> list[str]:
    """The same, looked up one by one."""
    codes, unseen = column.codes, False
    for i, value in enumerate(values):
        code = codes.get(value)
        if code is None and column.rare is None and value is not None:
            code = len(column.levels)
        unseen = unseen or (code is None and value is not None)
        out[i, 0] = UNSEEN if code is None else code
    notes = []
    if None in values and not column.missing:
        notes.append(_newly_missing(column))
    return [*notes, _unseen(column)] if unseen else notes


def _unseen(column: Column) -> str:
    return (
        f"{quoted(column.name)} has categories that were not in the training data; they are treated as "
        "none of the known ones"
    )


def _newly_missing(column: Column) -> str:
    is_category = column.coded or column.kind == "text"
    instead = "belong to none of its categories" if is_category else "are replaced by its mean"
    return f"{quoted(column.name)} has missing values, unlike in training; they {instead}"
