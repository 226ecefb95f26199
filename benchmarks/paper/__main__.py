"""Run the parts of the reproduction and make their pages.

    make paper                                    # all parts, about ten minutes on two cores
    make paper SIZE=--full                        # the paper's sizes where memory and time allow
    python -m benchmarks.paper costs --quick      # one part
    python -m benchmarks.paper --pages            # the pages again, from stored results

Each part writes OUT/NAME.json when it ends.  If a part fails, the error is reported, the others still
run and the exit code is 1.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Protocol, cast

from benchmarks.paper.data import FOLDER, Data
from benchmarks.paper.pages import write_pages
from benchmarks.paper.results import Result, Size, machine
from mercer.stopwatch import Stopwatch

# In the order of the front page.
PARTS = (
    "costs",
    "comparison",
    "deformed",
    "interactive",
    "parameters",
    "batch_size",
    "iteration_time",
    "acceleration",
    "practice",
    "interpolation",
    "centres",
)
MEASURED = Path("benchmarks/paper/measured")
DOCS = Path("docs")
# Smoke runs test that all parts work; their numbers have no meaning and must not reach the pages.
SMOKE = Path("build/paper-smoke")


class Part(Protocol):
    """The interface of the module of a part."""

    def run(self, data: Data, size: Size) -> Result: ...

    def plot(self, result: Result, folder: Path) -> list[Path]: ...


def part(name: str) -> Part:
    return cast(Part, importlib.import_module(f"benchmarks.paper.{name}"))


def run_part(name: str, data: Data, size: Size) -> Result:
    """The result of a part, with its duration, size, machine and command."""
    with Stopwatch() as watch:
        result = part(name).run(data, size)
    return replace(
        result,
        seconds=round(watch.seconds, 1),
        size=size,
        machine=machine(),
        command=f"python -m benchmarks.paper {name} --{size}",
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"any of {', '.join(PARTS)}; all by default"
    )
    sizes = parser.add_mutually_exclusive_group()
    for size in ("smoke", "quick", "full"):
        sizes.add_argument(f"--{size}", dest="size", action="store_const", const=size, default="quick")
    parser.add_argument("--data", type=Path, default=FOLDER, help="folder of the datasets")
    parser.add_argument("--out", type=Path, help=f"folder of the results; {MEASURED} by default")
    parser.add_argument("--docs", type=Path, help=f"folder of the pages; {DOCS} by default")
    parser.add_argument("--pages", action="store_true", help="make the pages without measuring")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in PARTS]
    if unknown:
        parser.error(f"NAME must be one of {', '.join(PARTS)}. Got {', '.join(unknown)} instead.")
    smoke = given.size == "smoke"
    out = given.out or (SMOKE if smoke else MEASURED)
    docs = given.docs or (out / "docs" if smoke else DOCS)

    failed = []
    for name in [] if given.pages else given.names or PARTS:
        print(f"{name} …", flush=True)
        try:
            result = run_part(name, Data(given.data), given.size)
            result.write(out)
        except Exception:
            traceback.print_exc()
            failed.append(name)
            continue
        for claim in result.claims:
            print(f"  {claim.claim}\n    ours: {claim.ours}\n    {claim.verdict}")
        print(f"  {result.seconds:.0f} s", flush=True)
    failed += [name for name in write_pages(PARTS, part, out, docs) if name not in failed]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
