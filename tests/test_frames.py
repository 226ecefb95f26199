"""Frames of pandas, Polars and Arrow, and matrices with gaps, are prepared as files are."""

from __future__ import annotations

import datetime
import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse
from sklearn import config_context
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.inspection import partial_dependence, permutation_importance
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import mercer
from mercer import KernelClassifier, KernelRegressor
from mercer.cli import main
from mercer.estimators import preparation
from mercer.tables.columns import Column, Columns
from mercer.tables.formats import open_table
from mercer.tables.frames import as_polars
from mercer.tables.survey import fit_columns

n = 240
FIXED = {"kernel": "gaussian", "bandwidth": 2.0, "ridge": 1e-3, "scale": True, "random_state": 0}


class ArrowTable:
    """What an Arrow table offers: its columns as a stream, and their names."""

    def __init__(self, frame):
        self._frame = frame
        self.column_names, self.shape = frame.columns, frame.shape

    def __arrow_c_stream__(self, requested_schema=None):
        return self._frame.__arrow_c_stream__(requested_schema)

    def __len__(self):
        return len(self._frame)


@pytest.fixture(scope="module")
def table():
    """A Polars frame with columns of every kind, and its labels."""
    rng = np.random.default_rng(0)
    start = datetime.datetime(2023, 5, 1, 6, 30)
    frame = pl.DataFrame(
        {
            "size": rng.normal(3.0, 2.0, size=n),
            "gaps": [None if i % 5 == 0 else float(i % 7) for i in range(n)],
            "count": rng.integers(0, 200, size=n),
            "flag": rng.random(n) < 0.5,
            "perhaps": [None if i % 9 == 0 else bool(i % 2) for i in range(n)],
            "city": rng.choice(["Brno", "Lviv", "Reims"], size=n),
            "holes": [None if i % 4 == 0 else "ab"[i % 2] for i in range(n)],
            "day": [(start + datetime.timedelta(days=2 * i)).date() for i in range(n)],
            "moment": [start + datetime.timedelta(hours=5 * i) for i in range(n)],
            "wait": [datetime.timedelta(hours=i % 11) for i in range(n)],
            "clock": [datetime.time(i % 24, 30) for i in range(n)],
        }
    )
    odd = (frame["city"].to_numpy() == "Lviv") ^ (frame["size"].to_numpy() > 3)
    return frame, np.where(odd, "odd", "even")


def in_pandas(frame):
    """The same as pandas has it: objects, NaN for gaps, categories, times by nanoseconds."""
    found = pd.DataFrame({name: frame[name].to_list() for name in frame.columns})
    found["city"] = pd.Categorical(found["city"])
    found["holes"] = found["holes"].astype(object)
    found["day"] = pd.to_datetime(found["day"])
    return found


@pytest.fixture(scope="module")
def model(table):
    return KernelClassifier(**FIXED).fit(*table)


def test_a_frame_becomes_the_features_of_the_same_file(table, model, tmp_path):
    frame, y = table
    frame.with_columns(pl.Series("label", y)).write_parquet(tmp_path / "t.parquet")
    decided = fit_columns(open_table(str(tmp_path / "t.parquet")), "label")
    assert model.columns_.columns == decided.columns
    assert model.columns_.notes == decided.notes[1:]  # the first is on the target
    assert (model.columns_.task, model.columns_.target_kind) == (decided.task, decided.target_kind)
    assert list(model.feature_names_in_) == frame.columns
    assert model.n_features_in_ == frame.width
    assert model.score(frame, y) > 0.95


def test_pandas_and_arrow_give_the_model_of_polars(table, model):
    frame, y = table
    expected = model.decision_function(frame)
    for given in (in_pandas(frame), ArrowTable(frame)):
        np.testing.assert_array_equal(model.decision_function(given), expected)
        twin = KernelClassifier(**FIXED).fit(given, y)
        assert twin.columns_ == model.columns_
        np.testing.assert_array_equal(twin.decision_function(frame), expected)


