"""Rows to predict that are far from everything the model was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from mercer.cli.choices import Model
from mercer.estimators.all_answers import far_rate

# More rows than false alarms explain, up to this probability, are worth a note.
CHANCE = 0.01


@dataclass
class FarRows:
    """Counts far rows while a table is predicted."""

    rate_of_model: float
    marked: bool = False  # they are marked in the result already
    rows: int = 0
    far: list[int] = field(default_factory=list)  # their numbers, from 1
    beyond: list[int] = field(default_factory=list)  # those that are out of all proportion

    @classmethod
    def of(cls, model: Model, marked: bool = False) -> FarRows | None:
        """None for a model that cannot tell."""
        return cls(far_rate(model), marked) if model.is_calibrated else None

    def add(self, shares: NDArray[np.float64]) -> None:
        """More rows, of which these shares of ordinary rows are as far out."""
        self.far += (self.rows + 1 + np.flatnonzero(shares <= self.rate_of_model)).tolist()
        self.beyond += (self.rows + 1 + np.flatnonzero(shares == 0)).tolist()
        self.rows += len(shares)

    def notes(self) -> Sequence[str]:
        """A sentence if there are far rows that are not false alarms."""
        by_chance = binom.sf(len(self.far) - 1, self.rows, self.rate_of_model)
        named = self.far if by_chance < CHANCE else self.beyond
        if not named:
            return []
        rows = f"row {named[0]:,} is" if len(named) == 1 else f"{len(named):,} rows, first row "
        rows += "" if len(named) == 1 else f"{named[0]:,}, are"
        return [
            f"{rows} far from everything that the model was trained on, so the prediction may be no "
            f"better than a guess{'' if self.marked else '; --far marks such rows'}"
        ]
