"""CSV and TSV files."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import polars as pl

from mercer.planning.memory import keep_table
from mercer.tables.bounds import Allowance
from mercer.tables.columnar import from_polars, row_bytes
from mercer.tables.errors import TableError
from mercer.tables.layout import Layout
from mercer.tables.names import about_repeated, numbered
from mercer.tables.notation import MISSING
from mercer.tables.remembered import Remembered
from mercer.tables.table import Contents
from mercer.tables.temporary import TemporaryFiles
from mercer.tables.text_lines import (
    SEPARATORS,
    Lines,
    first_fault,
    is_number,
    look,
    with_new_lines,
    without_comments,
    without_first_line,
)
from mercer.tables.wording import excerpt, listed, quoted

# Rows from which column types are guessed; the guess is then checked on all rows.
INFER_ROWS = 10_000
# Digits that are more often a code, such as a postal one, than a number.
LEADING_ZEROS = r"^\s*0\d"
# Rows in which the words of the first line are looked for.
HEADER_ROWS = 1_000
# Numbers that may be thousands of times as large as they seem.
POINTS_OF_THOUSANDS = r"^\s*[-+]?[1-9]\d{0,2}(\.\d{3})+\s*$"
# Enough of a file to recognise its format.
HEAD_BYTES = 1 << 20
# Bytes of the first line of a CSV file for each column it may have.
NAME_BYTES = 64


def delimited(
    file: Path,
    kind: str,
    text: Collection[str],
    allowance: Allowance,
    layout: Layout,
    temporary: TemporaryFiles,
) -> Contents:
    """A text file with a separator; each column gets the narrowest type that keeps all its values."""
    start = _start(file, allowance)
    if "\r" in start and "\n" not in start:  # as old programs on a Mac end lines
        file = with_new_lines(file, temporary)
        start = _start(file, allowance)
    removed: tuple[int, ...] = ()
    named = re.match(rf"sep=([{SEPARATORS}])\r?\n", start, re.IGNORECASE)  # for Excel
    if named is not None:
        file, removed = without_first_line(file, temporary), (1,)
        start = _start(file, allowance)
    data = re.sub(r"^(#.*\r?\n)+", "", start)
    separator = "\t" if kind == "TSV" else max(SEPARATORS, key=_outside_quotes(data)[0].count)
    separator = separator if named is None else named[1]
    found = _look(file, separator)
    notes = []
    if found.has_comments:
        file, comments = without_comments(file, separator, temporary)
        start, found = _start(file, allowance), _look(file, separator)
        removed = (*removed, *(line + len(removed) for line in comments))
        if comments:
            which = f"{len(comments):,} lines" if len(comments) > 1 else f"line {removed[-1]:,}"
            notes.append(f"skipped {which} of comments, beginning with #")
    outside_quotes, line_end, _ = _outside_quotes(start)
    if not line_end and file.stat().st_size > _head_bytes(allowance):
        raise TableError(
            f"{allowance.name} has a first line of more than {_head_bytes(allowance):,} bytes: it is "
            f"not {kind}, a quote in it is never closed, or it has too many columns (--max-columns)."
        )
    # A short line has empty values at its end, so lines of two bytes can claim any number of them.
    allowance.check_table(found.n_lines, outside_quotes.count(separator) + 1)
    fault = None if found.are_even else _fault(file, separator, removed)
    if fault is not None:
        raise TableError(f"{allowance.name} cannot be read: {fault}.")
    first = next(csv.reader(io.StringIO(start, newline=""), delimiter=separator), [])
    has_header = not all(map(is_number, first)) or first in (
        [str(i) for i in range(len(first))],
        [str(i + 1) for i in range(len(first))],
    )
    options: dict[str, Any] = {
        "separator": separator,
        "has_header": has_header if layout.header is None else layout.header,
        "null_values": MISSING,
        "try_parse_dates": True,
        "glob": False,
    }
    try:
        contents = _typed(file, found.n_lines, first, options, text, allowance)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        fault = _fault(file, separator, removed)
        if fault is None:
            raise
        raise TableError(f"{allowance.name} cannot be read: {fault}.") from error
    guessed = layout.header is None and options["has_header"]
    if guessed and _looks_like_data(first, contents):
        notes.append(
            "the first line gives the names of the columns, although it looks like data: "
            f"{listed(first)}; --no-header reads it as data"
        )
        contents = contents._replace(doubtful_header=True)
    return contents._replace(notes=(*notes, *contents.notes))


def _looks_like_data(first: list[str], contents: Contents) -> bool:
    """Whether the first line has a fraction, or each of its words is a value of the column below it."""
    fields = [field.strip() for field in first]
    if len(fields) != len(contents.names):
        return False
    if any(is_number(field) and not field.lstrip("+-").isdecimal() for field in fields):
        return True
    frame = next(contents.read(contents.names, HEADER_ROWS), None)
    words = [i for i, field in enumerate(fields) if not is_number(field)]
    if frame is None or not words:
        return False
    texts = frame[:, words]
    return all(dtype == pl.String() for dtype in texts.dtypes) and all(
        (column.str.strip_chars() == fields[i]).any()
        for i, column in zip(words, texts.get_columns(), strict=True)
    )


def _look(file: Path, separator: str) -> Lines:
    with file.open("rb") as stream:
        return look(stream, separator)


def _fault(file: Path, separator: str, removed: tuple[int, ...]) -> str | None:
    with file.open("rb") as stream:
        return first_fault(stream, separator, removed)


def _start(file: Path, allowance: Allowance) -> str:
    """Enough of the file for its first line."""
    with file.open("rb") as stream:
        return stream.read(_head_bytes(allowance)).decode("utf-8-sig", errors="replace")


def _head_bytes(allowance: Allowance) -> int:
    return max(HEAD_BYTES, NAME_BYTES * allowance.columns)


def _outside_quotes(text: str) -> tuple[str, str, str]:
    """The first line without what is in quotes, its end, and the rest."""
    return re.sub(r'"[^"]*"', "", text).partition("\n")


def _typed(
    file: Path,
    n_lines: int,
    first: list[str],
    options: dict[str, Any],
    text: Collection[str],
    allowance: Allowance,
) -> Contents:
    """Find the type of each column: guessed from the first rows, and widened where others do not fit.

    If the guess is right, the file is parsed once; a table that is not too large stays in memory.
    """
    guessed = pl.scan_csv(file, infer_schema_length=INFER_ROWS, **options)
    read = guessed.collect_schema()
    # Columns are numbered until the end: Polars takes names such as "*" for patterns.
    number = {name: str(i) for i, name in enumerate(read)}
    types: dict[str, Any] = dict(zip(number.values(), read.dtypes(), strict=True))
    own_names, repeated = _names(list(read), first, options["has_header"])
    names = dict(zip(types, own_names, strict=True))
    fixed = {name for name in types if names[name] in text}
    padded = _padded(guessed.rename(number), types, fixed)
    types |= dict.fromkeys(fixed, pl.String())

    def scan(types: dict[str, Any], ignore_errors: bool = False) -> pl.LazyFrame:
        raw = {name: pl.String() if n in padded else types[n] for name, n in number.items()}
        found = pl.scan_csv(file, schema=raw, ignore_errors=ignore_errors, **options).rename(number)
        return found.with_columns(
            _stripped(name).cast(types[name], strict=not ignore_errors) for name in padded
        )

    as_text = scan(dict.fromkeys(types, pl.String()))
    for name in _not_from_the_year(as_text, [n for n in types if types[n].is_temporal()]):
        types[name] = pl.String()
    keep = keep_table(file.stat().st_size + n_lines * row_bytes(types.values()))
    try:
        n_rows, frame = _read(scan(types), keep)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        _widen(types, scan, as_text)
        n_rows, frame = _read(scan(types), keep)
    floats = [name for name in types if types[name] == pl.Float64()]
    unclear, clear = _unclear_points(as_text, floats)
    if unclear:
        types |= dict.fromkeys(unclear, pl.String())
        n_rows, frame = _read(scan(types), keep)
    found = from_polars(scan(types).rename(names), n_rows, allowance)
    if frame is not None:
        found = Remembered(frame.rename(names)).contents(found)
    points = clear or options["separator"] == ","
    integers = {name: names[name] for name in types if types[name] == pl.Int64()}
    notes = (*about_repeated(repeated), *_about_leading_zeros(as_text, integers))
    return found._replace(shows_points=points, notes=notes, repeated=repeated)


def _read(scan: pl.LazyFrame, keep: bool) -> tuple[int, pl.DataFrame | None]:
    """The number of rows, and the rows if they are to be kept; raises for a value of another type."""
    if keep:
        frame = scan.collect(engine="streaming")
        return len(frame), frame
    # Polars maps the whole file to memory to count rows alone, but not to count missing values as well.
    return _count(scan, pl.all().is_null())[0], None


def _widen(types: dict[str, Any], scan: Callable[..., pl.LazyFrame], as_text: pl.LazyFrame) -> None:
    """Widen every column that loses values with its guessed type, until none does."""
    _, missing = _count(as_text, pl.all().is_null() | (pl.all() == ""))
    suspects = [name for name in types if types[name] != pl.String()]
    while suspects:
        _, lost = _count(scan(types, True).select(suspects), pl.all().is_null())
        suspects = [name for name in suspects if lost[name] > missing[name]]
        for name in suspects:
            types[name] = pl.Float64() if types[name] == pl.Int64() else pl.String()
        suspects = [name for name in suspects if types[name] != pl.String()]


def _not_from_the_year(as_text: pl.LazyFrame, names: list[str]) -> list[str]:
    """Columns whose dates do not begin with the year: Polars would always take the day for the first."""
    sample = as_text.select(names).head(INFER_ROWS).collect(engine="streaming")
    return [name for name in names if sample[name].str.contains(r"^\s*\d{1,2}[-/.]").any()]


def _about_leading_zeros(as_text: pl.LazyFrame, names: dict[str, str]) -> list[str]:
    """Notes on whole numbers that may be codes; `names` are the user's, by column."""
    sample = as_text.select(list(names)).head(INFER_ROWS).collect(engine="streaming")
    notes = []
    for name, own in names.items():
        found = sample[name].filter(sample[name].str.contains(LEADING_ZEROS))
        if len(found):
            notes.append(
                f"the column {quoted(own)} has whole numbers with leading zeros, such as "
                f"{excerpt(found[0].strip())}, and is read as numbers; --category reads it as codes"
            )
    return notes


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


def _names(read: list[str], first: list[str], has_header: bool) -> tuple[list[str], frozenset[str]]:
    """Names from the first record, and those that several columns have; the later ones get a number.

    The names of Polars keep doubled quotes and surrounding blanks.
    """
    if not has_header:
        return [f"x{i}" for i in range(len(read))], frozenset()
    given = [name.strip() for name in first]
    if len(given) != len(read):
        return read, frozenset()
    return numbered(given)


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
