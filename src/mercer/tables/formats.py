"""Open a file of any supported format as a table.

Polars reads CSV, TSV, Parquet and Arrow, NumPy reads NPY, NPZ and IDX, scikit-learn reads svmlight,
Calamine reads Excel.
What cannot be read twice or from the middle (standard input, gzip, members of an NPZ file) is first
copied to a temporary file, which is deleted together with its table.
"""

from __future__ import annotations

import codecs
import re
import zipfile
from collections.abc import Collection
from pathlib import Path

from mercer.tables.array_files import IDX_TYPES, idx, npy, npz
from mercer.tables.bounds import Bounds
from mercer.tables.columnar import arrow, arrow_stream, parquet
from mercer.tables.delimited import HEAD_BYTES, delimited
from mercer.tables.errors import TableError, reading_errors
from mercer.tables.json_files import json_table
from mercer.tables.layout import Layout
from mercer.tables.svmlight import svmlight
from mercer.tables.table import Contents, Table
from mercer.tables.temporary import TemporaryFiles, regular_file, unzipped
from mercer.tables.text_lines import in_utf8
from mercer.tables.workbooks import workbook

ENDINGS = {
    ".csv": "CSV",
    ".tsv": "TSV",
    ".tab": "TSV",
    ".svm": "svmlight",
    ".svmlight": "svmlight",
    ".libsvm": "svmlight",
    ".parquet": "Parquet",
    ".pq": "Parquet",
    ".arrow": "Arrow",
    ".feather": "Arrow",
    ".ipc": "Arrow",
    ".npz": "NPZ",
    ".npy": "NPY",
    ".idx": "IDX",
    ".idx1-ubyte": "IDX",
    ".idx3-ubyte": "IDX",
    ".json": "JSON",
    ".jsonl": "JSON",
    ".ndjson": "JSON",
    ".xlsx": "Excel",
    ".xlsm": "Excel",
}
TEXT_FORMATS = ("CSV", "TSV", "svmlight", "JSON")
# What an Excel file of the kind that is supported has among its members, beside what NPZ has.
WORKBOOK_MEMBER = "xl/workbook.xml"
OLD_EXCEL = b"\xd0\xcf\x11\xe0"
MAGIC = {
    b"PAR1": "Parquet",
    b"ARROW1": "Arrow",
    b"\xff\xff\xff\xff": "Arrow stream",
    b"\x93NUMPY": "NPY",
    b"PK\x03\x04": "NPZ",
}
DEFAULT_BOUNDS = Bounds()
DEFAULT_LAYOUT = Layout()
SVMLIGHT_LINE = re.compile(rb"\s*[-+.\deE,]+(\s+qid:\d+)?(\s+\d+:[-+.\deEinfa]+)+\s*(#.*)?")


def open_table(
    path: str,
    *,
    member: str | None = None,
    text: Collection[str] = (),
    folder: Path | None = None,
    bounds: Bounds = DEFAULT_BOUNDS,
    layout: Layout = DEFAULT_LAYOUT,
) -> Table:
    """The table in a file; "-" is standard input.  Only one chunk at a time is held in memory.

    `member` chooses between the "train" and "test" arrays of an NPZ file.  `text` names columns of a CSV
    file to read as text even if all their values are digits.  Temporary files are made in `folder`.
    What the file claims to hold is limited by `bounds`, and `layout` is what the user said about it.
    """
    name = "standard input" if path == "-" else path
    temporary = TemporaryFiles(folder)
    with reading_errors(name), temporary:
        given = regular_file(path, temporary)
        allowance = bounds.allowance(name, given.stat().st_size)
        file = unzipped(given, allowance, temporary)
        file, head, notes = _as_text(file, name, layout, temporary)
        kind = _recognise(name, head)
        if kind == "NPZ" and _is_workbook(file):
            kind = "Excel"
        if member is not None and kind != "NPZ":
            raise TableError(f"{name} is {kind}, but only NPZ files have train and test arrays.")
        contents: Contents
        if kind == "NPZ":
            contents = npz(file, allowance, member, temporary)
        elif kind == "NPY":
            contents = npy(file, allowance)
        elif kind == "IDX":
            contents = idx(file, allowance)
        elif kind == "svmlight":
            contents = svmlight(file, allowance, temporary)
        elif kind == "Excel":
            contents = workbook(file, text, allowance, layout, temporary)
        elif kind == "JSON":
            contents = json_table(file, text, allowance, temporary)
        elif kind == "Parquet":
            contents = parquet(file, allowance)
        elif kind == "Arrow":
            contents = arrow(file, allowance)
        elif kind == "Arrow stream":
            contents = arrow_stream(file, allowance)
        else:
            contents = delimited(file, kind, text, allowance, layout, temporary)
        if not contents[0]:
            raise TableError(f"{name} has no columns.")
        contents = contents._replace(notes=(*notes, *contents.notes))
    return Table(name, *contents, files=temporary)


def _as_text(
    file: Path, name: str, layout: Layout, temporary: TemporaryFiles
) -> tuple[Path, bytes, tuple[str, ...]]:
    """The file in UTF-8 if it is text, its beginning, and a note if it had another encoding."""
    with file.open("rb") as stream:
        head = stream.read(HEAD_BYTES)
    if head.startswith(tuple(MAGIC)):
        return file, head, ()
    text, encoding = in_utf8(file, head, layout.encoding, name, temporary)
    if encoding is None:
        return file, head, ()
    with text.open("rb") as stream:
        return text, stream.read(HEAD_BYTES), (f"{name} is read as {encoding}",)


def _is_workbook(file: Path) -> bool:
    try:
        with zipfile.ZipFile(file) as archive:
            return WORKBOOK_MEMBER in archive.namelist()
    except zipfile.BadZipFile:
        return False


def _recognise(name: str, head: bytes) -> str:
    """The format: by the contents if it is binary, by the ending of its name if it is text."""
    if not head:
        raise TableError(f"{name} is empty.")
    for magic, kind in MAGIC.items():
        if head.startswith(magic):
            return kind
    if head.startswith(OLD_EXCEL):
        raise TableError(f"{name} is an old or encrypted Excel file. Save it as plain .xlsx.")
    if head[:2] == b"\0\0" and len(head) > 4 and head[2] in IDX_TYPES and head[3] > 0:
        return "IDX"
    by_ending = ENDINGS.get(Path(name.lower().removesuffix(".gz")).suffix)
    if b"\0" in head or by_ending not in (None, *TEXT_FORMATS):
        found = f"not {by_ending}, as its name says" if by_ending else "of an unknown format"
        raise TableError(
            f"{name} is {found}. Supported are CSV, TSV, Excel, JSON, Parquet, Arrow, NPZ, NPY, "
            "svmlight and IDX, gzipped or not."
        )
    if by_ending is not None:
        return by_ending
    if head.removeprefix(codecs.BOM_UTF8).lstrip().startswith((b"{", b"[")):
        return "JSON"
    lines = (line for line in head.splitlines() if line.strip() and not line.startswith(b"#"))
    return "svmlight" if SVMLIGHT_LINE.fullmatch(next(lines, b"")) else "CSV"
