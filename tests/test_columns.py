"""Columns of every kind become the expected features and targets, in bounded memory."""

from __future__ import annotations

import datetime
import gzip
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from sklearn.datasets import dump_svmlight_file, load_diabetes, load_digits, load_iris
from sklearn.preprocessing import OneHotEncoder

from mercer.tables import arrays as arrays_module
from mercer.tables import counts
from mercer.tables.arrays import read_arrays
from mercer.tables.columns import Column, Columns
from mercer.tables.errors import TableError
from mercer.tables.formats import open_table
from mercer.tables.survey import fit_columns
from mercer.tables.table import with_labels

n = 400
ODD = 'a "b", c\nd – ü'


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    start = datetime.datetime(2023, 5, 1, 6, 30)
    return pl.DataFrame(
        {
            "id": range(1, n + 1),
            "key": [f"row {i}" for i in range(n)],
            "size": rng.normal(3.0, 2.0, size=n),
            "gaps": [None if i % 5 == 0 else float(i % 7) for i in range(n)],
            "count": rng.integers(0, 200, size=n).astype(np.uint8),
            "same": [7] * n,
            "flag": rng.random(n) < 0.5,
            ODD: rng.choice(['x, "y"', "two\nlines", "ünï"], size=n),
            "holes": [None if i % 4 == 0 else "ab"[i % 2] for i in range(n)],
            "day": [(start + datetime.timedelta(days=2 * i)).date() for i in range(n)],
            "moment": [start + datetime.timedelta(hours=5 * i) for i in range(n)],
            "clock": [datetime.time(i % 24, 30) for i in range(n)],
            "label": rng.choice(["yes", "no, never", "perhaps"], size=n),
        }
    )


def written(frame, tmp_path, name="t.parquet"):
    (frame.write_csv if name.endswith("csv") else frame.write_parquet)(tmp_path / name)
    return open_table(str(tmp_path / name))


def fitted(frame, tmp_path, target="label", **options):
    return fit_columns(written(frame, tmp_path), target, **options)


def feature(columns, X, name):
    return X[:, columns.feature_names.index(name)]


@pytest.mark.parametrize("name", ["t.parquet", "t.csv"])
def test_each_kind_of_column_becomes_the_expected_numbers(frame, name, tmp_path):
    columns = fit_columns(written(frame, tmp_path, name), "label", one_hot=True)
    X, notes = columns.features(frame)
    assert notes == []
    assert X.dtype == np.float32
    assert X.shape == (n, len(columns.feature_names))
    assert np.isfinite(X).all()
    assert not {"id", "key", "same"} & set(columns.names)
    np.testing.assert_array_equal(feature(columns, X, "size"), frame["size"].cast(pl.Float32))
    np.testing.assert_array_equal(feature(columns, X, "count"), frame["count"])
    np.testing.assert_array_equal(feature(columns, X, "flag"), frame["flag"])
    gaps = frame["gaps"]
    np.testing.assert_allclose(feature(columns, X, "gaps"), gaps.fill_null(gaps.mean()), rtol=1e-6)
    np.testing.assert_array_equal(feature(columns, X, "gaps (missing)"), gaps.is_null())
    for column in (ODD, "holes"):
        encoder = OneHotEncoder(sparse_output=False).fit(frame.select(column).to_numpy())
        names = [
            f"{column} (missing)" if level is None else f"{column}={level}"
            for level in encoder.categories_[0]
        ]
        places = [columns.feature_names.index(name) for name in names]
        np.testing.assert_array_equal(X[:, places], encoder.transform(frame.select(column).to_numpy()))
    np.testing.assert_array_equal(feature(columns, X, "day (days)"), 2.0 * np.arange(n))
    hours = 5.0 * np.arange(n)
    np.testing.assert_allclose(feature(columns, X, "moment (days)"), hours / 24, rtol=1e-6)
    of_day = 2 * np.pi * ((hours + 6.5) % 24) / 24
    np.testing.assert_allclose(
        feature(columns, X, "moment (sine of the day)"), np.sin(of_day), atol=1e-6
    )
    of_clock = 2 * np.pi * (np.arange(n) % 24 + 0.5) / 24
    np.testing.assert_allclose(
        feature(columns, X, "clock (cosine of the day)"), np.cos(of_clock), atol=1e-6
    )
    assert list(columns.targets(frame)) == frame["label"].to_list()


