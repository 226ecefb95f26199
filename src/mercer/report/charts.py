"""Charts as SVG text: lines, dots, spans and columns between two axes.

Colours are CSS classes (`a` and `b` for the two series, `soft` for the background), so that the style
sheet of the page can change them for dark mode and for printing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mercer.report.markup import Markup, element
from mercer.report.numbers import number, power_of_ten

# In CSS pixels on a phone, where a chart is as wide as the page: its text is then as large as the small
# text of the page.  Wider screens show charts side by side.
WIDTH, HEIGHT = 360, 250
RIGHT, TOP, BOTTOM = 14, 26, 38
# Mean width of a character in a chart.
CHARACTER_WIDTH = 6.3
MOST_TICKS = 6
# Digits before the point that fit beside an axis.
MOST_DIGITS_OF_TICK = 7
# Values that differ by a smaller factor are drawn on a linear axis even if a logarithmic one is allowed.
LEAST_LOG_RATIO = 5.0


@dataclass(frozen=True)
class Axis:
    """A range of values; `kind` is "number", "whole" or "share" (a fraction, shown in per cent)."""

    label: str
    low: float
    high: float
    log: bool = False
    kind: str = "number"

    @classmethod
    def around(cls, label: str, values: ArrayLike, *, log: bool = False, kind: str = "number") -> Axis:
        """An axis for all finite values, with a margin; `log` allows a logarithmic one."""
        found = np.asarray(values, dtype=float)
        found = found[np.isfinite(found)]
        positive = found[found > 0]
        if log and len(positive) and positive.max() >= LEAST_LOG_RATIO * positive.min():
            low, high = math.log10(positive.min()), math.log10(positive.max())
            margin = 0.04 * (high - low)
            return cls(label, 10 ** (low - margin), 10 ** (high + margin), True, kind)
        low, high = (float(found.min()), float(found.max())) if len(found) else (0.0, 1.0)
        # Equal values are placed in the middle.
        margin = 0.04 * (high - low) or 0.5 * abs(high) or 0.5
        return cls(label, low - margin, high + margin, False, kind)

    def share(self, values: ArrayLike) -> NDArray[np.float64]:
        """Positions from 0 (lower end) to 1 (upper end); NaN for values without a logarithm."""
        v = np.asarray(values, dtype=float)
        if not self.log:
            return np.asarray((v - self.low) / (self.high - self.low))
        logs = np.log(np.where(v > 0, v, np.nan))
        return np.asarray((logs - math.log(self.low)) / math.log(self.high / self.low))

    def ticks(self) -> list[tuple[float, str]]:
        """Values of the ticks, and their labels."""
        found = list(self._log_ticks() if self.log else self._linear_ticks())
        if self.kind == "share":
            return [(v, f"{number(100 * v)}\u00a0%") for v in found]
        exponents = [round(math.log10(v)) for v in found] if self.log else []
        powers = self.log and found == [10.0**e for e in exponents]
        if powers and len(found) > 2 and max(map(abs, exponents)) > 3:
            return [(v, power_of_ten(e)) for v, e in zip(found, exponents, strict=True)]
        # Enough digits to tell one tick from the next.
        apart = min(np.diff(found), default=1.0)
        digits = 1 + math.floor(math.log10(max(map(abs, found), default=1.0) / apart * (1 + 1e-9)))
        return [(v, number(v, max(2, digits + 1), MOST_DIGITS_OF_TICK)) for v in found]

    def _linear_ticks(self) -> Iterator[float]:
        rough = (self.high - self.low) / MOST_TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(f * power for f in (1, 2, 5, 10) if f * power >= rough * (1 - 1e-9))
        if self.kind == "whole":
            step = max(1.0, round(step))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return (round(i * step, 12) if abs(step) > 1e-9 else i * step for i in range(first, last + 1))

    def _log_ticks(self) -> Iterator[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        every = math.ceil((last - first) / MOST_TICKS)
        factors = (1,) if math.log10(self.high / self.low) > 2 else (1, 2, 5)
        for exponent in range(first, last + 1, every):
            for factor in factors:
                if self.low <= (value := factor * 10.0**exponent) <= self.high:
                    yield value


class Chart:
    """Marks between two axes, drawn in the order they are added."""

    def __init__(self, x: Axis, y: Axis, height: float = HEIGHT) -> None:
        self.x, self.y, self.height = x, y, height
        longest = max((len(text) for _, text in y.ticks()), default=0)
        self.left = round(12 + CHARACTER_WIDTH * longest)
        self._marks: list[Markup] = []

    def line(self, x: ArrayLike, y: ArrayLike, kind: str) -> None:
        """A line through points, without those that a logarithmic axis cannot show."""
        points = self._points(x, y)
        self._add("path", d="M" + "L".join(points) if points else None, class_=f"line {kind}")

    def dots(self, x: ArrayLike, y: ArrayLike, kind: str) -> None:
        """Dots, drawn as one path of zero-length lines with round ends: a few bytes per dot."""
        self._add(
            "path", d="".join(f"M{p}h0" for p in self._points(x, y)) or None, class_=f"dots {kind}"
        )

    def spans(self, x: ArrayLike, low: ArrayLike, high: ArrayLike, kind: str) -> None:
        """A vertical line at each x, from low to high."""
        ends = zip(self._points(x, low), self._points(x, high), strict=True)
        self._add("path", d="".join(f"M{a}L{b}" for a, b in ends), class_=f"line {kind}")

    def columns(self, edges: ArrayLike, heights: ArrayLike, kind: str) -> None:
        """A histogram: columns from 0 between consecutive edges."""
        x, y, base = self._px(edges), self._py(heights), self._py([0])[0]
        columns = zip(x[:-1] + 1, x[1:] - 1, y, strict=True)  # a gap of one unit on each side
        d = "".join(f"M{a:.1f} {base:.1f}V{h:.1f}H{b:.1f}V{base:.1f}Z" for a, b, h in columns)
        self._add("path", d=d, class_=f"columns {kind}")

    def ring(self, x: float, y: float) -> None:
        for px, py in zip(self._px([x]), self._py([y]), strict=True):
            self._add("circle", cx=f"{px:.1f}", cy=f"{py:.1f}", r=6, class_="ring")

    def markup(self, title: str, description: str) -> Markup:
        """The chart as SVG; title and description are for screen readers."""
        bottom, right = self.height - BOTTOM, WIDTH - RIGHT
        y_ticks = [(float(self._py([v])[0]), text) for v, text in self.y.ticks()]
        x_ticks = [(float(self._px([v])[0]), text) for v, text in self.x.ticks()]
        grid = "".join(f"M{self.left} {y:.1f}H{right}" for y, _ in y_ticks)
        marks = "".join(f"M{x:.1f} {bottom}v4" for x, _ in x_ticks)
        return element(
            "svg",
            element("title", title),
            element("desc", description),
            element("path", d=grid or None, class_="grid"),
            element("path", d=f"M{self.left} {bottom}H{right}{marks}", class_="axis"),
            *(
                element("text", t, x=self.left - 6, y=f"{y + 4:.1f}", text_anchor="end")
                for y, t in y_ticks
            ),
            *(element("text", t, x=f"{x:.1f}", y=bottom + 16, text_anchor="middle") for x, t in x_ticks),
            *self._marks,
            element("text", self.y.label, x=2, y=12, class_="label"),
            element("text", self.x.label, x=right, y=self.height - 5, text_anchor="end", class_="label"),
            viewBox=f"0 0 {WIDTH} {self.height:g}",
            role="img",
        )

    def _add(self, name: str, /, *children: object, **attributes: object) -> None:
        self._marks.append(element(name, *children, **attributes))

    def _px(self, values: ArrayLike) -> NDArray[np.float64]:
        return self.left + (WIDTH - self.left - RIGHT) * self.x.share(values)

    def _py(self, values: ArrayLike) -> NDArray[np.float64]:
        return self.height - BOTTOM - (self.height - BOTTOM - TOP) * self.y.share(values)

    def _points(self, x: ArrayLike, y: ArrayLike) -> list[str]:
        places = np.column_stack([self._px(x), self._py(y)])  # (points, 2)
        return [f"{a:.1f} {b:.1f}" for a, b in places[np.isfinite(places).all(1)]]
