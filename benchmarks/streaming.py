"""Fit on a file of random rows that is read in chunks, and report the memory that it took.

python benchmarks/streaming.py FILE python     chunks from an iterator
python benchmarks/streaming.py FILE cli        `mercer fit FILE`

benchmarks/centres.py writes the file and runs both in processes of their own.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.peak import peak_bytes
from mercer import KernelRegressor
from mercer.cli import main as command
from mercer.stopwatch import Stopwatch

FEATURES = 100
CHUNK_ROWS = 1 << 15
BUDGET = "1GB"
CENTRES = 100
FIXED: dict[str, Any] = {"kernel": "laplacian", "bandwidth": 10.0, "ridge": 0.1}


def write(path: Path, size: int) -> int:
    """A NumPy file of so many bytes, whose last column is the target; the number of its rows."""
    rows = size // (4 * (FEATURES + 1))
    rng = np.random.default_rng(0)
    found = np.lib.format.open_memmap(path, "w+", np.float32, (rows, FEATURES + 1))
    block = rng.normal(size=(CHUNK_ROWS, FEATURES + 1)).astype(np.float32)
    with path.open("r+b") as file:
        file.seek(found.offset)
        del found
        for first in range(0, rows, CHUNK_ROWS):
            block = np.roll(block, 1, axis=1) + np.float32(0.01)  # new rows at the speed of memory
            block[:, -1] = np.sin(block[:, 0]) + block[:, 1]
            block[: rows - first].tofile(file)
    return rows


def fitted_in_python(path: Path) -> None:
    def chunks() -> Iterator[tuple[Any, Any]]:
        rows = np.load(path, mmap_mode="r").shape[0]
        for first in range(0, rows, CHUNK_ROWS):
            part = np.array(np.load(path, mmap_mode="r")[first : first + CHUNK_ROWS])
            yield part[:, :-1], part[:, -1]

    model = KernelRegressor(
        **FIXED, scale=False, n_centers=CENTRES, memory_limit=BUDGET, max_iter=1, random_state=0
    )
    model.fit(chunks)


def fitted_by_command(path: Path) -> None:
    options = [f"--{name}={value}" for name, value in FIXED.items()]
    options += [f"--memory={BUDGET}", f"--centers={CENTRES}", "--epochs=1", "--quiet", "--force"]
    code = command(["fit", str(path), f"--target=x{FEATURES}", "-o", f"{path}.mercer", *options])
    Path(f"{path}.mercer").unlink(missing_ok=True)
    if code:
        raise SystemExit(code)


def main() -> None:
    path, how = Path(sys.argv[1]), sys.argv[2]
    fit = {"python": fitted_in_python, "cli": fitted_by_command}[how]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = path.with_suffix(".few.npy")
        write(small, 1 << 22)
        fit(small)  # loads the libraries
        small.unlink()
        with Stopwatch() as watch:
            above = peak_bytes(lambda: fit(path))
    print(json.dumps({"above": above, "seconds": watch.seconds}))


if __name__ == "__main__":
    main()