def test_a_cycle_is_a_feature_only_if_the_column_spans_two_of_them(frame, tmp_path):
    names = fitted(frame, tmp_path).feature_names
    cycles = {name for name in names if name.startswith(("day (", "moment (", "clock ("))}
    assert cycles == {
        "day (days)",  # 800 days at no particular hour
        *(f"day ({f} of the {c})" for f in ("sine", "cosine") for c in ("week", "year")),
        "moment (days)",  # 83 days
        *(f"moment ({f} of the {c})" for f in ("sine", "cosine") for c in ("day", "week")),
        *(f"clock ({f} of the day)" for f in ("sine", "cosine")),
    }


def test_weeks_repeat_every_seven_days_in_any_time_zone(tmp_path):
    start = datetime.datetime(2024, 1, 1)
    days = pl.Series("when", [start + datetime.timedelta(days=i) for i in range(100)])
    frame = pl.DataFrame([days.dt.replace_time_zone("Asia/Tokyo"), pl.Series("y", [0, 1] * 50)])
    columns = fitted(frame, tmp_path, "y")
    X, _ = columns.features(frame)
    np.testing.assert_allclose(X[7:, 1:], X[:-7, 1:], atol=1e-5)
    np.testing.assert_array_equal(np.diff(X[:, 0]), 1.0)


def test_durations_are_days_and_infinite_numbers_are_missing(tmp_path):
    frame = pl.DataFrame(
        {
            "wait": [datetime.timedelta(hours=12 * i) for i in range(40)],
            "odd": [np.inf, np.nan, 1e300, 5.0] * 10,
            "huge": [-np.inf, 2.0, 4.0, None] * 10,
            "y": [0, 1] * 20,
        }
    )
    columns = fitted(frame, tmp_path, "y")
    X, _ = columns.features(frame)
    assert columns.feature_names == ("huge", "wait (days)", "odd (missing)", "huge (missing)")
    np.testing.assert_array_equal(X[:4], [[3, 0, 1, 1], [2, 0.5, 1, 0], [4, 1, 1, 0], [3, 1.5, 0, 1]])


def test_columns_survive_json(frame, tmp_path):
    columns = fitted(frame, tmp_path)
    again = Columns.from_dict(json.loads(json.dumps(columns.to_dict())))
    assert again == columns
    assert again.feature_names == columns.feature_names
    np.testing.assert_array_equal(again.features(frame)[0], columns.features(frame)[0])


def test_columns_are_found_by_name_in_any_order(frame, tmp_path):
    columns = fitted(frame, tmp_path)
    shuffled = frame.select(*reversed(frame.columns), pl.lit(1).alias("extra"))
    np.testing.assert_array_equal(columns.features(shuffled)[0], columns.features(frame)[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.drop("size"), "has no column 'size', which the model needs \\(numbers\\)"),
        (
            lambda f: f.with_columns(size=pl.lit("big")),
            "'size' must hold numbers, .* but row 1 holds 'big'",
        ),
        (
            lambda f: f.with_columns(holes=pl.lit(3)),
            "'holes' must hold text, as in training. Got Int32",
        ),
        (
            lambda f: f.with_columns(day=pl.lit(3.5)),
            "'day' must hold dates, as in training. Got Float64",
        ),
        (lambda f: f.with_columns(flag=pl.lit("t")), "'flag' must hold booleans, .* row 1 holds 't'"),
    ],
)
def test_the_error_for_a_missing_or_changed_column_names_it(frame, change, message, tmp_path):
    with pytest.raises(TableError, match=message):
        fitted(frame, tmp_path).features(change(frame))


