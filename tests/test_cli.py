"""The command line with real files, processes, terminals and signals."""

from __future__ import annotations

import csv
import gzip
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from sklearn.datasets import load_diabetes, load_digits, load_iris

import mercer
from mercer.cli import main, sources
from mercer.cli.options import Kernel
from mercer.kernels import ALIASES, KERNELS

COMMANDS = ["plan", "fit", "predict", "evaluate", "report", "info", "demo", "bench"]
COMMAND = [sys.executable, "-m", "mercer"]
# Labels and a column name that break careless readers and writers.
NASTY = ['setosa, the "first"', "versi\ncolor", "ваніль [bold]'x'[/bold]"]
NASTY_COLUMN = 'petal, "width"\n(cm)'


@pytest.fixture
def run(capsys, monkeypatch):
    """The command in this process: exit code, standard output, standard error."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """For subprocesses: the machine is measured once, and not in the user's cache."""
    cache = tmp_path_factory.getbasetemp() / "process-cache"
    return {**os.environ, "XDG_CACHE_HOME": str(cache), "COLUMNS": "80", "LINES": "24"}


def iris_frame():
    X, y = load_iris(return_X_y=True)
    names = ["sepal length", "sepal width", "petal length", NASTY_COLUMN]
    frame = pl.DataFrame(X, schema=names)
    return frame.with_columns(species=pl.Series([NASTY[label] for label in y]))


@pytest.fixture(scope="session")
def iris(tmp_path_factory):
    """A table, and the path of a model that is fitted on it."""
    folder = tmp_path_factory.mktemp("iris")
    data, model = folder / "iris.csv", folder / "iris.mercer"
    iris_frame().write_csv(data)
    return data, model


@pytest.fixture
def iris_model(iris, run):
    data, model = iris
    if not model.exists():
        code, _, err = run("fit", data, "--target", "species", "-o", model, "--json")
        assert code == 0, err
    return model


def test_help_fits_a_screen_and_imports_nothing_slow(environment):
    script = (
        "import sys\n"
        "from mercer.cli import main\n"
        "code = main(['--help'])\n"
        "slow = {'torch', 'polars', 'numpy', 'sklearn', 'scipy', 'matplotlib'}\n"
        "print(code, slow & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert not any(line.endswith("...") for line in lines[1:])
    assert all(re.search(rf"^  {command} ", done.stdout, re.M) for command in COMMANDS)
    assert done.stderr == "0 set()\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_subcommand_shows_an_example(run, command):
    code, out, _ = run(command, "--help")
    assert code == 0
    assert f"  mercer {command}" in out.partition("Example")[2]


def test_kernels_are_those_of_the_library():
    assert {kernel.value for kernel in Kernel} == {"auto", *KERNELS, *ALIASES}


def test_a_fitted_model_predicts_and_is_evaluated(iris, iris_model, run, tmp_path):
    data, _ = iris
    # Columns in another order, with one more, and no target.
    new = tmp_path / "new.parquet"
    frame = iris_frame().drop("species").with_row_index("id")
    frame.select(reversed(frame.columns)).write_parquet(new)
    out = tmp_path / "out.csv"
    code, said, err = run("predict", iris_model, new, "-o", out, "--proba", "--with", "id")
    assert code == 0, err
    assert "Wrote 150 predictions" in said
    with out.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["id", "prediction", *(f"probability of {c}" for c in sorted(NASTY))]
    assert [int(row["id"]) for row in rows] == list(range(150))
    probabilities = np.array(
        [[float(row[f"probability of {c}"]) for c in sorted(NASTY)] for row in rows]
    )
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-5)
    predicted = [row["prediction"] for row in rows]
    assert predicted == [sorted(NASTY)[i] for i in probabilities.argmax(1)]
    truth = iris_frame()["species"].to_list()
    errors = np.mean([a != b for a, b in zip(predicted, truth, strict=True)])
    assert errors < 0.06

    code, said, err = run("evaluate", iris_model, data, "--json")
    measures = json.loads(said)
    assert code == 0, err
    assert measures["error"] == pytest.approx(errors)
    assert [one["label"] for one in measures["classes"]] == sorted(NASTY)
    assert [one["rows"] for one in measures["classes"]] == [50, 50, 50]

    code, said, err = run("evaluate", iris_model, data)
    assert code == 0
    assert "150 rows" in said
    assert "the model was trained on" in err
    assert "[bold]'x'[/bold]" in said  # text from the data is not markup


