"""CSV and TSV files."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import polars as pl

from mercer.tables.columnar import from_polars
from mercer.tables.table import Contents

# Rows from which column types are guessed; the guess is then checked on all rows.
INFER_ROWS = 10_000
# Spellings of a missing value.  Words that may well be labels ("None") are not among them.
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "?")
SEPARATORS = ",\t;|"


def delimited(file: Path, head: bytes, kind: str, text: Collection[str]) -> Contents:
    """A text file with a separator; each column gets the narrowest type that keeps all its values."""
    start = head.decode("utf-8-sig", errors="replace")
    outside_quotes = re.sub(r'"[^"]*"', "", start).partition("\n")[0]
    separator = "\t" if kind == "TSV" else max(SEPARATORS, key=outside_quotes.count)
    first = next(csv.reader(io.StringIO(start, newline=""), delimiter=separator), [])
    has_header = not all(map(_is_number, first)) or first in (
        [str(i) for i in range(len(first))],
        [str(i + 1) for i in range(len(first))],
    )
    options: dict[str, Any] = {
        "separator": separator,
        "has_header": has_header,
        "null_values": MISSING,
        "try_parse_dates": True,
        "glob": False,
    }
    guessed = pl.scan_csv(file, infer_schema_length=INFER_ROWS, **options)
    types: dict[str, Any] = dict(guessed.collect_schema())
    names = dict(zip(types, _names(list(types), first, has_header), strict=True))
    fixed = {name for name in types if names[name] in text}
    padded = _padded(guessed, types, fixed)
    types |= dict.fromkeys(fixed, pl.String())

    def scan(types: dict[str, Any], ignore_errors: bool = False) -> pl.LazyFrame:
        raw = {name: pl.String() if name in padded else kind for name, kind in types.items()}
        strict = not ignore_errors
        return pl.scan_csv(file, schema=raw, ignore_errors=ignore_errors, **options).with_columns(
            _stripped(name).cast(types[name], strict=strict) for name in padded
        )

    # Polars maps the whole file to memory to count rows alone, but not to count missing values as well.
    as_text = scan(dict.fromkeys(types, pl.String()))
    n_rows, missing = _count(as_text, lambda name: pl.col(name).is_null() | (pl.col(name) == ""))
    # Widen every column that loses values with its guessed type, until none does.
    suspects = [] if n_rows <= INFER_ROWS else [n for n in types if types[n] != pl.String()]
    while suspects:
        _, lost = _count(scan(types, True).select(suspects), lambda name: pl.col(name).is_null())
        suspects = [name for name in suspects if lost[name] > missing[name]]
        for name in suspects:
            types[name] = pl.Float64() if types[name] == pl.Int64() else pl.String()
        suspects = [name for name in suspects if types[name] != pl.String()]
    return from_polars(scan(types).rename(names), n_rows)


def _names(read: list[str], first: list[str], has_header: bool) -> list[str]:
    """Names from the first record; those of Polars keep doubled quotes and surrounding blanks."""
    if not has_header:
        return [f"x{i}" for i in range(len(read))]
    names = [name.strip() for name in first]
    return names if len(set(names)) == len(read) else read


def _padded(scan: pl.LazyFrame, types: dict[str, Any], fixed: Collection[str]) -> list[str]:
    """Columns with blanks around their values in the first rows; sets their types without the blanks.

    Columns that are empty in the first rows are taken as numbers, which is checked on all rows later.
    """
    strings = [name for name in types if types[name] == pl.String() and name not in fixed]
    sample = scan.select(strings).head(INFER_ROWS).collect(engine="streaming")
    padded = [n for n in sample.columns if bool((sample[n] != sample[n].str.strip_chars()).any())]
    bare = sample.select(_stripped(name) for name in padded)
    for name in bare.columns:
        for number in (pl.Float64(), pl.Int64()):
            if bare[name].cast(number, strict=False).null_count() == bare[name].null_count():
                types[name] = number
    for name in sample.columns:
        if len(sample) == INFER_ROWS and sample[name].null_count() == INFER_ROWS:
            types[name] = pl.Int64()
    return padded


def _stripped(name: str) -> pl.Expr:
    bare = pl.col(name).str.strip_chars()
    return pl.when(bare.is_in(MISSING)).then(None).otherwise(bare).alias(name)


def _count(scan: pl.LazyFrame, condition: Callable[[str], pl.Expr]) -> tuple[int, dict[str, int]]:
    """The number of rows, and in how many of them each column meets a condition."""
    names = scan.collect_schema().names()
    sums = (condition(name).sum().alias(str(i)) for i, name in enumerate(names))
    n_rows, *counts = scan.select(pl.len(), *sums).collect(engine="streaming").row(0)
    return n_rows, dict(zip(names, counts, strict=True))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
