"""`mercer fit` on files that do not fit into memory: read in chunks in every pass."""

from __future__ import annotations

import json
import weakref

import numpy as np
import polars as pl
import pytest
from sklearn.model_selection import train_test_split

import mercer
from mercer import Checkpoint
from mercer.cli import main, reading
from mercer.cli.choices import TestChoice
from mercer.cli.holdout import rows_to_hold_out

N = 9_000
FIXED = ["--kernel", "laplacian", "--bandwidth", "3", "--ridge", "0.1", "--seed", "0"]
SMALL = ["--memory", "500KB", "--centers", "100", "--epochs", "2", "--json"]


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 6)).astype(np.float32)
    names = [f"x{i}" for i in range(6)]
    return pl.DataFrame({**dict(zip(names, X.T, strict=True)), "y": np.sin(X[:, 0]) + X[:, 1]})


@pytest.fixture
def run(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def written(frame, ending, folder):
    path = folder / f"rows.{ending}"
    if ending == "npz":
        np.savez(path, X=frame.drop("y").to_numpy(), y=frame["y"].to_numpy())
    elif ending == "npy":
        np.save(path, frame.drop("y").to_numpy())
        np.save(folder / "labels.npy", frame["y"].to_numpy())
    else:
        {"csv": frame.write_csv, "parquet": frame.write_parquet, "arrow": frame.write_ipc}[ending](path)
    return path


@pytest.mark.parametrize("ending", ["parquet", "csv", "arrow", "npz", "npy"])
def test_a_file_that_does_not_fit_is_read_in_every_pass(ending, frame, run, tmp_path):
    path, model = written(frame, ending, tmp_path), tmp_path / "model.mercer"
    labels = ["--target", tmp_path / "labels.npy"] if ending == "npy" else []
    code, out, err = run("fit", path, "-o", model, *FIXED, *SMALL, *labels)
    assert code == 0, err
    found = json.loads(out)
    assert "read anew in every pass" in err
    rows = found["rows"]
    assert rows["train"] + rows["early_stopping"] + rows["test"] == N
    assert rows["test"] == 1_800
    saved = mercer.load(model)
    assert len(saved.machine_.centres) == 100
    held_out = saved.metadata_["measured"]
    assert held_out["r2"] > 0.7
    code, out, err = run("predict", model, path)
    assert code == 0, err


def test_held_out_rows_of_a_stream_are_neither_trained_on_nor_surveyed(frame, run, tmp_path):
    """Their targets are so wrong that a fit on them would show it."""
    path, model = tmp_path / "rows.parquet", tmp_path / "model.mercer"
    frame.write_parquet(path)
    run("fit", path, "-o", model, *FIXED, *SMALL)
    right = mercer.load(model)
    y = frame["y"].to_numpy()
    held_out = rows_to_hold_out(y, "regression", TestChoice(None, None, None, 0), None)
    wrong = y.copy()
    wrong[held_out] = 1e6
    frame.with_columns(pl.Series("y", wrong)).write_parquet(path)
    run("fit", path, "-o", model, *FIXED, *SMALL, "--force")
    assert np.array_equal(mercer.load(model).dual_coef_, right.dual_coef_)


def test_text_and_missing_targets_are_prepared_as_for_small_files(frame, run, tmp_path):
    path, model = tmp_path / "rows.csv", tmp_path / "model.mercer"
    town = np.array(["Bath", "Cork", "Ely"])[np.arange(N) % 3]
    labels = pl.Series("y", np.where(frame["y"] > 0, "high", "low"))
    labels[17] = None
    frame.with_columns(pl.Series("town", town), labels).write_csv(path)
    fixed = [*FIXED, "--memory", "500KB", "--centers", "100", "--class-weight", "balanced"]
    code, out, err = run("fit", path, "-o", model, *fixed, "--report", tmp_path / "report.html")
    assert code == 0, err
    assert "dropped 1 of 9,000 rows because their target is missing" in err + out
    saved = mercer.load(model)
    assert list(saved.classes_) == ["high", "low"]
    assert saved.metadata_["measured"]["accuracy"] > 0.8
    assert "Confusion" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_auto_streams_where_the_file_does_not_fit_and_all_rows_go_to_disk(frame, run, tmp_path):
    path = written(frame, "parquet", tmp_path)
    code, out, err = run("plan", path, *FIXED, "--memory", "500KB", "--json")
    assert code == 0, err
    assert json.loads(out)["n_centers"] is not None
    assert "read anew in every pass" in err
    code, out, err = run("plan", path, *FIXED, "--memory", "500KB", "--centers", "all", "--json")
    assert code == 0, err
    assert json.loads(out)["n_centers"] is None
    assert "read from disk" in err


class Ended(Checkpoint):
    """Ends training within its second epoch."""

    panels = 3

    def on_panel_end(self, run):
        super().on_panel_end(run)
        self.panels -= len(run.history) == 1
        return "enough" if self.panels == 0 else None


def test_descent_on_a_stream_from_a_file_is_resumed_within_an_epoch(frame, run, tmp_path, monkeypatch):
    path, whole, model = (tmp_path / name for name in ("rows.csv", "whole.mercer", "model.mercer"))
    frame[:6_000].write_csv(path)
    fixed = [*FIXED, *SMALL, "--ridge", "0"]  # without a ridge, the equations are not solved at once
    assert run("fit", path, "-o", whole, *fixed)[0] == 0
    saved = ["--checkpoint", tmp_path / "run.checkpoint", "--checkpoint-minutes", "0"]
    with monkeypatch.context() as patch:
        patch.setattr("mercer.training.events.callbacks.Checkpoint", Ended)
        assert run("fit", path, "-o", model, *fixed, *saved)[0] == 0
    ended = mercer.load(model)
    assert ended.stop_reason_ == "enough"
    assert len(ended.history_) == 1
    code, _, err = run("fit", path, "-o", model, *fixed, "--resume", saved[1], "--force")
    assert code == 0, err
    resumed, expected = mercer.load(model), mercer.load(whole)
    assert not expected.plan_.direct
    assert len(resumed.history_) == len(expected.history_) == 2
    assert np.array_equal(resumed.dual_coef_, expected.dual_coef_)
    assert not np.array_equal(ended.dual_coef_, expected.dual_coef_)


def test_weights_of_a_column_count_in_a_stream_from_a_file(frame, run, tmp_path):
    """Half of the targets are wrong, and have no weight."""
    path, model = tmp_path / "rows.parquet", tmp_path / "model.mercer"
    wrong = np.arange(N) % 2 == 0
    y = pl.Series("y", np.where(wrong, 100.0, frame["y"].to_numpy()))
    frame.with_columns(y, pl.Series("w", np.where(wrong, 0.0, 2.0))).write_parquet(path)
    code, _, err = run(
        "fit", path, "-o", model, *FIXED, *SMALL, "--target", "y", "--weight", "w", "--holdout", "0"
    )
    assert code == 0, err
    assert "read anew in every pass" in err
    saved = mercer.load(model)
    assert "w" not in saved.feature_names_in_
    assert saved.score(frame.drop("y").filter(~wrong), frame["y"].filter(~wrong)) > 0.7


def test_a_weight_below_zero_in_a_stream_from_a_file_is_named(frame, run, tmp_path):
    path = tmp_path / "rows.parquet"
    weight = np.ones(N)
    weight[7_654] = -1
    frame.with_columns(pl.Series("w", weight)).write_parquet(path)
    code, _, err = run(
        "fit", path, "-o", tmp_path / "m.mercer", *FIXED, *SMALL, "--target", "y", "--weight", "w"
    )
    assert code
    assert "weights of at least 0" in err


def test_rows_are_held_out_as_by_scikit_learn_in_less_memory():
    y = np.zeros(12_345)
    found = rows_to_hold_out(y, "regression", TestChoice(None, None, None, 3), None)
    expected = train_test_split(np.arange(12_345), test_size=len(found), random_state=3)[1]
    assert np.array_equal(found, np.sort(expected))


def test_targets_that_were_read_before_training_are_not_kept(frame, run, tmp_path, monkeypatch):
    path, read, alive = written(frame, "parquet", tmp_path), [], []
    first, fit = reading.targets_only, mercer.KernelRegressor.fit

    def watched(*given):
        chosen, y = first(*given)
        read.append(weakref.ref(y))
        return chosen, y

    def looking(*given, **options):
        alive.extend(y() is not None for y in read)
        return fit(*given, **options)

    monkeypatch.setattr(reading, "targets_only", watched)
    monkeypatch.setattr(mercer.KernelRegressor, "fit", looking)
    assert run("fit", path, "-o", tmp_path / "model.mercer", *FIXED, *SMALL)[0] == 0
    assert alive == [False]


def test_a_stream_from_a_file_is_resumed_with_the_same_bits(frame, run, tmp_path):
    path, whole, model = (tmp_path / name for name in ("rows.parquet", "whole.mercer", "model.mercer"))
    frame.write_parquet(path)
    fixed = [*FIXED, *SMALL]
    assert run("fit", path, "-o", whole, *fixed)[0] == 0
    saved = ["--checkpoint", tmp_path / "run.checkpoint", "--checkpoint-minutes", "0"]
    assert run("fit", path, "-o", model, *fixed, *saved)[0] == 0
    code, _, err = run("fit", path, "-o", model, *fixed, "--resume", saved[1], "--force")
    assert code == 0, err
    assert np.array_equal(mercer.load(model).dual_coef_, mercer.load(whole).dual_coef_)
