"""Small valid data files of every format, and ways to damage them."""

from __future__ import annotations

import datetime
import gzip
import io
import json
import random
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from sklearn.datasets import dump_svmlight_file

Files = dict[str, bytes]

# Values of a field that a reader may not expect.
EXTREMES = [
    0,
    1,
    0xFF,
    1 << 20,
    *(2**bits - less for bits in (7, 15, 31, 32, 40, 63) for less in (0, 1)),
]
NUMBERS = ("0", "-1", "2147483647", "2147483648", "4294967296", "9" * 30, "1e999", "nan", "-inf", "")
HOSTILE_TEXT = [
    "\x1b[2J",
    "\u202eabc",
    '"',
    '"\n',
    "\x00",
    "=cmd()",
    ",",
    "\r",
    "\ufeff",
    "*",
    "^.*$",
    "\t",
]
TYPES = [
    "<f8",
    ">f4",
    "<f2",
    "<f16",
    "|u1",
    "|b1",
    "<c16",
    "|O",
    "<U0",
    "|S0",
    "<U9",
    "|V8",
    "<M8",
    "<M8[D]",
    "<M8[as]",
    "<m8[s]",
    ">i8",
    "|T16",
    "f",
]
TYPES += ["|S999999999999", "<U536870912", "", "[('a', '<f4')]"]


def valid_files() -> Files:
    """One or several files of every format, by name."""
    rng = np.random.default_rng(0)
    frame = pl.DataFrame(
        {
            "a": rng.normal(size=40),
            "n": rng.integers(0, 5, 40),
            "text": rng.choice(["one", 'two, "2"', "drei\nzeilen", "ü"], 40),
            "flag": rng.random(40) < 0.5,
            "day": [datetime.date(2024, 1, 1) + datetime.timedelta(days=i) for i in range(40)],
            "gaps": [None if i % 5 == 0 else i / 2 for i in range(40)],
            "y": rng.choice(["yes", "no"], 40),
        }
    )
    nested = frame.with_columns(
        list=pl.Series([[i, i + 1] for i in range(40)]),
        pair=pl.struct("a", "n"),
        kind=pl.col("text").cast(pl.Categorical),
        price=pl.col("a").cast(pl.Decimal(12, 3)),
        moment=pl.col("day").cast(pl.Datetime("ns", "UTC")),
        nothing=pl.lit(None),
    ).select(pl.exclude("y"), "y")
    X, y = rng.integers(0, 256, (12, 4, 3)).astype(np.uint8), rng.integers(0, 3, 12).astype(np.uint8)
    files: Files = {}

    def add(name: str, write: Callable[[io.BytesIO], object]) -> None:
        stream = io.BytesIO()
        write(stream)
        files[name] = stream.getvalue()

    add("plain.csv", frame.write_csv)
    add("plain.tsv", lambda file: frame.write_csv(file, separator="\t"))
    files["semicolons.csv"] = b"b; c; y\n 1; x; 0\n2; ?; 1\n 3; ; 1\n"
    files["numbers.csv"] = b"5.1,3.5,0\n4.9,3.0,1\n4.7,3.2,0\n"
    written = [f"{i % 28 + 1:02}.03.2024;{i},5 €;1.{i:03} kg;{i % 2}" for i in range(40)]
    files["written.csv"] = "\n".join(["# made here", "day;price;weight;y", *written]).encode()
    add("lines.jsonl", frame.write_ndjson)
    add("array.json", lambda file: file.write(json.dumps(frame.drop("day").to_dicts()).encode()))
    if find_spec("xlsxwriter") is not None and find_spec("python_calamine") is not None:
        add("sheet.xlsx", frame.write_excel)
    packing: Any
    for packing in ("uncompressed", "snappy", "zstd", "gzip", "lz4"):
        add(f"{packing}.parquet", partial(frame.write_parquet, compression=packing))
    add("nested.parquet", nested.write_parquet)
    add("groups.parquet", lambda file: frame.write_parquet(file, row_group_size=9, data_page_size=64))
    for packing in ("uncompressed", "lz4", "zstd"):
        add(f"{packing}.arrow", partial(nested.write_ipc, compression=packing))
        add(f"{packing}-stream.arrow", partial(nested.write_ipc_stream, compression=packing))
    arrays: dict[str, NDArray[Any]] = {
        "bytes": X,
        "columns": np.asfortranarray(X.reshape(12, 12).astype(np.float32)),
        "labels": y,
        "text": np.array(["a", "bc", "ü"]),
        "days": np.arange(6).reshape(3, 2).astype("M8[D]"),
    }
    for name, array in arrays.items():
        add(f"{name}.npy", partial(np.save, arr=array))
    add("stored.npz", lambda file: np.savez(file, X=X, y=y))
    add("packed.npz", lambda file: np.savez_compressed(file, X_train=X, y_train=y, X_test=X, y_test=y))
    rows = X.reshape(12, 12).astype(float)
    add("rows.svm", lambda file: dump_svmlight_file(rows, y, file, comment="made here"))
    files["images.idx3-ubyte"] = struct.pack(">4B3I", 0, 0, 8, 3, 12, 4, 3) + X.tobytes()
    files["labels.idx1-ubyte"] = struct.pack(">4BI", 0, 0, 8, 1, 12) + y.tobytes()
    for name in ("plain.csv", "labels.npy", "snappy.parquet", "rows.svm", "zstd.arrow", "stored.npz"):
        files[f"{name}.gz"] = gzip.compress(files[name], mtime=0)
    return files