def test_a_column_without_values_counts_as_missing_whatever_its_type(frame, tmp_path):
    columns = fitted(frame, tmp_path)
    emptied = frame.with_columns(
        pl.lit(None, dtype=pl.String).alias(name) for name in ("size", "day", "clock", "flag", "holes")
    )
    X, notes = columns.features(emptied)
    assert np.isfinite(X).all()
    np.testing.assert_allclose(feature(columns, X, "size"), frame["size"].mean(), rtol=1e-6)
    missing = columns.categories["holes"].index("(missing)")
    assert (feature(columns, X, "holes") == missing).all()
    assert "'size' has missing values, unlike in training; they are replaced by its mean" in notes


def test_text_becomes_the_code_of_its_category(frame, tmp_path):
    columns = fitted(frame, tmp_path)
    X, notes = columns.features(frame)
    assert notes == []
    assert columns.categories == {ODD: ("two\nlines", 'x, "y"', "ünï"), "holes": ("a", "b", "(missing)")}
    assert [columns.feature_names[i] for i in columns.category_places] == [ODD, "holes"]
    for name, categories in columns.categories.items():
        found = np.array(categories)[feature(columns, X, name).astype(int)]
        assert found.tolist() == frame[name].fill_null("(missing)").to_list()


def test_codes_and_indicators_are_of_the_same_categories(frame, tmp_path):
    coded, one_hot = fitted(frame, tmp_path), fitted(frame, tmp_path, one_hot=True)
    new = frame.with_columns(pl.lit("never seen").alias(ODD))
    for part in (frame, new):
        X, notes = coded.features(part)
        indicators, same_notes = one_hot.features(part)
        assert notes == same_notes
        for name, categories in coded.categories.items():
            first = one_hot.feature_names.index(f"{name}={categories[0]}")
            mine = indicators[:, first : first + len(categories)]
            codes = feature(coded, X, name).astype(int)
            assert (mine == (codes[:, None] == np.arange(len(categories)))).all()


def test_numbers_can_be_declared_as_categories(frame, tmp_path):
    columns = fitted(frame, tmp_path, categorical=["gaps", ODD])
    assert "gaps (missing)" not in columns.feature_names  # missing is a category
    X, _ = columns.features(frame)
    expected = frame["gaps"].fill_null(-1).to_numpy()
    np.testing.assert_array_equal(feature(columns, X, "gaps"), expected)
    assert "gaps" in [columns.feature_names[i] for i in columns.category_places]
    assert Columns.from_dict(columns.to_dict()) == columns


def test_columns_of_an_earlier_version_have_an_indicator_for_each_category(frame, tmp_path):
    columns = fitted(frame, tmp_path, one_hot=True)
    data = columns.to_dict()
    assert not any("coded" in column for column in data["columns"])
    X, _ = Columns.from_dict(data).features(frame)
    assert X.shape == (n, len(columns.feature_names))
    assert columns.category_places == []


def test_unseen_categories_are_all_zeros_with_one_note(frame, tmp_path):
    columns = fitted(frame, tmp_path, one_hot=True)
    new = frame.with_columns(pl.lit("never seen").alias(ODD))
    X, notes = columns.features(new)
    assert notes == [
        f"{ODD!r} has categories that were not in the training data; they are treated as none of the "
        "known ones"
    ]
    mine = [i for i, name in enumerate(columns.feature_names) if name.startswith(f"{ODD}=")]
    assert len(mine) == 3
    assert not X[:, mine].any()


def test_rare_categories_share_a_feature_and_unseen_ones_have_none(tmp_path):
    rare = [f"rare {i}" for i in range(5)]
    words = ["often"] * 600 + ["also"] * 395 + rare
    frame = pl.DataFrame({"word": words, "x": np.arange(1000) % 17, "y": [0, 1] * 500})
    columns = fitted(frame, tmp_path, "y")
    assert columns.categories == {"word": ("also", "often", "(rare)")}
    X, _ = columns.features(pl.DataFrame({"word": ["often", "rare 3", "new"], "x": [1, 2, 3]}))
    np.testing.assert_array_equal(X[:, 1], [1, 2, -1])
    columns = fitted(frame, tmp_path, "y", one_hot=True)
    assert columns.feature_names == ("x", "word=also", "word=often", "word (rare)")
    X, notes = columns.features(pl.DataFrame({"word": ["often", "rare 3", "new"], "x": [1, 2, 3]}))
    np.testing.assert_array_equal(X[:, 1:], [[0, 1, 0], [0, 0, 1], [0, 0, 0]])
    assert len(notes) == 1


