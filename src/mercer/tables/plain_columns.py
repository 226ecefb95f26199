"""The columns of a model that was trained on a matrix of numbers, which are used as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mercer.tables.kinds import Kind, is_known, of_kinds, unreadable_rows
from mercer.tables.notation import Notation


@dataclass(frozen=True)
class PlainColumns:
    """The columns of a model that was saved from Python, without a table: numbers, used as they are."""

    names: tuple[str, ...]
    target: str
    target_notation: Notation | None = None  # if it was trained on numbers in text

    def _kinds(self, frame: pl.DataFrame) -> dict[str, Kind]:
        """Numbers, or booleans where the table has them."""
        schema = frame.schema
        return {n: "boolean" if schema.get(n) == pl.Boolean() else "number" for n in self.names}

    def features(self, frame: pl.DataFrame) -> tuple[NDArray[np.float64], list[str]]:
        return of_kinds(frame, self._kinds(frame)).cast(pl.Float64).to_numpy(), []

    def unreadable(self, frame: pl.DataFrame) -> pl.Series:
        if self.target_notation is None:
            return unreadable_rows(frame, self._kinds(frame), {})
        kinds: dict[str, Kind] = {**self._kinds(frame), self.target: "number"}
        return unreadable_rows(frame, kinds, {self.target: self.target_notation})

    def has_target(self, frame: pl.DataFrame) -> pl.Series:
        return is_known(self._target(frame))

    def targets(self, frame: pl.DataFrame) -> NDArray[Any]:
        return self._target(frame).to_numpy()

    def _target(self, frame: pl.DataFrame) -> pl.Series:
        if self.target_notation is None:
            return frame[self.target]
        return of_kinds(frame, {self.target: "number"}, {self.target: self.target_notation}).to_series()
