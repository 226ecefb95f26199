"""Checksums of rows that are read again and again, so that other rows are noticed.

They do not depend on how the rows are cut into chunks.
"""

from __future__ import annotations

import hashlib
import zlib

import numpy as np

from mercer.data.rows import Array

# Rows of which there is one checksum.
ROWS_EACH = 1 << 12


class Checksums:
    """One for every so many rows of a pass, as they come."""

    def __init__(self) -> None:
        self.found: list[int] = []
        self.n_rows = 0
        self._last = 0  # of rows that are not yet so many
        self._compared = 0

    def add(self, rows: Array) -> None:
        rows = np.ascontiguousarray(rows)
        while len(rows):
            part = rows[: ROWS_EACH - self.n_rows % ROWS_EACH]
            rows = rows[len(part) :]
            self._last = zlib.crc32(part.data, self._last)
            self.n_rows += len(part)
            if self.n_rows % ROWS_EACH == 0:
                self.found.append(self._last)
                self._last = 0

    def difference(self, first: Checksums) -> int | None:
        """The row from which on a part of this pass, as far as it has come, is not that of the first.

        Parts that were compared before are not compared again.
        """
        stop = min(len(self.found), len(first.found))
        for i in range(self._compared, stop):
            if self.found[i] != first.found[i]:
                return i * ROWS_EACH
        self._compared = stop
        is_end = self.n_rows == first.n_rows
        return stop * ROWS_EACH if is_end and self._last != first._last else None

    @property
    def digest(self) -> str:
        """One for all rows."""
        numbers = np.array([*self.found, self._last], dtype="<u4")
        return hashlib.blake2b(numbers.tobytes(), digest_size=16).hexdigest()