def test_frequent_words_are_found_among_more_than_can_be_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(counts, "MOST_DISTINCT", 1000)
    rng = np.random.default_rng(0)
    some = np.where(rng.random(100_000) < 0.7, "common", rng.integers(0, 20_000, 100_000).astype(str))
    frame = pl.DataFrame({"word": some, "y": rng.random(100_000) < 0.5})
    columns = fitted(frame, tmp_path, "y", one_hot=True)
    assert columns.columns[0].rare is None
    assert "word=common" in columns.feature_names
    X, notes = columns.features(pl.DataFrame({"word": ["common", "something else"]}))
    assert X[0, columns.feature_names.index("word=common")] == 1
    assert X[1, columns.feature_names.index("word (rare)")] == 1
    assert notes == []


def test_notes_list_dropped_columns_and_keep_restores_them(frame, tmp_path):
    columns = fitted(frame, tmp_path)
    said = " | ".join(columns.notes)
    for part in (
        "'label' has 3 distinct labels: classification",
        "dropped 1 column with a single value: 'same'",
        "dropped 1 column of row numbers: 'id'",
        "dropped 1 column of text that hardly ever repeats: 'key'",
        "missing values in 1 column are replaced by the mean and marked by an indicator: 'gaps'",
        "2 columns of text with 6 categories",
        "dates and times became",
    ):
        assert part in said
    kept = fitted(frame, tmp_path, keep=["id", "key"], drop=["size", "day"])
    assert {"id", "key"} <= set(kept.names)
    assert "row 0" in kept.categories["key"]
    assert not {"size", "day"} & set(kept.names)


def test_consecutive_years_are_not_row_numbers(tmp_path):
    frame = pl.DataFrame({"year": range(1900, 2000), "y": [0, 1] * 50})
    assert fitted(frame, tmp_path, "y").feature_names == ("year",)


def test_nested_columns_are_dropped_with_a_note(tmp_path):
    frame = pl.DataFrame({"x": np.arange(50) % 9, "list": [[1, 2]] * 50, "y": [0, 1] * 25})
    columns = fitted(frame, tmp_path, "y")
    assert columns.names == ("x",)
    assert any("'list'" in note for note in columns.notes)


@pytest.mark.parametrize(
    ("target", "task"),
    [
        (load_iris().target, "classification"),
        (load_iris().target_names[load_iris().target], "classification"),
        (load_iris().target > 0, "classification"),
        (load_iris().target.astype(float), "classification"),
        (load_diabetes().target, "regression"),  # whole numbers, many of them
        (load_diabetes().target / 7, "regression"),
    ],
)
def test_task_is_recognised_from_the_target(target, task, tmp_path):
    frame = pl.DataFrame({"x": np.arange(len(target)) % 13, "y": target})
    columns = fitted(frame, tmp_path, None)
    assert columns.task == task
    y = columns.targets(frame)
    np.testing.assert_array_equal(y, target)
    assert y.dtype.kind == ("f" if task == "regression" else target.dtype.kind)


def test_a_requested_task_is_used_unless_it_is_impossible(frame, tmp_path):
    assert fitted(frame, tmp_path, "count", task="classification").task == "classification"
    assert fitted(frame, tmp_path, "flag", task="regression").task == "regression"
    for target, task, message in [
        ("label", "regression", "Regression needs a target of numbers, but 'label' holds text"),
        ("size", "classification", "'size' holds numbers with fractions. Use regression"),
        ("day", None, "'day' must hold numbers, text or booleans. Got Date"),
        ("same", None, "'same' must have at least two different values. Got 1 in the 400 rows"),
        ("label", "ranking", '"classification" or "regression". Got \'ranking\''),
        ("absent", None, "has no column 'absent'. Its columns are 'id', 'key'"),
        (
            None,
            None,
            "no column 'y', the default target. Name the column to predict with --target: 'id'",
        ),
    ]:
        with pytest.raises(TableError, match=message):
            fitted(frame, tmp_path, target, task=task)


