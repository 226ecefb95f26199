"""The command line on tables as people have them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.datasets import load_iris

import mercer
from mercer.cli import main
from mercer.cli.outputs import write_frames
from mercer.tables.columns import Columns
from mercer.tables.formats import open_table
from mercer.tables.survey import fit_columns

FIXED = ("--kernel", "gaussian", "--bandwidth", "2", "--ridge", "0.1")


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """The command in this process and a folder of its own: exit code, standard output and error."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def german(number):
    return f"{number:,.2f}".translate(str.maketrans(",.", ".,"))


@pytest.fixture
def houses(tmp_path):
    """A file as a German spreadsheet writes it, in Latin-1."""
    rng = np.random.default_rng(0)
    size, n = rng.uniform(20, 200, 90), 90
    city = rng.choice(["Köln", "Lviv"], n)
    price = 1000 * size + 20_000 * (city == "Köln")
    lines = [
        f"{7 * i + 500};{german(a)};{c};{1 + i % 28:02}.03.2024;{1 + i % 2};{german(p)} EUR"
        for i, (a, c, p) in enumerate(zip(size, city, price, strict=True))
    ]
    path = tmp_path / "houses.csv"
    path.write_text("\n".join(["id;größe;stadt;tag;anzahl;preis", *lines]) + "\n", encoding="latin-1")
    return path, price


def test_a_file_with_decimal_commas_is_fitted_and_predicted(houses, run):
    path, price = houses
    options = ("-t", "preis", "--encoding", "latin-1", "--weight", "anzahl", "--category", "stadt")
    code, out, err = run("plan", path, *options, *FIXED)
    assert code == 0, err
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["column", "used", "as", "why,", "and", "how"]
    assert lines[1] == ["id", "left", "out", "identifiers,", "another", "one", "in", "each", "row"]
    assert lines[2] == ["größe", "number", "decimal", "commas"]
    assert lines[3][:4] == ["stadt", "category", "as", "requested;"]
    assert lines[4][:3] == ["tag", "date", "DD.MM.YYYY;"]
    assert lines[5] == ["anzahl", "weight", "as", "requested"]
    assert lines[6][:2] == ["preis", "target"]
    assert "is read as latin-1" in err
    code, _, err = run("fit", path, *options, *FIXED, "-o", "m.mercer", "--holdout", 0)
    assert code == 0, err
    code, out, err = run("predict", "m.mercer", path, "--encoding", "latin-1", "-o", "out.csv")
    assert code == 0, err
    found = pl.read_csv("out.csv")["prediction"].to_numpy()
    assert np.corrcoef(found, price)[0, 1] > 0.9
    code, out, err = run("evaluate", "m.mercer", path, "--encoding", "latin-1", "--json")
    assert json.loads(out)["r2"] > 0.8
    # Python reads the texts as the command line did.
    frame = pd.read_csv(path, sep=";", encoding="latin-1", dtype=str)
    np.testing.assert_array_equal(mercer.load("m.mercer").predict(frame), found)
    frame.loc[4, "größe"] = "12.5"
    with pytest.raises(
        ValueError, match=r"'größe' must hold numbers \(decimal commas\).*row 5 holds '12.5'"
    ):
        mercer.load("m.mercer").predict(frame)
    code, _, err = run("predict", "m.mercer", path)
    assert code == 1
    assert "is not UTF-8; name its encoding with --encoding" in err


def test_plan_and_fit_choose_the_same_with_the_same_arguments(houses, run):
    path, _ = houses
    for options in ((), ("--holdout", "0.4", "--weight", "anzahl"), ("--holdout", "0")):
        given = (path, "-t", "preis", "--encoding", "latin-1", "--seed", "3", *options)
        code, out, err = run("plan", *given, "--json")
        assert code == 0, err
        planned = json.loads(out)
        code, out, err = run("fit", *given, "-o", "m.mercer", "--json", "--force", "-q")
        assert code == 0, err
        fitted = json.loads(out)["plan"]
        same = (
            "n",
            "d",
            "n_outputs",
            "kernel",
            "ridge",
            "preparation",
            "direct",
            "batch_size",
            "step_size",
        )
        assert [planned[name] for name in same] == [fitted[name] for name in same]


def test_statistics_of_columns_do_not_know_the_rows_that_are_held_out(run, monkeypatch):
    n, found = 200, []

    def remember(*arguments, **options):
        found.append(fit_columns(*arguments, **options))
        return found[-1]

    monkeypatch.setattr("mercer.cli.reading.fit_columns", remember)
    rng = np.random.default_rng(0)
    frame = pl.DataFrame({"x": [None, *rng.normal(size=n - 1)], "y": rng.normal(size=n)})
    frame.write_csv("t.csv")
    code, _, err = run("fit", "t.csv", *FIXED, "-o", "m.mercer")
    assert code == 0, err
    trained = mercer.load("m.mercer").dual_coef_.any(axis=1)
    assert 0 < trained.sum() < n
    assert found[0].columns[0].fill == pytest.approx(frame["x"].filter(pl.Series(trained)).mean())
    assert found[0].columns[0].fill != pytest.approx(frame["x"].mean())


