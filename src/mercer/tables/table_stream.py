"""A table as a stream of features and targets, which is read from its file in every pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mercer.tables.arrays import labelled_rows
from mercer.tables.columns import Columns
from mercer.tables.table import Table

Array = NDArray[Any]


@dataclass(frozen=True)
class TableStream:
    """The rows whose target is known; a call starts a pass."""

    table: Table
    columns: Columns
    weight: str | None = None  # a column with the weights of the rows
    notes: dict[str, None] = field(default_factory=dict)  # on what was found so far

    def __call__(self) -> Iterator[tuple[Array, ...]]:
        for part in labelled_rows(self.table, self.columns, self.weight):
            self.notes.update(dict.fromkeys(part.notes))
            yield (part.X, part.y) if part.weights is None else (part.X, part.y, part.weights)

    def some(self, rows: Array) -> Iterator[tuple[Array, Array, Array]]:
        """Numbers in the table, features and targets of these rows, ascending; one pass."""
        first = 0
        for part in labelled_rows(self.table, self.columns, self.weight):
            here = (
                rows[np.searchsorted(rows, first) : np.searchsorted(rows, first + len(part.y))] - first
            )
            if len(here):
                yield part.numbers[here], part.X[here], part.y[here]
            first += len(part.y)
