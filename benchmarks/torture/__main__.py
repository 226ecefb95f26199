"""Run the parts of the torture run and count the cases that break a law.

    make torture                                  # all parts, about an hour on two cores
    make torture QUICK=1                          # a sixth of the cases, about ten minutes
    python -m benchmarks.torture --parts fits --scale 0.1

A line is printed for each law, with its first failures.  The exit code is 1 if there was any, or if a
part could not run.  With --out, all results are written to a JSON file.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, cast

from benchmarks.paper.results import machine
from benchmarks.torture.record import Count, Size
from mercer.stopwatch import Stopwatch

# Each is a module of this package, imported when it is run.
PARTS = {
    "fits": "fits on hard data: finite, better than the mean, honest about convergence",
    "solutions": "converged models next to the dense solution",
    "threads": "any number of threads gives the same result, and ends",
    "load": "memory, files and threads over many fits in one process",
    "tables": "hostile data files",
    "command_line": "hostile options and files on the command line",
    "model_files": "hostile model files and checkpoints",
    "allocations": "each allocation of a fit that can fail, failing",
    "faults": "each write that can fail, failing",
    "kills": "processes killed while they write",
}
QUICK_SCALE = 1 / 6
SHOWN_FAILURES = 5


class Part(Protocol):
    """The interface of the module of a part."""

    def run(self, size: Size) -> list[Count]: ...


def run_part(name: str, size: Size) -> list[Count]:
    """The counts of a part; if it cannot run, that is its one failure."""
    try:
        part = cast(Part, importlib.import_module(f"benchmarks.torture.{name}"))
        return part.run(size)
    except Exception as error:
        traceback.print_exc()
        return [Count(f"{name} runs", 1, (f"{type(error).__name__}: {error}",))]


def lines(count: Count) -> Iterator[str]:
    """A count as text.

    >>> print(*lines(Count("finite", 300, ("case 7: NaN",), "2 warnings")), sep="\\n")
    finite: 300 cases, 1 FAILED (2 warnings)
        case 7: NaN
    """
    failed = f"{len(count.failures):,} FAILED" if count.failures else "none failed"
    yield f"{count.what}: {count.cases:,} cases, {failed}" + f" ({count.note})" * bool(count.note)
    yield from (f"    {failure}" for failure in count.failures[:SHOWN_FAILURES])
    left = len(count.failures) - SHOWN_FAILURES
    if left > 0:
        yield f"    and {left:,} more"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torture", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="NAME")
    parser.add_argument("--quick", action="store_const", dest="scale", const=QUICK_SCALE, default=1.0)
    parser.add_argument("--scale", type=float, help="share of the cases of the full run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    given = parser.parse_args(arguments)
    size = Size(given.scale, given.seed)
    results: dict[str, Any] = {"machine": machine(), "size": asdict(size), "parts": {}}
    failed = False
    for name in given.parts:
        print(f"{name}: {PARTS[name]}", flush=True)
        with Stopwatch() as watch:
            counts = run_part(name, size)
        for count in counts:
            print(*(f"  {line}" for line in lines(count)), sep="\n", flush=True)
        print(f"  {watch.seconds:.0f} s", flush=True)
        failed |= any(count.failures for count in counts)
        results["parts"][name] = {
            "seconds": round(watch.seconds, 1),
            "counts": [asdict(count) for count in counts],
        }
        if given.out:  # after each part, since a run takes long
            given.out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
