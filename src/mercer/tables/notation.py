"""How numbers and dates are written in a column of text, and reading them.

A notation is decided once, from all values of a training column (`recognition.py`).  It is saved with
the model, so that a later file is read in the same way or not at all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from unicodedata import category

from mercer.tables.wording import quoted

if TYPE_CHECKING:
    import polars as pl

# Spellings of a missing value in any column.  Words that may well be labels ("None") are not among them.
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "?")
# More of them, where all other values are numbers or dates.
NO_VALUE = (
    *MISSING,
    *("-", "--", "–", "—", ".", "None", "none", "n.a.", "N.A.", "NaT", "#NULL!"),
    *("#DIV/0!", "#VALUE!", "#REF!", "#NUM!", "#NAME?"),
)
BLANKS = " \u00a0\u2009\u202f"
# Marks between groups of digits, as regular expressions.
GROUPS = {"": "", ",": ",", ".": r"\.", " ": f"[{BLANKS}]", "'": "['’]"}
# Opening parenthesis, sign, currency, sign, digits, exponent, blank, unit, closing parenthesis.
PARTS = (
    rf"^(\()?([-+−])?[{BLANKS}]*(\p{{L}}{{0,3}}\.?\p{{Sc}}|\p{{L}}{{2,3}}\.?)?[{BLANKS}]*([-+−])?"
    rf"[{BLANKS}]*([.,]?\d(?:[\d.,'’{BLANKS}]*\d)?\.?)([eE][-+]?\d+)?([{BLANKS}]*)"
    r"([\p{L}%‰°\p{Sc}″′][^\s()]{0,11})?(\))?$"
)
CURRENCY_WORDS = (
    "AUD BRL CAD CHF CNY CZK DKK EUR GBP HKD HUF IDR ILS INR JPY KRW MXN NOK NZD PLN RON RUB SEK SGD "
    "THB TRY UAH USD ZAR Fr Fr. Rs Rs. kr kr. zł Kč Ft"
)
CURRENCIES = frozenset(CURRENCY_WORDS.split())
# Units that may follow a number without a blank; others need one.
UNIT_WORDS = (
    "% ‰ ° °C °F kg g mg µg t lb lbs oz km m cm mm nm mi ft in yd km² m² cm² km2 m2 cm2 m³ m3 sqm sqft "
    "ha l L ml mL cl s sec min h hr hrs ms d days yr yrs km/h kmh kph mph m/s mpg kmpl rpm hp PS bhp "
    "cc CC V W kW MW kWh Wh mA mAh Hz kHz MHz GHz Pa kPa hPa bar mbar psi N Nm J kJ cal kcal dB px "
    "kB KB MB GB TB k K M B bn mn Mio Mrd ″ ′"
)
ATTACHED_UNITS = frozenset(UNIT_WORDS.split())
# What multiplies a number: where some values have it and others do not, they cannot be compared.
MULTIPLE_WORDS = (
    "% ‰ k K M m B b bn Bn mn mln mio Mio mrd Mrd Tsd T t thousand million billion lakh crore Cr"
)
MULTIPLES = frozenset(MULTIPLE_WORDS.split())
DATE_PARTS = {
    "%d": r"\d{1,2}",
    "%m": r"\d{1,2}",
    "%Y": r"\d{4}",
    "%y": r"\d{2}",
    "%b": r"[A-Za-z]{3}",
    "%B": r"[A-Za-z]{3,9}",
    "%H": r"\d{1,2}",
    "%I": r"\d{1,2}",
    "%M": r"\d{2}",
    "%S": r"\d{2}",
    "%.f": r"\.\d{1,9}",
    "%p": r"[AaPp][Mm]",
}
SPELLED = {
    **{"%d": "DD", "%m": "MM", "%Y": "YYYY", "%y": "YY", "%b": "Mon", "%B": "Month"},
    **{"%I": "HH", "%H": "HH", "%M": "MM", "%S": "SS", "%.f": ".S", "%p": "AM"},
}


@dataclass(frozen=True)
class Notation:
    """How the numbers, or the dates, of one column are written."""

    decimal: str = "."  # the mark before a fraction
    group: str = ""  # the mark between groups of three digits
    affixes: tuple[str, ...] = ("",)  # currencies and units; "" for a number without any
    date: str = ""  # the format of dates; if there is one, the column has no numbers
    others_missing: bool = False  # what is not written in this way counts as missing

    def read(self, text: pl.Series) -> pl.Series:
        """The values; null where there is none, and where the text is not written in this way."""
        import polars as pl

        bare = stripped(text)
        if self.date:
            return read_dates(bare, self.date)
        parts = split(bare)
        fits = (
            parts.is_number
            & parts.affix.is_in(self.affixes)
            & parts.digits.str.contains(digits_pattern(self.group, self.decimal))
        )
        digits = parts.digits.set(~fits, None)
        if self.group:
            digits = digits.str.replace_all(GROUPS[self.group], "")
        if self.decimal != ".":
            digits = digits.str.replace(self.decimal, ".", literal=True)
        sign = parts.negative.replace_strict({True: "-", False: ""}, return_dtype=pl.String)
        return (sign + digits + parts.exponent).cast(pl.Float64, strict=False).alias(text.name)

    @property
    def is_amount(self) -> bool:
        """Whether its numbers are amounts, and no labels: money, per cent, with a unit, or thousands."""
        known = ATTACHED_UNITS | CURRENCIES
        is_money = any(category(mark) == "Sc" for affix in self.affixes for mark in affix)
        return bool(self.group) or is_money or any(affix in known for affix in self.affixes)

    def describe(self) -> str:
        """The notation in words, without what every number has.

        >>> Notation(",", ".", ("", "€")).describe()
        "decimal commas, '.' between thousands, '€'"
        >>> Notation(date="%m/%d/%Y").describe()
        'MM/DD/YYYY'
        """
        if self.date:
            return re.sub("%\\.f|%[a-zA-Z]", lambda found: SPELLED[found[0]], self.date)
        words = ["decimal commas"] if self.decimal == "," else []
        if self.group:
            words.append(f"{'blanks' if self.group == ' ' else quoted(self.group)} between thousands")
        return ", ".join([*words, *(quoted(affix) for affix in self.affixes if affix)])


# How numbers and dates are written in most files.
PLAIN_NUMBERS = Notation()
# Dates that begin with the year can be read in one way only.
PLAIN_DATES = ("%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S%.f")


class NumberParts(NamedTuple):
    """The parts of texts that may be numbers."""

    is_number: pl.Series  # has digits, and beside them at most a sign and a currency or unit
    negative: pl.Series
    affix: pl.Series  # "" without one
    digits: pl.Series  # with their marks
    exponent: pl.Series


def stripped(text: pl.Series) -> pl.Series:
    import polars as pl

    return text.cast(pl.String).str.strip_chars(BLANKS + "\t\r\n")


def has_no_value(bare: pl.Series) -> pl.Series:
    """Which texts, without the blanks around them, say that there is no value."""
    return bare.is_null() | bare.is_in(NO_VALUE).fill_null(False)


def split(bare: pl.Series) -> NumberParts:
    """Split texts into the parts of a number."""
    found = bare.str.extract_groups(PARTS).struct.unnest()
    opened, sign, before, inner, digits, exponent, gap, after, closed = found.get_columns()
    before, after = before.fill_null(""), after.fill_null("")
    named = before.is_in(CURRENCIES) | before.str.contains(r"\p{Sc}$") | (before == "")
    unit = (
        after.is_in(ATTACHED_UNITS | CURRENCIES)
        | after.str.contains(r"^\p{Sc}")
        | (gap.fill_null("").str.len_chars() > 0)
        | (after == "")
    )
    minus = sign.is_in(("-", "−")) | inner.is_in(("-", "−"))
    is_number = (
        digits.is_not_null()
        & named
        & unit
        & ((before == "") | (after == ""))
        & ~(sign.is_not_null() & inner.is_not_null())
        & (opened.is_null() == closed.is_null())
    )
    negative = minus.fill_null(False) | opened.is_not_null()
    return NumberParts(is_number, negative, before + after, digits, exponent.fill_null(""))


def digits_pattern(group: str, decimal: str) -> str:
    """The regular expression of unsigned numbers with these marks."""
    whole, point = r"\d+", re.escape(decimal)
    if group:
        whole = rf"[1-9]\d{{0,2}}(?:{GROUPS[group]}\d{{3}})+|{whole}"
    if group == ",":  # lakhs and crores
        whole = rf"[1-9]\d?(?:,\d{{2}})+,\d{{3}}|{whole}"
    return rf"^(?:(?:{whole})(?:{point}\d*)?|{point}\d+)$"


def date_pattern(form: str) -> str:
    """The regular expression of a format of dates: Polars alone would take the year 24 for %Y."""
    pattern = re.escape(form)
    for part, expression in DATE_PARTS.items():
        pattern = pattern.replace(re.escape(part), expression)
    return f"^{pattern}$"


def read_dates(bare: pl.Series, form: str) -> pl.Series:
    """Dates in this format; null for all others."""
    fits = bare.str.contains(date_pattern(form))
    return bare.set(~fits.fill_null(False), None).str.to_datetime(form, strict=False, time_unit="us")
