"""Data files that claim more than they hold, or are damaged, are refused in one sentence."""

from __future__ import annotations

import gzip
import io
import os
import random
import struct
import threading
import time
import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from benchmarks.torture import sandbox
from benchmarks.torture import tables as torture
from benchmarks.torture.hostile_files import bomb, damaged, valid_files
from benchmarks.torture.sandbox import failures
from mercer.planning.memory import CLAIM_FLOOR
from mercer.tables import formats
from mercer.tables.bounds import Bounds
from mercer.tables.errors import TableError, reading_errors
from mercer.tables.formats import open_table
from mercer.tables.survey import fit_columns

MIB = 1 << 20
CORPUS = sorted(path for path in torture.CORPUS.iterdir() if path.is_file())


def refused(path, bounds=formats.DEFAULT_BOUNDS, **options):
    """The sentence with which a file is refused."""
    with pytest.raises(TableError) as caught:
        for _ in open_table(str(path), bounds=bounds, **options).chunks():
            pass
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert len(sentence.replace(str(path), "")) < torture.LONGEST_SENTENCE
    return sentence


def npy(shape, dtype="<f4", values=b""):
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + values


def test_every_file_of_the_corpus_gives_rows_or_one_sentence_in_bounded_memory():
    assert len(CORPUS) > 30
    assert all(path.stat().st_size < 20_000 for path in CORPUS)
    assert list(failures(torture.MODULE, CORPUS)) == []


def test_damaged_files_give_rows_or_one_sentence():
    assert list(torture.fuzz(60, seed=3)) == []


def test_valid_files_of_the_fuzzer_are_read(tmp_path):
    for name, data in valid_files().items():
        (tmp_path / name).write_bytes(data)
        assert open_table(str(tmp_path / name)).n_rows > 0, name


def test_a_case_of_the_fuzzer_depends_on_its_number_alone():
    files = valid_files()
    assert damaged(random.Random("1 7"), files) == damaged(random.Random("1 7"), files)


@pytest.mark.parametrize(
    ("name", "contents"),
    [
        ("one.svm", b"1 2000000000:1\n"),
        ("none.idx3-ubyte", struct.pack(">4B2I", 0, 0, 8, 2, 0, 2_000_000_000)),
        ("none.npy", npy((0, 2_000_000_000))),
        ("wide.csv", b"," * 200_000 + b"\n1\n"),
    ],
)
def test_columns_beyond_the_limit_are_refused_with_the_limit_and_the_option(name, contents, tmp_path):
    (tmp_path / name).write_bytes(contents)
    sentence = refused(tmp_path / name)
    assert "columns, and the limit is 50,000" in sentence
    assert "--max-columns" in sentence


def test_a_higher_limit_admits_more_columns(tmp_path):
    (tmp_path / "w.svm").write_bytes(b"1 60000:1\n0 3:1\n")
    assert "--max-columns" in refused(tmp_path / "w.svm")
    table = open_table(str(tmp_path / "w.svm"), bounds=Bounds(columns=60_000))
    assert len(table.names) == 60_001
    assert "the limit is 2." in refused(tmp_path / "w.svm", Bounds(columns=2))


