"""A regressor reads numbers in text as `mercer fit` does; a classifier takes text as labels."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import polars as pl
import pytest

import mercer
from mercer import KernelClassifier, KernelRegressor
from mercer.cli import main
from mercer.tables.formats import open_table
from mercer.tables.survey import fit_columns

FIXED = {"kernel": "gaussian", "bandwidth": 2.0, "ridge": 1e-3, "random_state": 0}
n = 80
X = np.random.default_rng(0).normal(size=(n, 3))
Y = np.round(50_000 + 20_000 * X[:, 0] + 900 * X[:, 1], 2)
GERMAN = str.maketrans(",.", ".,")
NOTATIONS = {
    "currency": [f"${v:,.2f}" for v in Y],
    "decimal commas": [f"{v:,.2f}".translate(GERMAN) for v in Y],
    "per cent": [f"{v:.2f} %" for v in Y],
    "Swiss": [f"CHF {v:,.2f}".replace(",", "'") for v in Y],
}
HOLDERS = {
    "list": list,
    "array": np.array,
    "objects": lambda y: np.array(y, dtype=object),
    "pandas": lambda y: pd.Series(y, name="price"),
    "pandas strings": lambda y: pd.Series(y, name="price", dtype="string"),
    "categories": lambda y: pd.Series(y, name="price", dtype="category"),
    "polars": lambda y: pl.Series("price", y),
}


@pytest.fixture(scope="module")
def expected():
    return KernelRegressor(**FIXED).fit(X, Y).predict(X)


@pytest.mark.parametrize("notation", NOTATIONS)
def test_numbers_in_text_are_numbers_to_a_regressor(notation, expected):
    model = KernelRegressor(**FIXED).fit(X, NOTATIONS[notation])
    np.testing.assert_array_equal(model.predict(X), expected)
    assert model.score(X, NOTATIONS[notation]) == pytest.approx(model.score(X, Y))


@pytest.mark.parametrize("holder", HOLDERS)
def test_targets_may_be_in_anything_that_holds_text(holder, expected):
    model = KernelRegressor(**FIXED).fit(X, HOLDERS[holder](NOTATIONS["currency"]))
    np.testing.assert_array_equal(model.predict(X), expected)


@pytest.mark.parametrize("target", NOTATIONS)
def test_a_frame_and_its_target_become_the_columns_of_the_same_file(target, tmp_path):
    texts = NOTATIONS[target]
    frame = pd.DataFrame({"kind": np.where(X[:, 0] > 0, "a", "b"), "x": X[:, 1]})
    frame.assign(y=texts).to_csv(tmp_path / "t.csv", index=False, sep=";")
    decided = fit_columns(open_table(str(tmp_path / "t.csv")), "y")
    model = KernelRegressor(**FIXED).fit(frame, pd.Series(texts, name="y"))
    assert model.columns_.target_notation == decided.target_notation
    assert (model.columns_.target_kind, model.columns_.task) == ("number", "regression")


def test_numbers_with_two_readings_are_settled_by_the_features_or_refused():
    texts = [f"{1 + i % 9},{100 + i}" for i in range(n)]
    with pytest.raises(ValueError, match=r"`y` can be read in two ways: '1,100' in row 1 .* Convert"):
        KernelRegressor(**FIXED).fit(X, texts)
    frame = pd.DataFrame({"a": [f"{v:.2f}".replace(".", ",") for v in X[:, 0]], "b": X[:, 1]})
    model = KernelRegressor(**FIXED).fit(frame, texts)
    assert model.predict(frame).max() < 12  # decimal commas, as in 'a'


@pytest.mark.parametrize("holder", HOLDERS)
def test_one_bad_cell_is_named_with_its_row(holder):
    texts = [*NOTATIONS["currency"][:-2], "about $3", "$1.00"]
    with pytest.raises(ValueError, match=r"numbers \(',' between thousands, '\$'\), but row 79 .*'abo"):
        KernelRegressor(**FIXED).fit(X, HOLDERS[holder](texts))


def test_missing_targets_units_and_marks_that_differ_are_refused():
    texts = NOTATIONS["currency"]
    for none in ("n/a", ""):
        with pytest.raises(ValueError, match=r"missing in 1 of 80 rows, first in row 3 \(counted"):
            KernelRegressor(**FIXED).fit(X, [*texts[:2], none, *texts[3:]])
    with pytest.raises(ValueError, match=r"`y` cannot be read as numbers: .* different units"):
        KernelRegressor(**FIXED).fit(X, [*texts[:-1], "€5"])
    with pytest.raises(ValueError, match="decimal points and decimal commas are mixed"):
        KernelRegressor(**FIXED).fit(X, [*(f"{v:.1f}" for v in Y[:-1]), "5,75"])


@pytest.mark.parametrize("words", [["cat", "dog"], ["2024-01-01", "2024-01-02"], ["A1", "B2"]])
def test_a_regressor_given_words_names_the_classifier(words):
    with pytest.raises(ValueError, match=f"Got text such as '{words[0]}': for classes, use KernelClass"):
        KernelRegressor(**FIXED).fit(X, words * (n // 2))


def test_text_is_labels_to_a_classifier_whatever_it_looks_like():
    labels = np.where(X[:, 0] > 0, "$7.50", "$5")
    model = KernelClassifier(**FIXED).fit(X, labels)
    assert list(model.classes_) == ["$5", "$7.50"]
    assert model.score(X, labels) > 0.9


def test_later_targets_are_read_as_those_of_fit(tmp_path, expected):
    texts = NOTATIONS["decimal commas"]
    model = KernelRegressor(**FIXED).fit(X, texts, X_val=X[:20], y_val=texts[:20])
    score = model.score(X, Y)
    # Alone, this could be a fraction or a thousand.
    one = ["50.123", "49.876"]
    assert model.score(X[:2], one) == pytest.approx(model.score(X[:2], [50_123.0, 49_876.0]))
    model.save(tmp_path / "m.mercer")
    again = mercer.load(tmp_path / "m.mercer")
    assert again.score(X, texts) == score
    with pytest.raises(ValueError, match=r"numbers \(decimal commas.*but row 2 .* holds '12 km'"):
        again.score(X[:2], ["1,5", "12 km"])
    assert again.calibrate(X, texts).can_cover(0.9)
    assert again.partial_fit(X, texts).score(X, texts) == pytest.approx(score, abs=0.05)


def test_several_targets_have_a_notation_each(expected):
    both = np.column_stack([NOTATIONS["currency"], NOTATIONS["decimal commas"]])
    model = KernelRegressor(**FIXED).fit(X, both)
    np.testing.assert_allclose(model.predict(X)[:, 1], expected, rtol=1e-4)
    assert model.score(X, both) == pytest.approx(model.score(X, np.column_stack([Y, Y])))
    both[4, 1] = "?!"
    with pytest.raises(ValueError, match=r"Column 2 of `y` must hold numbers .* row 5 .* holds '\?!'"):
        KernelRegressor(**FIXED).fit(X, both)


def test_chunks_of_a_stream_are_read_as_the_first(expected):
    texts = NOTATIONS["currency"]
    chunks = [(X[:50], texts[:50]), (X[50:], texts[50:])]
    np.testing.assert_allclose(KernelRegressor(**FIXED).fit(chunks).predict(X), expected, rtol=1e-6)
    chunks[1] = (X[50:], [*texts[50:-1], "€3"])
    with pytest.raises(ValueError, match=r"Chunk 1 of the stream .* row 30 .* holds '€3'"):
        KernelRegressor(**FIXED).fit(chunks)


def test_the_shell_measures_a_model_of_python_on_targets_in_text(tmp_path, capsys):
    texts = NOTATIONS["decimal commas"]
    model = KernelRegressor(**FIXED).fit(X, texts)
    model.save(tmp_path / "m.mercer")
    table = pl.DataFrame({**{f"x{j}": X[:, j] for j in range(3)}, "y": texts})
    table.write_csv(tmp_path / "t.csv", separator=";")
    assert main(["evaluate", str(tmp_path / "m.mercer"), str(tmp_path / "t.csv"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["r2"] == pytest.approx(model.score(X, Y), abs=1e-4)