def test_columns_are_found_by_name(table, model):
    frame, _ = table
    expected = model.predict_proba(frame)
    shuffled = frame.select(frame.columns[::-1]).with_columns(pl.lit("x").alias("more"))
    np.testing.assert_array_equal(model.predict_proba(shuffled), expected)
    np.testing.assert_array_equal(model.predict_proba(in_pandas(frame)[frame.columns[::-1]]), expected)
    # A matrix has its columns by position.
    matrix = in_pandas(frame).to_numpy(object)
    np.testing.assert_array_equal(model.predict_proba(matrix), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.drop("city"), "no column 'city', which the model needs"),
        (lambda f: f.rename({"city": "City"}), "no column 'city'.* If 'City' is meant, rename it"),
        (lambda f: f.with_columns(pl.lit(1.5).alias("city")), "'city' must hold text, as in training"),
        (
            lambda f: f.with_columns(pl.lit("x").alias("size")),
            "'size' must hold numbers, as in training",
        ),
        (lambda f: f.to_numpy()[:, :4], r"matrix with the 11 columns of the training data. Got .* 4\)"),
    ],
)
def test_columns_that_do_not_suit_are_named(table, model, change, message):
    with pytest.raises(ValueError, match=message):
        model.predict(change(table[0]))


def test_a_missing_or_unseen_value_alone_in_its_column_is_predicted(table, model):
    row = in_pandas(table[0])[:1]
    for name in row.columns:
        assert model.predict(row.assign(**{name: None})).shape == (1,)
        assert model.predict(row.assign(**{name: np.nan})).shape == (1,)
    assert model.predict(row.assign(city="Oslo")).shape == (1,)


def test_a_row_does_not_depend_on_the_others(table, model):
    frame, _ = table
    whole = model.decision_function(frame)
    alone = np.concatenate([model.decision_function(frame[i]) for i in range(20)])
    np.testing.assert_array_equal(alone, whole[:20])


def test_the_shell_predicts_a_csv_file_with_a_model_of_a_frame(table, tmp_path, capsys):
    frame, y = table
    frame = in_pandas(frame.drop("wait"))  # CSV has no durations
    model = KernelClassifier(**FIXED).fit(frame, y)
    model.save(tmp_path / "m.mercer")
    frame.to_csv(tmp_path / "t.csv", index=False)
    out = tmp_path / "out.csv"
    assert main(["predict", str(tmp_path / "m.mercer"), str(tmp_path / "t.csv"), "-o", str(out)]) == 0
    np.testing.assert_array_equal(pl.read_csv(out)["prediction"], model.predict(frame))
    assert "note" not in capsys.readouterr().err


def test_the_shell_predicts_with_a_model_of_a_frame(table, model, tmp_path, capsys):
    frame, _ = table
    model.save(tmp_path / "m.mercer")
    again = mercer.load(tmp_path / "m.mercer")
    assert again.columns_ == model.columns_
    np.testing.assert_array_equal(again.predict_proba(frame), model.predict_proba(frame))
    frame.write_parquet(tmp_path / "t.parquet")
    out = tmp_path / "out.csv"
    assert (
        main(["predict", str(tmp_path / "m.mercer"), str(tmp_path / "t.parquet"), "-o", str(out)]) == 0
    )
    np.testing.assert_array_equal(pl.read_csv(out)["prediction"], model.predict(frame))
    capsys.readouterr()


def test_a_frame_is_predicted_with_a_model_of_the_shell(table, tmp_path, capsys):
    frame, y = table
    frame = frame.select("size", "gaps", "flag", "city", "holes", "moment")
    frame.with_columns(pl.Series("label", y)).write_parquet(tmp_path / "t.parquet")
    place = str(tmp_path / "m.mercer")
    options = ["--kernel", "gaussian", "--bandwidth", "3", "--ridge", "0.001", "--holdout", "0"]
    called = ["fit", str(tmp_path / "t.parquet"), "--target", "label", "-o", place, "--quiet", *options]
    assert main(called) == 0
    model = mercer.load(place)
    out = tmp_path / "out.csv"
    assert main(["predict", place, str(tmp_path / "t.parquet"), "-o", str(out)]) == 0
    np.testing.assert_array_equal(
        pl.read_csv(out)["prediction"], model.predict(in_pandas(frame.with_columns(day=1)))
    )
    assert list(model.feature_names_in_) == frame.columns
    capsys.readouterr()
    model.save(tmp_path / "again.mercer", metadata={"mine": 1})  # the columns are not lost
    again = mercer.load(tmp_path / "again.mercer")
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))


