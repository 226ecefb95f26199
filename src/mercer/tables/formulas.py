"""Text in CSV that a spreadsheet would take for a formula."""

from __future__ import annotations

import polars as pl

from mercer.tables.kinds import kind_of

# A spreadsheet takes a cell that begins with one of these for a formula, which can run programs and send
# data; some also know the full-width forms.  A number is harmless.
FORMULA = r"^[=+\-@\t\r\n＝＋－＠]"
NUMBER = r"^[+-]?[0-9]*\.?[0-9]+([eE][+-]?[0-9]+)?$"
GUARD = "'"  # what spreadsheets themselves put before text that is not to be interpreted


def guarded(frame: pl.DataFrame) -> pl.DataFrame:
    """The table with a ' before every text that a spreadsheet would take for a formula.

    >>> guarded(pl.DataFrame({"a": ["=1+1", "-1.5", "plain"], "n": [-1, 0, 1]})).to_dict(as_series=False)
    {'a': ["'=1+1", '-1.5', 'plain'], 'n': [-1, 0, 1]}
    """
    return pl.DataFrame(
        [_guarded(values) if kind_of(values.dtype) == "text" else values for values in frame]
    )


def _guarded(values: pl.Series) -> pl.Series:
    text = values.cast(pl.String)
    formula = text.str.contains(FORMULA) & ~text.str.contains(NUMBER)
    return (GUARD + text).zip_with(formula, text).alias(values.name)
