"""Numbers and dates in text are read as they were written, or not at all."""

from __future__ import annotations

import json
from datetime import datetime

import numpy as np
import polars as pl
import pytest

from mercer.tables.columns import Columns
from mercer.tables.errors import CellError, TableError
from mercer.tables.formats import open_table
from mercer.tables.notation import Notation, read_dates
from mercer.tables.recognition import Wishes
from mercer.tables.survey import fit_columns

n = 60
NUMBERS = np.random.default_rng(0).integers(10_000, 2_000_000, n) / 100  # from 100.00 to 20,000.00


def german(number, digits=2):
    """As German programs write it: 1.234,50."""
    return f"{number:,.{digits}f}".translate(str.maketrans(",.", ".,"))


def written(tmp_path, columns, separator=",", name="t.csv"):
    """A text file in which every value is quoted; columns are lists of texts."""
    quote = '"{}"'.format
    lines = [separator.join(map(quote, columns))]
    lines += [separator.join(map(quote, row)) for row in zip(*columns.values(), strict=True)]
    (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(tmp_path / name)


def fitted(path, target="y", **options):
    """The columns after a stay in a model file, their features and targets, read as at prediction."""
    columns = fit_columns(open_table(path), target, **options)
    columns = Columns.from_dict(json.loads(json.dumps(columns.to_dict())))
    frame = pl.concat(open_table(path, text=columns.text_names).chunks())
    return columns, columns.features(frame)[0], columns.targets(frame)


LABELS = [f"{i % 2}" for i in range(n)]


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda x: german(x), "decimal commas, '.' between thousands"),
        (lambda x: f"{x:.2f}".replace(".", ","), "decimal commas"),
        (lambda x: f"{x:,.2f}", "',' between thousands"),
        (lambda x: f"{x:,.2f}".replace(",", " "), "blanks between thousands"),
        (lambda x: f"{x:,.2f}".translate(str.maketrans(",.", "\u202f,")), "blanks between thousands"),
        (lambda x: f"{x:,.2f}".replace(",", "'"), '"\'" between thousands'),
        (lambda x: f"${x:,.2f}", "'$'"),
        (lambda x: f"{german(x)} €", "'€'"),
        (lambda x: f"EUR {german(x)}", "'EUR'"),
        (lambda x: f"{x:.2f} %", "'%'"),
        (lambda x: f"{x:.2f}%", "'%'"),
        (lambda x: f"{x:.2f} kg", "'kg'"),
        (lambda x: f"{x:.2f}kmpl", "'kmpl'"),
        (lambda x: f"+{x:.2f} m²", "'m²'"),
    ],
)
def test_a_column_of_written_numbers_is_a_column_of_numbers(write, words, tmp_path):
    texts = [write(x) for x in NUMBERS]
    path = written(tmp_path, {"x": texts, "y": texts}, separator=";")
    columns, X, y = fitted(path)
    assert columns.task == "regression"
    np.testing.assert_array_equal(X[:, 0], NUMBERS.astype(np.float32))
    np.testing.assert_array_equal(y, NUMBERS)
    (note,) = (note for note in columns.notes if "read as numbers" in note)
    assert words in note
    assert "2 columns are read" in note


def test_negative_numbers_are_written_in_several_ways():
    text = pl.Series(["-1.5", "−1.5", "(1.5)", "$-1.5", "-$1.5", "- 1.5", "1.5"])
    read = Notation(affixes=("", "$")).read(text)
    assert read.to_list() == [-1.5] * 6 + [1.5]


def test_numbers_in_parentheses_are_negative_and_that_is_said(tmp_path):
    texts = [f"({i})" if i % 4 else f"{i}" for i in range(n)]
    columns, X, _ = fitted(written(tmp_path, {"x": texts, "y": LABELS}))
    np.testing.assert_array_equal(X[:, 0], [-i if i % 4 else i for i in range(n)])
    assert "numbers in parentheses in 'x', such as '(1)', are negative" in columns.notes
    typographic = [f"−{i}" if i % 4 else f"{i}" for i in range(n)]  # a minus, and no hyphen
    _, X, _ = fitted(written(tmp_path, {"x": typographic, "y": LABELS}, name="minus.csv"))
    np.testing.assert_array_equal(X[:, 0], [-i if i % 4 else i for i in range(n)])


