"""Classification or regression: decided from the target column."""

from __future__ import annotations

import polars as pl

from mercer.tables.columns import Task
from mercer.tables.counts import Counts
from mercer.tables.errors import TableError
from mercer.tables.kinds import Kind, kind_of, known
from mercer.tables.notation import Notation
from mercer.tables.wording import excerpt, quoted

# Whole numbers are labels rather than amounts if at most this many are distinct, with two rows each on
# average.
FEW_DISTINCT = 30
# Every class is an output: with more of them the weights would be larger than most datasets.
MOST_CLASSES = 10_000


class TargetSurvey:
    """Collects what the target column holds, a chunk at a time."""

    def __init__(self, name: str, notation: Notation | None = None) -> None:
        self.name = name
        self.is_amount = notation is not None and notation.is_amount
        self.kind: Kind | None = None
        self.counts = Counts()
        self.fractions = False
        self.too_many = False

    def add(self, values: pl.Series) -> None:
        if self.kind is None:
            self.kind = kind_of(values.dtype)
            if self.kind not in ("number", "boolean", "text"):
                raise TableError(
                    f"The target {quoted(self.name)} must hold numbers, text or booleans. Got "
                    f"{excerpt(str(values.dtype))}."
                )
        if self.kind == "text":
            values = values.cast(pl.String)
        elif values.dtype.is_float() or values.dtype.is_decimal():
            numbers = known(values.cast(pl.Float64))
            self.fractions = self.fractions or bool((numbers != numbers.floor()).any())
        if not self.too_many:
            self.counts.add(values)
            self.too_many = self.counts.distinct > MOST_CLASSES

    def task(self, forced: str | None) -> tuple[Task, str]:
        """The task, and a note that gives the reason."""
        distinct, rows = self.counts.distinct, self.counts.n_known
        many = self.too_many or (distinct > FEW_DISTINCT and 2 * distinct > rows)
        how_many = f"more than {MOST_CLASSES:,}" if self.too_many else f"{distinct:,}"
        if distinct < 2:
            raise TableError(
                f"The target {quoted(self.name)} must have at least two different values. Got "
                f"{distinct} in the {rows:,} rows where it is not missing."
            )
        if forced not in (None, "classification", "regression"):
            raise TableError(
                f'The task must be "classification" or "regression". Got {forced!r} instead.'
            )
        words = {"text": "labels", "boolean": "booleans"}.get(str(self.kind), "whole numbers")
        is_amount = self.is_amount and distinct > 2  # two of them may be labels
        found = f"{how_many} distinct {'amounts' if is_amount else words}"
        as_asked = "" if forced is None else ", as requested"
        is_few = distinct <= FEW_DISTINCT and 2 * distinct <= rows
        amounts = self.fractions or many or is_amount or not is_few
        if forced == "regression" or (forced is None and self.kind == "number" and amounts):
            if self.kind == "text":
                raise TableError(
                    f"Regression needs a target of numbers, but {quoted(self.name)} holds text. Use "
                    "classification."
                )
            found = "numbers with fractions" if self.fractions else found
            return "regression", f"{quoted(self.name)} has {found}: regression{as_asked}"
        if self.fractions:
            raise TableError(
                f"Classification needs a target of labels, but {quoted(self.name)} holds numbers with "
                "fractions. Use regression."
            )
        if many:
            first = "the first " if self.too_many else ""
            raise TableError(
                f"Classes must have several rows each, and there can be at most {MOST_CLASSES:,}. The "
                f"target {quoted(self.name)} has {found} in {first}{rows:,} rows: choose another "
                f"target, or merge values{', or use regression' if self.kind == 'number' else ''}."
            )
        return "classification", f"{quoted(self.name)} has {found}: classification{as_asked}"
