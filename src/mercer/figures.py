"""Numbers in lines of text."""

from __future__ import annotations

# From here on a float has no digits for ones.
MOST_WHOLE = 1e15


def figure(value: float, digits: int = 4) -> str:
    """A number with four significant digits, or as many as it has before the point.

    >>> figure(0.04464159), figure(7332.1), figure(395_612_345.6), figure(2.5e-7)
    ('0.04464', '7,332', '395,612,346', '2.5e-07')
    """
    if 10 ** (digits - 1) <= abs(value) < MOST_WHOLE:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"