def test_identifiers_are_dropped_with_a_warning(table):
    frame, y = table
    frame = frame.select("size", "city").with_columns(name=pl.Series([f"row {i}" for i in range(n)]))
    with pytest.warns(UserWarning, match="Dropped 1 column of text that hardly ever repeats: 'name'"):
        model = KernelClassifier(**FIXED).fit(frame, y)
    assert model.columns_.names == ("size", "city")
    with pytest.raises(ValueError, match="no column to learn from: 'name' have"):
        KernelClassifier(**FIXED).fit(frame.select("name"), y)


def test_declared_categories_and_none_of_them(table):
    frame, y = table
    frame = frame.select("size", "count", "city").with_columns(pl.col("count") % 4)
    model = KernelClassifier(**FIXED, categorical_features=["count"]).fit(frame, y)
    assert model.columns_.category_places == [1, 2]
    assert "2 categories with 7 values" in model.plan_.preparation
    model = KernelClassifier(**FIXED, categorical_features=None).fit(frame, y)
    assert model.columns_.feature_names == ("size", "count", "city=Brno", "city=Lviv", "city=Reims")
    with pytest.raises(ValueError, match="Got 'town', which is none of them"):
        KernelClassifier(**FIXED, categorical_features=["town"]).fit(frame, y)


def test_importances_are_those_of_the_columns(table, model):
    frame, _ = table
    shares = np.arange(1.0, len(model.columns_.feature_names) + 1)
    found = preparation.by_column(model, shares)
    assert found.shape == (frame.width,)
    assert found.sum() == shares.sum()
    names = model.columns_.feature_names
    gaps = shares[names.index("gaps")] + shares[names.index("gaps (missing)")]
    assert found[frame.columns.index("gaps")] == gaps


def filled(X, means):
    """The oracle for numbers: the mean in place of what is missing, and indicators."""
    missing = np.isnan(X)
    return np.hstack([np.where(missing, means, X), missing[:, np.isnan(X).any(0)]])


@pytest.mark.parametrize("kind", ["array", "float32", "tensor", "pandas", "polars", "nullable"])
def test_missing_numbers_become_the_mean_and_an_indicator(rng, kind):
    X = rng.normal(size=(150, 4))
    y = X[:, 0] - X[:, 1] ** 2
    X[rng.random(X.shape) < 0.1] = np.nan
    X[:, 3] = np.nan_to_num(X[:, 3])
    if kind == "float32":
        X = X.astype(np.float32)
    names = list("abcd")
    makers = {
        "tensor": lambda X: __import__("torch").from_numpy(X),
        "pandas": lambda X: pd.DataFrame(X, columns=names),
        "polars": lambda X: pl.DataFrame(X, schema=names, orient="row").fill_nan(None),
        "nullable": lambda X: pd.DataFrame(X, columns=names).astype("Float64"),
    }
    make = makers.get(kind, lambda X: X)
    model = KernelRegressor(**FIXED).fit(make(X), y)
    means = np.nanmean(X, axis=0, dtype=np.float64).astype(X.dtype)
    plain = KernelRegressor(**FIXED).fit(filled(X, means).astype(X.dtype), y)
    np.testing.assert_allclose(
        np.asarray(model.predict(make(X))), plain.predict(filled(X, means).astype(X.dtype)), rtol=1e-9
    )
    assert model.n_features_in_ == 4
    assert [c.missing for c in model.columns_.columns] == [True, True, True, False]


def test_a_gap_that_training_did_not_have_is_the_mean(rng, tmp_path):
    X = rng.normal(size=(120, 3))
    model = KernelRegressor(**FIXED).fit(X, X[:, 0])
    assert model.columns_ is None
    row = np.array([[0.3, np.nan, -1.0]])
    expected = model.predict(np.where(np.isnan(row), X.mean(0), row))
    np.testing.assert_allclose(model.predict(row), expected, rtol=1e-12)
    model.save(tmp_path / "m.mercer")
    np.testing.assert_array_equal(mercer.load(tmp_path / "m.mercer").predict(row), model.predict(row))


def test_columns_without_a_value_and_infinite_values(rng):
    X = rng.normal(size=(80, 3))
    X[:, 1] = np.nan
    model = KernelRegressor(**FIXED).fit(X, X[:, 0])
    assert model.columns_.names == ("x0", "x2")
    np.testing.assert_array_equal(model.predict(np.nan_to_num(X, nan=7.0)), model.predict(X))
    with pytest.raises(ValueError, match="only missing ones"):
        KernelRegressor(**FIXED).fit(X[:, 1:2], X[:, 0])
    X[0, 0] = np.inf
    with pytest.raises(ValueError, match="contains infinity: the column 'x0' holds inf in row 1 "):
        KernelRegressor(**FIXED).fit(X, X[:, 2])