def test_the_score_is_that_of_the_saved_model_on_held_out_rows(iris, run, tmp_path):
    data, _ = iris
    path = tmp_path / "m.mercer"
    code, out, err = run(
        "fit", data, "-t", "species", "-o", path, "--holdout", "0.3", "--json", "--seed", 3
    )
    assert code == 0, err
    said = json.loads(out)
    assert said["rows"] == {"train": 105, "early_stopping": 0, "test": 45}
    model = mercer.load(path)
    assert model.metadata_["measured"]["error"] == said["measures"]["error"]
    unseen = ~model.dual_coef_.any(axis=1)
    assert unseen.sum() == 45
    X, y = load_iris(return_X_y=True)
    truth = np.array(NASTY)[y[unseen]]
    assert said["measures"]["error"] == pytest.approx(np.mean(model.predict(X[unseen]) != truth))


def test_with_a_test_file_all_other_rows_are_trained_on(run, tmp_path):
    X, y = load_diabetes(return_X_y=True)
    np.savez(tmp_path / "d.npz", X_train=X[:300], y_train=y[:300], X_test=X[300:], y_test=y[300:])
    path, data = tmp_path / "d.mercer", tmp_path / "d.npz"
    code, out, err = run("fit", data, "-o", path, "--test", data, "--task", "regression", "--json", "-q")
    assert code == 0, err
    assert err == ""
    said = json.loads(out)
    assert said["rows"] == {"train": 300, "early_stopping": 0, "test": len(y) - 300}
    assert said["measures"]["r2"] == pytest.approx(mercer.load(path).score(X[300:], y[300:]), abs=1e-5)
    code, out, _ = run("evaluate", path, data, "--json")
    assert json.loads(out)["r2"] == pytest.approx(said["measures"]["r2"])
    assert "Infinity" not in out
    assert "NaN" not in out


def test_without_held_out_rows_the_score_is_leave_one_out(iris, run, tmp_path):
    data, _ = iris
    path = tmp_path / "m.mercer"
    code, out, err = run("fit", data, "-t", "species", "-o", path, "--holdout", 0)
    assert code == 0, err
    score = mercer.load(path).left_out_score_
    figure = f"{100 * (1 - score):.0f}\u00a0%"
    assert f"Error {figure} by leave-one-out on the" in out
    assert "rows of the search" in out
    assert "has not been measured on new rows" in out
    code, out, _ = run("info", path)
    assert re.search(rf"left out +error {figure} by leave-one-out on the", out)
    code, out, _ = run("info", path, "--json")
    assert json.loads(out)["left_out"]["score"] == score


@pytest.fixture(scope="module")
def houses(tmp_path_factory):
    """A table with text, codes, missing values, a heavy tail and columns of no use."""
    rng = np.random.default_rng(0)
    n = 400
    city = rng.choice(["Brno", "Lviv", "Reims"], n)
    income = np.exp(1.5 * rng.normal(size=n))
    code = rng.integers(1, 5, n)
    price = np.log(income) + 2.0 * (city == "Lviv") + (code == 3) + 0.1 * rng.normal(size=n)
    noise = {f"noise {i}": rng.normal(size=n) for i in range(4)}
    frame = pl.DataFrame({"city": city, "income": income, "code": code, **noise, "price": price})
    frame = frame.with_columns(code=pl.when(pl.int_range(n) % 9 > 0).then("code"))
    path = tmp_path_factory.mktemp("houses") / "houses.csv"
    frame.write_csv(path)
    return path, frame