def test_an_archive_with_a_test_pair_is_measured_on_it(run):
    X, y = load_iris(return_X_y=True)
    rows = np.random.default_rng(0).permutation(150)
    X, y = X[rows], y[rows]
    np.savez("d.npz", X_train=X[:100], y_train=y[:100], X_test=X[100:], y_test=y[100:])
    code, out, err = run("fit", "d.npz", *FIXED, "-o", "m.mercer", "--json", "-q")
    assert code == 0, err
    said = json.loads(out)
    assert said["rows"] == {"train": 100, "early_stopping": 0, "test": 50}
    assert said["measures"]["accuracy"] == pytest.approx(mercer.load("m.mercer").score(X[100:], y[100:]))
    code, out, err = run("fit", "d.npz", *FIXED, "-o", "n.mercer", "--json", "-q", "--holdout", "0.3")
    assert json.loads(out)["rows"] == {"train": 70, "early_stopping": 0, "test": 30}


@pytest.fixture
def model(run):
    """A model of two columns of numbers, and the frame that it was trained on."""
    rng = np.random.default_rng(0)
    frame = pl.DataFrame({"id": range(60), "a": rng.normal(size=60), "b": rng.normal(size=60)})
    frame = frame.with_columns(y=pl.col("a") * 2)
    frame.write_csv("train.csv")
    code, _, err = run("fit", "train.csv", *FIXED, "-o", "m.mercer", "--holdout", 0, "-q")
    assert code == 0, err
    return frame


def test_a_bad_cell_is_named_or_its_row_is_left_out(model, run):
    frame = model.with_columns(pl.col("a", "b").cast(pl.String))
    frame = frame.with_columns(a=pl.when(pl.col("id") == 6).then(pl.lit("12,5 mm")).otherwise("a"))
    frame = frame.with_columns(b=pl.when(pl.col("id") == 8).then(pl.lit("oops")).otherwise("b"))
    frame.write_csv("new.csv")
    code, out, err = run("predict", "m.mercer", "new.csv", "-o", "out.csv")
    assert (code, out) == (1, "")
    assert "'a' must hold numbers, as in training, but row 7 holds '12,5 mm'" in err
    assert "use --on-error skip to leave such rows out" in err
    options = ("-o", "out.csv", "--on-error", "skip", "--with", "id")
    code, _, err = run("predict", "m.mercer", "new.csv", *options)
    assert code == 0, err
    assert "note: left out 2 rows with a value that cannot be read, first row 7" in err
    assert pl.read_csv("out.csv")["id"].to_list() == [i for i in range(60) if i not in (6, 8)]
    code, out, err = run("evaluate", "m.mercer", "new.csv", "--on-error", "skip", "--json")
    assert json.loads(out)["rows"] == 58
    assert any("left out 2 rows" in note for note in json.loads(out)["notes"])
    code, _, err = run("evaluate", "m.mercer", "new.csv")
    assert "row 7 holds '12,5 mm'" in err


@pytest.mark.parametrize("ending", ["xlsx", "json", "jsonl"])
def test_excel_and_json_are_fitted_predicted_and_written(ending, model, run):
    if ending == "xlsx":
        pytest.importorskip("python_calamine", reason="needs the extra excel")
        pytest.importorskip("xlsxwriter", reason="needs the extra excel")
    rows = model.with_columns(a=pl.format("{} €", (pl.col("a") * 100).round(0).cast(int)))
    write_frames([rows], Path(f"t.{ending}"))
    code, _, err = run("fit", f"t.{ending}", *FIXED, "-o", "e.mercer", "--holdout", 0)
    assert code == 0, err
    assert "1 column is read as numbers with '€'" in " ".join(err.split())
    code, _, err = run("predict", "e.mercer", f"t.{ending}", "-o", f"out.{ending}")
    assert code == 0, err
    code, _, err = run("predict", "e.mercer", f"t.{ending}", "-o", "out.csv")
    written = pl.concat(open_table(f"out.{ending}").chunks())
    np.testing.assert_allclose(written["prediction"], pl.read_csv("out.csv")["prediction"], rtol=1e-12)
    bad = rows.with_columns(a=pl.when(pl.col("id") == 9).then(pl.lit("dear")).otherwise("a"))
    write_frames([bad], Path(f"bad.{ending}"))
    code, _, err = run("predict", "e.mercer", f"bad.{ending}", "-o", "no.csv")
    assert code == 1
    assert "'a' must hold numbers ('€'), as in training, but row 10 holds 'dear'" in " ".join(
        err.split()
    )