@pytest.mark.parametrize(
    ("write", "task", "words"),
    [
        ("{} EUR", "regression", "12 distinct amounts"),
        ("${}", "regression", "12 distinct amounts"),
        ("{} %", "regression", "12 distinct amounts"),
        ("{},000", "regression", "12 distinct amounts"),
        ("{}", "classification", "12 distinct whole numbers"),
        ("{} stars", "classification", "12 distinct whole numbers"),
    ],
)
def test_few_whole_numbers_with_a_unit_are_amounts_and_no_labels(write, task, words, tmp_path):
    texts = [write.format(1 + i % 12) for i in range(n)]
    columns, _, y = fitted(written(tmp_path, {"x": [f"{i}.5" for i in range(n)], "y": texts}))
    assert columns.task == task
    assert columns.notes[0] == f"'y' has {words}: {task}"
    assert y[0] == (1000 if "000" in write else 1)
    two = [write.format(1 + i % 2) for i in range(n)]
    columns, _, _ = fitted(written(tmp_path, {"x": [f"{i}.5" for i in range(n)], "y": two}))
    assert columns.task == "classification"


def test_indian_groups_are_lakhs_and_crores():
    read = Notation(group=",").read(pl.Series(["1,23,456", "12,34,56,789.5", "123,456"]))
    assert read.to_list() == [123_456, 123_456_789.5, 123_456]


@pytest.mark.parametrize(
    "text", ["1.23.4", "1,5", "12 34", "1.5 kg", "0x10", "1e", "", "12-3", "--1", "(1"]
)
def test_what_is_not_written_in_this_way_has_no_value(text):
    assert Notation().read(pl.Series([text])).to_list() == [None]


