"""Files of every format are read as the same columns, in chunks, compressed or not."""

from __future__ import annotations

import datetime
import gzip
import io
import math
import os
import struct
import threading
import types
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from sklearn.datasets import dump_svmlight_file, load_digits

from mercer.tables import delimited, svmlight
from mercer.tables.bounds import Bounds
from mercer.tables.errors import TableError
from mercer.tables.formats import open_table
from mercer.tables.table import with_labels

ODD = 'a "quoted", name\nof two lines – ü'


def whole(table, columns=None, rows=1000):
    return pl.concat(table.chunks(columns, rows))


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "number": rng.normal(size=300),
            "count": rng.integers(0, 9, size=300),
            ODD: rng.choice(['x, "y"', "two\nlines", "ünï", "plain"], size=300),
            "flag": rng.random(300) < 0.5,
            "day": [datetime.date(2024, 1, 1) + datetime.timedelta(days=i) for i in range(300)],
            "moment": [datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=i) for i in range(300)],
            "gaps": [None if i % 7 == 0 else i / 4 for i in range(300)],
        }
    )


WRITERS = {
    "t.csv": lambda frame, path: frame.write_csv(path),
    "t.tsv": lambda frame, path: frame.write_csv(path, separator="\t"),
    "semicolons.csv": lambda frame, path: frame.write_csv(path, separator=";"),
    "t.parquet": lambda frame, path: frame.write_parquet(path),
    "t.arrow": lambda frame, path: frame.write_ipc(path),
    "t.feather": lambda frame, path: frame.write_ipc(path, compression="zstd"),
    "stream.arrow": lambda frame, path: frame.write_ipc_stream(path),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("way", ["plain", "gzip", "standard input", "no ending", "pipe"])
def test_a_table_is_read_as_it_was_written(frame, name, way, tmp_path, monkeypatch):
    path = tmp_path / name
    WRITERS[name](frame, path)
    given = str(path)
    if way == "gzip":
        given = f"{path}.gz"
        with gzip.open(given, "wb") as file:
            file.write(path.read_bytes())
    elif way == "standard input":
        monkeypatch.setattr("sys.stdin", types.SimpleNamespace(buffer=io.BytesIO(path.read_bytes())))
        given = "-"
    elif way == "no ending":
        given = str(path.rename(tmp_path / "t"))
    elif way == "pipe":
        contents, given = path.read_bytes(), str(tmp_path / "pipe")
        os.mkfifo(given)
        threading.Thread(target=Path(given).write_bytes, args=(contents,), daemon=True).start()
    table = open_table(given)
    assert table.names == tuple(frame.columns)
    assert table.n_rows == 300
    for _ in range(2):  # any number of times
        assert whole(table, rows=70).equals(frame)
    assert whole(table, [ODD, "count"]).equals(frame.select(ODD, "count"))
    assert [len(chunk) for chunk in table.chunks(rows=70)] == [70, 70, 70, 70, 20]


@pytest.mark.parametrize("packed", [False, True])
def test_numpy_arrays_become_columns_in_order(packed, tmp_path):
    X, y = load_digits(return_X_y=True)
    X = X.astype(np.uint8).reshape(-1, 8, 8)
    write = np.savez_compressed if packed else np.savez
    write(tmp_path / "d.npz", x_train=X[:1000], y_train=y[:1000, None], x_test=X[1000:], y_test=y[1000:])
    write(tmp_path / "e.npz", X=X, y=y.astype(str))
    train, test = (whole(open_table(str(tmp_path / "d.npz"), member=m)) for m in ("train", "test"))
    names = [f"x{i}" for i in range(64)]
    assert train.columns == test.columns == [*names, "y"]
    assert train.schema["x0"] == pl.UInt8()
    np.testing.assert_array_equal(train.select(names).to_numpy(), X[:1000].reshape(1000, 64))
    np.testing.assert_array_equal(test["y"].to_numpy(), y[1000:])
    assert whole(open_table(str(tmp_path / "d.npz"))).equals(train)
    both = open_table(str(tmp_path / "e.npz"))
    assert whole(both)["y"].to_list() == y.astype(str).tolist()
    chosen = whole(both, ["y", "x63", "x2"], rows=100)
    assert chosen.columns == ["y", "x63", "x2"]
    np.testing.assert_array_equal(chosen["x2"].to_numpy(), X[:, 0, 2])


@pytest.mark.parametrize("dtype", ["f2", ">f4", "f8", "u1", ">i4", "?", "M8[s]", "U3"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_of_any_type_and_order_has_its_values(dtype, order, tmp_path):
    X = np.asarray(np.arange(60).reshape(20, 3) % 7, order=order).astype(dtype)
    np.save(tmp_path / "x.npy", X)
    read = whole(open_table(str(tmp_path / "x.npy")), rows=6)
    assert read.columns == ["x0", "x1", "x2"]
    for i in range(3):
        assert read[f"x{i}"].to_list() == X[:, i].tolist()


def test_npy_of_one_axis_is_a_column_of_targets(tmp_path):
    np.save(tmp_path / "y.npy", np.array([b"a", "ü".encode()]))
    assert whole(open_table(str(tmp_path / "y.npy"))).to_dict(as_series=False) == {"y": ["a", "ü"]}


@pytest.mark.parametrize("zero_based", [True, False])
@pytest.mark.parametrize("name", ["d.svm", "a9a", "d.libsvm.gz"])
@pytest.mark.parametrize("fractions", [False, True])
def test_svmlight_is_made_dense_a_block_at_a_time(zero_based, name, fractions, tmp_path, monkeypatch):
    X, y = load_digits(return_X_y=True)
    X[:, 0] = 1.0  # so that the file shows whether it counts from 0 or 1
    y = y + 0.25 * fractions
    path = tmp_path / name
    with (gzip.open if name.endswith(".gz") else open)(path, "wb") as file:
        dump_svmlight_file(X, y, file, zero_based=zero_based, comment="made here")
    monkeypatch.setattr(svmlight, "SVMLIGHT_BYTES", 20_000)
    table = open_table(str(path))
    read = whole(table, rows=64)
    assert table.n_rows == len(read) == len(X)
    np.testing.assert_array_equal(read.drop("y").to_numpy(), X)
    assert read["y"].to_list() == y.tolist()
    assert read.schema["y"] == (pl.Float64() if fractions else pl.Int64())
    np.testing.assert_array_equal(whole(table, ["x5", "x1"]).to_numpy(), X[:, [5, 1]])


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("red 1:2", "begins with 'red', which is not a number"),
        ("1,2 1:2", "begins with '1,2', which is not a number"),
        ("\xff 1:2", "begins with '\ufffd', which is not a number"),
        ("1 1:2 3:abc", "has '3:abc' in place of index:value"),
        ("1 qid:7 x:2", "has 'x:2' in place of index:value"),
        ("1 qid 1:2", "has 'qid' in place of index:value"),
        ("1 2 3", "has '2' in place of index:value"),
        ("1 1: 2", "has '1:' in place of index:value"),
        ("1 -1:2", "has the index '-1', and indices go from 0 to 2,147,483,646"),
        ("1 2147483647:2", "has the index '2147483647', and indices go from 0 to 2,147,483,646"),
        ("1 99999999999999999999:2", "has the index '99999999999999999999', and indices go from"),
        ("1 3:1 2:1", "has the index 2 after 3, and indices must increase"),
        ("1 3:1 3:1", "has the index 3 after 3, and indices must increase"),
        ("1 1:" + "x" * 10_000, "has '1:xxx"),
    ],
)
@pytest.mark.parametrize("block", [30, 41, 1 << 24])
def test_an_invalid_line_of_svmlight_is_named_by_its_number(tmp_path, monkeypatch, line, fault, block):
    monkeypatch.setattr(svmlight, "SVMLIGHT_BYTES", block)
    lines = [
        "# made here",
        "1 1:2.5 # x y z",
        "",
        *["0 qid:3 1:1 7:1"] * 6,
        line,
        "also invalid",
        "1 1:2",
    ]
    path = tmp_path / "t.svm"
    path.write_bytes("\n".join(lines).encode("latin1"))
    with pytest.raises(TableError) as caught:
        open_table(str(path))
    assert str(caught.value).startswith(f"{path} cannot be read: line 10 {fault}")
    assert len(str(caught.value)) < len(str(path)) + 150


def test_targets_of_svmlight_that_are_no_64_bit_integers_are_floats(tmp_path):
    (tmp_path / "t.svm").write_text("1 1:2\n1e30 1:3\ninf 1:4\n")
    read = whole(open_table(str(tmp_path / "t.svm")))
    assert read["y"].to_list() == [1.0, 1e30, math.inf]


def test_sparse_file_that_is_too_large_when_dense_is_refused(tmp_path):
    (tmp_path / "wide.svm").write_text("1 1:1\n0 2000000000:1\n" * 100_000)
    bounds = Bounds(columns=2_000_000_000, unpacked=1e18)
    with pytest.raises(
        TableError, match=r"200,000 rows × 2,000,000,000 features.*GiB are free.*Keep fewer"
    ):
        open_table(str(tmp_path / "wide.svm"), bounds=bounds)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("code", "dtype"), [(0x08, ">u1"), (0x0B, ">i2"), (0x0D, ">f4")])
