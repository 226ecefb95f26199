"""Parquet and Arrow files, read by Polars."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import polars as pl
from polars.selectors import by_name

from mercer.planning.memory import VALUE_BYTES
from mercer.tables.arrow_claims import check_arrow
from mercer.tables.bounds import Allowance
from mercer.tables.parquet_claims import check_parquet
from mercer.tables.table import Contents, Reader

# Polars keeps a text or a list as a length and a place.
REFERENCE_BYTES = 16


def from_polars(scan: pl.LazyFrame, n_rows: int, allowance: Allowance) -> Contents:
    """The contents of a lazy frame with this many rows."""
    schema = scan.collect_schema()
    allowance.check_table(n_rows, len(schema), row_bytes(schema.dtypes()))

    def reader(scan: pl.LazyFrame) -> Reader:
        def read(columns: tuple[str, ...], rows: int) -> Iterator[pl.DataFrame]:
            # By name, since `select` takes names such as "*" for patterns.
            yield from scan.select(by_name(*columns)).collect_batches(chunk_size=rows)

        return read

    def cut(first: int, stop: int) -> Reader:
        return reader(scan.slice(first, stop - first))

    return Contents(tuple(schema.names()), n_rows, reader(scan), cut)


def parquet(file: Path, allowance: Allowance) -> Contents:
    check_parquet(file, allowance)
    scan = pl.scan_parquet(file, glob=False)
    return from_polars(scan, _count_rows(scan), allowance)


def arrow_stream(file: Path, allowance: Allowance) -> Contents:
    """The streaming kind of Arrow, which Polars can only read as a whole."""
    check_arrow(file, allowance, is_stream=True)
    frame = pl.read_ipc_stream(file)
    return from_polars(frame.lazy(), len(frame), allowance)


def arrow(file: Path, allowance: Allowance) -> Contents:
    """Read by slices, since reading in batches would keep the whole file mapped and resident."""
    check_arrow(file, allowance, is_stream=False)
    scan = pl.scan_ipc(file, glob=False)
    found = from_polars(scan, _count_rows(scan), allowance)

    def cut(first: int, stop: int) -> Reader:
        def read(columns: tuple[str, ...], rows: int) -> Iterator[pl.DataFrame]:
            for start in range(first, stop, rows):
                some = pl.scan_ipc(file, glob=False).select(by_name(*columns))
                yield some.slice(start, min(rows, stop - start)).collect()

        return read

    return found._replace(read=cut(0, found.n_rows), cut=cut)


def _count_rows(scan: pl.LazyFrame) -> int:
    return int(scan.select(pl.len()).collect(engine="streaming").item())


def row_bytes(dtypes: Iterable[pl.DataType]) -> int:
    """Bytes of a row in memory, without the contents of texts and lists.

    >>> row_bytes([pl.Int8(), pl.String(), pl.Array(pl.Float32(), 10)])
    104
    """
    total = 0
    for dtype in dtypes:
        if isinstance(dtype, pl.Struct):
            total += row_bytes(field.dtype for field in dtype.fields)  # type: ignore[misc]
        elif isinstance(dtype, pl.Array):
            total += dtype.size * row_bytes([dtype.inner])  # type: ignore[list-item]
        elif isinstance(dtype, (pl.String, pl.Binary, pl.List)):
            total += REFERENCE_BYTES
        else:
            total += VALUE_BYTES
    return total
