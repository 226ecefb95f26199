"""Estimators and the command line with fewer centres than rows, on several ranks."""

from __future__ import annotations

import json
import os
import re

import numpy as np
import polars as pl
import pytest
import torch.distributed as dist
from ranks import command_line, on_the_desk

import mercer
from mercer import Callback, Checkpoint, KernelClassifier, KernelRegressor, RowShare
from mercer.data.dealt_points import DealtPoints
from mercer.data.points import Points
from mercer.operators.sharded_centres import ShardedCentres
from mercer.planning.centres import auto_centres
from mercer.planning.resource import Resource
from mercer.planning.together import Together
from mercer.processes.group import RankError

DESCENT = {"kernel": "laplacian", "bandwidth": 3.0, "ridge": 0.01, "random_state": 0, "max_iter": 2}
DESCENT |= {"n_centers": 400, "subsample_size": 150, "preconditioner_rank": 20, "batch_size": 100}
SOLVED = {"kernel": "laplacian", "bandwidth": 3.0, "ridge": 0.01, "random_state": 0, "n_centers": 200}


@pytest.fixture(autouse=True)
def _same_device(on_desk):
    """The process of the tests plans for the same device as the ranks below."""


def some_data(n=3_200):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 5))
    return X, X[:, 0] * X[:, 1] + np.sin(X[:, 2])


def own(values):
    """The part of this rank: the first has the least."""
    cuts = {1: [], 2: [700], 3: [0, 1_900]}[dist.get_world_size()]
    return np.split(values, cuts)[dist.get_rank()]


def fitted(kind, shares=False):
    """What a small fit ends with."""
    on_the_desk()
    X, y = some_data()
    model, given = KernelRegressor(**DESCENT), {}
    if kind.startswith("solved"):
        model = KernelRegressor(**SOLVED)
    if kind == "classes":
        model, y = KernelClassifier(**DESCENT, class_weight="balanced"), np.digitize(y, [-1, 0, 1])
    if kind == "outputs stopped":
        model.set_params(early_stopping=True, precision="float64", ridge=0.0)
        y = np.column_stack([y, 1e3 * X[:, 3]])
    if kind == "weights":
        given["sample_weight"] = np.linspace(0, 1, len(X))
    if kind == "bytes":
        X = np.random.default_rng(1).integers(0, 255, size=(3_200, 80)).astype(np.float32)
        model.set_params(bandwidth=500.0)
        y = X[:, 0] - X[:, 1]
    if kind in ("own centres", "solved for own centres"):
        given["centers"] = X[:200] + 0.1
    rows, targets = X, y
    if shares:
        rows, targets = RowShare(own(X)), own(y)
        if "sample_weight" in given:
            given["sample_weight"] = own(given["sample_weight"])
    model.fit(rows, targets, **given)
    assert isinstance(model.machine_.centres, Points)
    plan = model.plan_
    facts = (model.score(X, y), model.n_iter_, model.stop_reason_, plan.direct, plan.n_closing)
    return model.dual_coef_, model.predict(X), facts, (model.plan_.ranks, model.plan_.dealt)


KINDS = ("plain", "classes", "outputs stopped", "weights", "bytes", "own centres")
KINDS += ("solved", "solved for own centres")


FEW = ("plain", "solved")


def of_kinds(shares, kinds):
    return {kind: fitted(kind, shares) for kind in kinds}


@pytest.fixture(scope="module")
def on_one_rank(pool):
    return pool.run(1, of_kinds, False, KINDS)[0]


@pytest.mark.parametrize(
    ("size", "shares", "kinds"),
    [
        (2, False, FEW),
        (3, True, KINDS),
        pytest.param(2, True, KINDS, marks=pytest.mark.slow),
        pytest.param(2, False, KINDS, marks=pytest.mark.slow),
        pytest.param(3, False, KINDS, marks=pytest.mark.slow),
    ],
)
def test_fits_end_with_the_same_bits_on_any_number_of_ranks(pool, on_one_rank, size, shares, kinds):
    for found in pool.run(size, of_kinds, shares, kinds):
        for kind in kinds:
            weights, predictions, facts, _ = on_one_rank[kind]
            np.testing.assert_array_equal(found[kind][0], weights, err_msg=kind)
            np.testing.assert_array_equal(found[kind][1], predictions, err_msg=kind)
            assert found[kind][2:] == (facts, (size, shares)), kind


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_compute_what_a_single_process_does(on_one_rank, kind):
    plain = fitted(kind)  # in this process, which is in no group
    assert plain[2][3:] == ((True, 320) if kind.startswith("solved") else (False, 0))
    np.testing.assert_allclose(on_one_rank[kind][1], plain[1], atol=1e-2 * plain[1].std())


