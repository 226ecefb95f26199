"""Measure Mercer and other libraries at their defaults, on the same splits, and print the table.

    python -m benchmarks.defaults --out benchmarks/defaults.json
    python -m benchmarks.defaults --out benchmarks/defaults.json --categories declared
    python -m benchmarks.defaults --out FILE --sets adult --methods Mercer --again
    python -m benchmarks.defaults --table FILE [FILE ...] --before EARLIER
    python -m benchmarks.defaults.ablation FILE [FILE ...]

Each measurement is written to the --out file at once, and what is in the file is not measured again
without --again, so a run can be stopped and continued.  --table prints the results of one or more files
and measures nothing; the last file counts where two have the same measurement.  The docstring of
`benchmarks.defaults.table` describes the table and the verdicts.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from benchmarks.defaults.record import Record, read
from benchmarks.defaults.rivals import ABLATIONS, METHODS, applies, installed, key, measure
from benchmarks.defaults.splits import CATEGORIES, Split, draw_all, load, names
from benchmarks.defaults.table import page
from benchmarks.paper.data import FOLDER

SIZES = [2_000, 10_000]
SPLITS = 5


def run(record: Record, split: Split, method: str, threads: int | None) -> bool:
    """Measure a method and record the result; a failure is printed, and others can go on."""
    case = f"{split.dataset}, {len(split.X)} rows, split {split.number}, {method}"
    try:
        found = measure(method, split, threads)
    except Exception as error:
        print(f"{case}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return False
    record.add(found)
    print(f"{case}: {found.error:.4f} ({found.seconds:.1f} s)", flush=True)
    return True


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.defaults", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--data", type=Path, default=FOLDER, help="folder of the datasets")
    parser.add_argument("--sets", nargs="+", help="only these datasets")
    parser.add_argument("--methods", nargs="+", choices=(*METHODS, *ABLATIONS), default=METHODS)
    parser.add_argument("--rows", nargs="+", type=int, default=SIZES, help="training rows")
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--categories", choices=("as-they-stand", "declared"), default="as-they-stand")
    parser.add_argument("--threads", type=int, help="threads of each method; its default if not given")
    parser.add_argument("--out", type=Path, help="JSON file of the results; continued if it exists")
    parser.add_argument("--again", action="store_true", help="also measure what is in the file")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="print these results")
    parser.add_argument("--before", type=Path, metavar="FILE", help="results of earlier defaults")
    chosen = parser.parse_args(arguments)
    known = [n for n in names(chosen.data) if n in CATEGORIES or chosen.categories != "declared"]
    chosen.sets = chosen.sets or known
    unknown = sorted(set(chosen.sets) - set(known))
    if unknown and not chosen.table:
        parser.error(f"--sets must be among {', '.join(known)}. Got {', '.join(unknown)} instead.")
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parsed(arguments)
    before = read(chosen.before) if chosen.before else []
    if chosen.table:
        print(page(Record(m for path in chosen.table for m in read(path)), before, chosen.rows))
        return 0
    missing = [method for method in chosen.methods if not installed(method)]
    if missing:
        print(f"Not installed and left out: {', '.join(missing)}.", flush=True)
    record = Record(path=chosen.out)
    failed = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in chosen.sets:
            data = load(name, chosen.data)
            declared = chosen.categories == "declared"
            for split in draw_all(data, chosen.rows, chosen.splits, declared=declared):
                for method in chosen.methods:
                    known = key(method, split) in record and not chosen.again
                    if method not in missing and applies(method, split) and not known:
                        failed += not run(record, split, method, chosen.threads)
    print("", page(record, before, chosen.rows), sep="\n")
    if failed:
        print(f"{failed} measurements failed.", file=sys.stderr)
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
