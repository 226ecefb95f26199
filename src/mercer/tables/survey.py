"""How the columns of a table become features and targets is decided in a few passes over it.

Columns with a single value, row numbers and text that hardly ever repeats carry no information and are
dropped.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mercer.tables.columns import CYCLES, READ_AS_TEXT, SINGLE_VALUE, Column, Columns
from mercer.tables.counts import Counts
from mercer.tables.decisions import decisions
from mercer.tables.errors import TableError
from mercer.tables.kinds import NAMES, Kind, as_written, kind_of, to_numbers
from mercer.tables.notation import Notation
from mercer.tables.recognition import Recognised, Wishes, recognise
from mercer.tables.table import Table
from mercer.tables.target import TargetSurvey
from mercer.tables.wording import count_columns, listed, quoted

NO_WISHES = Wishes()
# Text is an identifier if at least this share of its values is distinct.
IDENTIFIER_SHARE = 0.9
# Fewest rows of a table in which a column that counts from 0 or 1 is taken for row numbers.
FEWEST_NUMBERED = 20
# Whole numbers in a column with such a name are an identifier if no two rows have the same.
IDENTIFIER_NAME = re.compile(r"(?i:(^|[\W_])(id|uuid|guid|identifier)$)|[a-z]I[dD]$")
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
    wishes: Wishes = NO_WISHES,
    weight: str | None = None,
    training_rows: Callable[[Columns], NDArray[np.bool_]] | None = None,
    one_hot: bool = False,
) -> Columns:
    """Decide how each column becomes features, with bounded memory.

    The target is the column "y" by default.  Columns in `keep` are used even if they look like an
    identifier.  Numbers in `categorical` are codes of categories.  `wishes` are about how numbers and
    dates are written.  `weight` is a column of weights of the rows, which is no feature.  Statistics are
    those of `training_rows`, which are chosen once the target is known; by default of all rows.
    `one_hot`: categories become one 0/1 feature each, instead of one with their codes.
    """
    target = table.target_named(target)
    table.require([target, *keep, *drop, *categorical, *wishes.number, *([weight] if weight else [])])
    for option, named in (("--drop", drop), ("--keep", keep), ("--weight", [weight])):
        if target in named:
            raise TableError(
                f"{option} names {quoted(target)}, which is the target. Leave it out, or choose another "
                "--target."
            )
    names = [name for name in table.names if name not in (target, weight) and name not in drop]
    texts = {*categorical, *wishes.text, *((target,) if task == "classification" else ())}
    found = recognise(table, [*names, target], replace(wishes, text=texts))
    survey, aim = Survey(names, found.notations), TargetSurvey(target, found.notations.get(target))
    if target in found.doubts and task is None:
        raise TableError(
            f"Most values of the target {quoted(target)} are numbers, but {found.doubts[target]}. "
            f"Correct that, use --number {shlex.quote(target)} to leave such rows out, or --task "
            "classification to use its values as labels."
        )
    for frame in table.chunks([target]):
        aim.add(as_written(frame, found.notations)[target])
    if aim.kind is None:
        raise TableError(f"{table.name} has no rows.")
    decided, reason = aim.task(task)
    columns = Columns(target, decided, aim.kind, (), (), found.notations.get(target))
    chosen = None if training_rows is None else training_rows(columns)
    start = 0
    for frame in table.chunks(names) if names else ():
        here = None if chosen is None else chosen[start : start + len(frame)]
        survey.add(as_written(frame, found.notations), here)
        start += len(frame)
    survey.refuse_kinds(categorical, ("number", "boolean", "text"), "--category")
    survey.refuse_kinds(wishes.number, ("number", "boolean"), "--number")
    features, notes, dropped = survey.columns(set(keep), set(categorical), not one_hot)
    if not features:
        raise TableError(
            f"{table.name} has no column to learn from besides {quoted(target)}: all others have a "
            "single value or look like identifiers. Ask for a column to be kept if it is useful."
        )
    about = (reason, *found.notes, *doubts_of(found, target), *notes)
    columns = replace(columns, notes=about, columns=tuple(features))
    requested = {*keep, *categorical, *wishes.number}
    made = decisions(table.names, columns, reason, dropped, requested, weight)
    return replace(columns, decisions=made)


def doubts_of(found: Recognised, target: str | None = None) -> Iterator[str]:
    """Notes on columns but the target that look like numbers or dates and are text."""
    for kind, doubts in (("numbers", found.doubts), ("dates", found.date_doubts)):
        for name, doubt in doubts.items():
            if name != target:
                yield f"{quoted(name)} {READ_AS_TEXT} {kind}: {doubt}"


class Survey:
    """Collects what the columns hold, a chunk at a time."""

    def __init__(self, names: Sequence[str], notations: Mapping[str, Notation]) -> None:
        self.names = names
        self.notations = notations
        self.n_rows = 0  # whose values count
        self.begun = False
        self.kinds: dict[str, Kind | None] = {}
        self.measured: dict[str, Kind] = {}  # all but text
        self.texts: dict[str, Counts] = {}
        self.next_number: dict[str, int] = {}  # of columns that have counted the rows so far
        self.ids: dict[str, Counts] = {}  # of whole numbers with the name of an identifier
        self.has_hours: set[str] = set()
        self.known = self.total = self.low = self.high = np.zeros(0)  # of each measured column

    def add(self, frame: pl.DataFrame, chosen: NDArray[np.bool_] | None) -> None:
        if not self.begun:
            self._begin(frame)
        self._count_on(frame)
        if chosen is not None and not chosen.all():
            frame = frame.filter(pl.Series(chosen))
        for name, counts in self.ids.items():
            counts.add(frame[name])
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
        self.n_rows += len(frame)

    def _count_on(self, frame: pl.DataFrame) -> None:
        """See which columns go on counting the rows."""
        for name, following in list(self.next_number.items()):
            numbers = frame[name]
            if numbers.null_count() or numbers[0] != following or not (numbers.diff()[1:] == 1).all():
                del self.next_number[name]
            else:
                self.next_number[name] = numbers[-1] + 1

    def _begin(self, frame: pl.DataFrame) -> None:
        self.begun = True
        schema = frame.schema
        self.kinds = {name: kind_of(schema[name]) for name in self.names}
        self.measured = {name: kind for name, kind in self.kinds.items() if kind and kind != "text"}
        self.texts = {name: Counts() for name, kind in self.kinds.items() if kind == "text"}
        whole = [name for name in self.measured if schema[name].is_integer()]
        self.next_number = {name: frame[name][0] for name in whole if frame[name][0] in (0, 1)}
        self.ids = {name: Counts() for name in whole if IDENTIFIER_NAME.search(name)}
        self.known = self.total = np.zeros(len(self.measured))
        self.low = self.high = np.full(len(self.measured), np.nan)

    def columns(
        self, keep: set[str], categorical: set[str], coded: bool
    ) -> tuple[list[Column], list[str], dict[str, list[str]]]:
        """The columns to use, notes, and the columns that are dropped by what is wrong with them."""
        found: dict[str, Column] = {}
        dropped: dict[str, list[str]] = {}
        for i, (name, kind) in enumerate(self.measured.items()):
            missing, varies = bool(self.known[i] < self.n_rows), bool(self.low[i] < self.high[i])
            if not varies and (not missing or not self.known[i]):
                dropped.setdefault(SINGLE_VALUE, []).append(name)
            elif name in self.next_number and self.n_rows >= FEWEST_NUMBERED and name not in keep:
                dropped.setdefault("of row numbers", []).append(name)
            elif name not in keep and self._is_identifier(name):
                dropped.setdefault("of identifiers, another one in each row", []).append(name)
            else:
                fill = float(self.total[i] / self.known[i])
                low, high = float(self.low[i]), float(self.high[i])
                origin = low if kind == "date" else 0.0
                cycles = self._cycles(name, kind, high - low) if varies else ()
                is_category = name in categorical and kind in ("number", "boolean") and varies
                if is_category:
                    fill = low - 1  # missing is a category of its own
                found[name] = Column(
                    name,
                    kind,
                    varies,
                    missing,
                    fill,
                    origin,
                    cycles,
                    coded=is_category,
                    notation=self.notations.get(name),
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
        return columns, [*_about_dropped(dropped), *_about(columns)], dropped

    def refuse_kinds(self, names: Collection[str], allowed: tuple[Kind, ...], option: str) -> None:
        """Raise if a column that an option names holds what the option cannot use."""
        for name in names:
            kind = self.kinds.get(name, "number")
            if kind is None or kind not in allowed:
                raise TableError(
                    f"The column {quoted(name)} holds {NAMES[kind] if kind else 'lists or structures'}, "
                    f"which {option} cannot use. Leave it out of {option}."
                )

    def _is_identifier(self, name: str) -> bool:
        counts = self.ids.get(name)
        return counts is not None and counts.n_known >= FEWEST_NUMBERED and counts.distinct_share == 1.0

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
            f"{count_columns(len(texts))} of text with {width:,} categories: "
            f"{listed([c.name for c in texts])}"
        )
        if merged:
            yield f"rare categories are merged into one in {listed(merged)}"
    dates = [c.name for c in columns if c.kind in ("date", "duration", "time")]
    if dates:
        yield f"dates and times became days, and sine and cosine of their cycles: {listed(dates)}"