def test_idx_images_and_labels_are_columns(packed, code, dtype, tmp_path):
    images = np.arange(5 * 4 * 3).reshape(5, 4, 3).astype(dtype)
    labels = np.array([3, 1, 4, 1, 5], np.uint8)
    opener = gzip.open if packed else open
    with opener(tmp_path / "images-idx3-ubyte", "wb") as file:
        file.write(struct.pack(">4B3I", 0, 0, code, 3, 5, 4, 3) + images.tobytes())
    with opener(tmp_path / "labels-idx1-ubyte", "wb") as file:
        file.write(struct.pack(">4BI", 0, 0, 8, 1, 5) + labels.tobytes())
    read = whole(open_table(str(tmp_path / "images-idx3-ubyte")), rows=2)
    assert read.columns == [f"x{i}" for i in range(12)]
    np.testing.assert_array_equal(read.to_numpy(), images.reshape(5, 12))
    labels_read = whole(open_table(str(tmp_path / "labels-idx1-ubyte")))
    assert labels_read.to_dict(as_series=False) == {"y": labels.tolist()}


@pytest.mark.parametrize("kept", [True, False])
def test_late_values_widen_a_column_and_none_is_lost(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "INFER_ROWS", 20)
    monkeypatch.setattr(delimited, "keep_table", lambda size: kept)
    late = ["a,b,c,d,e,f"] + ["1,1,2024-01-01,true,,1"] * 30 + ["2.5,x,soon,2,7,NA"]
    (tmp_path / "late.csv").write_text("\n".join(late))
    read = whole(open_table(str(tmp_path / "late.csv")))
    assert [str(t) for t in read.dtypes] == ["Float64", "String", "String", "String", "Int64", "Int64"]
    assert read.row(-1) == (2.5, "x", "soon", "2", 7, None)
    assert read.row(0) == (1.0, "1", "2024-01-01", "true", None, 1)


