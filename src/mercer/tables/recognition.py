"""Which columns of text hold numbers or dates, and how those are written.

A notation is taken only if it fits every value of a column.  Where two fit and differ, as for 1,234 or
03/04/2024, other columns of the same file decide, or an option; otherwise the file is refused.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from mercer.tables.errors import TableError
from mercer.tables.kinds import kind_of
from mercer.tables.notation import (
    MULTIPLES,
    Notation,
    date_pattern,
    digits_pattern,
    has_no_value,
    read_dates,
    split,
    stripped,
)
from mercer.tables.table import Table
from mercer.tables.wording import count_columns, listed, quoted

# Marks of groups and of decimals, the usual ones first.
MARKS = (
    *(("", "."), (",", "."), (" ", "."), ("'", ".")),
    *(("", ","), (".", ","), (" ", ","), ("'", ",")),
)
# Whole numbers as they are in columns of codes, too.
PLAIN_DIGITS = r"^[-+]?\d+$"
# Digits that are a number with a fraction, or a thousand times as many.
UNCLEAR_DIGITS = r"^[1-9]\d{0,2}[.,]\d{3}$"
DAYS_FIRST = ("%d/%m/%Y", "%d-%m-%Y", "%d/%m/%y", "%d-%m-%y")
MONTHS_FIRST = ("%m/%d/%Y", "%m-%d-%Y", "%m/%d/%y", "%m-%d-%y")
CLEAR_DATES = (
    *("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%d.%m.%y"),
    *("%d-%b-%Y", "%d-%b-%y", "%d/%b/%Y", "%d %b %Y", "%d %B %Y", "%d. %B %Y", "%b %d, %Y", "%B %d, %Y"),
)
CLOCKS = (
    *("", " %H:%M", " %H:%M:%S", " %H:%M:%S%.f", "T%H:%M", "T%H:%M:%S", "T%H:%M:%S%.f"),
    *(" %I:%M %p", " %I:%M:%S %p", " %I:%M%p"),
)
# Text is doubtful if at least this share of its values, but not all, are numbers.
DOUBTFUL_SHARE = 0.9
# Labels are hardly ever dates, so a smaller share of those will do.
DOUBTFUL_DATES = 0.5
FEWEST_DOUBTFUL = 10
# Values after which a column without numbers and dates is given up.
ENOUGH_VALUES = 10_000


@dataclass(frozen=True)
class Wishes:
    """What the user said about how columns are written."""

    number: Collection[str] = ()  # columns of numbers; their other values are missing
    text: Collection[str] = ()  # columns that are not to be read as numbers or dates
    decimal: str | None = None  # the mark before fractions, where it is unclear
    dates: str | None = None  # "dmy" or "mdy", where it is unclear


@dataclass(frozen=True)
class WaysOut:
    """What to do about values that can be read in two ways."""

    decimal: str = "Use --decimal . or --decimal , to say which mark is the decimal one."
    dates: str = "Use --dates dmy or --dates mdy to say which."


COMMAND_OPTIONS = WaysOut()


@dataclass(frozen=True)
class Recognised:
    """How columns of text are written."""

    notations: dict[str, Notation] = field(default_factory=dict)
    doubts: dict[str, str] = field(default_factory=dict)  # why a column that looks like numbers is text
    date_doubts: dict[str, str] = field(default_factory=dict)  # why one that looks like dates is
    notes: tuple[str, ...] = ()
    decimal: str | None = None  # the mark before fractions, if it was said or all columns agree


def recognise(
    table: Table, names: Sequence[str], wishes: Wishes, ways_out: WaysOut = COMMAND_OPTIONS
) -> Recognised:
    """Find the columns of numbers and dates among those of text, in one pass over them."""
    evidence = _gather(table, names, wishes.text)
    decimal, dates = _settled(table, evidence, wishes)
    notations, doubts, date_doubts = {}, {}, {}
    for name, found in evidence.items():
        forced = name in wishes.number
        if found.date_forms:
            notations[name] = found.dates(table.name, name, dates, ways_out.dates)
        elif found.date_fault is not None and not forced:
            row, value = found.date_fault
            date_doubts[name] = f"row {row + 1:,} holds {quoted(value)}"
        elif found.n_number and (forced or found.is_number or found.is_doubtful):
            doubt = found.doubt(forced)
            if doubt is None:
                what = f"The column {quoted(name)} of {table.name}"
                notations[name] = found.numbers(what, decimal, forced, ways_out.decimal)
            elif forced:
                raise TableError(f"The column {quoted(name)} cannot be read as numbers: {doubt}.")
            else:
                doubts[name] = doubt
        elif forced:
            raise TableError(
                f"The column {quoted(name)} has no numbers: row {found.other[0] + 1:,} holds "
                f"{quoted(found.other[1])}. Leave it out of --number."
            )
    return Recognised(notations, doubts, date_doubts, tuple(_notes(notations, evidence)), decimal)


def written_numbers(what: str, values: pl.Series, decimal: str | None, way_out: str) -> Notation | None:
    """How these numbers are written; None if most values are no numbers.  `what` is for messages."""
    found = _Evidence()
    found.add(values, 0)
    if 2 * found.n_number <= found.n_known:
        return None
    doubt = found.doubt(forced=True)
    if doubt is not None:
        raise TableError(f"{what} cannot be read as numbers: {doubt}. {way_out}")
    return replace(found.numbers(what, decimal, True, way_out), others_missing=False)


class _Evidence:
    """Collects what the values of one column look like, a chunk at a time."""

    def __init__(self) -> None:
        self.n_known = 0
        self.n_without = 0  # texts that say that there is no value
        self.without = ""  # the first of them
        self.n_number = 0
        self.fits: Counter[tuple[str, str]] = Counter()  # numbers that each pair of marks fits
        self.affixes: Counter[str] = Counter()
        self.date_counts: dict[str, int] | None = None
        self.date_faults: dict[str, tuple[int, str]] = {}  # row and first value not in each format
        self.unclear: tuple[int, str] | None = None  # row and value of a number with two readings
        self.other: tuple[int, str] = (0, "")  # row and value of the first that is no number
        self.first: tuple[int, str] = (0, "")
        self.telling: tuple[int, str] | None = None  # row and first value with a mark or a unit
        self.bracketed: tuple[int, str] | None = None  # row and first value in parentheses
        self.is_formatted = False  # some numbers are not plain digits
        self.has_codes = False  # numbers with leading zeros
        self.has_marks = False  # of decimals or groups

    def add(self, values: pl.Series, start: int) -> None:
        if self.n_known > ENOUGH_VALUES and 2 * self.n_number < self.n_known and not self.date_counts:
            return
        bare = stripped(values).alias("value")
        absent = has_no_value(bare)
        without = bare.filter(absent & bare.is_not_null())
        self.without = self.without or (without[0] if len(without) else "")
        self.n_without += len(without)
        bare_known = bare.filter(~absent)
        if not len(bare_known):
            return
        counts = bare_known.value_counts(name="n")
        distinct, n = counts["value"], counts["n"]
        if not self.n_known:
            self.first = (start + int((~absent).arg_max() or 0), bare_known[0])
        self.n_known += len(bare_known)
        self._add_numbers(distinct, n, bare, start)
        if self.date_counts is None:
            self.date_counts = dict.fromkeys(_date_forms(bare_known[0]), 0)
        for form in self.date_counts:
            fits = read_dates(distinct, form).is_not_null()
            self.date_counts[form] += int(n.filter(fits).sum())
            if form not in self.date_faults and not fits.all():
                self.date_faults[form] = _first_of(distinct.filter(~fits), bare, start)

    def _add_numbers(self, distinct: pl.Series, n: pl.Series, bare: pl.Series, start: int) -> None:
        parts = split(distinct)
        number = parts.is_number.fill_null(False)
        others = distinct.filter(~number)
        if len(others) and not self.other[1]:
            self.other = _first_of(others, bare, start)
        if not number.any():
            return
        n, digits, affix = n.filter(number), parts.digits.filter(number), parts.affix.filter(number)
        numbers = distinct.filter(number)
        self.n_number += int(n.sum())
        for name, count in pl.DataFrame({"a": affix, "n": n}).group_by("a").agg(pl.sum("n")).iter_rows():
            self.affixes[name] += count
        for marks in MARKS:
            self.fits[marks] += int(n.filter(digits.str.contains(digits_pattern(*marks))).sum())
        self.has_codes = self.has_codes or bool(digits.str.contains(r"^0\d+$").any())
        self.has_marks = self.has_marks or bool(digits.str.contains(r"\D").any())
        self.is_formatted = self.is_formatted or not numbers.str.contains(PLAIN_DIGITS).all()
        unclear = digits.str.contains(UNCLEAR_DIGITS)
        if self.unclear is None and unclear.any():
            self.unclear = _first_of(numbers.filter(unclear), bare, start)
        telling = (affix != "") | digits.str.contains(r"[^\d.]")
        if self.telling is None and telling.any():
            self.telling = _first_of(numbers.filter(telling), bare, start)
        bracketed = numbers.str.starts_with("(")
        if self.bracketed is None and bracketed.any():
            self.bracketed = _first_of(numbers.filter(bracketed), bare, start)

    @property
    def is_number(self) -> bool:
        """Whether all values are numbers, written so that the column is more than one of codes."""
        formatted = self.is_formatted or self.n_without > 0
        return 0 < self.n_number == self.n_known and formatted and not self.has_codes

    @property
    def is_doubtful(self) -> bool:
        most = DOUBTFUL_SHARE * self.n_known <= self.n_number < self.n_known
        return most and self.n_known >= FEWEST_DOUBTFUL and not self.has_codes

    @property
    def date_forms(self) -> list[str]:
        """The formats of dates that fit all values."""
        counts = self.date_counts or {}
        return [form for form in counts if counts[form] == self.n_known > 0]

    @property
    def date_fault(self) -> tuple[int, str] | None:
        """Row and first value that is not written as most others, which are dates."""
        counts = self.date_counts or {}
        form = max(counts, key=counts.__getitem__, default="")
        most = self.n_known >= FEWEST_DOUBTFUL and counts.get(form, 0) >= DOUBTFUL_DATES * self.n_known
        return self.date_faults.get(form) if most else None

    @property
    def marks(self) -> list[tuple[str, str]]:
        """The marks that fit all numbers."""
        return [marks for marks in MARKS if self.fits[marks] == self.n_number > 0]

    @property
    def decimals(self) -> set[str]:
        """The decimal marks with which its numbers can be read, if they show any."""
        found = {decimal for _, decimal in self.marks}
        shown = self.has_marks and (self.unclear is not None or len(found) == 1)
        return found if shown else set()

    def doubt(self, forced: bool) -> str | None:
        """Why these numbers cannot be compared with one another."""
        if not self.marks:
            return "decimal points and decimal commas are mixed in it"
        units = [affix for affix in self.affixes if affix]
        if len(units) > 1:
            return f"its values have different units, {listed(units)}"
        if units and units[0] in MULTIPLES and "" in self.affixes:
            return f"{self.affixes[units[0]]:,} of its values have {quoted(units[0])} and others do not"
        if self.n_number < self.n_known and not forced:
            return f"row {self.other[0] + 1:,} holds {quoted(self.other[1])}"
        return None

    def numbers(self, what: str, decimal: str | None, forced: bool, way_out: str) -> Notation:
        """The notation of the numbers; `decimal` decides between two readings."""
        possible = self.marks
        if self.has_marks and len({mark for _, mark in possible}) > 1 and self.unclear is not None:
            possible = [marks for marks in possible if marks[1] == decimal]
            if not possible:
                row, value = self.unclear
                raise TableError(
                    f"{what} can be read in two ways: {quoted(value)} in row {row + 1:,} has a decimal "
                    f"mark, or one between thousands. {way_out}"
                )
        group, mark = possible[0]
        units = tuple(sorted(affix for affix in self.affixes if affix))
        alone = () if units and units[0] in MULTIPLES else ("",)
        others_missing = forced and self.n_number < self.n_known
        return Notation(mark, group, (*alone, *units), others_missing=others_missing)

    def dates(self, file: str, name: str, order: str | None, way_out: str) -> Notation:
        """The notation of the dates; `order` decides between two readings."""
        forms = self.date_forms
        orders = {_order(form) for form in forms} - {None}
        if len(orders) > 1:
            forms = [form for form in forms if _order(form) in (order, None)]
            if order is None or not forms:
                row, value = self.first
                raise TableError(
                    f"The dates in the column {quoted(name)} of {file} can be read in two ways: "
                    f"{quoted(value)} in row {row + 1:,} has the day first, or the month. {way_out}"
                )
        return Notation(date=forms[0])


def _gather(table: Table, names: Sequence[str], skipped: Collection[str]) -> dict[str, _Evidence]:
    """What the columns of text look like."""
    first = next(table.chunks(names, rows=1), None) if names else None
    if first is None:
        return {}
    schema = first.schema
    texts = [name for name in names if kind_of(schema[name]) == "text" and name not in skipped]
    evidence = {name: _Evidence() for name in texts}
    row = 0
    for frame in table.chunks(texts) if texts else ():
        for name, found in evidence.items():
            found.add(frame[name], row)
        row += len(frame)
    return evidence


def _settled(
    table: Table, evidence: dict[str, _Evidence], wishes: Wishes
) -> tuple[str | None, str | None]:
    """The decimal mark and the order of dates where a column alone does not tell."""
    numbers = [found for found in evidence.values() if found.is_number]
    shown = {next(iter(found.decimals)) for found in numbers if len(found.decimals) == 1}
    if table.shows_points:
        shown.add(".")
    orders: set[str] = set()
    for found in evidence.values():
        possible = {order for order in map(_order, found.date_forms) if order is not None}
        if len(possible) == 1:
            orders |= possible
    decimal = wishes.decimal or (shown.pop() if len(shown) == 1 else None)
    return decimal, wishes.dates or (orders.pop() if len(orders) == 1 else None)


def _date_forms(value: str) -> list[str]:
    """The formats that may be those of a column with this value."""
    dates = (*CLEAR_DATES, *DAYS_FIRST, *MONTHS_FIRST)
    forms = [date + clock for date, clock in itertools.product(dates, CLOCKS)]
    one = pl.Series([value])
    return [form for form in forms if one.str.contains(date_pattern(form)).any()]


def _order(form: str) -> str | None:
    """Whether a format has the day or the month first, if it may be mistaken."""
    if form.startswith(DAYS_FIRST):
        return "dmy"
    return "mdy" if form.startswith(MONTHS_FIRST) else None


def _first_of(values: pl.Series, bare: pl.Series, start: int) -> tuple[int, str]:
    """The first row with one of these values, and its value."""
    row = int(bare.is_in(values.implode()).arg_true()[0])
    return start + row, str(bare[row])


def _notes(notations: dict[str, Notation], evidence: dict[str, _Evidence]) -> Iterable[str]:
    """How the columns are read, those that are read alike in one sentence."""
    alike: dict[Notation, list[str]] = {}
    for name, notation in notations.items():
        alike.setdefault(replace(notation, others_missing=False), []).append(name)
    for notation, names in alike.items():
        how = notation.describe()
        if not how:  # as most files have them
            continue
        what = f"dates, {how}," if notation.date else f"numbers with {how}"
        verb = "is" if len(names) == 1 else "are"
        seen = evidence[names[0]]
        example = (seen.first if notation.date else seen.unclear or seen.telling or seen.first)[1]
        count = count_columns(len(names))
        yield f"{count} {verb} read as {what} such as {quoted(example)}: {listed(names)}"
    for name, notation in notations.items():
        found = evidence[name]
        if notation.others_missing:
            row, value = found.other
            yield (
                f"what is no number in {quoted(name)} counts as missing: "
                f"{found.n_known - found.n_number:,} of {found.n_known:,} values, the first "
                f"{quoted(value)} in row {row + 1:,}"
            )
        if found.bracketed is not None:
            value = quoted(found.bracketed[1])
            yield f"numbers in parentheses in {quoted(name)}, such as {value}, are negative"
        units = [affix for affix in notation.affixes if affix]
        if units and "" in found.affixes:
            yield (
                f"{quoted(name)} has {quoted(units[0])} in {found.affixes[units[0]]:,} of "
                f"{found.n_number:,} values; the others are taken to be in the same unit"
            )
        if found.n_without:
            yield (
                f"{quoted(found.without)} and the like count as missing in {quoted(name)}: "
                f"{found.n_without:,} of {found.n_known + found.n_without:,} values"
            )
