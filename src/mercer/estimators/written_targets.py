"""Targets of a regressor that are numbers in text, read as those of a file.

How they are written is decided from the targets of `fit`, and later ones are read in the same way or not
at all.  A classifier takes text as labels, whatever it looks like.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mercer.data.rows import Array
from mercer.tables.frames import from_matrix
from mercer.tables.notation import Notation, has_no_value, stripped
from mercer.tables.wording import quoted

if TYPE_CHECKING:
    import polars as pl

WAY_OUT = "Convert the targets to numbers, with str.replace and astype(float) for example."


def has_text(y: Any) -> bool:
    if getattr(getattr(y, "dtype", None), "kind", "O") not in "OUT":
        return False
    values = np.asarray(y)
    if values.dtype.kind not in "OUT" or values.ndim not in (1, 2):
        return False
    return values.dtype.kind != "O" or any(isinstance(value, str) for value in values.flat)


def are_written(y: Any) -> bool:
    """Whether targets hold text other than numbers as Python writes them, which NumPy converts."""
    if not has_text(y):
        return False
    try:
        np.asarray(y).astype(np.float64)
    except (TypeError, ValueError):
        return True
    return False


def first_numbers(y: Any, decimal: str | None = None) -> tuple[Array, tuple[Notation, ...]]:
    """The numbers of targets to train on, and how each column of them is written.

    `decimal` is the mark that the features show, for numbers that can be read in two ways.
    """
    from mercer.tables.recognition import written_numbers

    notations = []
    for name, column in _columns(y).items():
        notation = written_numbers(name, column, decimal, WAY_OUT)
        if notation is None:
            known = column.filter(~has_no_value(stripped(column)))
            raise ValueError(
                f"{name} must hold numbers for a regressor. Got text such as "
                f"{quoted(known[0] if len(known) else '')}: for classes, use KernelClassifier."
            )
        notations.append(notation)
    return more_numbers(y, notations), tuple(notations)


def more_numbers(y: Any, notations: Sequence[Notation]) -> Array:
    """The numbers of targets that are written as those of `fit` were."""
    columns = _columns(y)
    if len(columns) != len(notations):
        raise ValueError(f"`y` must have {len(notations)} columns, as in `fit`. Got {len(columns)}.")
    numbers = np.empty((len(y), len(columns)))  # (n, l)
    for place, (name, column) in enumerate(columns.items()):
        values = notations[place].read(column)
        if values.null_count():
            raise ValueError(_first_wrong(name, column, values, notations[place]))
        numbers[:, place] = values.to_numpy()
    return numbers.reshape(np.shape(y))


def _first_wrong(name: str, column: pl.Series, values: pl.Series, notation: Notation) -> str:
    """What the first row holds that has no number."""
    absent = has_no_value(stripped(column))
    wrong = values.is_null() & ~absent
    if wrong.any():
        row, form = int(wrong.arg_true()[0]), notation.describe()
        return (
            f"{name} must hold numbers{f' ({form})' if form else ''}, but row {row + 1:,} (counted from "
            f"1) holds {quoted(column[row])}: correct it, or leave the row out."
        )
    row = int(absent.arg_true()[0])
    return (
        f"{name} must have a number in every row. It is missing in {int(absent.sum()):,} of "
        f"{len(column):,} rows, first in row {row + 1:,} (counted from 1): leave these rows out."
    )


def _columns(y: Any) -> dict[str, pl.Series]:
    """The columns of targets, by what messages call them."""
    import polars as pl

    values = np.asarray(y, dtype=object)
    table = values.reshape(len(values), -1)  # (n, l)
    count = table.shape[1]
    names = [f"Column {j + 1} of `y`" for j in range(count)] if count > 1 else ["`y`"]
    frame = from_matrix(table, names)
    return {name: frame[name].cast(pl.String) for name in names}