def damaged(rng: random.Random, files: Files) -> tuple[str, bytes]:
    """The name and contents of a file with one to four faults."""
    name = rng.choice(list(files))
    data = files[name]
    packed = name.endswith(".gz") and rng.random() < 0.8
    if packed:
        data = gzip.decompress(data)
    special = _special(rng, name.removesuffix(".gz"))
    if special is not None and rng.random() < 0.3:
        data = special
    else:
        for _ in range(rng.choice((1, 1, 2, 4))):
            data = rng.choice(FAULTS)(rng, data, files)
    if packed:
        data = gzip.compress(data, mtime=0)
    return (name if rng.random() < 0.9 else "nameless"), data


def _place(rng: random.Random, data: bytes) -> int:
    """A position in the data, mostly near one of its ends, where headers are."""
    n = len(data)
    if not n:
        return 0
    near = rng.choice((64, 512, n))
    place = rng.randrange(min(near, n))
    return place if rng.random() < 0.5 else n - 1 - place


def _flip(rng: random.Random, data: bytes, files: Files) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8)) if data else 0):
        changed[_place(rng, data)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _set_byte(rng: random.Random, data: bytes, files: Files) -> bytes:
    at = _place(rng, data)
    return data[:at] + bytes([rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))]) + data[at + 1 :]


def _cut(rng: random.Random, data: bytes, files: Files) -> bytes:
    return data[: _place(rng, data)]


def _cut_inside(rng: random.Random, data: bytes, files: Files) -> bytes:
    at = _place(rng, data)
    return data[:at] + data[at + rng.choice((1, 4, 8, 100)) :]


def _repeat(rng: random.Random, data: bytes, files: Files) -> bytes:
    at, size = _place(rng, data), rng.choice((1, 8, 64, 512))
    return data[: at + size] + data[at : at + size] * rng.choice((1, 3, 100)) + data[at + size :]


def _splice(rng: random.Random, data: bytes, files: Files) -> bytes:
    other = files[rng.choice(list(files))]
    return data[: _place(rng, data)] + other[_place(rng, other) :]


def _noise(rng: random.Random, data: bytes, files: Files) -> bytes:
    at = _place(rng, data)
    return data[:at] + rng.randbytes(rng.choice((1, 8, 100))) + data[at:]


def _only_noise(rng: random.Random, data: bytes, files: Files) -> bytes:
    return data[: rng.choice((4, 8, 16))] + rng.randbytes(rng.choice((0, 8, 300)))


def _extreme_field(rng: random.Random, data: bytes, files: Files) -> bytes:
    """An integer of one to eight bytes, in either order, set to an unexpected value."""
    at, width = _place(rng, data), rng.choice((1, 2, 4, 8))
    at -= at % width if rng.random() < 0.5 else 0
    value = rng.choice(EXTREMES) % (1 << 8 * width)
    return data[:at] + value.to_bytes(width, rng.choice(("little", "big"))) + data[at + width :]


def _extreme_varint(rng: random.Random, data: bytes, files: Files) -> bytes:
    """A byte replaced by an integer as Parquet's footer has them, with the footer's length kept true."""
    value, varint = rng.choice(EXTREMES), b""
    while value > 0x7F:
        varint += bytes([value & 0x7F | 0x80])
        value >>= 7
    varint += bytes([value])
    if not (data.endswith(b"PAR1") and len(data) > 12) or rng.random() < 0.3:  # pages have headers, too
        at = _place(rng, data)
        return data[:at] + varint + data[at + 1 :]
    size = struct.unpack("<I", data[-8:-4])[0]
    begin = max(4, len(data) - 8 - size)
    at = rng.randrange(begin, max(begin + 1, len(data) - 8))
    footer = data[begin:at] + varint + data[at + 1 : -8]
    return data[:begin] + footer + struct.pack("<I", len(footer)) + b"PAR1"