def test_text_and_declared_columns_have_one_importance_each(houses, run, tmp_path):
    data, frame = houses
    path = tmp_path / "m.mercer"
    options = ("-t", "price", "-o", path, "--categorical", "code", "--holdout", 0)
    code, out, err = run("fit", data, *options)
    assert code == 0, err
    assert "Most important: " in out
    model = mercer.load(path)
    assert model.categorical_features == [1, 6]
    shares = json.loads(run("info", path, "--json")[1])["feature_importances"]
    names = [one["name"] for one in shares]
    assert names == ["income", "code", *(f"noise {i}" for i in range(4)), "city"]
    assert [names[i] for i, one in enumerate(shares) if one["treatment"] == "category"] == [
        "code",
        "city",
    ]
    assert sum(one["importance"] for one in shares) == pytest.approx(1)
    assert re.search(r"importances +\w+ \d+ %, ", run("info", path)[1])
    new = frame.with_columns(city=pl.lit("Cluj"))
    new.write_csv(tmp_path / "new.csv")
    code, out, err = run("predict", path, tmp_path / "new.csv")
    assert code == 0, err
    assert "'city' has categories that were not in the training data" in err
    assert len(out.splitlines()) == len(frame) + 1


def test_scale_and_metric_reach_the_estimator(houses, run, tmp_path):
    data, _ = houses
    path = tmp_path / "m.mercer"
    options = ("--scale", "rank", "--no-metric", "--kernel", "l1_laplacian", "-q")
    code, _, err = run("fit", data, "-t", "price", "-o", path, *options)
    assert code == 0, err
    model = mercer.load(path)
    assert (model.scale, model.metric) == ("rank", False)
    assert model.machine_.inputs.importances is None
    assert {one.features for one in model.selection_.candidates} == {"by rank"}


def test_a_kernel_without_distances_gets_indicators(houses, run, tmp_path):
    data, _ = houses
    path = tmp_path / "m.mercer"
    options = ("-t", "price", "-o", path, "--kernel", "neural_tangent", "-q")
    code, _, err = run("fit", data, *options)
    assert code == 0, err
    model = mercer.load(path)
    # income, code, whether it is missing, noise, three cities
    assert model.machine_.inputs.n_features == 10
    code, _, err = run("fit", data, *options, "--force", "--categorical", "code")
    assert code == 2
    assert "--category needs a kernel of distances" in err


def test_the_training_file_is_refused_as_test_file(iris, run, tmp_path):
    data, _ = iris
    code, _, err = run("fit", data, "-t", "species", "-o", tmp_path / "m", "--test", data)
    assert code == 2
    assert "--test must have other rows than DATA" in err


def test_labels_can_come_from_a_separate_file(run, tmp_path):
    X, y = load_digits(return_X_y=True)
    names = {}
    for part, rows in (("train", slice(0, 700)), ("test", slice(700, None))):
        for what, values in (("x", X[rows].reshape(-1, 8, 8)), ("y", y[rows])):
            path = names[part, what] = tmp_path / f"{part}-{what}.gz"
            header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
            path.write_bytes(gzip.compress(header + values.astype(np.uint8).tobytes()))
    model = tmp_path / "m.mercer"
    code, out, err = run(
        *("fit", names["train", "x"], "-t", names["train", "y"], "-o", model, "--json", "-q"),
        *("--test", names["test", "x"], "--test-target", names["test", "y"]),
    )
    assert code == 0, err
    error = json.loads(out)["measures"]["error"]
    assert error < 0.1
    code, out, err = run("evaluate", model, names["test", "x"], "-t", names["test", "y"], "--json")
    assert code == 0, err
    assert json.loads(out)["error"] == pytest.approx(error)


def test_rows_without_a_target_are_dropped_and_the_others_keep_their_numbers(run, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=300)
    frame = pl.DataFrame({"x": x, "z": rng.normal(size=300), "size": 3 * x})
    missing = pl.int_range(pl.len()) < 100
    frame = frame.with_columns(size=pl.when(missing).then(None).otherwise(pl.col("size")))
    frame.write_csv(tmp_path / "t.csv")
    page = tmp_path / "r.html"
    arguments = ["-t", "size", "-o", tmp_path / "m", "--report", page, "--json"]
    code, out, err = run("fit", tmp_path / "t.csv", *arguments)
    assert code == 0, err
    assert json.loads(out)["rows"] == {"train": 160, "early_stopping": 0, "test": 40}
    assert "100 of 300 rows" in err
    code, out, err = run("evaluate", tmp_path / "m", tmp_path / "t.csv", "--json")
    assert json.loads(out)["rows"] == 200
    source = sources.open_source(str(tmp_path / "t.csv"), "size")
    columns = sources.Columns.from_dict(mercer.load(tmp_path / "m").metadata_["columns"])
    assert (sources.row_numbers(source, columns, 200) == np.arange(100, 300)).all()


