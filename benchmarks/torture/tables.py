"""Hostile data files: each gives rows or one short sentence, in bounded memory and time.

    python -m benchmarks.torture.tables --cases 20000 --seed 1 --keep FOLDER

Valid files of every format are damaged at random, and the files in tests/corpus/tables, which once
failed, are read as they are.  A case depends on its seed and number alone, so it can be repeated.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.torture.hostile_files import bomb, damaged, valid_files
from benchmarks.torture.record import Count, Size
from benchmarks.torture.sandbox import failures
from mercer.cli.sources import file_parts, open_source
from mercer.tables.arrays import read_arrays
from mercer.tables.errors import TableError
from mercer.tables.survey import fit_columns

MODULE = "benchmarks.torture.tables"
CORPUS = Path(__file__).parents[2] / "tests" / "corpus" / "tables"
FULL_CASES = 20_000
# Cases on disk at a time.
BATCH = 500
# Characters of an error without the name of the file.
LONGEST_SENTENCE = 500
MEMORY = 1 << 28
BOMB_BYTES = 1 << 30


def run(size: Size) -> list[Count]:
    cases = max(1, round(size.scale * FULL_CASES))
    found = tuple(f"seed {size.seed}, {line}" for line in fuzz(cases, size.seed))
    kept = sorted(path for path in CORPUS.iterdir() if path.is_file())
    with tempfile.TemporaryDirectory() as folder:
        packed = Path(folder) / "bomb.csv.gz"
        packed.write_bytes(bomb(BOMB_BYTES))
        again = tuple(f"{case.name}: {wrong}" for case, wrong in failures(MODULE, [*kept, packed]))
    return [
        Count("damaged data files give rows or one sentence", cases, found),
        Count("data files that once failed give rows or one sentence", len(kept) + 1, again),
    ]


def fuzz(cases: int, seed: int, keep: Path | None = None) -> Iterator[str]:
    """The failures among this many damaged files; `keep` is a folder to copy those files to."""
    files = valid_files()
    for first in range(0, cases, BATCH):
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for number in range(first, min(first + BATCH, cases)):
                name, data = damaged(random.Random(f"{seed} {number}"), files)
                paths.append(Path(folder) / f"{number}-{name}")
                paths[-1].write_bytes(data)
            for case, wrong in failures(MODULE, paths):
                if keep is not None:
                    shutil.copy(case, keep / f"{seed}-{case.name}")
                yield f"case {case.name}: {wrong}"


def check(case: Path) -> str | None:
    """What is wrong with how a file is read, if anything."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            read_through(case, Path(folder))
        except TableError as error:
            sentence = str(error).replace(str(case), "")
            if "\n" in sentence or not sentence.endswith(".") or len(sentence) > LONGEST_SENTENCE:
                return f"says {len(sentence)} characters: {sentence[:300]!r}"
    return None


def read_through(path: Path, folder: Path) -> None:
    """What `fit` and then `evaluate` do with a table, its last column being the target."""
    source = open_source(str(path), None, folder, test=True)
    for _ in source.table.chunks():
        pass
    columns = fit_columns(source.table, source.table.names[-1])
    read_arrays(source.table, columns, memory=MEMORY, folder=folder)
    for _ in file_parts(columns, replace(source, target=columns.target), {}):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", type=int, default=FULL_CASES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="copy the files of failed cases to this folder")
    options = parser.parse_args()
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    for line in fuzz(options.cases, options.seed, options.keep):
        print(line, flush=True)


if __name__ == "__main__":
    main()