@pytest.mark.parametrize("rows", [100_000, 120_000])
def test_the_error_for_too_many_labels_suggests_what_to_do(rows, tmp_path):
    labels = [f"label {i % 100_000}" for i in range(rows)]
    frame = pl.DataFrame({"x": np.arange(rows) % 10, "y": labels})
    with pytest.raises(TableError, match=r"'y' has more than 10,000 distinct labels .* choose another"):
        fitted(frame, tmp_path, "y")
    with pytest.raises(TableError, match="has 60 distinct labels in 60 rows: choose another"):
        fitted(frame[:60], tmp_path, "y")


def test_table_without_rows_or_features_is_refused(frame, tmp_path):
    for name in ("t.parquet", "t.csv"):
        with pytest.raises(TableError, match=r"has no rows"):
            fit_columns(written(frame[:0], tmp_path, name), "label")
    with pytest.raises(TableError, match="has no column to learn from besides 'label'"):
        fitted(frame.select("id", "key", "same", "label"), tmp_path)


@pytest.mark.parametrize("name", ["t.parquet", "t.csv"])
def test_arrays_in_memory_and_on_disk_are_equal(frame, name, tmp_path, monkeypatch):
    monkeypatch.setattr(arrays_module, "chunk_rows", lambda d: 64)
    frame = frame.with_columns(label=pl.when(pl.col("id") % 9 != 1).then("label"))
    table = written(frame, tmp_path, name)
    columns = fit_columns(table, "label")
    here = read_arrays(table, columns, memory=1e9, folder=tmp_path)
    there = read_arrays(table, columns, memory=1e3, folder=tmp_path)
    assert not isinstance(here.X, np.memmap)
    assert isinstance(there.X, np.memmap)
    np.testing.assert_array_equal(here.X, there.X)
    np.testing.assert_array_equal(here.y, there.y)
    assert (here.notes, here.dropped, there.dropped) == ((), 45, 45)
    kept = frame.filter(pl.col("label").is_not_null())
    np.testing.assert_array_equal(here.X, columns.features(kept)[0])
    assert here.y.tolist() == kept["label"].to_list()


def test_labels_can_come_from_another_file(tmp_path):
    X, y = load_digits(return_X_y=True)
    np.save(tmp_path / "x.npy", X.astype(np.uint8))
    np.save(tmp_path / "y.npy", y)
    table = with_labels(open_table(str(tmp_path / "x.npy")), open_table(str(tmp_path / "y.npy")))
    columns = fit_columns(table)
    arrays = read_arrays(table, columns, memory=1e9, folder=tmp_path)
    varies = np.ptp(X, axis=0) > 0
    np.testing.assert_array_equal(arrays.X, X[:, varies])
    np.testing.assert_array_equal(arrays.y, y)


def test_digits_that_are_categories_stay_text_in_a_later_file(tmp_path):
    frame = pl.DataFrame({"code": ["02139", "00501", "A1"] * 20, "y": [0, 1] * 30})
    columns = fit_columns(written(frame, tmp_path, "train.csv"), "y")
    (tmp_path / "later.csv").write_text("code\n00501\n02139\n")
    later = next(open_table(str(tmp_path / "later.csv"), text=columns.text_names).chunks())
    X, notes = columns.features(later)
    np.testing.assert_array_equal(X, [[0], [1]])
    assert notes == []


def test_a_missing_target_is_refused(frame, tmp_path):
    with pytest.raises(TableError, match=r"'label' is missing in 1 rows\. Remove"):
        fitted(frame, tmp_path).targets(pl.DataFrame({"label": ["yes", None]}))


class Calls:
    """Counts the calls of Python functions in a block."""

    def __enter__(self):
        self.count = 0
        sys.setprofile(self._count)
        return self

    def _count(self, frame, event, argument):
        self.count += event == "call"

    def __exit__(self, *_):
        sys.setprofile(None)


