"""Parquet and Arrow files, read by Polars."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from mercer.tables.table import Contents


def from_polars(scan: pl.LazyFrame, n_rows: int | None = None) -> Contents:
    """The contents of a lazy frame; its rows are counted unless their number is given."""

    def read(columns: tuple[str, ...], rows: int) -> Iterator[pl.DataFrame]:
        yield from scan.select(columns).collect_batches(chunk_size=rows)

    if n_rows is None:
        n_rows = int(scan.select(pl.len()).collect(engine="streaming").item())
    return tuple(scan.collect_schema().names()), n_rows, read


def parquet(file: Path) -> Contents:
    return from_polars(pl.scan_parquet(file, glob=False))


def arrow_stream(file: Path) -> Contents:
    """The streaming kind of Arrow, which Polars can only read as a whole."""
    return from_polars(pl.read_ipc_stream(file).lazy())


def arrow(file: Path) -> Contents:
    """Read by slices, since reading in batches would keep the whole file mapped and resident."""
    names, n_rows, _ = from_polars(pl.scan_ipc(file, glob=False))

    def read(columns: tuple[str, ...], rows: int) -> Iterator[pl.DataFrame]:
        for start in range(0, n_rows, rows):
            yield pl.scan_ipc(file, glob=False).select(columns).slice(start, rows).collect()

    return names, n_rows, read
