"""What the command line says about how sure predictions are, how good they are, and on which rows."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import polars as pl
import pytest

from mercer.cli import main


@pytest.fixture
def run(capsys, monkeypatch):
    """The command in this process: exit code, standard output, standard error."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def houses(n, seed=0):
    rng = np.random.default_rng(seed)
    size, rooms = rng.uniform(30, 200, n), rng.integers(1, 7, n)
    price = 3000 * size + 9000 * rooms + 200 * size * rng.normal(size=n)
    level = np.where(price < 3e5, "low", np.where(price < 5e5, "middle", "high"))
    return pl.DataFrame({"size": size, "rooms": rooms, "price": price.round(), "level": level})


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A model of prices and one of their levels, with what `fit` printed as JSON."""
    folder = tmp_path_factory.mktemp("houses")
    houses(260).write_csv(folder / "houses.csv")
    houses(200, 1).write_csv(folder / "new.csv")
    for target, other in (("price", "level"), ("level", "price")):
        table = ("fit", folder / "houses.csv", "-t", target, "--drop", other, "--kernel", "gaussian")
        options = ("-o", folder / f"{target}.mercer", "--no-metric", "-q")
        assert main([str(part) for part in (*table, *options)]) == 0
    return folder


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_intervals_are_two_columns_that_hold_the_price(run, fitted):
    code, out, err = run("predict", fitted / "price.mercer", fitted / "new.csv", "--interval", "0.9")
    assert code == 0
    rows = rows_of(out)
    assert list(rows[0]) == ["prediction", "lower", "upper"]
    low, high = (np.array([float(row[name]) for row in rows]) for name in ("lower", "upper"))
    price = houses(200, 1)["price"].to_numpy()
    assert 0.82 < np.mean((low <= price) & (price <= high)) < 0.98
    assert "far from" not in err


def test_sets_are_one_column_of_labels(run, fitted):
    _, out, _ = run("predict", fitted / "level.mercer", fitted / "new.csv", "--interval", "0.95")
    rows = rows_of(out)
    sets = [row["set"].split(" | ") for row in rows]
    assert all(row["prediction"] in labels for row, labels in zip(rows, sets, strict=True))
    assert np.mean([a in b for a, b in zip(houses(200, 1)["level"], sets, strict=True)]) > 0.9
    assert {label for labels in sets for label in labels} == {"low", "middle", "high"}


def test_a_row_with_one_feature_times_a_thousand_is_noted_and_marked(run, fitted, tmp_path):
    frame = houses(40, 2).with_row_index()
    frame = frame.with_columns(
        size=pl.when(pl.col("index") == 16).then(1000 * pl.col("size")).otherwise(pl.col("size"))
    )
    frame.drop("index").write_csv(tmp_path / "odd.csv")
    _, out, err = run("predict", fitted / "price.mercer", tmp_path / "odd.csv", "--far")
    assert "note: row 17 is far from everything that the model was trained on" in err
    assert [row["far"] for row in rows_of(out)][16] == "true"


def test_fit_and_evaluate_measure_the_intervals(run, fitted, tmp_path):
    new, model = fitted / "new.csv", fitted / "price.mercer"
    _, out, _ = run("evaluate", model, new, "-t", "price")
    assert "\nIntervals of 90 %: " in out
    assert " have the true value, and half are narrower than " in out
    _, out, _ = run("evaluate", model, new, "-t", "price", "--json")
    intervals = json.loads(out)["intervals"]
    assert 0.82 < intervals["measured"] < 0.98
    assert intervals["coverage"] == 0.9
    _, out, _ = run("evaluate", fitted / "level.mercer", new, "-t", "level")
    assert "\nSets of 90 %: " in out


@pytest.mark.parametrize("share", ["0", "1", "90"])
def test_an_interval_is_a_share(run, fitted, share):
    code, _, err = run("predict", fitted / "price.mercer", fitted / "new.csv", "--interval", share)
    assert code == 2
    assert "--interval must be between 0 and 1, such as 0.9. Got" in err


def test_a_model_that_cannot_tell_says_so(run, fitted, tmp_path):
    given = ("--kernel", "gaussian", "--bandwidth", "1", "--ridge", "0.1", "--scale", "standard")
    table = ("fit", fitted / "houses.csv", "-t", "price", "--drop", "level")
    assert run(*table, *given, "-o", tmp_path / "a.mercer", "-q")[0] == 0
    code, _, err = run("predict", tmp_path / "a.mercer", fitted / "new.csv", "--interval", "0.9")
    assert code == 2
    assert "need a model that knows its errors on rows it was not trained on" in err


def test_a_report_can_be_written_at_any_time(run, fitted, tmp_path):
    new, place = fitted / "new.csv", tmp_path / "page.html"
    code, out, _ = run("report", fitted / "price.mercer", new, "-t", "price", "-o", place)
    assert code == 0
    assert out.startswith("R² 0.9")
    assert f"Wrote the report to {place}." in out.replace("\n", "")
    page = place.read_text(encoding="utf-8")
    for title in ("Prediction intervals", "Worst predictions", "Features", "Training"):
        assert f"<h2>{title}</h2>" in page
    assert "price from new.csv" in page
    assert run("report", fitted / "price.mercer", new, "-t", "price", "-o", place)[0] == 2
    assert (fitted / "level.html").exists() is False
    assert run("report", fitted / "level.mercer", new, "-t", "level")[0] == 0
    assert "<h2>Prediction sets</h2>" in (fitted / "level.html").read_text(encoding="utf-8")