def _hostile_number(rng: random.Random, data: bytes, files: Files) -> bytes:
    found = list(re.finditer(rb"\d+", data[:4000]))
    if not found:
        return _noise(rng, data, files)
    one = rng.choice(found)
    return data[: one.start()] + rng.choice(NUMBERS).encode() + data[one.end() :]


def _hostile_text(rng: random.Random, data: bytes, files: Files) -> bytes:
    at = _place(rng, data)
    return data[:at] + rng.choice(HOSTILE_TEXT).encode() * rng.choice((1, 1, 50)) + data[at:]


FAULTS = (
    _flip,
    _set_byte,
    _cut,
    _cut_inside,
    _repeat,
    _splice,
    _noise,
    _only_noise,
    _extreme_field,
    _extreme_field,
    _extreme_varint,
    _hostile_number,
    _hostile_text,
)


def _special(rng: random.Random, name: str) -> bytes | None:
    """A file whose header is well formed and whose claims are not."""
    if name.endswith(".npy"):
        return _npy(rng)
    if "idx" in name:
        return _idx(rng)
    if name.endswith(".npz"):
        return _npz(rng)
    if name.endswith(".svm"):
        numbers = [rng.choice((*NUMBERS, "# x")) for _ in range(6)]
        return "{} {}:{}\n{} {}:{}\n".format(*numbers).encode()
    if name.endswith((".csv", ".tsv")):
        return _delimited(rng)
    return None


def _npy(rng: random.Random) -> bytes:
    shape = tuple(rng.choice((*EXTREMES, 2, 3, 10, -1)) for _ in range(rng.randrange(5)))
    described = rng.choice(TYPES)
    descr = described if described.startswith("[") else repr(described)
    order = rng.choice(("True", "False", "1"))
    header = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"
    header = rng.choice(
        (header, header, header, "[" * 3000, "(" * 90 + ")" * 90, "{1:" * 99, header.replace("0", "0L"))
    )
    version = rng.choice((1, 1, 1, 2, 3, 9))
    size = rng.choice((len(header), len(header), len(header), rng.choice(EXTREMES)))
    length = struct.pack("<H", size & 0xFFFF) if version == 1 else struct.pack("<I", size & 0xFFFFFFFF)
    return (
        b"\x93NUMPY"
        + bytes([version, 0])
        + length
        + header.encode()
        + rng.randbytes(rng.choice((0, 8, 80)))
    )


def _idx(rng: random.Random) -> bytes:
    n_axes = rng.choice((1, 2, 3, 200, 255))
    sizes = [rng.choice(EXTREMES) % (1 << 32) for _ in range(min(n_axes, rng.choice((n_axes, 2))))]
    if rng.random() < 0.5 and sizes:
        sizes[rng.randrange(len(sizes))] = 0
    header = struct.pack(f">4B{len(sizes)}I", 0, 0, rng.choice((8, 9, 11, 12, 13, 14)), n_axes, *sizes)
    return header + rng.randbytes(rng.choice((0, 0, 12)))


def _npz(rng: random.Random) -> bytes:
    """Archives with damaged members, unusual compression, wrong sizes or names."""
    stream = io.BytesIO()
    kinds = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    with zipfile.ZipFile(stream, "w", rng.choice(kinds)) as archive:
        for member in rng.sample(("X.npy", "y.npy", "x_test.npy", "../X.npy", "X.NPY", "\x1b.npy"), 3):
            archive.writestr(member, _npy(rng))
    data = bytearray(stream.getvalue())
    for signature, first, last in ((b"PK\x01\x02", 20, 28), (b"PK\x03\x04", 18, 26)):
        for found in re.finditer(re.escape(signature), bytes(data)):
            if rng.random() < 0.3:  # the sizes, compressed and not
                at = found.start() + rng.choice(range(first, last, 4))
                data[at : at + 4] = struct.pack("<I", rng.choice(EXTREMES) & 0xFFFFFFFF)
    return bytes(data)


def _delimited(rng: random.Random) -> bytes:
    """Very wide headers, short and long lines, quotes that stay open."""
    width = rng.choice((1, 3, 1000, 100_001))
    header = (
        ",".join(rng.choice(("", "a", f"c{i}")) for i in range(width)) if width < 5000 else "," * width
    )
    cells = [
        rng.choice((*NUMBERS, *HOSTILE_TEXT, "2024-01-01", "x" * 3000)) for _ in range(min(width, 20))
    ]
    line = rng.choice((",", ";", "\t")).join(cells)
    return "\n".join([header, *([line] * rng.choice((1, 5, 300)))]).encode()


def bomb(size: int) -> bytes:
    """A gzip file of about a thousandth of the bytes that it unpacks to."""
    packer = zlib.compressobj(9, wbits=31)
    blocks = (packer.compress(bytes(1 << 20)) for _ in range(size >> 20))
    return b"".join(blocks) + packer.flush()