def test_a_frame_of_numbers_is_taken_as_a_matrix(rng):
    X = rng.normal(size=(100, 2))
    frame = pd.DataFrame({"row": np.arange(100), "x": X[:, 0]})  # row numbers are kept
    model = KernelRegressor(**FIXED).fit(frame, X[:, 0])
    twin = KernelRegressor(**FIXED).fit(frame.to_numpy(), X[:, 0])
    np.testing.assert_array_equal(model.predict(frame), twin.predict(frame.to_numpy()))
    assert model.columns_ is None
    with pytest.raises(ValueError, match="same order as they were in fit"):
        model.predict(frame[["x", "row"]])
    with pytest.raises(ValueError, match="The column 'x' must hold numbers, as in training"):
        model.predict(frame.assign(x="a"))


@pytest.mark.parametrize("form", [sparse.csr_matrix, sparse.csc_array, sparse.coo_matrix])
def test_sparse_matrices_are_made_dense(rng, form, monkeypatch):
    X = rng.normal(size=(100, 6)) * (rng.random((100, 6)) < 0.3)
    y = X.sum(1)
    model, plain = KernelRegressor(**FIXED).fit(form(X), y), KernelRegressor(**FIXED).fit(X, y)
    np.testing.assert_array_equal(model.predict(form(X)), plain.predict(X))
    monkeypatch.setattr(preparation, "free_memory", lambda: 9_000.0)
    with pytest.raises(ValueError, match=r"becomes dense, which takes .* Use fewer rows, or reduce"):
        model.predict(form(X))