def test_plans_are_for_this_machine_or_another(iris, run):
    data, _ = iris
    arguments = ["plan", data, "--target", "species", "--kernel", "gaussian", "--bandwidth", "1"]
    code, out, err = run(*arguments, "--memory", "12GB", "--capacity", "1e9", "--json")
    assert code == 0, err
    plan = mercer.Plan.from_json(out)
    assert (plan.n, plan.d, plan.n_outputs) == (120, 4, 3)  # a fifth would be held out
    assert (plan.memory, plan.capacity) == (12 * 1024**3, 1e9)
    code, out, _ = run(*arguments)
    assert code == 0
    assert "gaussian (bandwidth 1)" in out
    assert "equations are solved at once" in out
    code, out, _ = run(*arguments, "--ridge", "0.1")
    assert code == 0
    assert "batch, limited by data" in out


def test_rbf_is_another_name_of_the_gaussian(iris, run):
    data, _ = iris
    arguments = ["plan", data, "--target", "species", "--bandwidth", "1", "--json"]
    named = [json.loads(run(*arguments, "--kernel", name)[1]) for name in ("rbf", "gaussian")]
    assert named[0]["kernel"] == named[1]["kernel"] == "gaussian (bandwidth 1)"


def test_the_number_of_threads_reaches_the_estimator_but_not_the_file(iris, run, tmp_path, monkeypatch):
    data, _ = iris
    used = []

    def threads(n_jobs, share):
        used.append(n_jobs)
        return real(n_jobs, share)

    real = mercer.estimators.base.threads
    monkeypatch.setattr("mercer.estimators.base.threads", threads)
    model = tmp_path / "m.mercer"
    fixed = ["-t", "species", "--kernel", "gaussian", "--bandwidth", "1", "--ridge", "0.1"]
    for arguments in (
        ["plan", data, *fixed],
        ["fit", data, *fixed, "-o", model, "-q"],
        ["predict", model, data, "-o", tmp_path / "out.csv", "-q"],
        ["evaluate", model, data, "-q"],
    ):
        used.clear()
        code, _, err = run(*arguments, "--n-jobs", "1")
        assert code == 0, err
        assert used
        assert set(used) == {1}, arguments[0]
    assert mercer.load(model).n_jobs is None


def test_info_shows_the_contents_of_a_model(iris, iris_model, run):
    code, out, _ = run("info", iris_model)
    assert code == 0
    assert "Classification of species (3 classes)" in out
    assert "mercer fit" in out
    data = json.loads(run("info", iris_model, "--json")[1])
    assert data["classes"] == sorted(NASTY)
    assert data["metadata"]["columns"]["target"] == "species"


def test_a_model_saved_from_python_works_on_a_plain_matrix(run, tmp_path):
    X, y = load_iris(return_X_y=True)
    model = mercer.KernelClassifier("gaussian", bandwidth=1.0, ridge=0.01, random_state=0).fit(X, y)
    path = tmp_path / "plain.mercer"
    model.save(path)
    np.savez(tmp_path / "iris.npz", X=X, y=y)
    np.save(tmp_path / "iris.npy", X)
    code, out, err = run("evaluate", path, tmp_path / "iris.npz", "--json")
    assert code == 0, err
    assert json.loads(out)["accuracy"] == pytest.approx(model.score(X, y))
    code, _, err = run("predict", path, tmp_path / "iris.npy", "-o", tmp_path / "out.parquet")
    assert code == 0, err
    predicted = pl.read_parquet(tmp_path / "out.parquet")["prediction"].to_numpy()
    assert (predicted == model.predict(X.astype(np.float32))).all()
    assert "plain matrix" in run("info", path)[1]
    np.save(tmp_path / "narrow.npy", X[:, :3])
    code, _, err = run("predict", path, tmp_path / "narrow.npy", "-o", tmp_path / "no.csv")
    assert code == 1
    assert "the 4 columns" in err
    assert not (tmp_path / "no.csv").exists()


