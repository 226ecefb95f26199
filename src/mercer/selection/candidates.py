"""What the search tried, and what it chose."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Literal

from mercer.notebook import html_table

# What a setting was not trained on where it was judged: one point at a time; the same, where the metric
# was learned on the other half of the points; some of the rows.
PartLeftOut = Literal["one", "half", "rows"]


@dataclass(frozen=True)
class Candidate:
    """One setting and its error on points that it was not trained on."""

    kernel: str
    bandwidth: float
    ridge: float
    loss: float  # mean squared error on what was left out, as a share of the variance of the targets
    reachable: bool  # the precision of training can carry weights of this size
    n_points: int
    features: str = "as given"  # how they were prepared
    metric_steps: int = 0  # of learning a metric
    left_out: PartLeftOut = "one"

    @property
    def rank(self) -> tuple[bool, float]:
        """The lowest is the best."""
        return not self.reachable, self.loss if math.isfinite(self.loss) else math.inf

    @property
    def family(self) -> tuple[str, str]:
        """Candidates that differ in numbers only."""
        return self.kernel, self.features


@dataclass(frozen=True)
class Selection:
    """The settings that were tried, and the best of them."""

    best: Candidate
    candidates: tuple[Candidate, ...]

    @property
    def points_left_out(self) -> int:
        """The points that the chosen setting predicted one by one from the others."""
        return max(c.n_points for c in self.candidates if c.left_out == "one")

    def to_dicts(self) -> list[dict[str, float | str | bool]]:
        """A list of plain dictionaries, which `pandas.DataFrame` accepts."""
        return [asdict(candidate) for candidate in self.candidates]

    def __repr__(self) -> str:
        return f"Selection(best={self.best}, {len(self.candidates)} tried)"

    def __str__(self) -> str:
        """A table of the best setting of each kernel, preparation and metric, on the most points.

        Losses can be compared where they were measured on the same points in the same way.
        """
        shown = self._shown()
        width = max(13, *(len(c.features) + 1 for c in shown))
        lines = [
            f"{self._caption()}:",
            f"{'kernel':<13} {'features':<{width}} {'metric':<9} {'bandwidth':>10} {'ridge':>8} "
            f"{'loss':>8} {'points':>7}  left out",
        ]
        for c in shown:
            metric = f"{c.metric_steps} steps" if c.metric_steps else "none"
            lines.append(
                f"{c.kernel:<13} {c.features:<{width}} {metric:<9} {c.bandwidth:>10.4g} {c.ridge:>8.2g} "
                f"{c.loss:>8.4f} {c.n_points:>7,}  {c.left_out:<5}"
                f"{'  chosen' * (c == self.best)}".rstrip()
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The same table, for notebooks."""
        heads = ["kernel", "features", "metric", "bandwidth", "ridge", "loss", "points", "left out", ""]
        rows = (
            [
                c.kernel,
                c.features,
                f"{c.metric_steps} steps" if c.metric_steps else "none",
                c.bandwidth,
                c.ridge,
                c.loss,
                c.n_points,
                c.left_out,
                "chosen" if c == self.best else "",
            ]
            for c in self._shown()
        )
        return html_table(heads, rows, self._caption())

    def _caption(self) -> str:
        tried = f"{len(self.candidates):,} settings tried"
        return f"{tried}; the best of each kernel, preparation and metric on the most points"

    def _shown(self) -> list[Candidate]:
        """The chosen setting, and the best of each other kernel, preparation and metric.

        Few points give a setting twice, with losses that differ by rounding: the chosen one is shown.
        """
        shown: dict[tuple[str, str, int, str], Candidate] = {}
        ways = ("rows", "one", "half")
        order = sorted(self.candidates, key=lambda c: (ways.index(c.left_out), -c.n_points, c.rank))
        for c in (self.best, *order):
            shown.setdefault((*c.family, c.metric_steps, c.left_out), c)
        return list(shown.values())


def leaders(candidates: list[Candidate]) -> list[Candidate]:
    """The best of each family, the best of all first."""
    best: dict[tuple[str, str], Candidate] = {}
    for candidate in sorted(candidates, key=lambda c: c.rank):
        best.setdefault(candidate.family, candidate)
    return list(best.values())