def test_blanks_around_separators_do_not_turn_numbers_into_text(tmp_path):
    (tmp_path / "b.csv").write_text(
        "age, work, gain\n39, State-gov, 2174\n50, ?, 0.5\n38, Private, NA\n"
    )
    read = whole(open_table(str(tmp_path / "b.csv")))
    assert read.to_dict(as_series=False) == {
        "age": [39, 50, 38],
        "work": ["State-gov", None, "Private"],
        "gain": [2174, 0.5, None],
    }


def test_columns_without_a_header_are_numbered(tmp_path):
    (tmp_path / "n.csv").write_text("5.1,3.5,0\n4.9,3.0,1\n")
    assert whole(open_table(str(tmp_path / "n.csv"))).to_dict(as_series=False) == {
        "x0": [5.1, 4.9],
        "x1": [3.5, 3.0],
        "x2": [0, 1],
    }
    (tmp_path / "m.csv").write_text("0,1,2\n4.9,3.0,1\n")  # as pandas writes a frame without names
    assert open_table(str(tmp_path / "m.csv")).names == ("0", "1", "2")


def test_digits_are_read_as_text_on_request(tmp_path):
    (tmp_path / "zip.csv").write_text("code, n\n02139, 1\n00501, 2\n")
    read = whole(open_table(str(tmp_path / "zip.csv"), text=["code", "elsewhere"]))
    assert read.to_dict(as_series=False) == {"code": ["02139", "00501"], "n": [1, 2]}


def test_byte_order_mark_and_windows_line_ends_are_not_part_of_the_data(tmp_path):
    (tmp_path / "w.csv").write_bytes("\ufeffä,b\r\n1,x\r\n2,y\r\n".encode())
    assert whole(open_table(str(tmp_path / "w.csv"))).to_dict(as_series=False) == {
        "ä": [1, 2],
        "b": ["x", "y"],
    }