def test_existing_files_are_refused_before_any_work_and_overwritten_with_force(iris, run, tmp_path):
    data, _ = iris
    kept = tmp_path / "kept"
    kept.write_text("precious")
    fresh = tmp_path / "fresh"
    for arguments in (
        ["fit", "no-such-data.csv", "-o", kept],
        ["fit", "no-such-data.csv", "-o", fresh, "--report", kept],
        ["fit", "no-such-data.csv", "-o", fresh, "--checkpoint", kept],
        ["predict", "no-such-model", "no-such-data.csv", "-o", kept],
    ):
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert "--force" in err
        assert err.count("\n") == 1
    code, _, err = run("fit", data, "-o", data, "--force")
    assert code == 2
    assert "which is also read" in err
    assert kept.read_text() == "precious"
    code, _, err = run("fit", data, "-t", "species", "-o", kept, "--force", "--holdout", "0")
    assert code == 0, err
    assert mercer.load(kept).n_features_in_ == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
@pytest.mark.parametrize(
    "arguments",
    [
        ["predict", "PLACE", "x.csv"],
        ["evaluate", "PLACE", "x.csv"],
        ["info", "PLACE"],
        ["fit", "x.csv", "-o", "m", "--resume", "PLACE"],
    ],
)
@pytest.mark.parametrize(("place", "words"), [("pipe", "Got a pipe"), (".", "Got a folder")])
def test_a_pipe_or_folder_in_place_of_a_model_is_refused_at_once(
    run, tmp_path, monkeypatch, arguments, place, words
):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    code, out, err = run(*(place if word == "PLACE" else word for word in arguments))
    assert (code, out) == (1, "")
    assert words in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fit"], "Missing argument 'DATA'"),
        (["fit", "x.csv"], "--output"),
        (["fti"], "Did you mean 'fit'"),
        (["fit", "x.csv", "-o", "m", "--kernel", "linear"], "laplacian"),
        (["fit", "x.csv", "-o", "m", "--holdout", "1.5"], "less than 1"),
        (["fit", "x.csv", "-o", "m", "--holdout", "0.2", "--test", "y.csv"], "cannot be used together"),
        (["fit", "x.csv", "-o", "m", "--report", "m"], "different files"),
        (["fit", "x.csv", "-o", "m", "--resume", "r"], "There is no checkpoint 'r'"),
        (["fit", "x.csv", "-o", "m", "--test-target", "t"], "can only be used with --test"),
        (["fit", "x.csv", "-o", "m", "--memory", "lots"], "--memory must be a size"),
        (["fit", "x.csv", "-o", "no/folder/m"], "does not exist"),
        (["plan", "x.csv", "--capacity", "-1"], "--capacity must be positive"),
        (["fit", "x.csv", "-o", "m", "--n-jobs", "0"], "--n-jobs must be at least 1, or -1"),
        (["fit", "x.csv", "-o", "m", "--bandwidth", "0"], "--bandwidth must be a positive number"),
        (["fit", "x.csv", "-o", "m", "--ridge", "-1"], "--ridge must be at least 0"),
        (["predict", "m", "x.csv", "--n-jobs", "-2"], "--n-jobs must be at least 1, or -1"),
        (["predict", "m", "x.csv", "--json"], "needs -o FILE"),
    ],
)
def test_invalid_options_print_one_line_and_exit_with_2(run, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.startswith("mercer: ")
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_errors_in_data_or_model_print_one_line_and_exit_with_1(iris, iris_model, run, tmp_path):
    data, _ = iris
    frame = iris_frame()
    frame.drop("petal length").write_csv(tmp_path / "missing.csv")
    frame.with_columns(pl.lit("long").alias("petal length")).write_csv(tmp_path / "type.csv")
    damaged = tmp_path / "damaged.mercer"
    damaged.write_bytes(iris_model.read_bytes()[:-50])
    out = tmp_path / "out.csv"
    for arguments, words in (
        (["predict", iris_model, tmp_path / "missing.csv", "-o", out], "petal length"),
        (["predict", iris_model, tmp_path / "type.csv", "-o", out], "petal length"),
        (["predict", iris_model, "nowhere.csv", "-o", out], "nowhere.csv"),
        (["predict", damaged, data, "-o", out], "damaged"),
        (["predict", iris_model, data, "-o", out, "--with", "colour"], "'colour'"),
        (["evaluate", "nowhere.mercer", data], "nowhere.mercer"),
        (["evaluate", iris_model, tmp_path / "type.csv"], "petal length"),
        (["fit", data, "--target", "colour", "-o", out], "colour"),
        (["info", data], "iris.csv"),
    ):
        code, said, err = run(*arguments)
        assert (code, said) == (1, ""), arguments
        assert words in err
        assert err.count("\n") == 1, err
        assert "Traceback" not in err
        assert not out.exists()
    assert "Traceback" in run("info", data, "--debug")[2]


def test_fit_writes_a_report(iris, run, tmp_path):
    data, _ = iris
    page = tmp_path / "report.html"
    code, out, err = run("fit", data, "-t", "species", "-o", tmp_path / "m.mercer", "--report", page)
    assert code == 0, err
    text = page.read_text(encoding="utf-8")
    assert "mercer fit" in text
    assert NASTY[0] not in text  # its quotes are escaped
    assert "What to try next" in out
    assert re.search(r"Error \S+ % on 30 rows", out)


# In subprocesses.


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    """So many rows and so little memory that training takes some seconds."""
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    X = np.tile(X, (8, 1)) + rng.normal(scale=4.0, size=(8 * len(X), 64))
    path = tmp_path_factory.mktemp("digits") / "digits.npz"
    np.savez(path, X=X.astype(np.float32), y=np.tile(y, 8))
    return path


def slow_fit(data: Path, model: Path, *more: str) -> list[str]:
    fixed = ["--kernel", "laplacian", "--bandwidth", "60", "--ridge", "0", "--memory", "150MB"]
    return [*COMMAND, "fit", str(data), "-o", str(model), *fixed, *more]


def in_terminal(command: list[str], environment: dict[str, str], act: re.Pattern[str], number: int):
    """Run in a pseudo-terminal, send a signal when `act` appears; return exit code and screen."""
    parent, child = pty.openpty()
    process = subprocess.Popen(command, stdout=child, stderr=child, env=environment, close_fds=True)
    os.close(child)
    screen, sent, end = "", False, time.monotonic() + 60
    while time.monotonic() < end:
        if select.select([parent], [], [], 0.1)[0]:
            try:
                screen += os.read(parent, 1 << 16).decode(errors="replace")
            except OSError:  # the other side is closed
                break
        if not sent and act.search(screen):
            process.send_signal(number)
            sent = True
    os.close(parent)
    assert sent, screen
    return process.wait(timeout=10), screen


def test_ctrl_c_saves_the_best_model_so_far(digits, environment, run, tmp_path):
    model, checkpoint = tmp_path / "m.mercer", tmp_path / "m.checkpoint"
    command = slow_fit(digits, model, "--checkpoint", str(checkpoint))
    code, screen = in_terminal(command, environment, re.compile(r"epoch   1 "), signal.SIGINT)
    assert code == 0, screen
    assert "\r\x1b[K" in screen  # the progress line
    assert "batch " in screen
    assert "interrupted from the keyboard" in screen
    assert "--resume" in screen
    kept = mercer.load(model)
    assert kept.stop_reason_ == "interrupted from the keyboard"
    assert kept.metadata_["measured"]["rows"] == round(0.2 * 8 * 1797)
    assert sorted(path.name for path in tmp_path.iterdir()) == [checkpoint.name, model.name]
    # The same rows are held out, although the seed is another one.
    arguments = slow_fit(digits, model, "--resume", str(checkpoint), "--force", "--json", "--seed", "5")[
        3:
    ]
    code, out, err = run(*arguments)
    assert code == 0, err
    said = json.loads(out)
    assert said["epochs"] > kept.n_iter_
    assert said["rows"]["test"] == round(0.2 * 8 * 1797)
    assert set(mercer.load(model)._training_rows) == set(kept._training_rows)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGKILL, -9, marks=pytest.mark.slow)],
)
def test_a_fit_that_is_killed_leaves_the_old_model_intact(digits, environment, tmp_path, number, code):
    model = tmp_path / "m.mercer"
    model.write_text("the old one")
    command = slow_fit(digits, model, "--force")
    ended, screen = in_terminal(command, environment, re.compile(r"epoch   1 "), number)
    assert ended == code, screen
    assert "Traceback" not in screen
    assert model.read_text() == "the old one"
    if number == signal.SIGTERM:
        assert [path.name for path in tmp_path.iterdir()] == ["m.mercer"]