class Stops(Callback):
    """Ends training at the second panel that it is told of."""

    def __init__(self):
        self.panels = 0

    def on_panel_end(self, run):
        self.panels += 1
        return "enough" if self.panels == 2 else None


def interrupted(path):
    on_the_desk()
    X, y = some_data()
    callbacks = [Stops(), Checkpoint(path, minutes=0)]
    KernelRegressor(**DESCENT, callbacks=callbacks).fit(RowShare(own(X)), own(y))


def resumed(path, shares):
    on_the_desk()
    X, y = some_data()
    rows, targets = (RowShare(own(X)), own(y)) if shares else (X, y)
    return KernelRegressor(**DESCENT).fit(rows, targets, resume=path).dual_coef_


def test_a_checkpoint_of_two_ranks_is_resumed_on_three_and_on_one(pool, on_one_rank, tmp_path):
    path = os.path.join(tmp_path, "run.checkpoint")
    pool.run(2, interrupted, path)
    for size, shares in ((3, True), (1, False)):
        for weights in pool.run(size, resumed, path, shares):
            np.testing.assert_array_equal(weights, on_one_rank["plain"][0])


def one_fails():
    on_the_desk()
    X, y = some_data()
    panel, count = ShardedCentres.panel, []

    def fails(self, *arguments):
        count.append(1)
        if len(count) == 5 and dist.get_rank() == 1:
            raise MemoryError("no more memory here")
        return panel(self, *arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ShardedCentres, "panel", fails)
        try:
            KernelRegressor(**DESCENT).fit(X, y)
        except (MemoryError, RankError) as error:
            return f"{type(error).__name__}: {error}"
    return "nothing"


def test_an_error_on_one_rank_ends_the_others_with_its_name(pool):
    one, two = pool.run(2, one_fails)
    assert two == "MemoryError: no more memory here"
    assert re.search(r"RankError: .* Rank 1 \(.*\) failed: MemoryError: no more memory here", one)


def few():
    on_the_desk()
    X, y = some_data(300)
    fewer = {"n_centers": 20, "subsample_size": 10, "preconditioner_rank": 3, "batch_size": 40}
    descent = KernelRegressor(**{**DESCENT, **fewer}).fit(X, y)
    solved = KernelRegressor(**{**SOLVED, "n_centers": 20}).fit(X, y)
    return [(model.dual_coef_, model.plan_.notes, str(model.plan_)) for model in (descent, solved)]


def test_more_ranks_than_blocks_leave_some_idle_and_say_so(pool):
    alone = pool.run(1, few)[0]
    for found in pool.run(3, few):
        for (weights, notes, text), (whole, *_) in zip(found, alone, strict=True):
            np.testing.assert_array_equal(weights, whole)
            assert notes == ("1 of 3 ranks are idle: the data is too small for so many",)
            assert re.search(r"ranks +3  processes; each sends \d+ KiB", text)


def rows_held():
    """The most rows that this rank had as points to train on, and those that it was given."""
    on_the_desk()
    X, y = some_data()
    held = []

    class Counted(DealtPoints):
        def __init__(self, points, *rest):
            held.append(len(points))
            super().__init__(points, *rest)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(mercer.training.problem, "DealtPoints", Counted)
        for parameters in (DESCENT, SOLVED):
            KernelRegressor(**parameters).fit(RowShare(own(X)), own(y))
    return held


def test_no_rank_holds_the_points_of_all_rows(pool):
    for held in pool.run(3, rows_held):
        assert held
        assert max(held) < 0.5 * 3_200


def test_devices_together_have_more_centres_in_the_same_time_and_memory():
    resource = Resource(capacity=1e8, memory=1e12)
    one, four = (auto_centres(10**6, 1e-9, resource, Together(devices=n)) for n in (1, 4))
    assert (one, four) == (16_000, 64_000)
    small = Resource(capacity=1e8, memory=1e9)
    assert auto_centres(10**6, 1e-9, small) == 16_000
    assert auto_centres(10**6, 1e-9, small, Together(is_group=True)) == 8_000
    assert auto_centres(10**6, 1e-9, Resource(1e8, 4e9, ranks=4), Together(is_group=True)) == 16_000