@pytest.mark.parametrize("mark", [".", ","])
def test_numbers_with_two_readings_need_evidence_or_an_option(mark, tmp_path):
    texts = [f"{1 + i % 9}{mark}{100 + i}" for i in range(n)]
    path = written(tmp_path, {"x": texts, "y": LABELS}, separator=";")
    with pytest.raises(TableError, match=r"'x' of .* two ways: '1.100' in row 1 .* Use --decimal \. or"):
        fitted(path)
    as_fraction = [float(text.replace(mark, ".")) for text in texts]
    as_thousands = [float(text.replace(mark, "")) for text in texts]
    for decimal in ".,":
        _, X, _ = fitted(path, wishes=Wishes(decimal=decimal))
        expected = as_fraction if decimal == mark else as_thousands
        np.testing.assert_array_equal(X[:, 0], np.float32(expected))
    # Another column shows which mark is the decimal one.
    for decimal, other in ((".", "0.5"), (",", "0,5")):
        both = {"x": texts, "z": [other, "7", "8"] * (n // 3), "y": LABELS}
        _, X, _ = fitted(written(tmp_path, both, separator=";", name=f"{ord(decimal)}.csv"))
        expected = as_fraction if decimal == mark else as_thousands
        np.testing.assert_array_equal(X[:, 0], np.float32(expected))
    # If others differ, they show nothing.
    others = {"x": texts, "z": ["0,5", "7"] * (n // 2), "w": ["0.5", "7"] * (n // 2), "y": LABELS}
    with pytest.raises(TableError, match="can be read in two ways"):
        fitted(written(tmp_path, others, separator=";", name="mixed.csv"))


def test_three_decimals_in_a_file_of_commas_are_decimals(tmp_path):
    texts = [f"{1 + i % 9}.{100 + i}" for i in range(n)]
    columns, X, _ = fitted(written(tmp_path, {"x": texts, "y": LABELS}))
    np.testing.assert_array_equal(X[:, 0], np.float32([float(text) for text in texts]))
    assert not any("read as" in note for note in columns.notes)


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("%m/%d/%Y", "MM/DD/YYYY"),
        ("%d/%m/%Y", "DD/MM/YYYY"),
        ("%d.%m.%Y", "DD.MM.YYYY"),
        ("%d.%m.%y", "DD.MM.YY"),
        ("%m-%d-%y", "MM-DD-YY"),
        ("%d-%b-%Y", "DD-Mon-YYYY"),
        ("%B %d, %Y", "Month DD, YYYY"),
        ("%m/%d/%Y %I:%M %p", "MM/DD/YYYY HH:MM AM"),
        ("%d/%m/%Y %H:%M:%S", "DD/MM/YYYY HH:MM:SS"),
    ],
)
def test_dates_are_recognised_in_the_order_that_fits_all_of_them(form, words, tmp_path):
    days = [datetime(2024, 1, 1 + i % 28, 15, 30) for i in range(n)]
    path = written(tmp_path, {"d": [day.strftime(form) for day in days], "y": LABELS})
    columns, X, _ = fitted(path)
    clock = 0.0 if "%M" in form else 15.5 / 24
    found = columns.columns[0]
    expected = [(day - datetime(1970, 1, 1)).total_seconds() / 86400 - clock for day in days]
    np.testing.assert_allclose(X[:, 0] + found.origin, expected, atol=1e-3)
    assert any(f"read as dates, {words}, such as" in note for note in columns.notes)


def test_dates_with_two_readings_need_evidence_or_an_option(tmp_path):
    texts = [f"{1 + i % 12:02}/{1 + i % 11:02}/2024" for i in range(n)]
    path = written(tmp_path, {"d": texts, "y": LABELS})
    with pytest.raises(TableError, match=r"'d' of .* two ways: '01/01/2024' in row 1 .* --dates dmy or"):
        fitted(path)
    for order, form in (("dmy", "%d/%m/%Y"), ("mdy", "%m/%d/%Y")):
        assert fitted(path, wishes=Wishes(dates=order))[0].columns[0].notation.date == form
        clear = datetime(2024, 3, 25).strftime(form)
        both = {"d": texts, "e": [clear, texts[1]] * (n // 2), "y": LABELS}
        columns, _, _ = fitted(written(tmp_path, both, name=f"{order}.csv"))
        assert [column.notation.date for column in columns.columns] == [form, form]


def test_a_year_of_two_digits_is_not_the_year_24():
    assert read_dates(pl.Series(["01/02/24"]), "%d/%m/%Y").to_list() == [None]


@pytest.mark.parametrize("form", ["%Y-%m-%d", "%d.%m.%Y"])
@pytest.mark.parametrize("odd", ["soon", "2024/07/41", "July 7, 2024"])
def test_dates_among_which_is_something_else_stay_text_and_that_is_said(form, odd, tmp_path):
    texts = [datetime(2024, 1 + i % 12, 1 + i % 28).strftime(form) for i in range(n)]
    texts[40] = odd
    columns, _, _ = fitted(written(tmp_path, {"d": texts, "x": LABELS[::-1], "y": LABELS}))
    said = f"'d' is read as text, although most of its values are dates: row 41 holds {odd!r}"
    assert said in columns.notes
    assert said in columns.losses


def test_dates_from_the_year_on_are_no_matter_of_order(tmp_path):
    texts = [f"2024-{1 + i % 12:02}-{1 + i % 11:02}" for i in range(n)]
    columns, _, _ = fitted(written(tmp_path, {"d": texts, "y": LABELS}))
    assert columns.columns[0].kind == "date"
    assert columns.columns[0].notation is None


def test_units_in_a_few_values_are_named_and_dropped(tmp_path):
    texts = [f"{i % 7}.5{' kg' if i % 20 == 3 else ''}" for i in range(n)]
    columns, X, _ = fitted(written(tmp_path, {"x": texts, "y": LABELS}))
    np.testing.assert_array_equal(X[:, 0], np.arange(n) % 7 + 0.5)
    assert "'x' has 'kg' in 3 of 60 values; the others are taken to be in the same unit" in columns.notes
    assert "1 column is read as numbers with 'kg' such as '3.5 kg': 'x'" in columns.notes


@pytest.mark.parametrize(
    ("odd", "doubt"),
    [
        ("12 %", "3 of its values have '%' and others do not"),
        ("1.2k", "3 of its values have 'k' and others do not"),
        ("0,5", "decimal points and decimal commas are mixed in it"),
        ("unknown", "row 4 holds 'unknown'"),
        ("<0.1", "row 4 holds '<0.1'"),
    ],
)
def test_numbers_that_cannot_be_compared_stay_text_and_that_is_said(odd, doubt, tmp_path):
    texts = [odd if i % 20 == 3 else f"{i % 7}.5" for i in range(n)]
    columns, _, _ = fitted(written(tmp_path, {"x": texts, "y": LABELS}))
    assert columns.columns[0].kind == "text"
    note = f"'x' is read as text, although most of its values are numbers: {doubt}"
    assert note in columns.notes
    with pytest.raises(TableError, match=f"Most values of the target 'x' are numbers, but {doubt}"):
        fitted(str(tmp_path / "t.csv"), "x")
    assert fitted(str(tmp_path / "t.csv"), "x", task="classification")[0].target_kind == "text"


def test_different_units_stay_text(tmp_path):
    texts = [f"{i % 7} {'kg' if i % 2 else 'g'}" for i in range(n)]
    columns, _, _ = fitted(written(tmp_path, {"x": texts, "y": LABELS}))
    (note,) = (note for note in columns.notes if "its values have different units" in note)
    assert "'kg'" in note


def test_a_column_declared_as_numbers_has_other_values_missing(tmp_path):
    texts = ["unknown" if i % 3 == 0 else f"{i % 7}.5" for i in range(n)]
    path = written(tmp_path, {"x": texts, "y": LABELS})
    columns, X, _ = fitted(path, wishes=Wishes(number=["x"]))
    assert columns.feature_names == ("x", "x (missing)")
    np.testing.assert_array_equal(X[:, 1], np.arange(n) % 3 == 0)
    said = "counts as missing: 20 of 60 values, the first 'unknown' in row 1"
    assert any(said in note for note in columns.notes)
    words = written(tmp_path, {"x": ["a", "b"] * (n // 2), "y": LABELS}, name="words.csv")
    with pytest.raises(TableError, match="'x' has no numbers: row 1 holds 'a'"):
        fitted(words, wishes=Wishes(number=["x"]))
    with pytest.raises(TableError, match="Did you mean 'x'"):
        fitted(path, wishes=Wishes(number=["X"]))


def test_a_column_declared_as_categories_is_not_read_as_numbers(tmp_path):
    path = written(tmp_path, {"x": ["1,5", "2,5"] * (n // 2), "y": LABELS}, separator=";")
    columns, _, _ = fitted(path, categorical=["x"])
    assert columns.categories == {"x": ("1,5", "2,5")}


@pytest.mark.parametrize("mark", ["-", "–", "n.a.", "#DIV/0!", "."])
def test_marks_for_no_value_among_numbers_are_missing(mark, tmp_path):
    texts = [mark if i == 7 else f"{i % 9}" for i in range(n)]
    columns, X, _ = fitted(written(tmp_path, {"x": texts, "y": LABELS}))
    assert columns.feature_names == ("x", "x (missing)")
    np.testing.assert_array_equal(np.flatnonzero(X[:, 1]), [7])
    assert any("count as missing in 'x': 1 of 60 values" in note for note in columns.notes)


@pytest.mark.parametrize(
    "texts",
    [
        [f"{i % 9:03}" for i in range(n)],  # codes
        [f"{i % 9}" for i in range(n)],  # text by its type
        [f"{i % 9}A" for i in range(n)],
        [f"{i % 9}th" for i in range(n)],
        [f"{i % 9}x{i % 3}" for i in range(n)],
        [f"{i % 9}-{i % 3}" for i in range(n)],
        ["red", "green", "blue"] * (n // 3),
    ],
)
def test_text_that_is_no_number_stays_text(texts, tmp_path):
    pl.DataFrame({"x": texts, "y": LABELS}).write_parquet(tmp_path / "t.parquet")
    columns, _, _ = fitted(str(tmp_path / "t.parquet"))
    assert columns.columns[0].kind == "text"


def test_a_model_reads_a_later_file_as_its_own_or_names_the_cell(tmp_path):
    texts = [german(x) for x in NUMBERS]
    columns, _, _ = fitted(written(tmp_path, {"x": texts, "y": LABELS}, separator=";"))

    def later(*texts):
        path = written(tmp_path, {"x": texts}, separator=";", name="later.csv")
        return columns.features(next(open_table(path, text=columns.text_names).chunks()))[0][:, 0]

    # Alone, these would be 1.234, or not clear.
    np.testing.assert_array_equal(later("1.234", "12", "1.000.000"), [1234, 12, 1_000_000])
    with pytest.raises(CellError, match=r"'x' must hold numbers \(decimal commas, .* row 2 holds '3.5'"):
        later("1,5", "3.5")


def test_a_column_of_plain_numbers_names_the_first_value_that_is_none(tmp_path):
    columns, _, _ = fitted(written(tmp_path, {"x": [f"{i % 9}.25" for i in range(n)], "y": LABELS}))
    frame = pl.DataFrame({"x": ["1.5", " 2 ", "NA", "-", "1,5", "x"]})
    with pytest.raises(CellError, match="'x' must hold numbers, as in training, but row 5 holds '1,5'"):
        columns.features(frame)
    assert columns.unreadable(frame).to_list() == [False] * 4 + [True] * 2
    X, notes = columns.features(frame[:4])
    np.testing.assert_array_equal(X[:2, 0], [1.5, 2.0])
    assert notes == ["'x' has missing values, unlike in training; they are replaced by its mean"]


def test_whole_numbers_named_as_identifiers_are_dropped_if_they_never_repeat(tmp_path):
    ids = [f"{1000 + 7 * i}" for i in range(n)]
    some = {
        "customer_id": ids,
        "userID": ids,
        "grid": ids,
        "city id": ["1", "2"] * (n // 2),
        "y": LABELS,
    }
    columns, _, _ = fitted(written(tmp_path, some))
    assert columns.names == ("grid", "city id")
    note = "dropped 2 columns of identifiers, another one in each row: 'customer_id', 'userID'"
    assert note in columns.notes
    assert "customer_id" in fitted(str(tmp_path / "t.csv"), keep=["customer_id"])[0].names
