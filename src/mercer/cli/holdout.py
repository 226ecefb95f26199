"""Rows that are kept out of training, for the final score."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state

from mercer.cli.choices import TestChoice
from mercer.files.checkpoint import Saved
from mercer.tables.errors import TableError

Array = NDArray[Any]

# Held out unless the user gives a share.  With 10,000 rows the standard error of an error rate is at
# most half a percentage point; more rows are better used for training.
HOLDOUT = 0.2
MOST_TEST_ROWS = 10_000


def rows_to_hold_out(y: Array, task: str, test: TestChoice, resume: str | None) -> Array:
    """Sorted indices of the rows to hold out; none if a test file is given."""
    if resume is not None:
        return _rows_held_out_before(resume, len(y))
    if test.path is not None or test.holdout == 0:
        return np.zeros(0, dtype=int)
    share = HOLDOUT if test.holdout is None else test.holdout
    rows, labels = np.arange(len(y), dtype=_smallest(len(y))), None
    if task == "classification":
        _, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
        # A class with a single row can be learnt only if that row is trained on.
        rows = rows[counts[codes] > 1]
        labels = codes[rows]
    wanted = max(1, round(share * len(y)))
    if test.holdout is None:
        wanted = min(wanted, MOST_TEST_ROWS)
    if not 0 < wanted < len(rows):
        raise TableError(
            f"There are too few rows to train on: {wanted} of {len(y)} would be held out for the final "
            "score. Use --holdout 0, or add rows."
        )
    if labels is not None and min(wanted, len(rows) - wanted) < len(np.unique(labels)):
        labels = None  # too few rows for one of each class
    if labels is None:  # in place: `train_test_split` has the numbers of many rows in memory four times
        check_random_state(test.seed).shuffle(rows)
        return np.sort(rows[:wanted]).astype(int)
    _, held_out = train_test_split(rows, test_size=wanted, random_state=test.seed, stratify=labels)
    return np.sort(held_out).astype(int)


def _smallest(n: int) -> type[np.signedinteger[Any]]:
    """A type for numbers of n rows."""
    return np.int32 if n <= np.iinfo(np.int32).max else np.int64


def _rows_held_out_before(checkpoint: str, n_rows: int) -> Array:
    """The rows that the interrupted run held out, whatever the options say now."""
    saved = Saved.read(checkpoint)
    return np.setdiff1d(np.arange(n_rows), np.concatenate([saved.rows, saved.held_out]))