def test_duplicated_names_and_odd_objects_are_refused(table):
    _, y = table
    double = pd.DataFrame([["a", 1.0]] * n, columns=["x", "x"])
    with pytest.raises(ValueError, match=r"different names. Got 'x' twice"):
        KernelClassifier(**FIXED).fit(double, y)
    odd = pd.DataFrame({"x": [datetime.date(2024, 1, 1), "a"] * (n // 2), "z": np.arange(n) % 7})
    with pytest.raises(ValueError, match=r"'x' must hold numbers, text, booleans.* Got date, str"):
        KernelClassifier(**FIXED).fit(odd, y)
    with pytest.raises(ValueError, match=r"a LazyFrame only describes them. Call collect\(\) first"):
        KernelClassifier(**FIXED).fit(table[0].lazy(), y)
    lists = pd.DataFrame({"x": [[1], [2, 3]] * (n // 2), "z": np.arange(n) % 7})
    with pytest.warns(UserWarning, match="Dropped 1 column of an unsupported type: 'x'"):
        KernelClassifier(**FIXED).fit(lists, y)


def test_values_of_python_become_columns():
    when = datetime.date(2024, 2, 29)
    frame = pd.DataFrame(
        {
            "mixed": pd.Series([1, "a", None, True], dtype=object),
            "numbers": pd.Series([1, 2.5, None, 3], dtype=object),
            "flags": pd.Series([True, None, False, True], dtype=object),
            "dates": pd.Series([when, None, when, when], dtype=object),
            "nothing": pd.Series([None] * 4, dtype=object),
            "whole": pd.Series([1, None, 3, 4], dtype="Int64"),
            "zoned": pd.to_datetime(["2024-01-01T12:00+02:00"] * 4, utc=True),
            7: list("abca"),
        }
    )
    found = as_polars(frame)
    types = [
        pl.String,
        pl.Float64,
        pl.Boolean,
        pl.Date,
        pl.Null,
        pl.Float64,
        pl.Datetime("us"),
        pl.String,
    ]
    assert found.dtypes == types
    assert found["mixed"].to_list() == ["1", "a", None, "True"]
    assert found["whole"].to_list() == [1.0, None, 3.0, 4.0]
    assert found["zoned"][0] == datetime.datetime(2024, 1, 1, 10)
    assert found.columns[-1] == "7"


def test_scikit_learns_tools_take_frames(table):
    frame, y = table
    frame = in_pandas(frame)[["size", "gaps", "city"]]
    search = GridSearchCV(KernelClassifier(**FIXED), {"ridge": [1e-3, 10.0]}, cv=2).fit(frame, y)
    model = search.best_estimator_
    assert search.best_params_ == {"ridge": 1e-3}
    found = permutation_importance(model, frame, y, n_repeats=2, random_state=0).importances_mean
    assert found[0] > found[1]
    assert found[2] > found[1]
    curve = partial_dependence(model, frame, ["size"], grid_resolution=5)
    assert np.isfinite(curve["average"]).all()
    prepared = ColumnTransformer(
        [("n", StandardScaler(), ["size"]), ("c", OneHotEncoder(sparse_output=False), ["city"])]
    ).set_output(transform="pandas")
    pipe = make_pipeline(prepared, KernelClassifier(**FIXED)).fit(frame, y)
    assert pipe.score(frame, y) > 0.95
    assert pipe[-1].feature_names_in_[0] == "n__size"
    chosen = ColumnTransformer([("all", "passthrough", ["size", "city"])]).set_output(transform="pandas")
    pipe = make_pipeline(chosen, KernelClassifier(**FIXED)).fit(frame, y)
    assert pipe[-1].columns_ is not None
    assert pipe.score(frame, y) > 0.95


def test_sparse_features_weights_and_outputs_pass_through_a_pipeline(table):
    frame, y = table
    frame, weight = in_pandas(frame)[["size", "city"]], np.arange(n) % 3
    encoder = ColumnTransformer([("c", OneHotEncoder(), ["city"])], remainder="passthrough")
    encoder.set_params(sparse_threshold=1.0)
    pipe = make_pipeline(encoder, KernelClassifier(**FIXED)).fit(frame, y)
    assert sparse.issparse(encoder.fit_transform(frame))
    assert pipe.score(frame, y) > 0.95
    with config_context(enable_metadata_routing=True):
        model = KernelClassifier(**FIXED).set_fit_request(sample_weight=True)
        model.set_score_request(sample_weight=True)
        routed = make_pipeline(clone(encoder), model).fit(frame, y, sample_weight=weight)
        search = GridSearchCV(model, {"ridge": [1e-3]}, cv=2).fit(frame, y, sample_weight=weight)
    direct = KernelClassifier(**FIXED).fit(encoder.fit_transform(frame), y, weight)
    np.testing.assert_array_equal(routed[-1].dual_coef_, direct.dual_coef_)
    assert search.best_estimator_.plan_.n == (weight > 0).sum()
    with config_context(transform_output="polars"):
        dense = make_pipeline(StandardScaler(), KernelClassifier(**FIXED)).fit(frame[["size"]], y)
    assert list(dense[-1].feature_names_in_) == ["size"]


def test_rows_given_to_stop_training_are_not_in_the_statistics(table):
    frame, y = table
    chosen = frame.select("size", "gaps", "city")
    far = pl.int_range(n) < 20
    other = chosen.with_columns(
        size=pl.when(far).then(100.0).otherwise("size"), city=pl.when(far).then(None).otherwise("city")
    )
    alone = KernelClassifier(**FIXED).fit(chosen, y)
    stopped = KernelClassifier(**FIXED).fit(chosen, y, X_val=other, y_val=y)
    assert stopped.columns_ == alone.columns_


def test_numbers_with_gaps_need_no_polars(tmp_path):
    script = """
import sys
sys.modules["polars"] = None
import numpy as np, pandas as pd, mercer
X = np.random.default_rng(0).normal(size=(60, 3))
y = X[:, 0].copy()
X[::7, 1] = np.nan
frame = pd.DataFrame(X, columns=list("abc"))
model = mercer.KernelRegressor("gaussian", bandwidth=2.0, ridge=0.01).fit(frame, y)
model.save(sys.argv[1])
assert (mercer.load(sys.argv[1]).predict(frame) == model.predict(frame)).all()
try:
    model.fit(frame.assign(b="text"), y)
except ImportError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "m.mercer")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert 'is not installed. Install it with: pip install "mercer[tables]"' in done.stdout


@pytest.mark.parametrize("rare", [(), ("r", "s"), None])
@pytest.mark.parametrize("missing", [False, True])
def test_few_categories_are_coded_as_many_are(rare, missing):
    column = Column("c", "text", missing=missing, levels=("a", "b"), rare=rare, coded=True)
    columns = Columns("y", "regression", "number", (), (column,))
    many = pl.DataFrame({"c": ["a", "b", "r", "s", "new", None] * 20})
    X, notes = columns.features(many)
    few, few_notes = columns.features(many[:6])
    np.testing.assert_array_equal(X[:6], few)
    assert notes == few_notes


def written(n):
    """Numbers and dates as people write them."""
    return pl.DataFrame(
        {
            "price": [f"{1 + i % 9}.{(7 * i) % 1000:03d},5" for i in range(n)],
            "fee": [f"${i % 13}" for i in range(n)],
            "rate": [f"{i % 50} %" for i in range(n)],
            "day": [f"{1 + i % 12:02d}/{1 + i % 28:02d}/2023" for i in range(n)],
            "kind": ["a" if i % 3 else "b" for i in range(n)],
        }
    )


def test_numbers_written_as_text_in_a_frame_are_read_as_in_the_same_file(tmp_path):
    frame = written(120)
    y = np.arange(120) % 13.0
    frame.with_columns(pl.Series("y", y)).write_csv(tmp_path / "t.csv")
    decided = fit_columns(open_table(str(tmp_path / "t.csv")))
    model = KernelRegressor(**FIXED).fit(pd.DataFrame(frame.to_dict(as_series=False)), y)
    assert model.columns_.columns == decided.columns
    assert {c.name: c.kind for c in model.columns_.columns if c.notation} == {
        **dict.fromkeys(("price", "fee", "rate"), "number"),
        "day": "date",
    }
    assert "decimal commas" in model.columns_.notes[0]
    # The first rows alone, and rows with plain numbers, mean the same.
    np.testing.assert_array_equal(model.predict(frame[:3]), model.predict(frame)[:3])
    plain = frame.with_columns(pl.Series("fee", np.arange(120) % 13))
    np.testing.assert_array_equal(model.predict(plain), model.predict(frame))
    model.save(tmp_path / "m.mercer")
    np.testing.assert_array_equal(
        mercer.load(tmp_path / "m.mercer").predict(frame), model.predict(frame)
    )


def test_a_frame_of_numbers_in_text_only_is_predicted(rng):
    x = rng.normal(size=50)
    frame = pd.DataFrame({"x": [f"{v:.3f} €".replace(".", ",") for v in x]})
    model = KernelRegressor(**FIXED).fit(frame, x)
    assert model.score(frame, x) > 0.99


def test_text_that_is_no_number_at_prediction_is_named_with_its_row(rng):
    frame = written(60)
    model = KernelRegressor(**FIXED).fit(frame, np.arange(60.0))
    wrong = frame.with_columns(pl.Series("fee", ["$1"] * 40 + ["none of your business"] + ["$2"] * 19))
    with pytest.raises(ValueError, match=r"'fee' must hold numbers.*row 41 holds 'none of your"):
        model.predict(wrong)
    # So it is in a model of numbers without text.
    numbers = pd.DataFrame({"a": rng.normal(size=30), "b": rng.normal(size=30)})
    model = KernelRegressor(**FIXED).fit(numbers, numbers["a"])
    texts = numbers.astype(str)
    np.testing.assert_allclose(model.predict(texts), model.predict(numbers), rtol=1e-6)
    texts.loc[7, "b"] = "high"
    with pytest.raises(
        ValueError, match="'b' must hold numbers, as in training, but row 8 holds 'high'"
    ):
        model.predict(texts)


def test_text_in_a_frame_that_can_be_read_in_two_ways_is_refused():
    frame = pl.DataFrame({"q": ["1,234", "5,678"] * 10, "kind": ["a", "b"] * 10})
    with pytest.raises(ValueError, match=r"'1,234' in row 1 .* Convert the column to numbers"):
        KernelRegressor(**FIXED).fit(frame, np.arange(20.0))
    # Declared categories, and columns of that type, are never read.
    for categories in (frame, frame.with_columns(pl.col("q").cast(pl.Categorical))):
        chosen = ["q"] if categories is frame else "auto"
        model = KernelRegressor(**FIXED, categorical_features=chosen).fit(categories, np.arange(20.0))
        assert [column.kind for column in model.columns_.columns] == ["text", "text"]


def test_a_column_that_is_nearly_all_numbers_is_text_with_a_warning():
    frame = pl.DataFrame({"q": ["1.5", "2.5"] * 20 + ["many"], "kind": ["a"] * 40 + ["b"]})
    with pytest.warns(UserWarning, match=r"'q' is read as text, although most .* row 41 holds 'many'"):
        KernelRegressor(**FIXED).fit(frame, np.arange(41.0))