def test_wildcards_in_a_file_name_are_not_expanded(frame, tmp_path):
    for name in ("[a]*.csv", "[a]*.parquet", "[a]*.arrow"):
        WRITERS[f"t.{name.split('.')[1]}"](frame, tmp_path / name)
        assert open_table(str(tmp_path / name)).n_rows == 300


def test_temporary_files_are_deleted_with_their_table(frame, tmp_path):
    with gzip.open(tmp_path / "t.csv.gz", "wb") as file:
        frame.write_csv(file)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    chunks = open_table(str(tmp_path / "t.csv.gz"), folder=scratch).chunks(rows=100)
    assert len(next(chunks)) == 100
    assert len(list(scratch.iterdir())) == 1
    chunks.close()
    del chunks
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("empty.csv", b"", r"empty\.csv is empty"),
        ("t.parquet", b"a,b\n1,2\n", "t.parquet is not Parquet, as its name says"),
        ("t.parquet", b"PAR1 and no more", "t.parquet cannot be read: "),
        ("t.npy", b"\x93NUMPY\x01\x00", "cannot be read: "),
        ("t.csv.gz", gzip.compress(b"a,b\n1,2\n" * 99, mtime=0)[:-20], "cannot be read: "),
        ("t.bin", b"\x00\x01\x02", "of an unknown format. Supported are CSV, TSV, "),
        ("i-ubyte", struct.pack(">4B3I", 0, 0, 8, 3, 5, 4, 3), "should have 76 bytes, but it has 16"),
        ("t.csv", b"a,b\n1,2,3\n", "cannot be read: line 2 has 3 fields, and the first line has 2"),
        ("t.csv", "a,b\n1,\xe9\n".encode("latin1"), "cannot be read: line 2 is not UTF-8"),
        ("t.svm", b"1 1:2\n1 x\n", "cannot be read: line 2 has 'x' in place of index:value"),
        ("t.npz", b"PK\x03\x04 and no more", "cannot be read: File is not a zip file"),
    ],
)
def test_an_unreadable_file_raises_one_sentence_with_its_name(name, contents, message, tmp_path):
    (tmp_path / name).write_bytes(contents)
    with pytest.raises(TableError, match=message) as caught:
        whole(open_table(str(tmp_path / name)))
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_errors_name_the_wrong_array_or_member(tmp_path):
    np.savez(tmp_path / "z.npz", weights=np.ones(3))
    np.savez(tmp_path / "u.npz", X=np.ones((3, 2)), y=np.ones(2))
    np.savez(tmp_path / "m.npz", X=np.ones((3, 2)), y=np.ones((3, 2)))
    np.save(tmp_path / "c.npy", np.ones((3, 2), complex))
    np.save(tmp_path / "o.npy", np.array([{}, {}]), allow_pickle=True)
    for name, member, message in [
        ("z.npz", None, "must hold an array X or X_train, and y named .* Its arrays are 'weights'"),
        ("u.npz", "test", "must hold an array X_test"),
        ("u.npz", "validation", '"train" or "test". Got \'validation\''),
        ("u.npz", None, "same number of rows. Got 3 and 2 in"),
        ("m.npz", None, r"one target per row. Got shape \(3, 2\) in"),
        ("c.npy", None, "numbers, text or dates .* Got complex128"),
        ("o.npy", None, "Python objects in dtype"),
        ("c.npy", "test", "only NPZ files have train and test arrays"),
        ("absent.csv", None, "There is no file .*absent.csv"),
        ("", None, "is a folder"),
    ]:
        with pytest.raises(TableError, match=message):
            open_table(str(tmp_path / name), member=member)


def test_the_error_for_a_missing_column_lists_the_columns(frame, tmp_path):
    frame.write_parquet(tmp_path / "t.parquet")
    with pytest.raises(
        TableError,
        match=r"has no column 'Number'\. Did you mean 'number'\? Its columns are 'number', 'count'",
    ):
        next(open_table(str(tmp_path / "t.parquet")).chunks(["Number"]))


