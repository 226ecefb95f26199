"""Train on a file that is read in chunks, so that memory never holds all rows.

python examples/stream.py
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mercer import KernelRegressor

ROWS, FEATURES = 20_000, 4
ROWS_OF_A_CHUNK = 4_000


def target(X: Any) -> Any:
    return np.sin(X[:, 0]) + X[:, 1] * X[:, 2]


def write_rows(path: Path) -> None:
    """A file to read from; in practice there is one already."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, FEATURES))
    np.save(path, np.column_stack([X, target(X) + 0.1 * rng.normal(size=ROWS)]))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        write_rows(path)

        def chunks() -> Iterator[tuple[Any, Any]]:
            """Called anew for each pass over the rows."""
            rows = np.load(path, mmap_mode="r")
            for first in range(0, ROWS, ROWS_OF_A_CHUNK):
                part = rows[first : first + ROWS_OF_A_CHUNK]
                yield part[:, :FEATURES], part[:, FEATURES]

        model = KernelRegressor("gaussian", metric=False, n_centers=300, random_state=0)
        model.fit(chunks)

    X_new = np.random.default_rng(1).normal(size=(1_000, FEATURES))
    print(model.plan_)
    print(f"R² on new rows: {model.score(X_new, target(X_new)):.3f}")


if __name__ == "__main__":
    main()
