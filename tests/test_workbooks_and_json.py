"""Excel and JSON are read and written."""

from __future__ import annotations

import datetime
import gzip
import io
import json
import zipfile
from contextlib import suppress

import numpy as np
import polars as pl
import pytest

from mercer.cli.messages import CallError
from mercer.cli.outputs import check_ending, write_frames
from mercer.tables.errors import TableError
from mercer.tables.formats import open_table
from mercer.tables.layout import Layout
from mercer.tables.survey import fit_columns

FRAME = pl.DataFrame(
    {
        "number": [1.5, None, -2.0],
        "count": [1, 2, 3],
        "text": ["=1+1", "ü", None],
        "flag": [True, False, True],
        "when": [datetime.datetime(2024, 1, 2, 3, 4), None, datetime.datetime(2024, 1, 3)],
    }
)


def whole(path, **options):
    return pl.concat(open_table(str(path), **options).chunks(rows=2))


RECORDS = [{"a": 1, "b": "x"}, {"a": 2.5, "b": None, "c": True}, {"b": "ü", "c": False}]
READ = {"a": [1.0, 2.5, None], "b": ["x", None, "ü"], "c": [None, True, False]}
COLUMNS = {"a": [1, 2.5, None], "b": ["x", None, "ü"], "c": [None, True, False]}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.jsonl", "\n".join(map(json.dumps, RECORDS))),
        ("t.json", "\n\n".join(map(json.dumps, RECORDS)) + "\n"),
        ("t.json", json.dumps(RECORDS)),
        ("t.json", json.dumps(RECORDS, indent=2, ensure_ascii=False)),
        ("t.json", json.dumps({"rows": RECORDS, "made": "here"})),
        ("t.json", json.dumps(COLUMNS)),
        ("t.json", json.dumps({k: dict(enumerate(v)) for k, v in COLUMNS.items()}, indent=1)),
        ("t", json.dumps(RECORDS)),
    ],
)
def test_json_of_several_layouts_is_the_same_table(name, text, tmp_path):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert whole(tmp_path / name).to_dict(as_series=False) == READ
    with gzip.open(tmp_path / f"{name}.gz", "wb") as file:
        file.write(text.encode())
    assert whole(tmp_path / f"{name}.gz").to_dict(as_series=False) == READ


def test_cells_of_several_types_are_text_and_read_as_numbers_where_they_are(tmp_path):
    cells = [1, 2.5, "3 kg", None, 4] * 12
    lines = (json.dumps({"x": x, "n": {"a": 1}, "y": i % 2}) for i, x in enumerate(cells))
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    columns = fit_columns(open_table(str(tmp_path / "t.jsonl")))
    X, _ = columns.features(whole(tmp_path / "t.jsonl", text=columns.text_names))
    np.testing.assert_allclose(X[:5, 0], [1, 2.5, 3, 2.625, 4])


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"a": 1}\n{"a": \n', "line 2 is not an object in JSON"),
        ('{"a": 1}\n[1]\n', "line 2 is not an object in JSON"),
        ('[{"a": 1},\n {"a" 2}]', "it is not JSON at line 2, column 7"),
        ("[1, 2]", "has no table: it must be an array of objects"),
        ("[" * 100_000, "cannot be read: "),
    ],
)
def test_json_that_is_no_table_is_refused_with_its_place(text, fault, tmp_path):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(TableError) as caught:
        whole(tmp_path / "t.json")
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["o.json", "o.jsonl", "o.tsv", "o.csv", "o.arrow", "o.parquet"])
def test_a_table_is_written_as_its_name_says(name, tmp_path):
    write_frames([FRAME[:2], FRAME[2:]], tmp_path / name, guard=False)
    read = whole(tmp_path / name)
    assert read.columns == FRAME.columns
    for column in ("number", "count", "text", "flag"):
        assert read[column].to_list() == FRAME[column].to_list()
    if name == "o.tsv":
        assert (tmp_path / name).read_text().startswith("number\tcount\t")
    if name == "o.json":
        assert len(json.loads((tmp_path / name).read_text())) == 3