def test_labels_of_another_file_become_a_column(tmp_path):
    X, y = load_digits(return_X_y=True)
    frame = pl.DataFrame(X.astype(np.uint8), schema=[f"x{i}" for i in range(64)])
    frame.with_columns(y=pl.lit(-1)).write_parquet(tmp_path / "x.parquet")
    np.save(tmp_path / "y.npy", y)
    np.save(tmp_path / "short.npy", y[:-1])
    images, labels = open_table(str(tmp_path / "x.parquet")), open_table(str(tmp_path / "y.npy"))
    table = with_labels(images, labels)
    assert table.names == (*frame.columns, "y")
    assert whole(table, rows=100).equals(frame.with_columns(y=y))
    assert whole(table, ["y", "x3"], rows=100).equals(pl.DataFrame({"y": y, "x3": frame["x3"]}))
    assert whole(table, ["x3"]).equals(frame.select("x3"))
    assert whole(table, ["y"], rows=100).equals(pl.DataFrame({"y": y}))
    for wrong, got in (("short.npy", "1 column and 1,796 rows"), ("x.parquet", "65 columns and 1,797")):
        with pytest.raises(TableError, match=f"must be one column with 1,797 rows.* Got {got}"):
            with_labels(images, open_table(str(tmp_path / wrong)))


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.arrow", "t.npz", "t.svm", "labels"])
def test_a_part_of_a_table_has_its_rows_and_no_others(tmp_path, name):
    rng = np.random.default_rng(0)
    X, y = rng.integers(1, 200, size=(500, 3)), np.arange(500)
    frame = pl.DataFrame(X, schema=["x0", "x1", "x2"], orient="row").with_columns(y=y)
    if name == "t.csv":
        frame.write_csv(tmp_path / name)
    elif name == "t.arrow":
        frame.write_ipc(tmp_path / name)
    elif name == "t.svm":
        dump_svmlight_file(X, y, str(tmp_path / name), zero_based=True)
    else:
        frame.write_parquet(tmp_path / "t.parquet", row_group_size=64)
        np.savez(tmp_path / "t.npz", X=X, y=y)
        np.save(tmp_path / "y.npy", y)
    table = open_table(str(tmp_path / ("t.npz" if name == "labels" else name)))
    if name == "labels":
        table = with_labels(table, open_table(str(tmp_path / "y.npy")))
    every = whole(table)
    for first, stop in ((0, 500), (0, 100), (130, 131), (99, 350), (400, 500)):
        part = table.part(first, stop)
        assert part.n_rows == stop - first
        assert whole(part, rows=70).equals(every[first:stop])
        assert whole(part, ["y"], rows=70)["y"].to_list() == list(range(first, stop))
    assert not list(table.part(200, 200).chunks())
    inner = table.part(100, 300).part(50, 60)
    assert whole(inner)["y"].to_list() == list(range(150, 160))


def test_a_small_csv_file_is_parsed_once_and_a_larger_one_in_every_pass(frame, tmp_path, monkeypatch):
    """The file is replaced by another one, to see from where the rows come."""
    path, changed = tmp_path / "t.csv", pl.DataFrame({"z": [1]})
    frame.write_csv(path)
    table = open_table(str(path))
    expected = whole(table)
    part = table.part(100, 103)
    changed.write_csv(path)
    assert whole(table, rows=70).equals(expected)  # from memory
    assert whole(part).equals(expected[100:103])
    table.forget()
    with pytest.raises(TableError, match=r"t\.csv"):
        whole(table)
    frame.write_csv(path)
    assert whole(table).equals(expected)
    assert whole(part).equals(expected[100:103])
    monkeypatch.setattr("mercer.planning.memory.MOST_KEPT_TABLE", path.stat().st_size)
    large = open_table(str(path))
    assert whole(large).equals(expected)
    changed.write_csv(path)
    with pytest.raises(TableError, match=r"t\.csv"):
        whole(large)


def test_what_is_kept_of_a_file_and_its_labels_is_freed_together(tmp_path):
    (tmp_path / "x.csv").write_text("a\n1\n2\n")
    (tmp_path / "y.csv").write_text("y\n3\n4\n")
    both = with_labels(open_table(str(tmp_path / "x.csv")), open_table(str(tmp_path / "y.csv")))
    assert whole(both).rows() == [(1, 3), (2, 4)]
    (tmp_path / "y.csv").write_text("y\n5\n6\n")
    assert whole(both).rows() == [(1, 3), (2, 4)]
    both.forget()
    assert whole(both).rows() == [(1, 5), (2, 6)]
