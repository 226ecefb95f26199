"""Text files as people have them: other encodings, comments, ragged rows, repeated names."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from mercer.tables import text_lines
from mercer.tables.errors import TableError
from mercer.tables.formats import open_table
from mercer.tables.layout import Layout
from mercer.tables.survey import fit_columns

PLAIN = "größe,y\n1,a\n2,ü\n3,a\n"


def whole(path, **options):
    table = open_table(str(path), **options)
    return pl.concat(table.chunks()).to_dict(as_series=False), table


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-8-sig", "UTF8"])
def test_an_encoding_can_be_named(encoding, tmp_path):
    (tmp_path / "t.csv").write_bytes(PLAIN.encode(encoding))
    found, _ = whole(tmp_path / "t.csv", layout=Layout(encoding=encoding))
    assert found == {"größe": [1, 2, 3], "y": ["a", "ü", "a"]}


def test_utf_16_is_recognised_by_its_mark(tmp_path):
    (tmp_path / "t.csv").write_bytes(PLAIN.encode("utf-16"))
    found, table = whole(tmp_path / "t.csv")
    assert found == {"größe": [1, 2, 3], "y": ["a", "ü", "a"]}
    assert table.notes == (f"{tmp_path / 't.csv'} is read as utf-16",)


def test_text_in_another_encoding_is_refused_with_line_and_option(tmp_path):
    (tmp_path / "t.csv").write_bytes(PLAIN.encode("latin-1"))
    with pytest.raises(TableError, match="line 1 is not UTF-8; name its encoding with --encoding"):
        whole(tmp_path / "t.csv")
    with pytest.raises(TableError, match=r"is not encoded in ascii. Use another --encoding"):
        whole(tmp_path / "t.csv", layout=Layout(encoding="ascii"))
    with pytest.raises(TableError, match=r"There is no encoding 'klingon'. Usual ones are"):
        Layout(encoding="klingon")


def test_a_header_is_there_or_not_as_the_user_says(tmp_path):
    (tmp_path / "t.csv").write_text("red,1\nblue,2\n")
    assert whole(tmp_path / "t.csv")[0] == {"red": ["blue"], "1": [2]}
    found, _ = whole(tmp_path / "t.csv", layout=Layout(header=False))
    assert found == {"x0": ["red", "blue"], "x1": [1, 2]}
    (tmp_path / "n.csv").write_text("10,20\n1,2\n")
    assert whole(tmp_path / "n.csv")[0] == {"x0": [10, 1], "x1": [20, 2]}
    assert whole(tmp_path / "n.csv", layout=Layout(header=True))[0] == {"10": [1], "20": [2]}


@pytest.mark.parametrize(
    "lines",
    [
        ["5.1,3,setosa", "4.9,3,setosa", "6.3,3,virginica"],  # a fraction
        ["p,x", "e,x", "p,b"],  # each word is a value of its column
        ["39, State-gov, 0", "50, Private, 0", "38, State-gov, 2"],
    ],
)
def test_a_header_that_looks_like_data_is_named_with_the_option(lines, tmp_path):
    (tmp_path / "t.csv").write_text("\n".join(lines))
    found, table = whole(tmp_path / "t.csv")
    assert len(next(iter(found.values()))) == 2
    said = "the first line gives the names of the columns, although it looks like data: "
    assert table.notes[0].startswith(said)
    assert table.notes[0].endswith("; --no-header reads it as data")
    for call in (lambda: table.target_named(None), lambda: table.require(["x1"])):
        with pytest.raises(
            TableError, match=r"If these are values, use --no-header; columns are .* 'x0'"
        ):
            call()
    assert whole(tmp_path / "t.csv", layout=Layout(header=True))[1].notes == ()
    found, table = whole(tmp_path / "t.csv", layout=Layout(header=False))
    assert table.notes == ()
    assert len(found["x0"]) == 3


@pytest.mark.parametrize(
    "header", ["country,2019,2020", "0,1,2", "p,x,z", "'p',x,b", "color,p,b", "age,gain 1.5,y"]
)
def test_names_are_no_data(header, tmp_path):
    (tmp_path / "t.csv").write_text(f"{header}\np,1,b\ne,2,b\n")
    assert whole(tmp_path / "t.csv")[1].notes == ()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_separator_may_be_named_in_the_first_line_as_for_excel(end, tmp_path):
    lines = ["sep=;", "a,b;y", "# note", "1,5;2", "2,5;3"]
    (tmp_path / "t.csv").write_bytes(end.join(lines).encode())
    found, table = whole(tmp_path / "t.csv")
    assert found == {"a,b": ["1,5", "2,5"], "y": [2, 3]}
    assert table.notes == ("skipped line 3 of comments, beginning with #",)
    (tmp_path / "t.csv").write_bytes(end.join([*lines, "4"]).encode())
    with pytest.raises(TableError, match="line 6 has 1 field, and the first line has 2"):
        whole(tmp_path / "t.csv")


def test_lines_may_end_with_a_carriage_return_alone(tmp_path):
    (tmp_path / "t.csv").write_bytes(PLAIN.replace("\n", "\r").encode())
    assert whole(tmp_path / "t.csv")[0] == {"größe": [1, 2, 3], "y": ["a", "ü", "a"]}


def test_lines_of_comments_are_skipped_and_counted(tmp_path):
    text = '# made by a logger\n# on Monday, at noon, late\na,b,y\n1,"#x\n# y",3\n# pause\n4,#z,6\n'
    (tmp_path / "t.csv").write_text(text)
    found, table = whole(tmp_path / "t.csv")
    assert found["b"] == ["#x\n# y", "#z"]
    assert found["y"] == [3, 6]
    assert table.notes == ("skipped 3 lines of comments, beginning with #",)
    (tmp_path / "h.csv").write_text("#id,x,y\n1,2,3\n")  # a header, not a comment
    assert whole(tmp_path / "h.csv")[0] == {"#id": [1], "x": [2], "y": [3]}
    np.savetxt(tmp_path / "n.csv", [[1.5, 2.0]], delimiter=",", header="x,y")
    assert whole(tmp_path / "n.csv")[0] == {"x": [1.5], "y": [2.0]}


@pytest.mark.parametrize("block", [7, 64, 1 << 20])
@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (["a,b,c", "1,2,3", "4,5", "6,7,8"], "line 3 has 2 fields, and the first line has 3"),
        (["a,b,c", "1,2,3", "4,5,6,7"], "line 3 has 4 fields, and the first line has 3"),
        (["a,b,c", '1,"x\ny",3', "Total"], "line 4 has 1 field, and the first line has 3"),
        (["# note", "a,b,c", "1,2,3", "# note", "4,5"], "line 5 has 2 fields, and the first line has 3"),
    ],
)
def test_a_ragged_row_is_named_by_its_line(lines, fault, block, tmp_path, monkeypatch):
    monkeypatch.setattr(text_lines, "LINE_BLOCK", block)
    for end in ("\n", ""):
        (tmp_path / "t.csv").write_text("\n".join(lines) + end)
        with pytest.raises(TableError) as caught:
            whole(tmp_path / "t.csv")
        assert fault in str(caught.value)


@pytest.mark.parametrize("block", [5, 1 << 20])
@pytest.mark.parametrize(
    "text",
    [
        'a,b\n"1,5",x\n"2,5","y\nz"\n',
        'a,b\n1,"say ""no"", now"\n2,x\n',
        "a,b\r\n1,2\r\n\r\n3,4\r\n",
        "a,b\n1,2\n3,4\n\n",
    ],
)
def test_even_rows_are_read_whatever_their_quotes(text, block, tmp_path, monkeypatch):
    monkeypatch.setattr(text_lines, "LINE_BLOCK", block)
    (tmp_path / "t.csv").write_bytes(text.encode())
    found, _ = whole(tmp_path / "t.csv")
    assert len([value for value in found["b"] if value is not None]) == 2


def test_repeated_names_are_numbered_and_never_the_target(tmp_path):
    rows = "\n".join(f"{i % 7},{2 * i},{3 * i},{i % 2}" for i in range(30))
    (tmp_path / "t.csv").write_text(f"x,x (2),x,y\n{rows}\n")
    table = open_table(str(tmp_path / "t.csv"))
    assert table.names == ("x", "x (2)", "x (3)", "y")
    assert "several columns are named 'x'" in table.notes[0]
    assert fit_columns(table).names == ("x", "x (2)", "x (3)")
    (tmp_path / "y.csv").write_text(f"a,y,b,y\n{rows}\n")
    with pytest.raises(TableError, match=r"several columns named 'y', so the target is unclear. Rename"):
        fit_columns(open_table(str(tmp_path / "y.csv")))


def test_times_of_different_precision_are_read(tmp_path):
    rows = "\n".join(f"{10 + i % 9}:{30 if i < 20 else '30:10'},{i % 2}" for i in range(40))
    (tmp_path / "t.csv").write_text(f"t,y\n{rows}\n")
    assert len(whole(tmp_path / "t.csv")[0]["t"]) == 40


def test_whole_numbers_with_leading_zeros_are_noted_and_may_be_codes(tmp_path):
    (tmp_path / "t.csv").write_text("zip,size,share\n01234,0,0.5\n98101,10,00.5\n00501,7,1\n")
    found, table = whole(tmp_path / "t.csv")
    assert found["zip"] == [1234, 98101, 501]
    assert table.notes == (
        "the column 'zip' has whole numbers with leading zeros, such as 01234, and is read as numbers; "
        "--category reads it as codes",
    )
    assert whole(tmp_path / "t.csv", text=["zip"])[0]["zip"] == ["01234", "98101", "00501"]
