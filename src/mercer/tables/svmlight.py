"""svmlight files (also known as libsvm): sparse rows of numbers, made dense a chunk at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from sklearn.datasets import load_svmlight_file

from mercer.planning.memory import GIB, SVMLIGHT_BYTES, feature_bytes, free_memory_or_disk
from mercer.tables.bounds import Allowance
from mercer.tables.errors import TableError
from mercer.tables.table import Contents
from mercer.tables.temporary import TemporaryFiles


def svmlight(file: Path, allowance: Allowance, temporary: TemporaryFiles) -> Contents:
    """The features x0, x1, … and the targets "y"."""
    n_rows, first, last, whole = 0, 1, 0, True
    for X, y in _blocks(file, np.iinfo(np.int32).max, zero_based=True):
        n_rows += len(y)
        whole = whole and bool(np.all(y == np.round(y)))
        if X.nnz:
            first, last = min(first, int(X.indices.min())), max(last, int(X.indices.max()))
    zero_based = first == 0
    d = last + zero_based
    allowance.check_table(n_rows, d)
    _check_room(allowance.name, n_rows, d, temporary)
    names = (*(f"x{i}" for i in range(d)), "y")
    place = {column: i for i, column in enumerate(names)}

    def read(columns: tuple[str, ...], rows: int) -> Iterator[pl.DataFrame]:
        mine = [column for column in columns if column != "y"]
        places = [place[column] for column in mine]
        for X, y in _blocks(file, d, zero_based):
            for start in range(0, len(y), rows):
                part = X[start : start + rows]
                targets = pl.Series("y", y[start : start + rows])
                frame = pl.DataFrame([targets.cast(pl.Int64) if whole else targets])
                if mine:
                    part = part if len(mine) == d else part[:, places]
                    dense = part.toarray()
                    frame = frame.hstack(pl.from_numpy(dense, schema=mine, orient="row"))
                yield frame.select(columns)

    return names, n_rows, read


def _blocks(file: Path, d: int, zero_based: bool) -> Iterator[tuple[Any, NDArray[Any]]]:
    with file.open("rb") as stream:
        for offset in range(0, file.stat().st_size, SVMLIGHT_BYTES):
            X, y = load_svmlight_file(
                stream,
                n_features=d,
                dtype=np.float32,
                zero_based=zero_based,
                offset=offset,
                length=SVMLIGHT_BYTES,
            )
            yield X, y


def _check_room(name: str, n_rows: int, d: int, temporary: TemporaryFiles) -> None:
    """A sparse file of some megabytes can be terabytes when dense."""
    dense, room = feature_bytes(n_rows, d), free_memory_or_disk(temporary.parent)
    if dense > room:
        raise TableError(
            f"{name} is too large when its sparse rows are made dense: {n_rows:,} rows × {d:,} features "
            f"take {dense / GIB:,.1f} GiB, and {room / GIB:,.1f} GiB are free in memory or on disk. "
            "Keep fewer features, or project them first."
        )
