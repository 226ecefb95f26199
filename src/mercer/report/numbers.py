"""Numbers for readers: no more digits than the data justifies, a proper minus sign, units of time."""

from __future__ import annotations

import math

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float, digits: int = 3) -> str:
    """A number with at least `digits` significant digits, and no trailing zeros.

    >>> number(0.04996), number(-12345.6), number(2.5e-7), number(0)
    ('0.05', '−12,346', '2.5×10⁻⁷', '0')
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    mantissa, power = f"{value:.{digits - 1}e}".split("e")
    exponent = int(power)
    if -4 <= exponent < 7:
        return _trimmed(f"{value:,.{max(0, digits - 1 - exponent)}f}")
    factor = "" if float(mantissa) == 1 else f"{_trimmed(mantissa)}×"
    return factor + power_of_ten(exponent)


def cell(value: object) -> str:
    """A value of a table in one line; a number with four digits, or as many as it has before the point.

    >>> cell(0.0446416), cell(38880.0), cell(2023), cell(None), cell("a\\nb")
    ('0.04464', '38,880', '2023', '–', 'a b')
    """
    if value is None:
        return "–"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        is_short = 1e-4 <= abs(value) < 1e4 or value == 0
        return f"{value:.4g}".replace("-", "−") if is_short else number(float(value), 4)
    return " ".join(str(value).split())


def _trimmed(text: str) -> str:
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", "−")


def power_of_ten(exponent: int) -> str:
    """A power of ten with a superscript.

    >>> power_of_ten(-3)
    '10⁻³'
    """
    return "10" + str(exponent).translate(SUPERSCRIPTS)


def percent(share: float, n: int) -> str:
    """A share of n rows in per cent, with no more decimals than n rows justify."""
    decimals = 0 if n < 200 else 1 if n < 5_000 else 2
    return f"{100 * share:.{decimals}f}\u00a0%"


def three_decimals(value: float) -> str:
    return f"{value:.3f}".replace("-", "−")


def duration(seconds: float) -> str:
    if seconds < 99.5:
        return f"{number(seconds, 2)} s" if seconds >= 0.0095 else f"{number(1000 * seconds, 1)} ms"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
