"""Numbers for readers: no more digits than the data justifies, a proper minus sign, units of time."""

from __future__ import annotations

import math

# Digits before the point that can be read at a glance, with marks between the thousands.
MOST_DIGITS = 12
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float, digits: int = 3, most: int = MOST_DIGITS) -> str:
    """A number with at least `digits` significant digits, and no trailing zeros.

    With more than `most` digits before the point, it gets a power of ten.

    >>> number(0.04996), number(-12345.6), number(2.5e-7), number(0)
    ('0.05', '−12,346', '2.5×10⁻⁷', '0')
    >>> number(1.2e9), number(2.5e14)
    ('1,200,000,000', '2.5×10¹⁴')
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    mantissa, power = f"{value:.{digits - 1}e}".split("e")
    exponent = int(power)
    if -4 <= exponent < most:
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


def probability(value: float) -> str:
    """A probability in per cent, never rounded to certainty.

    >>> probability(0.8766), probability(0.99999), probability(0.0001)
    ('87.7\\xa0%', '>\\xa099.9\\xa0%', '<\\xa00.1\\xa0%')
    """
    if value > 0.9995:
        return ">\u00a099.9\u00a0%"
    return "<\u00a00.1\u00a0%" if value < 0.0005 else f"{100 * value:.1f}\u00a0%"


def three_decimals(value: float) -> str:
    return f"{value:.3f}".replace("-", "−")


def duration(seconds: float) -> str:
    if seconds < 99.5:
        return f"{number(seconds, 2)} s" if seconds >= 0.0095 else f"{number(1000 * seconds, 1)} ms"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
