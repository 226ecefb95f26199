"""CSV and TSV files."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import polars as pl

from mercer.tables.bounds import Allowance
from mercer.tables.columnar import from_polars
from mercer.tables.errors import TableError
from mercer.tables.notation import MISSING
from mercer.tables.table import Contents

# Rows from which column types are guessed; the guess is then checked on all rows.
INFER_ROWS = 10_000
# Numbers that may be thousands of times as large as they seem.
POINTS_OF_THOUSANDS = r"^\s*[-+]?[1-9]\d{0,2}(\.\d{3})+\s*$"
SEPARATORS = ",\t;|"
# Lines that are searched for a fault, which takes some seconds.
MOST_LINES_SEARCHED = 5_000_000
# Bytes read at a time to count lines.
LINE_BLOCK = 1 << 20


def delimited(
    file: Path, head: bytes, kind: str, text: Collection[str], allowance: Allowance
) -> Contents:
    """A text file with a separator; each column gets the narrowest type that keeps all its values."""
    start = head.decode("utf-8-sig", errors="replace")
    outside_quotes, line_end, _ = re.sub(r'"[^"]*"', "", start).partition("\n")
    if not line_end and file.stat().st_size > len(head):
        raise TableError(
            f"{allowance.name} has a first line of more than {len(head):,} bytes: it is not {kind}, a "
            "quote in it is never closed, or it has too many columns (--max-columns)."
        )
    separator = "\t" if kind == "TSV" else max(SEPARATORS, key=outside_quotes.count)
    # A short line has empty values at its end, so lines of two bytes can claim any number of them.
    allowance.check_table(_count_lines(file), outside_quotes.count(separator) + 1)
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
    try:
        return _typed(file, first, options, text, allowance)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        fault = _first_fault(file, separator)
        if fault is None:
            raise
        raise TableError(f"{allowance.name} cannot be read: {fault}.") from error


def _typed(
    file: Path, first: list[str], options: dict[str, Any], text: Collection[str], allowance: Allowance
) -> Contents:
    """Find the type of each column, in as many passes over the file as it takes."""
    guessed = pl.scan_csv(file, infer_schema_length=INFER_ROWS, **options)
    read = guessed.collect_schema()
    # Columns are numbered until the end: Polars takes names such as "*" for patterns.
    number = {name: str(i) for i, name in enumerate(read)}
    types: dict[str, Any] = dict(zip(number.values(), read.dtypes(), strict=True))
    names = dict(zip(types, _names(list(read), first, options["has_header"]), strict=True))
    fixed = {name for name in types if names[name] in text}
    padded = _padded(guessed.rename(number), types, fixed)
    types |= dict.fromkeys(fixed, pl.String())

    def scan(types: dict[str, Any], ignore_errors: bool = False) -> pl.LazyFrame:
        raw = {name: pl.String() if n in padded else types[n] for name, n in number.items()}
        found = pl.scan_csv(file, schema=raw, ignore_errors=ignore_errors, **options).rename(number)
        return found.with_columns(
            _stripped(name).cast(types[name], strict=not ignore_errors) for name in padded
        )

    # Polars maps the whole file to memory to count rows alone, but not to count missing values as well.
    as_text = scan(dict.fromkeys(types, pl.String()))
    n_rows, missing = _count(as_text, pl.all().is_null() | (pl.all() == ""))
    for name in _not_from_the_year(as_text, [n for n in types if types[n].is_temporal()]):
        types[name] = pl.String()
    # Widen every column that loses values with its guessed type, until none does.
    suspects = [n for n in types if types[n] != pl.String()]
    if n_rows <= INFER_ROWS:  # Polars has seen all values, but guesses formats of dates from a few
        suspects = [n for n in suspects if types[n].is_temporal()]
    while suspects:
        _, lost = _count(scan(types, True).select(suspects), pl.all().is_null())
        suspects = [name for name in suspects if lost[name] > missing[name]]
        for name in suspects:
            types[name] = pl.Float64() if types[name] == pl.Int64() else pl.String()
        suspects = [name for name in suspects if types[name] != pl.String()]
    floats = [name for name in types if types[name] == pl.Float64()]
    unclear, clear = _unclear_points(as_text, floats)
    types |= dict.fromkeys(unclear, pl.String())
    found = from_polars(scan(types).rename(names), n_rows, allowance)
    return found._replace(shows_points=clear or options["separator"] == ",")


def _not_from_the_year(as_text: pl.LazyFrame, names: list[str]) -> list[str]:
    """Columns whose dates do not begin with the year: Polars would always take the day for the first."""
    sample = as_text.select(names).head(INFER_ROWS).collect(engine="streaming")
    return [name for name in names if sample[name].str.contains(r"^\s*\d{1,2}[-/.]").any()]


def _unclear_points(as_text: pl.LazyFrame, names: list[str]) -> tuple[list[str], bool]:
    """Numbers whose points may all stand between thousands, and whether others have decimal points."""
    clear = pl.all().str.contains(".", literal=True) & ~pl.all().str.contains(POINTS_OF_THOUSANDS)
    sample = as_text.select(names).head(INFER_ROWS)
    _, found = _count(sample, clear)
    suspects = [name for name in names if not found[name]]
    if not suspects:
        return [], bool(names)
    _, points = _count(as_text.select(suspects), pl.all().str.contains(".", literal=True))
    suspects = [name for name in suspects if points[name]]
    _, found = _count(as_text.select(suspects), clear)
    unclear = [name for name in suspects if not found[name]]
    return unclear, len(names) > len(unclear)


def _first_fault(file: Path, separator: str) -> str | None:
    """What is wrong with the first line that cannot be split into fields, if there is one."""
    with file.open("rb") as stream:
        lines = itertools.islice(stream, MOST_LINES_SEARCHED)
        records = csv.reader(
            (line.decode("utf-8-sig") for line in lines), delimiter=separator, strict=True
        )
        width, begin = None, 1
        try:
            for fields in records:
                width = len(fields) if width is None else width
                if len(fields) > width:
                    return f"line {begin:,} has {len(fields):,} fields, and the first line has {width:,}"
                begin = records.line_num + 1
        except csv.Error:
            return f"a quote in line {begin:,} is never closed, or is followed by more than a separator"
        except UnicodeDecodeError:
            return f"line {records.line_num + 1:,} is not UTF-8"
    return None


def _count_lines(file: Path) -> int:
    with file.open("rb") as stream:
        return sum(block.count(b"\n") for block in iter(lambda: stream.read(LINE_BLOCK), b""))


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
    if not strings:
        return []
    differs = sample.select((pl.all() != pl.all().str.strip_chars()).any()).row(0, named=True)
    padded = [name for name in strings if differs[name]]
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


def _count(scan: pl.LazyFrame, condition: pl.Expr) -> tuple[int, dict[str, int]]:
    """The number of rows, and in how many of them each column meets a condition."""
    counts = (
        scan.select(pl.len().alias("rows"), condition.sum())
        .collect(engine="streaming")
        .row(0, named=True)
    )
    return counts.pop("rows"), counts


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