@pytest.mark.parametrize(
    "contents",
    [
        npy((1_000_000_000_000, 3)),
        npy((1_000_000_000_000, 0)),
        npy((1_000_000_000_000,), "<U0"),
        npy((1_000_000_000_000,), "|V0"),
        npy((-1, 4), values=bytes(64)),
        npy((10**18, 10**18, 10**18)),
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
        b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 200,
        struct.pack(">4B3I", 0, 0, 8, 3, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        struct.pack(">4BI", 0, 0, 8, 255, 7),
    ],
)
def test_a_header_that_claims_more_than_the_file_holds_is_refused(contents, tmp_path):
    (tmp_path / "claim").write_bytes(contents)
    refused(tmp_path / "claim")


def test_a_sparse_table_that_is_too_large_for_its_file_is_refused(tmp_path):
    (tmp_path / "s.svm").write_text("1 40000:1\n" * 1000)
    sentence = refused(tmp_path / "s.svm")
    assert "claims 1,000 rows × 40,000 columns" in sentence
    assert "--max-unpacked" in sentence
    assert open_table(str(tmp_path / "s.svm"), bounds=Bounds(unpacked=1e9)).n_rows == 1000


def test_short_lines_below_a_wide_header_are_refused(tmp_path):
    (tmp_path / "s.csv").write_text(",".join(f"c{i}" for i in range(40_000)) + "\n" + "1\n" * 100_000)
    assert "claims 100,001 rows × 40,000 columns" in refused(tmp_path / "s.csv")


def test_runs_of_equal_values_that_are_too_long_for_their_file_are_refused(tmp_path):
    frame = pl.select(pl.repeat(1, 40 * MIB).alias("x"))
    frame.write_parquet(tmp_path / "r.parquet", row_group_size=40 * MIB)
    assert (tmp_path / "r.parquet").stat().st_size < 100_000
    assert "claims 320 MiB of values, and the limit is 256 MiB" in refused(tmp_path / "r.parquet")


def test_gzip_stops_at_the_limit_and_leaves_no_copy(tmp_path):
    (tmp_path / "b.csv.gz").write_bytes(bomb(CLAIM_FLOOR + 2 * MIB))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    sentence = refused(tmp_path / "b.csv.gz", folder=scratch)
    assert "unpacks to more than 256 MiB, which is the limit" in sentence
    assert "--max-unpacked" in sentence
    assert list(scratch.iterdir()) == []


def test_members_of_an_archive_count_together_and_as_they_unpack(tmp_path):
    np.savez_compressed(
        tmp_path / "z.npz", X=np.zeros((3 * MIB, 1), np.uint8), y=np.zeros(3 * MIB, np.uint8)
    )
    assert open_table(str(tmp_path / "z.npz"), bounds=Bounds(unpacked=7 * MIB)).n_rows == 3 * MIB
    assert "more than 5 MiB" in refused(tmp_path / "z.npz", Bounds(unpacked=5 * MIB))
    # The sizes that the archive declares are made small.
    packed = bytearray((tmp_path / "z.npz").read_bytes())
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        starts = [member.header_offset for member in archive.infolist()]
    at = packed.find(b"PK\x01\x02")
    packed[at + 24 : at + 28] = struct.pack("<I", 100)
    packed[starts[0] + 22 : starts[0] + 26] = struct.pack("<I", 100)
    (tmp_path / "z.npz").write_bytes(packed)
    refused(tmp_path / "z.npz", Bounds(unpacked=5 * MIB))


def test_unusual_compression_in_an_archive_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "l.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("X.npy", npy((1, 1), values=bytes(4)))
    assert "compressed in an unusual way" in refused(tmp_path / "l.npz")


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="needs a device that never ends")
def test_a_device_is_refused():
    assert refused("/dev/zero") == "/dev/zero is a device. Name a file, or use - for standard input."


def test_a_panic_of_the_reader_is_one_sentence_and_prints_nothing(tmp_path, monkeypatch, capfd):
    pl.DataFrame({"a": [1, 2]}).write_parquet(tmp_path / "p.parquet")

    def panic(*arguments, **options):
        os.write(2, b"thread 'main' panicked at crates/polars-core/src/lib.rs:1:1")
        raise pl.exceptions.PanicException("called `Option::unwrap()` on a `None` value")

    monkeypatch.setattr(pl, "scan_parquet", panic)
    sentence = refused(tmp_path / "p.parquet")
    assert sentence.endswith(
        "cannot be read: it is damaged, or it has something that Polars does not support."
    )
    assert capfd.readouterr().err == ""


def test_a_table_with_other_rows_than_its_header_says_is_refused(tmp_path):
    def read(columns, rows):
        yield pl.DataFrame({"a": [1, 2, 3]})

    for claimed, got in ((2, "more"), (4, "3")):
        table = formats.Table("t", ("a",), claimed, read)
        with pytest.raises(
            TableError, match=f"t is damaged.* should have {claimed} rows, but has {got}"
        ):
            list(table.chunks())


@pytest.mark.parametrize("packed", [False, True])
def test_a_quote_that_is_never_closed_shows_little_of_the_data(packed, tmp_path):
    secret = "secret " * 500_000
    contents = f'a,b\n1,x\n2,"y\n{secret}\n'.encode()
    path = Path(f"{tmp_path / 'q.csv'}{'.gz' if packed else ''}")
    path.write_bytes(gzip.compress(contents) if packed else contents)
    sentence = refused(path)
    assert sentence.count("secret") < 10
    assert "line 3" in sentence


def test_a_line_with_too_many_fields_is_named(tmp_path):
    (tmp_path / "f.csv").write_text("a,b\n" + "1,2\n" * 5 + "1,2,3\n")
    assert "line 7 has 3 fields, and the first line has 2" in refused(tmp_path / "f.csv")


