"""How often each value of a column occurs, in bounded memory."""

from __future__ import annotations

import polars as pl

from mercer.planning.memory import MOST_DISTINCT_BYTES
from mercer.tables.kinds import known

# Distinct values that are all counted; if there are more, only the more frequent half is kept.
MOST_DISTINCT = 100_000
# A category is rare if it has fewer rows than both of these: a number, and a share of all rows.
RARE_ROWS = 10
RARE_SHARE = 0.01
# Categories with a feature of their own; less frequent ones count as rare.
MOST_LEVELS = 50
# Rare categories that are remembered, to tell them from categories that never occurred.
MOST_RARE_NAMES = 1_000


class Counts:
    """Counts of the distinct values seen so far."""

    def __init__(self) -> None:
        self.n_known = 0
        self.n_missing = 0
        self.frame: pl.DataFrame | None = None  # value, n
        self.share_at_limit: float | None = None  # distinct values per row when there were too many

    def add(self, values: pl.Series) -> None:
        valid = known(values).alias("value")
        self.n_known += len(valid)
        self.n_missing += len(values) - len(valid)
        fresh = valid.value_counts(name="n")
        if self.frame is not None:
            fresh = pl.concat([self.frame, fresh]).group_by("value").agg(pl.col("n").sum())
        if len(fresh) > MOST_DISTINCT or fresh.estimated_size() > MOST_DISTINCT_BYTES:
            if self.share_at_limit is None:
                self.share_at_limit = len(fresh) / self.n_known
            fresh = fresh.top_k(len(fresh) // 2, by="n")
        self.frame = fresh

    @property
    def distinct(self) -> int:
        return 0 if self.frame is None else len(self.frame)

    @property
    def distinct_share(self) -> float:
        """Distinct values per row."""
        return self.share_at_limit or self.distinct / max(1, self.n_known)

    def levels(self, even_rare: bool) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
        """Categories with a feature each, and rare ones; None if those are too many to remember."""
        if self.frame is None:
            return (), ()
        ranked = self.frame.sort(["n", "value"], descending=[True, False])
        few = 0 if even_rare else min(RARE_ROWS, RARE_SHARE * (self.n_known + self.n_missing))
        own = int((ranked["n"][:MOST_LEVELS] >= few).sum())
        if own == len(ranked) - 1 < MOST_LEVELS:  # a single rare category
            own += 1
        rare = ranked["value"][own:]
        forgotten = self.share_at_limit is not None or len(rare) > MOST_RARE_NAMES
        return tuple(sorted(ranked["value"][:own])), None if forgotten else tuple(sorted(rare))
