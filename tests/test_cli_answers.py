"""What the command line says about how sure predictions are, how good they are, and on which rows."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import polars as pl
import pytest

import mercer
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
    assert "--far" not in err  # it was given
    _, out, err = run("predict", fitted / "price.mercer", tmp_path / "odd.csv")
    assert "no better than a guess; --far marks such rows" in err


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
    assert "<h2>Columns of the table</h2>" in page
    assert ">left out<" in page  # what was decided about the other target
    assert '<span class="values">' in page


@pytest.mark.parametrize("target", ["price", "level"])
def test_the_worst_rows_are_shown_with_their_values(run, fitted, target):
    new = fitted / "new.csv"
    code, out, _ = run("evaluate", fitted / f"{target}.mercer", new, "-t", target)
    assert code == 0
    code, found, _ = run("evaluate", fitted / f"{target}.mercer", new, "-t", target, "--json")
    worst = json.loads(found)["worst"]
    table, answers = pl.read_csv(new), json.loads(found)
    assert len(worst) > 0
    for one in worst:
        row = table.row(one["row"] - 1, named=True)
        assert one["true"] == row[target]
        assert one["values"] == {"size": row["size"], "rooms": row["rooms"]}
    if target == "price":
        off = [abs(one["true"] - one["predicted"]) for one in worst]
        assert off == sorted(off, reverse=True)
        assert max(off) > 2 * answers["mae"]
    shown = out[out.index("Worst ") :]
    values = worst[0]["values"]
    assert f"size {values['size']:.4g}, rooms {values['rooms']}" in shown
    assert "e+0" not in out  # prices are written out
    assert max(map(len, out.splitlines())) < 150


def test_refit_trains_on_all_rows_and_keeps_what_was_measured(run, fitted, tmp_path):
    table = ("fit", fitted / "houses.csv", "-t", "price", "--drop", "level", "--kernel", "gaussian")
    options = ("-o", tmp_path / "all.mercer", "--no-metric", "-q", "--refit", "--json")
    code, out, err = run(*table, *options)
    assert code == 0, err
    found, before = json.loads(out), mercer.load(fitted / "price.mercer")
    model = mercer.load(tmp_path / "all.mercer")
    assert found["refitted"] is True
    assert (found["rows"]["train"], found["rows"]["test"]) == (260, 52)
    assert found["measures"]["r2"] == pytest.approx(before.metadata_["measured"]["r2"], rel=1e-4)
    assert (model.kernel_, model.ridge_) == (before.kernel_, before.ridge_)
    assert len(before.machine_.alpha) == 208
    assert model.plan_.direct  # as the model before
    frame = pl.read_csv(fitted / "houses.csv")
    new = pl.read_csv(fitted / "new.csv")
    low, high = model.predict_interval(new, 0.8).T
    assert 0.65 < np.mean((low <= new["price"].to_numpy()) & (new["price"].to_numpy() <= high)) < 0.95
    off = model.predict(frame) - frame["price"].to_numpy()
    assert abs(np.mean(off)) < 0.1 * np.std(off)
    code, _, err = run(*table, "-o", tmp_path / "b.mercer", "-q", "--refit", "--holdout", "0")
    assert code == 2
    assert "--refit trains on the rows held out for the score, but none are" in err


@pytest.mark.parametrize(
    ("noise", "says"), [(50.0, "no better than a constant prediction"), (0.5, "a linear model is ")]
)
def test_a_model_that_is_no_better_than_the_mean_or_a_line_says_so(run, tmp_path, noise, says):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 3))
    y = 2 * x[:, 0] - x[:, 1] + noise * rng.normal(size=300)
    pl.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "y": y}).write_csv(tmp_path / "t.csv")
    # A narrow kernel interpolates the noise.
    fixed = ("--kernel", "gaussian", "--bandwidth", "0.3", "--ridge", "0.001", "-q", "--json")
    code, out, _ = run("fit", tmp_path / "t.csv", "-o", tmp_path / "m.mercer", *fixed)
    assert code == 0
    found = json.loads(out)
    assert any(says in note for note in found["notes"])
    assert found["linear"] < found["measures"]["rmse"]
