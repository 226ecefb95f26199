"""Estimators in a process group: unchanged programs, equal results, and ranks that disagree."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from ranks import command_line, on_the_desk

import mercer
from mercer import Callback, Checkpoint, KernelClassifier, KernelRegressor
from mercer.cli import main, sentence
from mercer.planning.resource import Resource
from mercer.planning.together import resource_of_all
from mercer.processes.group import Group, RankError
from mercer.processes.joining import is_restarted_with_other_hosts, name_of_attempt, ranks
from mercer.processes.seats import Seat, devices, share_of_cores, sharing

ROOT = Path(__file__).resolve().parent.parent
FEW_ROWS = {"kernel": "laplacian", "bandwidth": 3.0, "ridge": 0.01, "random_state": 0, "max_iter": 3}
FIXED = {**FEW_ROWS, "subsample_size": 600}  # eigenvectors of a larger one would take most of the time


def some_data(n=2_600):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 5))
    return X, X[:, 0] * X[:, 1] + np.sin(X[:, 2])


@pytest.fixture(autouse=True)
def _same_device(on_desk):
    """The process of the tests plans for the same device as the ranks below."""


def fitted(kind):
    """What a small fit ends with."""
    on_the_desk()
    X, y = some_data()
    model, given = KernelRegressor(**FIXED), {}
    if kind == "chosen":
        model, X, y = KernelRegressor(random_state=0, max_iter=3), X[:700], y[:700]
    if kind == "many":  # more rows than a rank's own memory would let the search compare
        X, _ = some_data(4_600)
        y = np.sin(X[:, 0]) + np.random.default_rng(1).normal(size=len(X))  # which makes kernels alike
        model = KernelRegressor(metric=False, random_state=0, max_iter=1)
    if kind == "classes":
        model, y = KernelClassifier(**FIXED, class_weight="balanced"), np.digitize(y, [-1, 0, 1])
    if kind == "stopped":
        model.set_params(early_stopping=True, precision="float64")
    if kind == "weights":
        given["sample_weight"] = np.linspace(0, 1, len(X))
    if kind == "function":
        model.set_params(kernel=lambda a, b: (-torch.cdist(a, b)).exp())
        X, y = X[:700], y[:700]
    if kind == "unseeded":
        model.set_params(random_state=None)
    if kind == "warm":
        model.set_params(warm_start=True, max_iter=1, scale=False).fit(X[:2_000], y[:2_000])
    model.fit(X, y, **given)
    scores = (model.score(X, y), model.n_iter_, model.stop_reason_, repr(model.selection_))
    return model.dual_coef_, model.predict(X), scores, model.plan_.ranks


def threads_after_a_fit():
    X, y = some_data(300)
    KernelRegressor("laplacian", bandwidth=3.0, ridge=0.0, random_state=0, max_iter=1).fit(X, y)
    return psutil.Process().num_threads()


def test_a_process_group_that_was_destroyed_keeps_no_threads(pool):
    counts = [pool.run(2, threads_after_a_fit)[0] for _ in range(5)]  # a new group each time
    assert max(counts[2:]) - min(counts[2:]) < 6  # connections of one group have at least as many


KINDS = ("plain", "chosen", "classes", "stopped", "weights", "warm", "function")


def of_kinds(kinds):
    return {kind: fitted(kind) for kind in kinds}


@pytest.mark.parametrize(
    "kinds", [KINDS, pytest.param(("many",), marks=pytest.mark.slow)], ids=["few rows", "many rows"]
)
def test_fits_end_with_the_same_bits_on_any_number_of_ranks(pool, kinds):
    found = {size: pool.run(size, of_kinds, kinds) for size in (1, 2, 3)}
    for kind in kinds:
        weights, predictions, scores, _ = found[1][0][kind]
        plain = fitted(kind)  # in this process, which is in no group
        np.testing.assert_allclose(predictions, plain[1], atol=2e-2 * (plain[1].std() or 1))
        for size in (2, 3):
            for rank in range(size):
                again = found[size][rank][kind]
                np.testing.assert_array_equal(again[0], weights, err_msg=kind)
                np.testing.assert_array_equal(again[1], predictions, err_msg=kind)
                assert again[2:] == (scores, size)


def kept_values(n_centers):
    """How kernel values would be kept if there were many of them."""
    on_the_desk()
    X, y = some_data(1_500)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(mercer.planning.keeping, "SMALL_BYTES", 0)
        model = KernelRegressor(**{**FIXED, "batch_size": 100}, n_centers=n_centers).fit(X, y)
    return model.plan_.kept_as, model.plan_.kept_memory, model.dual_coef_


@pytest.mark.parametrize("n_centers", [None, 700])
def test_one_rank_keeps_values_as_several_do(pool, n_centers):
    one, *both = *pool.run(1, kept_values, n_centers), *pool.run(2, kept_values, n_centers)
    for found in both:
        assert found[:2] == (None, one[1])
        np.testing.assert_array_equal(found[2], one[2])


def unseeded():
    return fitted("unseeded")[0]


def test_without_a_seed_all_ranks_use_that_of_the_first(pool):
    one, two = pool.run(2, unseeded)
    np.testing.assert_array_equal(one, two)


class Recorder(Callback):
    """Notes what it is told, and predicts with the model as it is."""

    def __init__(self):
        self.told = []

    def on_fit_begin(self, plan):
        self.told.append("begin")

    def on_epoch_end(self, run):
        X, _ = some_data()
        self.told.append(float(run.model.predict(X[:3])[0]))
        return "enough" if len(run.history) == 2 else None

    def on_fit_end(self, run):
        self.told.append("end")


def with_callbacks(folder):
    on_the_desk()
    recorder, path = Recorder(), os.path.join(folder, "run.checkpoint")
    X, y = some_data()
    model = KernelRegressor(**FIXED, callbacks=[recorder, Checkpoint(path, minutes=0)])
    model.fit(X, y)
    model.save(os.path.join(folder, "model.mercer"))
    assert os.path.exists(os.path.join(folder, "model.mercer"))
    again = KernelRegressor(**FIXED).fit(X, y, resume=path)
    return recorder.told, model.stop_reason_, model.predict(X), again.dual_coef_


def test_the_first_rank_alone_has_callbacks_and_files_and_all_end_when_it_says(pool, tmp_path):
    one, two = pool.run(2, with_callbacks, str(tmp_path))
    assert [type(word) for word in one[0]] == [str, float, float, str]
    assert two[0] == []
    assert one[1] == two[1] == "enough"
    np.testing.assert_array_equal(mercer.load(tmp_path / "model.mercer").predict(some_data()[0]), one[2])
    assert sorted(os.listdir(tmp_path)) == ["model.mercer", "run.checkpoint"]
    X, y = some_data()
    resumed = KernelRegressor(**FIXED).fit(X, y, resume=tmp_path / "run.checkpoint")
    whole = pool.run(1, fitted, "plain")[0][0]
    np.testing.assert_array_equal(one[3], whole)  # a checkpoint of two ranks, resumed on two
    np.testing.assert_allclose(resumed.dual_coef_, whole, atol=1e-3 * np.abs(whole).max())


def resumed_from(folder):
    on_the_desk()
    path = os.path.join(folder, "run.checkpoint")
    return KernelRegressor(**FIXED).fit(*some_data(), resume=path).dual_coef_


def test_a_checkpoint_is_resumed_on_another_number_of_ranks(pool, tmp_path):
    pool.run(2, with_callbacks, str(tmp_path))
    whole = pool.run(1, fitted, "plain")[0][0]
    for size in (1, 3):
        for weights in pool.run(size, resumed_from, str(tmp_path)):
            np.testing.assert_array_equal(weights, whole)


def small():
    on_the_desk()
    X, y = some_data(40)
    model = KernelRegressor(**FEW_ROWS).fit(X, y)
    return model.plan_.notes, model.dual_coef_, model.predict(X[:3])


def test_more_ranks_than_blocks_leave_some_idle_and_say_so(pool):
    X, y = some_data(40)
    plain = KernelRegressor(**FEW_ROWS).fit(X, y)
    for notes, weights, predictions in pool.run(3, small):
        assert notes == ("2 of 3 ranks are idle: the data is too small for so many",)
        np.testing.assert_allclose(weights, plain.dual_coef_, atol=1e-4)
        np.testing.assert_allclose(predictions, plain.predict(X[:3]), atol=1e-4)


def disagree(what):
    on_the_desk()
    other = dist.get_rank() == 1
    X, y = some_data(300)
    parameters = dict(FEW_ROWS)
    if what == "rows" and other:
        X, y = X[:-1], y[:-1]
    if what == "type" and other:
        X = X.astype(np.float32)
    if what == "values" and other:
        X = X + 1e-9
    if what == "ridge" and other:
        parameters["ridge"] = 0.5
    if what == "max_iter" and other:
        parameters["max_iter"] = 7
    if what == "infinity" and other:
        X[3, 2] = np.inf
    if what == "version" and other:
        mercer.__version__ = "0.0.1"
    try:
        model = KernelRegressor(**parameters).fit(X, y)
        if what == "predict":
            model.predict(X[: 3 + dist.get_rank()])
    except (ValueError, RankError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        mercer.__version__ = "0.1.0"
    return "nothing"


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (
            "rows",
            r"All ranks must have the same `X`. Rank 1 \(process \d+ on .*\) has one of shape \(299",
        ),
        ("type", "in float32 with checksum .*, and rank 0 has one of shape .* in float64"),
        ("values", "the same `X`. Rank 1 .* has one of shape .* with checksum"),
        ("ridge", r"the same `ridge`. Rank 1 \(.*\) has 0.5, and rank 0 has 0.01"),
        ("max_iter", r"the same `max_iter`. Rank 1 \(.*\) has 7, and rank 0 has 3"),
        ("version", r"the same version of Mercer. Rank 1 \(.*\) has 0.0.1, and rank 0 has 0.1.0"),
        ("predict", r"the same shape of X. Rank 1 \(.*\) has \(4, 5\), and rank 0 has \(3, 5\)"),
    ],
)
def test_ranks_that_disagree_are_told_before_training_and_by_name(pool, what, message):
    one, two = pool.run(2, disagree, what)
    assert one == two
    assert re.search(message, one)


def test_an_error_on_one_rank_ends_the_others_with_its_name(pool):
    one, two = pool.run(2, disagree, "infinity")
    assert two.startswith("ValueError: Input X contains infinity")
    message = (
        r"Training was ended on all ranks. Rank 1 \(process \d+ on .*\) failed: ValueError: Input X"
    )
    assert re.search(message, one)


# The environment of torchrun

SCRIPT = """
import json, os, sys
import numpy as np
import torch
from mercer import KernelRegressor
rng = np.random.default_rng(0)
X = rng.normal(size=(700, 4))
y = X[:, 0] * X[:, 1]
model = KernelRegressor(kernel="gaussian", bandwidth=2.0, ridge=0.01, random_state=0, verbose=1)
model.fit(X, y)
model.save(sys.argv[1])
with open(sys.argv[1] + os.environ.get("RANK", "-"), "w") as file:
    json.dump([model.plan_.ranks, float(model.predict(X)[0]), model.score(X, y)], file)
