"""What each part of Mercer's defaults brings: the error without it, relative to that with all of them.

    python -m benchmarks.defaults --out FILE --methods Mercer "Mercer, no metric" "Mercer, no ranks" ...
    python -m benchmarks.defaults.ablation FILE [FILE ...]

A ratio above 1 says that the part helps.  Each is a ratio of mean errors over the splits that were
measured both with and without the part.  The last row is the geometric mean over datasets.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.defaults.record import Measurement, read
from benchmarks.defaults.rivals import ABLATIONS, MERCER
from benchmarks.defaults.splits import TITLES


def ratios(measurements: Iterable[Measurement]) -> dict[tuple[str, int], dict[str, float]]:
    """By dataset and number of rows: for each part, the error without it over that with it."""
    errors: dict[tuple[str, int], dict[str, dict[int, float]]] = {}
    for m in measurements:
        if m.categories == "as-they-stand":
            errors.setdefault((m.dataset, m.rows), {}).setdefault(m.method, {})[m.split] = m.error
    found: dict[tuple[str, int], dict[str, float]] = {}
    for case, by_method in errors.items():
        whole = by_method.get(MERCER, {})
        for part in ABLATIONS:
            both = whole.keys() & by_method.get(part, {}).keys()
            with_it = fmean(whole[i] for i in both) if both else 0.0
            if with_it > 0:
                without = fmean(by_method[part][i] for i in both)
                found.setdefault(case, {})[part] = without / with_it
    return found


def table(measurements: Iterable[Measurement]) -> str:
    """The ratios as a Markdown table."""
    found = ratios(measurements)
    parts = [part for part in ABLATIONS if any(part in row for row in found.values())]
    names = [part.removeprefix(f"{MERCER}, ") for part in parts]
    lines = [f"| dataset | rows | {' | '.join(names)} |", "| --- " * (2 + len(parts)) + "|"]
    for (dataset, rows), row in sorted(found.items(), key=lambda item: (item[0][1], item[0][0])):
        cells = [f"{row[part]:.3f}" if part in row else "–" for part in parts]
        lines.append(f"| {TITLES.get(dataset, dataset)} | {rows:,} | {' | '.join(cells)} |")
    means = [[row[part] for row in found.values() if row.get(part, 0.0) > 0] for part in parts]
    cells = [f"**{math.exp(fmean(math.log(v) for v in values)):.3f}**" for values in means]
    return "\n".join([*lines, f"| geometric mean | | {' | '.join(cells)} |"])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    chosen = parser.parse_args(arguments)
    print(table([m for path in chosen.files for m in read(path)]))


if __name__ == "__main__":
    main()
