"""How much a data file may claim: columns, values, and bytes once it is unpacked.

A header of a few bytes can claim any number of rows and columns, and a compressed file can unpack to any
size.  So claims are checked before anything is allocated for them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from mercer.planning.memory import (
    MOST_COLUMNS,
    TABLE_RATIO,
    UNPACKED_RATIO,
    VALUE_BYTES,
    claim_limit,
    in_words,
)
from mercer.tables.errors import TableError
from mercer.tables.wording import count_columns


@dataclass(frozen=True)
class Bounds:
    """The limits that the user chose."""

    columns: int = MOST_COLUMNS
    unpacked: float | None = None  # bytes; None: in proportion to the size of the file

    def allowance(self, name: str, size: int) -> Allowance:
        """What a file of so many bytes may claim."""
        if self.unpacked is not None:
            return Allowance(name, self.columns, self.unpacked, self.unpacked)
        unpacked, table = claim_limit(size, UNPACKED_RATIO), claim_limit(size, TABLE_RATIO)
        return Allowance(name, self.columns, unpacked, table)


@dataclass(frozen=True)
class Allowance:
    """What one file may claim."""

    name: str  # of the file, for messages
    columns: int
    unpacked: float  # bytes of temporary copies of what is compressed
    table: float  # bytes of all values

    def check_columns(self, count: int) -> None:
        if count > self.columns:
            raise TableError(
                f"{self.name} has {min(count, sys.maxsize):,} columns, and the limit is "
                f"{self.columns:,}. If so many are intended, raise it with --max-columns."
            )

    def check_table(self, n_rows: int, n_columns: int, row_bytes: float = 0) -> None:
        """Raise if the values take too many bytes: `row_bytes` per row, or eight per value."""
        self.check_columns(n_columns)
        claimed = n_rows * max(1, row_bytes, VALUE_BYTES * n_columns)
        if claimed > self.table:
            raise TableError(
                f"{self.name} claims {n_rows:,} rows × {count_columns(n_columns)}, which take "
                f"{in_words(claimed)}, and the limit is {in_words(self.table)}. If the file is correct, "
                "raise it with --max-unpacked."
            )

    def check_pieces(self, values: int, unpacked: int) -> None:
        """Raise if the parts of a file claim too many values, or too many bytes once unpacked."""
        claimed = max(VALUE_BYTES * values, unpacked)
        if claimed > self.table:
            raise TableError(
                f"{self.name} claims {in_words(claimed)} of values, and the limit is "
                f"{in_words(self.table)}. If the file is correct, raise it with --max-unpacked."
            )

    def check_unpacked(self, size: float) -> None:
        if size > self.unpacked:
            raise TableError(
                f"{self.name} unpacks to more than {in_words(self.unpacked)}, which is the limit. If "
                "the file is correct, raise it with --max-unpacked."
            )
