"""Compare two versions of Mercer: parts of engine.py, run in turn in separate processes.

    python benchmarks/compare.py --before ../other-checkout --parts floats low-dimension

Each round runs a part with the source tree `--before` and its own benchmarks/engine.py, and then with
this one.  For each version the best value of all rounds counts, since others may share the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Run as a script, Python looks for modules in this folder, and not in the one above it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.engine import PARTS
from benchmarks.paper.data import FOLDER
from benchmarks.paper.problem import bytes_pay

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 3
# Parts that used 8-bit products on every machine before engine.py had the option --rows.
FORCED_BYTES = ("bytes", "overhead", "setup")
Row = dict[str, Any]  # as engine.py writes it


def run_engine(tree: Path, arguments: Sequence[str]) -> str:
    """What engine.py of a source tree prints."""
    command = [sys.executable, str(tree / "benchmarks/engine.py"), *arguments]
    environment = os.environ | {"PYTHONPATH": str(tree / "src")}
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    if run.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{run.stderr.strip()}")
    return run.stdout


def measured(tree: Path, part: str, options: Sequence[str]) -> list[Row]:
    """The rows of one run of a part."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        run_engine(tree, ["--parts", part, "--out", str(out), *options])
        rows: list[Row] = json.loads(out.read_text(encoding="utf-8"))["rows"]
        return rows


def best(rounds: Sequence[Sequence[Row]]) -> list[float]:
    """The best value of each row over all rounds."""
    return [_best(rows) for rows in zip(*rounds, strict=True)]


def _best(rows: Sequence[Row]) -> float:
    # Older versions tell the direction by the target alone.
    larger = rows[0].get("larger", rows[0].get("target", "").startswith("≥"))
    return float((max if larger else min)(row["value"] for row in rows))


def skipped(part: str, usage: str, pays: bool) -> str | None:
    """Why the older version cannot run a part, if it cannot; `usage` is the help of its engine.py."""
    if part not in usage:
        return "the older version does not have it"
    if part in FORCED_BYTES and "--rows" not in usage and not pays:
        return "the older version uses 8-bit products for it, which are slow on this machine"
    return None


def table(before: Sequence[Sequence[Row]], after: Sequence[Sequence[Row]]) -> str:
    """The best values of both versions, and the ratio of this one's to the older one's."""
    lines = [f"{'before':>9} {'after':>9} {'ratio':>7}"]
    # By position: names differ between versions, and older ones contain measured numbers.
    for old, new, row in zip(best(before), best(after), after[0], strict=True):
        ratio = f"{new / old:7.3f}" if old else f"{'–':>7}"
        better = ", larger is better" * bool(row.get("larger"))
        lines.append(f"{old:9.3f} {new:9.3f} {ratio}  {row['measure']}{better}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--before", type=Path, required=True, help="source tree of the older version")
    parser.add_argument("--parts", nargs="+", choices=PARTS, required=True)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--rows", type=int, help="most training rows of a part")
    parser.add_argument("--data", type=Path, default=FOLDER, help="folder of the datasets")
    given = parser.parse_args()
    trees = given.before.resolve(), ROOT
    usage = run_engine(trees[0], ["--help"])
    options = ["--data", str(given.data.resolve())]
    if given.rows is not None:
        if "--rows" not in usage:
            parser.error("engine.py of the older version has no option --rows. Leave --rows out.")
        options += ["--rows", str(given.rows)]
    for part in given.parts:
        reason = skipped(part, usage, bytes_pay())
        if reason:
            print(f"{part}: skipped, since {reason}")
            continue
        rounds: list[list[list[Row]]] = [[], []]
        for number in range(1, given.rounds + 1):
            for tree, rows in zip(trees, rounds, strict=True):
                rows.append(measured(tree, part, options))
            print(f"{part}: round {number} of {given.rounds}", flush=True)
        if len(rounds[0][0]) != len(rounds[1][0]):
            print(f"{part}: not compared, since the versions report different measures")
            continue
        print(table(*rounds), flush=True)


if __name__ == "__main__":
    main()
