"""Numbers in lines of text: four digits, and marks between thousands."""

from __future__ import annotations

# From here on a float has no digits for ones.
MOST_WHOLE = 1e15


def in_digits(value: float, digits: int = 4) -> str:
    """A number with four significant digits, or as many as it has before the point.

    >>> in_digits(0.04464159), in_digits(7332.1), in_digits(395_612_345.6), in_digits(2.5e-7)
    ('0.04464', '7,332', '395,612,346', '2.5e-07')
    """
    if 10 ** (digits - 1) <= abs(value) < MOST_WHOLE:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"