# Streams, which every rank reads

STREAM = {**DESCENT, "scale": False, "metric": False, "n_pca_components": None}
STREAM |= {"categorical_features": None, "n_centers": 200, "memory_limit": "400KB"}


def stream_fitted(kind, folder=None):
    on_the_desk()
    X, y = some_data()
    if kind == "whole":
        model = KernelRegressor(**{**STREAM, "memory_limit": "1GB"})
    elif kind == "solved":
        free = {"subsample_size": "auto", "preconditioner_rank": "auto", "batch_size": "auto"}
        model = KernelRegressor(**{**STREAM, **free, "n_centers": 60})
    else:
        model = KernelRegressor(**STREAM)
    if kind == "unseeded":
        model.set_params(random_state=None)
    size = 300 + 100 * dist.get_rank()  # of chunks, which does not matter
    rows = [(X[i : i + size], y[i : i + size]) for i in range(0, len(X), size)]
    options = {}
    if kind == "interrupted":
        model.set_params(callbacks=[Stops(), Checkpoint(folder, minutes=0)])
    if kind == "resumed":
        options["resume"] = folder
    if kind == "not on all" and dist.get_rank() == 1:
        rows, options = X, {"y": y}
    if kind == "other rows" and dist.get_rank() == 1:
        rows[-1][0][-1, -1] += 1
    if kind in ("not on all", "other rows"):
        with pytest.raises((ValueError, RankError)) as error:
            model.fit(rows, **options)
        return str(error.value)
    with pytest.MonkeyPatch.context() as patched:
        if kind == "solved":  # as if there were memory for it
            patched.setattr(mercer.planning.direct, "normal_bytes", lambda *sizes: 0.0)
        model.fit(rows, **options)
    plan = model.plan_
    return model.dual_coef_, model.predict(X), (plan.ranks, plan.direct, plan.data_on_disk)


@pytest.mark.parametrize("kind", ["descent", "solved", "whole"])
def test_ranks_that_read_a_stream_end_with_the_same_bits(pool, kind):
    weights, predictions, facts = pool.run(1, stream_fitted, kind)[0]
    assert facts == (1, kind == "solved", kind != "whole")
    for found in pool.run(3, stream_fitted, kind):
        np.testing.assert_array_equal(found[0], weights)
        np.testing.assert_array_equal(found[1], predictions)
        assert found[2] == (3, *facts[1:])


def test_a_stream_that_two_ranks_read_is_resumed_on_one(pool, tmp_path):
    path = str(tmp_path / "run.checkpoint")
    pool.run(2, stream_fitted, "interrupted", path)
    whole = pool.run(2, stream_fitted, "descent")[1][0]
    np.testing.assert_array_equal(pool.run(1, stream_fitted, "resumed", path)[0][0], whole)


def test_ranks_draw_the_sample_that_the_first_one_does(pool):
    one, two = pool.run(2, stream_fitted, "unseeded")
    np.testing.assert_array_equal(one[0], two[0])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("not on all", r"the same kind of X. Rank 1 .* has one for all ranks, and rank 0 has a stream"),
        ("other rows", r"All ranks must have the same `X`. Rank 1"),
    ],
)
def test_ranks_with_other_streams_are_told(pool, kind, message):
    for told in pool.run(2, stream_fitted, kind):
        assert re.search(message, told)


# The command line


def test_fit_with_centres_on_ranks_saves_an_ordinary_model(pool, tmp_path):
    X, y = some_data()
    path, model = str(tmp_path / "rows.parquet"), str(tmp_path / "few.mercer")
    pl.DataFrame({**dict(zip("abcde", X.T, strict=True)), "y": y}).write_parquet(path)
    kernel = ["--kernel", "laplacian", "--bandwidth", "3", "--ridge", "0.01"]
    fit = ["fit", path, "--centers", "250", *kernel]
    answers = pool.run(2, command_line, *fit, "-o", model, "--json")
    assert [code for code, *_ in answers] == [0, 0], answers
    assert answers[1][1] == ""
    found = mercer.load(model)
    assert (found.plan_.n_centers, found.plan_.ranks, found.plan_.dealt) == (250, 2, True)
    assert len(found.machine_.centres) == len(found.dual_coef_) == 250
    assert json.loads(answers[0][1])["rows"]["test"] == 640
    assert found.score(X, y) > 0.9
