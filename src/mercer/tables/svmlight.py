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
from mercer.tables.wording import quoted

# Indices of features are smaller: scikit-learn counts features by 32-bit integers.
INDEX_LIMIT = np.iinfo(np.int32).max
# Targets that are whole numbers and smaller than this fit into 64-bit integers.
WHOLE_LIMIT = 2.0**63


def svmlight(file: Path, allowance: Allowance, temporary: TemporaryFiles) -> Contents:
    """The features x0, x1, … and the targets "y"."""
    n_rows, first, last, whole = 0, 1, 0, True
    for X, y in _blocks(file, allowance.name, INDEX_LIMIT, zero_based=True):
        n_rows += len(y)
        whole = whole and bool(np.all((y == np.round(y)) & (np.abs(y) < WHOLE_LIMIT)))
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
        for X, y in _blocks(file, allowance.name, d, zero_based):
            for start in range(0, len(y), rows):
                part = X[start : start + rows]
                targets = pl.Series("y", y[start : start + rows])
                frame = pl.DataFrame([targets.cast(pl.Int64) if whole else targets])
                if mine:
                    part = part if len(mine) == d else part[:, places]
                    dense = part.toarray()
                    frame = frame.hstack(pl.from_numpy(dense, schema=mine, orient="row"))
                yield frame.select(columns)

    return Contents(names, n_rows, read)


def _blocks(file: Path, name: str, d: int, zero_based: bool) -> Iterator[tuple[Any, NDArray[Any]]]:
    with file.open("rb") as stream:
        for offset in range(0, file.stat().st_size, SVMLIGHT_BYTES):
            try:
                X, y = load_svmlight_file(
                    stream,
                    n_features=d,
                    dtype=np.float32,
                    zero_based=zero_based,
                    offset=offset,
                    length=SVMLIGHT_BYTES,
                )
            except (ValueError, OverflowError) as error:
                fault = _first_fault(file, offset)
                if fault is None:
                    raise
                raise TableError(f"{name} cannot be read: {fault}.") from error
            yield X, y


def _first_fault(file: Path, offset: int) -> str | None:
    """What is wrong with the first invalid line of the block that begins after so many bytes."""
    number = 1
    with file.open("rb") as stream:
        for _ in range(0, offset, SVMLIGHT_BYTES):
            number += stream.read(SVMLIGHT_BYTES).count(b"\n")
        if offset:  # the rest of a line belongs to the block before
            stream.readline()
            number += 1
        for line in stream:
            fault = _fault(line.partition(b"#")[0].split())
            if fault is not None:
                return f"line {number:,} {fault}"
            number += 1
    return None


def _fault(words: list[bytes]) -> str | None:
    """What is wrong with the words of a line, if anything."""
    if words and not _is(float, words[0]):
        return f"begins with {_shown(words[0])}, which is not a number"
    features = words[1:]
    if features and features[0].startswith(b"qid") and b":" in features[0]:
        features = features[1:]
    before = -1
    for feature in features:
        index, _, value = feature.partition(b":")
        if not (_is(int, index) and _is(float, value)):
            return f"has {_shown(feature)} in place of index:value"
        if not 0 <= int(index) < INDEX_LIMIT:
            return f"has the index {_shown(index)}, and indices go from 0 to {INDEX_LIMIT - 1:,}"
        if int(index) <= before:
            return f"has the index {int(index)} after {before}, and indices must increase"
        before = int(index)
    return None


def _is(kind: type[int] | type[float], word: bytes) -> bool:
    try:
        kind(word)
    except ValueError:
        return False
    return True


def _shown(word: bytes) -> str:
    return quoted(word.decode(errors="replace"))


def _check_room(name: str, n_rows: int, d: int, temporary: TemporaryFiles) -> None:
    """A sparse file of some megabytes can be terabytes when dense."""
    dense, room = feature_bytes(n_rows, d), free_memory_or_disk(temporary.parent)
    if dense > room:
        raise TableError(
            f"{name} is too large when its sparse rows are made dense: {n_rows:,} rows × {d:,} features "
            f"take {dense / GIB:,.1f} GiB, and {room / GIB:,.1f} GiB are free in memory or on disk. "
            "Keep fewer features, or project them first."
        )