def test_long_names_are_shortened_in_messages(tmp_path):
    pl.DataFrame({"n" * 10_000: [1, 2]}).write_parquet(tmp_path / "n.parquet")
    with pytest.raises(TableError) as caught:
        list(open_table(str(tmp_path / "n.parquet")).chunks(["m" * 10_000]))
    assert len(str(caught.value)) < 500 + len(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("page-of-two-gigabytes.parquet", "claims 2.00 GiB of values, and the limit is 256 MiB"),
        ("page-of-negative-values.parquet", "it is damaged, or not a Parquet file"),
        ("buffer-of-a-terabyte-file.arrow", "claims 1024.00 GiB of values"),
        ("buffer-of-a-terabyte-stream.arrow", "claims 1024.00 GiB of values"),
        ("a-trillion-missing-stream.arrow", "claims 7450.58 GiB of values"),
    ],
)
def test_a_page_or_buffer_that_claims_too_much_is_refused_before_it_is_read(name, words, monkeypatch):
    for reader in ("scan_parquet", "scan_ipc", "read_ipc_stream"):
        monkeypatch.delattr(pl, reader)
    assert words in refused(torture.CORPUS / name)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.arrow"])
def test_names_of_columns_are_never_patterns(name, tmp_path):
    frame = pl.DataFrame({"*": [1, 2, 3], "^.*$": [4, 5, 7], "y": ["a", "b", "a"]})
    write = {"t.csv": frame.write_csv, "t.parquet": frame.write_parquet, "t.arrow": frame.write_ipc}
    write[name](tmp_path / name)
    table = open_table(str(tmp_path / name))
    assert pl.concat(table.chunks()).equals(frame)
    assert pl.concat(table.chunks(["^.*$", "*"])).equals(frame[["^.*$", "*"]])
    columns = fit_columns(table)
    np.testing.assert_array_equal(columns.features(frame)[0], [[1, 4], [2, 5], [3, 7]])


def test_a_label_of_thousands_of_characters_is_refused(tmp_path):
    pl.DataFrame({"x": [1, 2, 3], "y": ["a", "b", "c" * 3000]}).write_parquet(tmp_path / "l.parquet")
    table = open_table(str(tmp_path / "l.parquet"))
    columns = fit_columns(table, task="classification")
    with pytest.raises(TableError, match=r"at most 256 characters, but the target 'y' has one of 3,000"):
        columns.targets(next(table.chunks()))


def test_a_signalling_nan_is_a_missing_value():
    table = open_table(str(torture.CORPUS / "signalling-nan.npy"))
    (column,) = fit_columns(table, "x1").columns
    assert column.missing


def check(case):
    """What the sandbox calls in a child process, for the test below."""
    actions = {"hangs": lambda: time.sleep(1000), "ends": lambda: os._exit(3), "raises": lambda: 1 // 0}
    actions["prints"] = lambda: os.write(2, b"panicked")
    actions["fills"] = lambda: bytearray(8 << 30)
    actions.get(case.name, lambda: None)()


@pytest.mark.slow
def test_the_sandbox_names_each_case_that_fails_and_no_other(monkeypatch):
    monkeypatch.setattr(sandbox, "MOST_SECONDS", 30.0)
    cases = [
        Path(name) for name in ("good", "ends", "good", "raises", "prints", "fills", "hangs", "good")
    ]
    found = {case.name: wrong for case, wrong in failures("tests.test_hostile_tables", cases)}
    assert set(found) == {"ends", "raises", "prints", "fills", "hangs"}
    assert "code 3" in found["ends"]
    assert "ZeroDivisionError" in found["raises"]
    assert "MemoryError" in found["fills"]
    assert found["hangs"] == "takes too long"


def test_threads_that_read_at_once_leave_standard_error_as_it_was(tmp_path, capfd):
    """One that ended last used to restore the redirection of another, and all output was lost."""
    inside, go_on = threading.Event(), threading.Event()

    def reads():
        with reading_errors("a.csv"):
            inside.set()
            go_on.wait(10)

    other = threading.Thread(target=reads)
    with reading_errors("b.csv"):
        other.start()
        assert inside.wait(10)
        os.write(2, b"of another thread\n")
    go_on.set()
    other.join()
    os.write(2, b"afterwards\n")
    assert capfd.readouterr().err == "of another thread\nafterwards\n"


def test_what_polars_prints_as_it_panics_is_not_shown(capfd):
    panic = type("PanicException", (BaseException,), {})

    def reads():
        with reading_errors("a.csv"):
            os.write(2, b"thread panicked at ...\n")
            raise panic

    with pytest.raises(TableError, match="does not support"):
        reads()
    assert capfd.readouterr().err == ""
