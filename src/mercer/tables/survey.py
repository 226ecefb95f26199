"""One pass over a table that decides how its columns become features and targets.

Columns with a single value, row numbers and text that hardly ever repeats carry no information and are
dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import polars as pl

from mercer.tables.columns import CYCLES, SINGLE_VALUE, Column, Columns
from mercer.tables.counts import Counts
from mercer.tables.errors import TableError
from mercer.tables.kinds import Kind, kind_of, to_numbers
from mercer.tables.table import Table
from mercer.tables.target import TargetSurvey
from mercer.tables.wording import count_columns, listed, quoted

DEFAULT_TARGET = "y"
# Text is an identifier if at least this share of its values is distinct.
IDENTIFIER_SHARE = 0.9
# Fewest rows of a table in which a column that counts from 0 or 1 is taken for row numbers.
FEWEST_NUMBERED = 20
# Cycles that a column of dates must span before one can be learnt.
FEWEST_CYCLES = 2


def fit_columns(
    table: Table,
    target: str | None = None,
    *,
    task: str | None = None,
    keep: Collection[str] = (),
    drop: Collection[str] = (),
    categorical: Collection[str] = (),
    one_hot: bool = False,
) -> Columns:
    """Decide how each column becomes features, in one pass over the table and with bounded memory.

    The target is the column "y" by default.  Columns in `keep` are used even if they look like an
    identifier.  Numbers in `categorical` are codes of categories.  `one_hot`: categories become one 0/1
    feature each, instead of one with their codes.
    """
    if target is None and DEFAULT_TARGET not in table.names:
        raise TableError(
            f"{table.name} has no column {DEFAULT_TARGET!r}, the default target. Name one of its "
            f"columns as the target: {listed(table.names)}."
        )
    target = DEFAULT_TARGET if target is None else target
    table.require([target, *keep, *drop, *categorical])
    names = [name for name in table.names if name != target and name not in drop]
    survey, aim = Survey(names), TargetSurvey(target)
    for frame in table.chunks([*names, target]):
        survey.add(frame)
        aim.add(frame[target])
    if not survey.n_rows:
        raise TableError(f"{table.name} has no rows.")
    decided, reason = aim.task(task)
    columns, notes = survey.columns(set(keep), set(categorical), not one_hot)
    if not columns:
        raise TableError(
            f"{table.name} has no column to learn from besides {quoted(target)}: all others have a "
            "single value or look like identifiers. Ask for a column to be kept if it is useful."
        )
    assert aim.kind is not None
    return Columns(target, decided, aim.kind, (reason, *notes), tuple(columns))


class Survey:
    """Collects what the columns hold, a chunk at a time."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.n_rows = 0
        self.kinds: dict[str, Kind | None] = {}
        self.measured: dict[str, Kind] = {}  # all but text
        self.texts: dict[str, Counts] = {}
        self.next_number: dict[str, int] = {}  # of columns that have counted the rows so far
        self.has_hours: set[str] = set()
        self.known = self.total = self.low = self.high = np.zeros(0)  # of each measured column

    def add(self, frame: pl.DataFrame) -> None:
        if not self.n_rows:
            self._begin(frame)
        for name, counts in self.texts.items():
            counts.add(frame[name].cast(pl.String))
        A = to_numbers(frame, self.measured)  # (m, p)
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
        self.kinds = {name: kind_of(schema[name]) for name in self.names}
        self.measured = {name: kind for name, kind in self.kinds.items() if kind and kind != "text"}
        self.texts = {name: Counts() for name, kind in self.kinds.items() if kind == "text"}
        whole = [name for name in self.measured if schema[name].is_integer()]
        self.next_number = {name: frame[name][0] for name in whole if frame[name][0] in (0, 1)}
        self.known = self.total = np.zeros(len(self.measured))
        self.low = self.high = np.full(len(self.measured), np.nan)

    def columns(
        self, keep: set[str], categorical: set[str], coded: bool
    ) -> tuple[list[Column], list[str]]:
        """The columns to use, and notes on what is dropped and how the others are encoded."""
        found: dict[str, Column] = {}
        dropped: dict[str, list[str]] = {}
        for i, (name, kind) in enumerate(self.measured.items()):
            missing, varies = bool(self.known[i] < self.n_rows), bool(self.low[i] < self.high[i])
            if not varies and (not missing or not self.known[i]):
                dropped.setdefault(SINGLE_VALUE, []).append(name)
            elif name in self.next_number and self.n_rows >= FEWEST_NUMBERED and name not in keep:
                dropped.setdefault("of row numbers", []).append(name)
            else:
                fill = float(self.total[i] / self.known[i])
                low, high = float(self.low[i]), float(self.high[i])
                origin = low if kind == "date" else 0.0
                cycles = self._cycles(name, kind, high - low) if varies else ()
                is_category = name in categorical and kind in ("number", "boolean") and varies
                if is_category:
                    fill = low - 1  # missing is a category of its own
                found[name] = Column(
                    name, kind, varies, missing, fill, origin, cycles, coded=is_category
                )
        for name, counts in self.texts.items():
            levels, rare = counts.levels(even_rare=name in keep)
            missing = counts.n_missing > 0
            if not counts.n_known or (counts.distinct == 1 and not missing):
                dropped.setdefault(SINGLE_VALUE, []).append(name)
            elif counts.distinct_share >= IDENTIFIER_SHARE and counts.n_known > 2 and name not in keep:
                dropped.setdefault("of text that hardly ever repeats", []).append(name)
            elif not levels and not missing:
                dropped.setdefault("of text without a frequent value", []).append(name)
            else:
                found[name] = Column(
                    name, "text", missing=missing, levels=levels, rare=rare, coded=coded
                )
        nested = [name for name, kind in self.kinds.items() if kind is None]
        if nested:
            dropped["of an unsupported type"] = nested
        columns = [found[name] for name in self.names if name in found]
        return columns, [*_about_dropped(dropped), *_about(columns)]

    def _cycles(self, name: str, kind: Kind, span: float) -> tuple[str, ...]:
        if kind == "time":
            return ("day",)
        if kind != "date":
            return ()
        spanned = [cycle for cycle, days in CYCLES.items() if span >= FEWEST_CYCLES * days]
        return tuple(c for c in spanned if c != "day" or name in self.has_hours)


def _about_dropped(dropped: dict[str, list[str]]) -> Iterator[str]:
    for which, names in dropped.items():
        yield f"dropped {count_columns(len(names))} {which}: {listed(names)}"


def _about(columns: Sequence[Column]) -> Iterator[str]:
    filled = [c.name for c in columns if c.is_indicated]
    if filled:
        yield (
            f"missing values in {count_columns(len(filled))} are replaced by the mean and marked by an "
            f"indicator: {listed(filled)}"
        )
    texts = [c for c in columns if c.kind == "text"]
    if texts:
        width = sum(len(c.categories) for c in texts)
        merged = [c.name for c in texts if c.has_rare]
        yield (
            f"{count_columns(len(texts))} of text hold {width:,} categories: "
            f"{listed([c.name for c in texts])}"
        )
        if merged:
            yield f"rare categories are merged into one in {listed(merged)}"
    dates = [c.name for c in columns if c.kind in ("date", "duration", "time")]
    if dates:
        yield f"dates and times became days, and sine and cosine of their cycles: {listed(dates)}"
