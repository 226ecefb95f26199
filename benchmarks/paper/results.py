"""Results of a part of the reproduction: claims with verdicts, tables, and the data of plots.

Records are plain data that can be written to JSON and read back, so that pages and plots can be made
again without measuring.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

Size = Literal["smoke", "quick", "full"]
Cell = str | float | int | None
# How a verdict begins.
VERDICTS = ("holds", "holds partly: ", "does not hold: ")


def machine() -> str:
    """The machine that results are measured on."""
    return (
        f"{platform.machine()}, {os.cpu_count()} cores shared with others, "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )


@dataclass(frozen=True)
class Claim:
    """A claim of the paper next to what was measured here."""

    claim: str  # in one sentence
    where: str  # "Table 2", "Figure 3a", "section 4", ...
    published: str  # on the paper's hardware
    ours: str  # the numbers measured here
    verdict: str  # by `judge`, decided from the numbers

    def __post_init__(self) -> None:
        if self.verdict != VERDICTS[0] and not self.verdict.startswith(VERDICTS[1:]):
            raise ValueError(
                f"`verdict` must be 'holds', or begin with 'holds partly: ' or 'does not hold: ' and "
                f"say why. Got {self.verdict!r} instead."
            )


def judge(holds: bool, partly: bool, why: str) -> str:
    """The verdict from two comparisons of measured numbers; `why` says what falls short.

    >>> judge(False, True, "only on two of three sets")
    'holds partly: only on two of three sets'
    """
    if holds:
        return "holds"
    return f"holds partly: {why}" if partly else f"does not hold: {why}"


def judge_each(passes: Sequence[bool], why: str) -> str:
    """The verdict for a claim about several cases: it holds if all pass, and partly if any does.

    `{count}` in `why` becomes the number that pass, "1 of 2".

    >>> judge_each([True, False], "so on {count} sets")
    'holds partly: so on 1 of 2 sets'
    """
    return judge(all(passes), any(passes), why.format(count=f"{sum(passes)} of {len(passes)}"))


def shortfalls(*conditions: tuple[bool, str]) -> str:
    """The texts of the conditions that are not met.

    >>> shortfalls((True, "too slow"), (False, "too large"))
    'too large'
    """
    return "; ".join(text for met, text in conditions if not met)


def rounded(value: float | None, figures: int = 4) -> float | None:
    """The value to this many significant figures; None if it is not finite."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{figures}g}")


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"Every row of {self.title!r} must have {len(self.columns)} cells. Got {row!r}."
                )


@dataclass(frozen=True)
class Result:
    """The result of one part.  The runner fills in the last four fields."""

    name: str  # of the module
    title: str
    text: str  # what was measured, on which data, and what the plots should show
    claims: tuple[Claim, ...]
    tables: tuple[Table, ...]
    curves: dict[str, Any] = field(default_factory=dict)  # plain data that `plot` draws
    seconds: float = 0.0
    size: Size = "quick"
    machine: str = ""
    command: str = ""

    def to_json(self) -> str:
        """JSON text.  Numbers that are not finite become null."""
        return json.dumps(_plain(asdict(self)), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Result:
        """The result that `to_json` wrote."""
        data = json.loads(text)
        claims = tuple(Claim(**claim) for claim in data.pop("claims"))
        tables = tuple(
            Table(t["title"], tuple(t["columns"]), tuple(tuple(row) for row in t["rows"]))
            for t in data.pop("tables")
        )
        return cls(claims=claims, tables=tables, **data)

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        path.write_text(self.to_json(), encoding="utf-8")
        return path


def _plain(value: Any) -> Any:
    """The same value as numbers, strings, lists and dictionaries."""
    if hasattr(value, "tolist"):  # NumPy and PyTorch
        value = value.tolist()
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