def test_images_are_read_once_per_pass_and_never_value_by_value(tmp_path):
    """A chunk of 10,000 rows takes as few calls of Python functions as one of 100 rows."""
    rng = np.random.default_rng(0)
    calls = []
    for rows in (100, 100, 10_000):  # the first run also imports parts of libraries
        X = rng.integers(0, 256, size=(rows, 784), dtype=np.uint8)
        X[0], X[1] = 0, 255  # every column varies
        np.savez(tmp_path / "images.npz", X=X, y=np.arange(rows) % 10)
        table, read = open_table(str(tmp_path / "images.npz")), []

        def reader(columns, rows, table=table, read=read):
            for frame in table.read(columns, rows):
                read.append(len(frame))
                yield frame

        with Calls() as counter:
            columns = fit_columns(replace(table, read=reader), "y")
            arrays = read_arrays(replace(table, read=reader), columns, memory=1e10, folder=tmp_path)
        np.testing.assert_array_equal(arrays.X, X)
        # The types in one row, then a single chunk in each pass: targets, statistics, features.
        assert read == [1, rows, rows, rows]
        calls.append(counter.count)
    assert calls[2] < 1.1 * calls[1]


SCRIPT = """
import sys
from pathlib import Path
import numpy as np, polars as pl
from mercer.tables.arrays import read_arrays
from mercer.tables.formats import open_table
from mercer.tables.survey import fit_columns

def kilobytes(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key))

def convert(path):
    table = open_table(path, folder=Path(sys.argv[3]))
    columns = fit_columns(table, "y")
    return read_arrays(table, columns, memory=1e6, folder=Path(sys.argv[3]))

convert(sys.argv[1])  # load libraries and start threads before memory is measured
before = kilobytes("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # reset the peak
arrays = convert(sys.argv[2])
peak = kilobytes("VmHWM")
assert isinstance(arrays.X, np.memmap)
print((peak - before) / 1024, arrays.X.nbytes / 1024**2, *arrays.X.shape)
"""


def write_numbers(path, rows, d):
    """A file with d columns of numbers and a "y", in the format of its ending."""
    rng = np.random.default_rng(0)
    columns = {f"x{i}": rng.normal(size=rows).astype(np.float32).round(3) for i in range(d)}
    frame = pl.DataFrame(columns | {"y": rng.integers(0, 3, size=rows)})
    if path.suffix == ".gz":
        with gzip.open(path, "wb", compresslevel=1) as file:
            frame.write_csv(file)
    elif path.suffix == ".csv":
        frame.write_csv(path)
    elif path.suffix == ".parquet":
        frame.write_parquet(path)
    elif path.suffix == ".arrow":
        frame.write_ipc(path)
    elif path.suffix == ".npz":
        np.savez(path, X=frame.drop("y").to_numpy(), y=frame["y"].to_numpy())
    else:
        dump_svmlight_file(frame.drop("y").to_numpy(), frame["y"].to_numpy(), str(path))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak resident memory is read as Linux counts it")
@pytest.mark.parametrize(
    ("ending", "rows"),
    [
        ("csv", 2_000_000),
        ("csv.gz", 1_200_000),
        ("parquet", 2_000_000),
        ("arrow", 2_000_000),
        ("npz", 2_000_000),
        ("svm", 300_000),
    ],
)
def test_table_is_converted_in_memory_that_does_not_grow_with_it(ending, rows, tmp_path):
    d = 60
    small, large = tmp_path / f"small.{ending}", tmp_path / f"large.{ending}"
    write_numbers(small, 2_000, d)
    write_numbers(large, rows, d)
    command = [sys.executable, "-c", SCRIPT, str(small), str(large), str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    used, size, *shape = map(float, run.stdout.split())
    print(f"{ending}: {used:.0f} MiB more at the peak, for {size:.0f} MiB of features")
    assert shape == [rows, d]
    assert used < 450


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: {},
        lambda data: [],
        lambda data: data | {"target": 1},
        lambda data: data | {"columns": [{"name": "a"}]},
        lambda data: data | {"columns": 3},
    ],
)
def test_a_damaged_description_of_the_columns_is_refused_in_one_sentence(damage):
    data = Columns("t", "regression", "number", (), (Column("a", "number"),)).to_dict()
    with pytest.raises(ValueError, match="The description of the columns in the model file"):
        Columns.from_dict(damage(data))