"""


@pytest.mark.slow
def test_an_ordinary_script_runs_unchanged_under_torchrun(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "XDG_CACHE_HOME": str(tmp_path)}
    model = tmp_path / "model.mercer"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*torchrun, str(script), str(model)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("epoch   1") == 1
    one, two = (json.loads(Path(f"{model}{rank}").read_text()) for rank in (0, 1))
    assert one == two
    assert one[0] == 2
    X = np.random.default_rng(0).normal(size=(700, 4))
    assert mercer.load(model).predict(X)[0] == one[1]


# The command line


def table(folder, n=700):
    X, y = some_data(n)
    names = ",".join("abcde") + ",y"
    values = np.column_stack([X, y])
    np.savetxt(folder / f"data{n}.csv", values, delimiter=",", header=names, comments="")
    return str(folder / f"data{n}.csv")


def test_fit_starts_ranks_itself_and_saves_an_ordinary_model(tmp_path, capsys):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "XDG_CACHE_HOME": str(tmp_path)}
    model, report, checkpoint = (tmp_path / name for name in ("m.mercer", "r.html", "c.checkpoint"))
    fit = [sys.executable, "-m", "mercer", "fit", table(tmp_path), "-o", str(model), "--ranks", "2"]
    fit += ["--kernel", "laplacian", "--bandwidth", "3", "--ridge", "0.01", "--report", str(report)]
    fit += ["--restarts=1", "--checkpoint", str(checkpoint), "--checkpoint-minutes", "0", "--json"]
    done = subprocess.run(fit, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("epoch   1") == 1
    assert json.loads(done.stdout)["rows"]["test"] == 140
    assert mercer.load(model).plan_.ranks == 2
    assert report.stat().st_size > 1_000
    assert checkpoint.exists()
    assert main(fit[3:]) != 0
    assert "already exists" in capsys.readouterr().err


def test_predict_and_evaluate_share_the_rows_out_and_the_first_rank_writes(pool, tmp_path, capfd):
    data, model = table(tmp_path, 3_000), str(tmp_path / "m.mercer")
    kernel = ["--kernel", "laplacian", "--bandwidth", "3", "--ridge", "0.01"]
    assert main(["fit", table(tmp_path), "-o", model, *kernel, "--quiet"]) == 0
    for command in (["predict", model, data, "-o", "{}.csv"], ["evaluate", model, data, "--json"]):
        shared = [word.format(tmp_path / "shared") for word in command]
        one, two = pool.run(2, command_line, *shared)
        assert (one[0], two) == (0, (0, "", "")), one[2] + two[2]
        capfd.readouterr()
        assert main([word.format(tmp_path / "alone") for word in command]) == 0
        told = capfd.readouterr()
        assert one[1] == told.out.replace(str(tmp_path / "alone"), str(tmp_path / "shared"))
        assert one[2].count("note:") == told.err.count("note:")
    assert (tmp_path / "shared.csv").read_text() == (tmp_path / "alone.csv").read_text()


def test_options_for_ranks_are_checked(tmp_path, capsys):
    fit = ["fit", table(tmp_path), "-o", str(tmp_path / "m"), "--ranks", "2"]
    assert main([*fit, "--restarts", "1"]) == 2
    assert "--restarts needs --checkpoint" in capsys.readouterr().err
    assert main(["fit", "-", *fit[2:]]) == 2
    assert "--ranks needs a file that every rank can read" in capsys.readouterr().err
    assert main([*fit[:-1], "0"]) == 2


# Where ranks are


def seats(*places):
    return [Seat(host, i, frozenset(cores), device) for i, (host, cores, device) in enumerate(places)]


def test_cores_are_shared_by_the_ranks_that_may_use_them():
    four = range(4)
    alike = seats(("a", four, "cpu"), ("a", four, "cpu"), ("b", four, "cpu"))
    assert [share_of_cores(alike, rank) for rank in range(3)] == [2, 2, 4]
    assert [sharing(alike, rank) for rank in range(3)] == [2, 2, 1]
    assert devices(alike) == 2
    pinned = seats(("a", [0, 1], "cpu"), ("a", [2, 3], "cpu"))
    assert [share_of_cores(pinned, rank) for rank in range(2)] == [2, 2]
    assert devices(pinned) == 2
    crowd = seats(*[("a", [0], "cpu")] * 3)
    assert share_of_cores(crowd, 1) == 1
    gpus = seats(("a", four, "cuda:0"), ("a", four, "cuda:1"))
    assert devices(gpus) == 2
    assert sharing(gpus, 0) == 1


class Answers(Group):
    """A group whose other ranks are given."""

    def gathered(self, thing):
        return list(self.others)


def test_capacity_and_memory_of_a_group_are_sums_and_the_weakest_counts():
    one = Resource(capacity=1e8, memory=8e9, reserved=4e8, full_rate_rows=256, integer_gain=4.0)
    two = Resource(capacity=3e8, memory=2e9, reserved=1e8, full_rate_rows=512, integer_gain=1.0)
    host = ("a", range(2), "cpu")
    same = Answers(0, 2, seats=seats(host, host))
    same.others = [one, None]
    found = resource_of_all(lambda: one, same)
    assert (found.capacity, found.memory, found.reserved, found.ranks) == (1e8, 8e9, 4e8, 2)
    assert found.usable_each == 3.8e9
    apart = Answers(0, 2, seats=seats(host, ("b", range(2), "cpu")))
    apart.others = [one, two]
    found = resource_of_all(lambda: one, apart)
    assert (found.capacity, found.full_rate_rows, found.integer_gain) == (2e8, 512, 1.0)
    assert (found.memory, found.reserved) == (4e9, 2e8)


@pytest.mark.parametrize("late", [0, 1, 2])
def test_ranks_of_one_attempt_agree_on_a_name_whatever_earlier_ones_left(late):
    store, before = dist.HashStore(), set()
    for _ in range(3):
        with ThreadPoolExecutor(3) as threads:

            def name(rank):
                time.sleep(0.2 * (rank == late))
                return name_of_attempt(store, rank, 3)

            names = set(threads.map(name, range(3)))
        assert len(names) == 1
        assert not names & before
        before |= names


@pytest.mark.parametrize(
    ("local", "world", "most", "count", "waits"),
    [("1", "2", "3", "0", True), ("2", "2", "3", "0", False), ("1", "2", "3", "3", False)],
)
def test_ranks_wait_for_a_restart_only_with_other_hosts(monkeypatch, local, world, most, count, waits):
    names = ("LOCAL_WORLD_SIZE", "WORLD_SIZE", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RESTART_COUNT")
    for name, text in zip(names, (local, world, most, count), strict=True):
        monkeypatch.setenv(name, text)
    assert is_restarted_with_other_hosts() == waits


def test_a_rank_that_does_not_come_is_named(monkeypatch):
    monkeypatch.setattr("mercer.processes.joining.JOINING", timedelta(seconds=0.1))
    with pytest.raises(RuntimeError, match="rank 1 did not come in 0 s"):
        name_of_attempt(dist.HashStore(), 0, 2)


def nested():
    on_the_desk()
    with ranks(torch.device("cpu")) as group, ranks(torch.device("cpu")) as inner:
        return group.size, inner


def test_a_block_inside_another_one_works_alone(pool):
    assert pool.run(2, nested) == [(2, None)] * 2
    with ranks(torch.device("cpu")) as group:
        assert group is None


def test_the_command_line_says_what_is_wrong_with_ranks_in_one_sentence():
    error = RankError("Training was ended on all ranks. Rank 1 failed: MemoryError: 3 GiB allocated")
    assert sentence(error) == str(error)
