"""The Markdown table of the comparison, and the verdicts on its targets.

A cell is the mean error over splits and its standard error.  Two methods are compared by the paired
differences of their errors on the splits that both were measured on, at least two.  "Within one standard
error" refers to the standard error of the mean of these differences.

A target is met at a size if enough datasets pass, and open while datasets that are not measured could
still decide it.  With declared categories, datasets without categories count with their usual results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import NamedTuple

from benchmarks.defaults.record import Measurement
from benchmarks.defaults.rivals import BOOSTING, LIGHT, LINEAR, MERCER, METHODS, SVM
from benchmarks.defaults.splits import CATEGORIES, TITLES

BEFORE = "Mercer before"
# By how much an error may exceed that of earlier defaults, or of the SVM.
TOLERANCE = 0.02
# Decimals of differences; one row of 5,000 is 2e-4.
DIGITS = 9


class Case(NamedTuple):
    """A line of the table."""

    dataset: str
    rows: int
    whole: bool  # the dataset has fewer training rows than asked for


Errors = dict[int, float]  # by split
Line = dict[str, Errors]  # by method
Lines = dict[Case, Line]


@dataclass(frozen=True)
class Estimate:
    """A mean over splits, and its standard error."""

    mean: float
    error: float


def estimate(values: Sequence[float]) -> Estimate:
    return Estimate(fmean(values), stdev(values) / math.sqrt(len(values)))


def difference(ours: Errors, theirs: Errors) -> Estimate | None:
    """Ours - theirs on the splits of both; None if these are fewer than two.

    >>> difference({0: 0.1, 1: 0.3}, {0: 0.1, 1: 0.1, 2: 0.9})
    Estimate(mean=0.1, error=0.1)
    """
    common = sorted(ours.keys() & theirs.keys())
    if len(common) < 2:
        return None
    found = estimate([ours[i] - theirs[i] for i in common])
    # Rounded, so that equal numbers of wrong rows are a tie; 0.0 turns -0.0 into 0.0.
    return Estimate(round(found.mean, DIGITS) + 0.0, round(found.error, DIGITS))


@dataclass(frozen=True)
class Target:
    text: str
    rivals: Sequence[str]
    needed: int | None  # datasets; None where there is no target
    # Whether the difference to a rival, whose mean error is the second argument, passes.
    passes: Callable[[Estimate, float], bool]


def _at_most(gap: Estimate, theirs: float) -> bool:
    return gap.mean <= TOLERANCE * theirs


TARGETS = (
    Target(
        "no worse than LightGBM, within one standard error",
        [LIGHT],
        12,
        lambda d, _: d.mean <= d.error,
    ),
    Target("better than every boosting library", BOOSTING, 8, lambda d, _: d.mean < 0),
    Target("no worse than the linear model", [LINEAR], 15, lambda d, _: d.mean <= 0),
    Target("at most 2 % worse than the defaults before", [BEFORE], 15, _at_most),
    Target("at most 2 % worse than the SVM with grid search", [SVM], None, _at_most),
)


def judge(line: Line, target: Target) -> tuple[bool | None, Estimate | None]:
    """Whether a dataset passes, and the worst difference; None if measurements are missing."""
    ours = line.get(MERCER, {})
    passed: bool | None = True
    worst: Estimate | None = None
    for rival in target.rivals:
        theirs = line.get(rival, {})
        gap = difference(ours, theirs)
        if gap is None:
            # One rival is enough to fail, and all are needed to pass.
            passed = passed and None
            continue
        if not target.passes(gap, fmean(theirs[i] for i in ours.keys() & theirs.keys())):
            passed = False
        worst = gap if worst is None or gap.mean > worst.mean else worst
    return passed, worst


def verdict(lines: dict[str, Line], target: Target) -> str:
    """One sentence about a target, from the lines of a size by dataset."""
    judged = {name: judge(lines.get(name, {}), target) for name in TITLES}
    passed = sum(ok is True for ok, _ in judged.values())
    failed = [
        f"{TITLES[name]} ({gap.mean:+.4f} ± {gap.error:.4f})"
        for name, (ok, gap) in judged.items()
        if ok is False and gap
    ]
    missing = [TITLES[name] for name, (ok, _) in judged.items() if ok is None]
    text = f"{target.text}: {passed} of {len(TITLES)}"
    if target.needed is not None:
        could = passed + len(missing)
        state = "met" if passed >= target.needed else "open" if could >= target.needed else "missed"
        text += f", target {target.needed}: **{state}**"
    if failed:
        text += f". Not on {'; '.join(failed)}"
    if missing:
        text += f". Not measured on {'; '.join(missing)}"
    return text + "."


def gathered(
    measurements: Iterable[Measurement], before: Iterable[Measurement], declared: bool
) -> Lines:
    """Errors by case, method and split, with categories as they stand or declared."""
    lines: Lines = {}

    def put(m: Measurement, method: str) -> None:
        case = Case(m.dataset, m.rows, m.whole)
        lines.setdefault(case, {}).setdefault(method, {})[m.split] = m.error

    for m in measurements:
        if m.categories == ("declared" if declared and m.dataset in CATEGORIES else "as-they-stand"):
            put(m, m.method)
    # Earlier defaults may not know categories; then their usual results are compared.
    for m in sorted(before, key=lambda m: m.categories):  # "declared" is last and replaces others
        if m.method == MERCER and (declared or m.categories == "as-they-stand"):
            put(m, BEFORE)
    order = [*TITLES, *sorted({case.dataset for case in lines} - set(TITLES))]
    return {c: lines[c] for c in sorted(lines, key=lambda c: (order.index(c.dataset), c.rows))}


def at_size(lines: Lines, size: int) -> dict[str, Line]:
    """The line of each dataset at a size; that of a whole dataset where it has fewer rows."""
    found: dict[str, Line] = {}
    for case, line in lines.items():  # by increasing rows
        if case.rows == size or (case.whole and case.rows < size):
            found[case.dataset] = line
    return found


def cell(errors: Errors, splits: int, best: bool) -> str:
    if len(errors) < 2:
        text = f"{fmean(errors.values()):.4f}"
    else:
        found = estimate(list(errors.values()))
        text = f"{found.mean:.4f} ± {found.error:.4f}"
    short = f" ({len(errors)} of {splits} splits)" if len(errors) < splits else ""
    return (f"**{text}**" if best else text) + short


def markdown(lines: Lines) -> str:
    """The table.  The lowest mean of a line is bold, apart from that of earlier defaults."""
    methods = [m for m in (*METHODS, BEFORE) if any(m in line for line in lines.values())]
    rows = [["dataset", "rows", *methods], ["---"] * (2 + len(methods))]
    for case, line in lines.items():
        best = min((fmean(e.values()) for m, e in line.items() if m != BEFORE), default=None)
        splits = max(len(errors) for errors in line.values())
        cells = [
            cell(line[m], splits, m != BEFORE and fmean(line[m].values()) == best) if m in line else "–"
            for m in methods
        ]
        rows.append([TITLES.get(case.dataset, case.dataset), f"{case.rows:,}", *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def page(
    measurements: Iterable[Measurement], before: Iterable[Measurement], sizes: Sequence[int]
) -> str:
    """The table and the verdicts, and both once more for declared categories if they were measured."""
    measurements, before = list(measurements), list(before)
    parts = []
    for declared in (False, True):
        if declared and not any(m.categories == "declared" for m in measurements):
            break
        lines = gathered(measurements, before, declared)
        shown = {c: line for c, line in lines.items() if not declared or c.dataset in CATEGORIES}
        parts += ["Categories " + ("declared:" if declared else "as they stand:"), markdown(shown)]
        for size in sizes:
            of_size = at_size(lines, size)
            targets = [t for t in TARGETS if BEFORE not in t.rivals or before]
            verdicts = "\n".join(f"- {verdict(of_size, t)}" for t in targets)
            parts.append(f"With {size:,} training rows, Mercer is\n\n{verdicts}")
    versions = {m.method: m.version for m in measurements}
    parts.append(", ".join(f"{m} {versions[m]}" for m in METHODS if m in versions) + ".")
    return "\n\n".join(parts)
