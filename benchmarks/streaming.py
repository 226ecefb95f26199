"""Fit on a file of random rows that is read in chunks, and report the memory that it took.

python benchmarks/streaming.py BYTES        run by benchmarks/centres.py in a process of its own
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.peak import peak_bytes
from mercer import KernelRegressor
from mercer.stopwatch import Stopwatch

FEATURES = 100
CHUNK_ROWS = 1 << 15


def main() -> None:
    size = int(sys.argv[1])
    rows = size // (4 * (FEATURES + 1))
    rng = np.random.default_rng(0)
    with tempfile.NamedTemporaryFile(prefix="mercer-stream-") as file:
        for first in range(0, rows, CHUNK_ROWS):
            count = min(CHUNK_ROWS, rows - first)
            block = rng.normal(size=(count, FEATURES + 1)).astype(np.float32)
            block[:, -1] = np.sin(block[:, 0]) + block[:, 1]
            block.tofile(file)
        file.flush()

        def chunks() -> Iterator[tuple[Any, Any]]:
            with open(file.name, "rb") as source:
                while True:
                    block = np.fromfile(source, np.float32, CHUNK_ROWS * (FEATURES + 1))
                    if not len(block):
                        return
                    block = block.reshape(-1, FEATURES + 1)
                    yield block[:, :-1], block[:, -1]

        few = next(chunks())
        options: dict[str, Any] = {
            "kernel": "laplacian",
            "bandwidth": 10.0,
            "ridge": 0.1,
            "scale": False,
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            KernelRegressor(**options).fit(few[0][:3000], few[1][:3000])  # loads the libraries
            model = KernelRegressor(
                **options, n_centers=2_000, memory_limit="1GB", max_iter=2, random_state=0
            )
            with Stopwatch() as watch:
                above = peak_bytes(lambda: model.fit(chunks))
        found = {"above": above, "file": size, "rows": rows, "seconds": watch.seconds}
        print(json.dumps(found))


if __name__ == "__main__":
    main()