@pytest.mark.parametrize("name", ["o.xls", "o.ods", "o.csv.gz", "o.npz"])
def test_a_name_that_promises_another_format_is_refused(name):
    with pytest.raises(CallError, match="Predictions cannot be written as"):
        check_ending(name)


def test_the_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr("mercer.cli.outputs.find_spec", lambda name: None)
    with pytest.raises(CallError, match=r"pip install 'mercer\[excel\]'"):
        check_ending("out.xlsx")


@pytest.fixture
def excel():
    pytest.importorskip("python_calamine", reason="needs the extra excel")
    return pytest.importorskip("xlsxwriter", reason="needs the extra excel")


def test_a_workbook_is_read_as_it_was_written(excel, tmp_path):
    write_frames([FRAME[:2], FRAME[2:]], tmp_path / "o.xlsx")
    read = whole(tmp_path / "o.xlsx")
    assert read.to_dict(as_series=False) == FRAME.to_dict(as_series=False)
    assert read.schema["count"] == pl.Int64()
    (tmp_path / "o.xlsx").rename(tmp_path / "without ending")
    assert whole(tmp_path / "without ending").equals(read)


def test_a_sheet_is_chosen_by_name(excel, tmp_path):
    with excel.Workbook(tmp_path / "two.xlsx") as book:
        for name in ("first", "second"):
            sheet = book.add_worksheet(name)
            for i, cells in enumerate([("a", "", "a", 7), (1, "", 2, name), ("3 kg", "", 4, name)]):
                sheet.write_row(i + 2, 1, cells)  # below empty rows, right of an empty column
    table = open_table(str(tmp_path / "two.xlsx"))
    assert table.names == ("a", "a (2)", "7")
    assert table.notes[0] == "read the sheet 'first', the first of 2; --sheet names another"
    assert pl.concat(table.chunks())["a"].to_list() == ["1", "3 kg"]
    assert whole(tmp_path / "two.xlsx", layout=Layout(sheet="second"))["7"].to_list() == ["second"] * 2
    with pytest.raises(TableError, match=r"has no sheet 'Second'. Did you mean 'second'"):
        open_table(str(tmp_path / "two.xlsx"), layout=Layout(sheet="Second"))
    read = whole(tmp_path / "two.xlsx", layout=Layout(header=False))
    assert read.columns == ["x0", "x2", "x3"]
    assert len(read) == 3


def repacked(path, changes):
    """The workbook with parts of its members replaced."""
    packed = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            data = old.read(name)
            for before, after in changes:
                data = data.replace(before, after)
            new.writestr(name, data)
    path.write_bytes(packed.getvalue())


def test_a_workbook_that_claims_too_much_is_refused_before_it_is_read(excel, tmp_path, monkeypatch):
    write_frames([FRAME], tmp_path / "far.xlsx")
    repacked(tmp_path / "far.xlsx", [(b'r="A4"', b'r="XFD1048576"'), (b'r="B4"', b'r="XFD1048576"')])
    monkeypatch.setattr("python_calamine.CalamineWorkbook.from_path", None, raising=False)
    with pytest.raises(TableError, match=r"1,048,576 rows × 16,384 columns, .* the limit is"):
        open_table(str(tmp_path / "far.xlsx"))


def test_damaged_and_old_workbooks_are_refused_in_one_sentence(excel, tmp_path):
    write_frames([FRAME], tmp_path / "o.xlsx")
    data = (tmp_path / "o.xlsx").read_bytes()
    for i, place in enumerate(range(40, len(data), len(data) // 40)):
        path = tmp_path / f"{i}.xlsx"
        path.write_bytes(data[:place] + b"\xff\x00" + data[place + 2 :])
        with suppress(TableError):  # nothing else
            whole(path)
    (tmp_path / "old.xls").write_bytes(b"\xd0\xcf\x11\xe0" + bytes(500))
    with pytest.raises(TableError, match=r"is an old or encrypted Excel file. Save it as plain .xlsx"):
        open_table(str(tmp_path / "old.xls"))