def test_weights_of_rows_and_classes_reach_the_estimator(run):
    rng = np.random.default_rng(0)
    n = 80
    weight = rng.integers(0, 3, n)
    frame = pl.DataFrame(
        {"a": rng.normal(size=n), "w": weight, "y": rng.choice(["no", "yes"], n, p=[0.8, 0.2])}
    )
    frame.write_csv("t.csv")
    output = ("-o", "m.mercer", "-q", "--json", "--force")
    options = ("t.csv", *FIXED, "--weight", "w", "--holdout", 0, *output)
    code, out, err = run("fit", *options, "--class-weight", "yes=5")
    assert code == 0, err
    assert json.loads(out)["rows"] == {"train": int((weight > 0).sum()), "early_stopping": 0, "test": 0}
    found = mercer.load("m.mercer")
    same = mercer.KernelClassifier("gaussian", bandwidth=2.0, ridge=0.1, class_weight={"yes": 5.0})
    same.set_params(random_state=0).fit(frame[["a"]].to_numpy().astype(np.float32), frame["y"], weight)
    np.testing.assert_allclose(found.dual_coef_, same.dual_coef_, atol=1e-6)
    assert run("fit", *options, "--class-weight", "balanced")[0] == 0
    for given, words in (
        ("Yes=5", "names 'Yes', which is no class. Did you mean 'yes'?"),
        ("yes", "--class-weight must be balanced or LABEL=NUMBER. Got 'yes'"),
    ):
        code, _, err = run("fit", *options, "--class-weight", given)
        assert code == 2
        assert words in err
    frame.with_columns(w=pl.when(pl.int_range(n) == 4).then(-1).otherwise("w")).write_csv("t.csv")
    code, _, err = run("fit", *options)
    assert "'w' must hold weights of at least 0 in all rows, but row 5 holds '-1'" in err


def test_misspelled_and_missing_targets_are_answered_with_the_columns(model, run):
    code, _, err = run("fit", "train.csv", "-t", "Y ", "-o", "n.mercer")
    assert code == 1
    assert "has no column 'Y '. Did you mean 'y'? Its columns are 'id', 'a', 'b', 'y'" in err
    model.drop("y").write_csv("none.csv")
    code, _, err = run("fit", "none.csv", "-o", "n.mercer")
    assert "Name the column to predict with --target: 'id', 'a', 'b'." in err


def test_decisions_are_kept_in_the_model(model, run):
    columns = Columns.from_dict(mercer.load("m.mercer").metadata_["columns"])
    roles = {decision.name: decision.role for decision in columns.decisions}
    assert roles == {"id": "left out", "a": "number", "b": "number", "y": "target"}


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--drop", "A"), 1, "has no column 'A'. Did you mean 'a'?"),
        (("--category", "A"), 1, "has no column 'A'. Did you mean 'a'?"),
        (("--number", "A"), 1, "has no column 'A'. Did you mean 'a'?"),
        (("--keep", "A"), 1, "has no column 'A'. Did you mean 'a'?"),
        (("--weight", "A"), 1, "has no column 'A'. Did you mean 'a'?"),
        (("--drop", "y"), 1, "--drop names 'y', which is the target. Leave it out, or choose another"),
        (("--weight", "y"), 1, "--weight names 'y', which is the target."),
        (("--keep", "y"), 1, "--keep names 'y', which is the target."),
        (("--drop", "a", "--category", "a"), 2, "--drop and --category both name 'a'. Leave one"),
        (("--drop", "a", "--number", "a"), 2, "--drop and --number both name 'a'. Leave one"),
        (("--drop", "a", "--keep", "a"), 2, "--drop and --keep both name 'a'. Leave one"),
        (("--weight", "a", "--category", "a"), 2, "--weight and --category both name 'a'. Leave one"),
        (("--drop", "a", "--weight", "a"), 2, "--drop and --weight both name 'a'. Leave one"),
        (("--category", "a", "--number", "a"), 2, "--category and --number both name 'a'. Leave one"),
    ],
)
def test_options_that_name_no_column_or_one_twice_are_refused(options, code, message, run):
    pl.DataFrame({"a": [1.5, 2.5] * 20, "b": range(40), "y": [0, 1] * 20}).write_csv("t.csv")
    for command in (("plan", "t.csv"), ("fit", "t.csv", "-o", "m.mercer")):
        found, out, err = run(*command, *FIXED, *options)
        assert (found, out) == (code, "")
        assert message in " ".join(err.split())
        assert err.count("\n") <= 3


def test_dates_of_the_worst_rows_are_shown_as_the_file_has_them(run):
    lines = [f"{1 + i % 12:02}/{1 + i % 28:02}/2024,{i % 7}.5,{i * i % 11}.25" for i in range(60)]
    with open("t.csv", "w") as file:
        file.write("\n".join(["when,x,y", *lines]))
    code, out, err = run("fit", "t.csv", *FIXED, "-o", "m.mercer")
    assert code == 0, err
    table = out.partition("Worst predictions")[2].splitlines()[2:7]
    assert len(table) == 5
    assert all(re.search(r" when \d\d/\d\d/2024, x \d\.5", line) for line in table)
