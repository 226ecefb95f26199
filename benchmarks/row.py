"""One measure of a benchmark next to its target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """A measured value.  One without a target explains another.

    >>> print(Row("epoch ÷ product", 0.3, 0.25, note="of 60,000 rows"))
    epoch ÷ product: 0.300 (of 60,000 rows), target ≤ 0.25: NOT MET
    """

    measure: str
    value: float
    target: float | None = None
    larger: bool = False  # whether larger values are better
    note: str = ""

    def __str__(self) -> str:
        text = f"{self.measure}: {self.value:.3f}" + f" ({self.note})" * bool(self.note)
        if self.target is None:
            return text
        return f"{text}, target {self._target}: {'met' if self._met else 'NOT MET'}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        found = {
            "measure": self.measure,
            "value": round(self.value, 3),
            "larger": self.larger,
            "note": self.note,
        }
        return found if self.target is None else found | {"target": self._target, "met": self._met}

    @property
    def _target(self) -> str:
        return f"{'≥' if self.larger else '≤'} {self.target}"

    @property
    def _met(self) -> bool:
        assert self.target is not None
        return self.value >= self.target if self.larger else self.value <= self.target
