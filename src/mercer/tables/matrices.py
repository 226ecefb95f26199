"""Matrices of numbers with missing values: the rule for the numbers of a table."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mercer.planning.memory import chunk_rows
from mercer.tables.columns import Column
from mercer.tables.kinds import Kind

Array = NDArray[Any]


def has_gaps(A: Array) -> bool:
    """Whether a matrix without infinite values has missing ones."""
    return A.dtype.kind == "f" and A.size > 0 and bool(np.isnan(A.min()))


def survey_matrices(
    matrices: Iterable[Array],
    names: Sequence[str],
    *,
    categorical: Collection[str] = (),
    booleans: Collection[str] = (),
) -> tuple[Column, ...]:
    """How the columns of matrices, (n, d), become features: those without any value are left out.

    Nothing else is left out.  Numbers that do not vary are dropped later, without a change of distances.
    """
    d, n = len(names), 0
    known, total = np.zeros(d), np.zeros(d)
    low, high = np.full(d, np.nan), np.full(d, np.nan)
    for part in (A[i : i + chunk_rows(d)] for A in matrices for i in range(0, len(A), chunk_rows(d))):
        n += len(part)
        here = ~np.isnan(part)
        known += here.sum(axis=0)
        total += part.sum(axis=0, where=here, dtype=np.float64)
        low = np.fmin(low, np.fmin.reduce(part, axis=0))
        high = np.fmax(high, np.fmax.reduce(part, axis=0))
    found = []
    for j in map(int, np.flatnonzero(known)):
        name, missing = names[j], bool(known[j] < n)
        varies = bool(low[j] < high[j]) or not missing
        coded = name in categorical and varies
        # Missing is a category of its own.
        fill = float(low[j]) - 1 if coded else float(total[j] / known[j])
        kind: Kind = "boolean" if name in booleans else "number"
        found.append(Column(name, kind, varies, missing, fill, coded=coded))
    return tuple(found)