def test_a_closed_pipe_is_not_an_error(digits, environment, tmp_path):
    X, y = load_digits(return_X_y=True)
    model = mercer.KernelClassifier("laplacian", bandwidth=60.0, ridge=0.0, random_state=0)
    model.fit(X[:300], y[:300]).save(tmp_path / "m.mercer")
    command = " ".join([*COMMAND, "predict", str(tmp_path / "m.mercer"), str(digits), "--proba", "-q"])
    done = subprocess.run(
        f"{command} | head -n 2",
        shell=True,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    # The rows have noise that those of training had not, which is said; nothing else is.
    assert all(line.startswith("note: ") for line in done.stderr.splitlines())
    assert done.stdout.splitlines()[0].startswith("prediction,probability of 0,")
    assert len(done.stdout.splitlines()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted_predictions_leave_no_partial_file(digits, environment, tmp_path, number):
    X, y = load_digits(return_X_y=True)
    model = mercer.KernelClassifier("laplacian", bandwidth=60.0, ridge=0.0, random_state=0).fit(X, y)
    model.save(tmp_path / "m.mercer")
    with np.load(digits) as file:
        np.save(tmp_path / "many.npy", np.tile(file["X"], (40, 1)))
    out = tmp_path / "out.csv"
    command = [
        *COMMAND,
        "predict",
        str(tmp_path / "m.mercer"),
        str(tmp_path / "many.npy"),
        "-o",
        str(out),
    ]
    code, screen = in_terminal(command, environment, re.compile("rows predicted"), number)
    assert code in (130, 143, -9), screen
    assert "Traceback" not in screen
    assert not out.exists()
    if number != signal.SIGKILL:
        assert sorted(path.name for path in tmp_path.iterdir()) == ["m.mercer", "many.npy"]


def test_a_table_can_come_from_standard_input(iris, iris_model, run, monkeypatch):
    with iris[0].open() as file:
        monkeypatch.setattr("sys.stdin", file)
        code, out, err = run("predict", iris_model, "-")
    assert code == 0, err
    assert pl.read_csv(out.encode())["prediction"].n_unique() == 3


def test_the_error_names_the_missing_extra(monkeypatch, capsys):
    monkeypatch.setattr("mercer.cli.find_spec", lambda name: None if name == "polars" else object())
    assert main(["--help"]) == 1
    assert "pip install 'mercer[cli]'" in capsys.readouterr().err


def test_completion_is_offered_for_bash(environment):
    variables = {
        **environment,
        "_MERCER_COMPLETE": "complete_bash",
        "COMP_WORDS": "mercer ev",
        "COMP_CWORD": "1",
    }
    script = "import sys; from mercer.cli import main; sys.exit(main([]))"
    done = subprocess.run(
        [sys.executable, "-c", script], env=variables, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["evaluate"]


def test_the_demo_is_near_the_limit_and_tells_which_features_count(run):
    code, out, _ = run("demo", "--rows", "1500")
    assert code == 0
    bars = re.findall(r"^  x(\d+) +([0-9.]+)", out, flags=re.MULTILINE)
    shares = [float(share) for _, share in bars]
    assert len(shares) == 10
    assert sum(shares[5:]) < 0.05
    errors = {name: float(error) for name, error in re.findall(r"^  (\w+) +(0\.\d{4}) ", out, re.M)}
    noise = float(re.search(r"noise alone +([0-9.]+)", out)[1])
    assert noise < errors["Mercer"] < 1.5 * noise
    assert errors["Mercer"] < min(errors["HistGradientBoosting"], errors["SVR"])


@pytest.mark.slow
def test_demo_and_bench_give_their_figures(run):
    contenders = json.loads(run("demo", "--rows", "1000", "--json")[1])
    assert [one["name"] for one in contenders] == ["Mercer", "HistGradientBoosting", "SVR"]
    figures = json.loads(run("bench", "--json")[1])["figures"]
    assert all(figure["value"] >= 0 for figure in figures)
