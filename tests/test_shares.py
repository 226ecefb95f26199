"""Ranks that have only some of the rows each: the same results, and no rank ever holds them all."""

from __future__ import annotations

import json
import os
import pickle
import re
import threading
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import psutil
import pytest
import torch
import torch.distributed as dist
from ranks import RankPool, command_line, on_the_desk

import mercer
from mercer import Callback, Checkpoint, KernelClassifier, KernelRegressor, RowShare
from mercer.data.dealt_points import DealtPoints
from mercer.processes.group import RankError

ROOT = Path(__file__).resolve().parent.parent
FEW_ROWS = {"kernel": "laplacian", "bandwidth": 3.0, "ridge": 0.01, "random_state": 0, "max_iter": 3}
FIXED = {**FEW_ROWS, "subsample_size": 600}  # eigenvectors of a larger one would take most of the time
# Where the rows of each rank end, by number of ranks; the last one has the rest.
CUTS = {
    "even": {2: [2_000], 3: [1_333, 2_666]},
    "uneven": {2: [17], 3: [3_000, 3_100]},
    "empty": {2: [0], 3: [1_500, 1_500]},
}


@pytest.fixture(autouse=True)
def _same_device(on_desk):
    """The process of the tests plans for the same device as the ranks below."""


def some_data(n=4_000):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 5))
    X[:, 4] = rng.integers(0, 3, n)
    return X, X[:, 0] * X[:, 1] + np.sin(X[:, 2]) + X[:, 4]


def share(values, cuts):
    """The rows of this rank."""
    if values is None or cuts is None:
        return values
    ends = [0, *CUTS[cuts].get(dist.get_world_size(), []), len(values)]
    return values[ends[dist.get_rank()] : ends[dist.get_rank() + 1]]


def given(X, cuts):
    return X if cuts is None else RowShare(share(X, cuts))


def fitted(kind, cuts):
    """What a small fit ends with; without `cuts`, all ranks have all rows."""
    on_the_desk()
    X, y = some_data()
    model, weight, held_out = KernelRegressor(**FIXED), None, {}
    if kind == "chosen":
        model = KernelRegressor(random_state=0, max_iter=2)
    if kind == "solved":
        model, X, y = KernelRegressor(random_state=0), X[:700], y[:700]
    if kind == "components":
        model.set_params(n_pca_components=3, scale=True, kernel="gaussian")
    if kind == "bytes":
        rng = np.random.default_rng(1)
        X = rng.integers(0, 255, size=(2_500, 80)).astype(np.float32)
        model, y = KernelRegressor(**{**FIXED, "bandwidth": 500.0}), X[:, 0] - X[:, 1]
    if kind == "classes":
        model = KernelClassifier(**FIXED, class_weight="balanced")
        y = np.array(["low", "middle", "high", "highest"])[np.digitize(y, [0, 1, 2])]
        y[:20] = "first"  # a label that only rank 0 has
    if kind == "stopped":
        model.set_params(early_stopping=True, precision="float64")
    if kind == "weights":
        weight = np.linspace(0, 1, len(X))
    if kind == "held out":
        held_out = {"X_val": given(X[:500] + 0.1, cuts), "y_val": share(y[:500], cuts)}
    if kind == "on disk":
        model.set_params(memory_limit=2**16)
    if kind == "warm":
        first = (given(X[:2_500], cuts), share(y[:2_500], cuts))
        model.set_params(warm_start=True, max_iter=1, scale=False).fit(*first)
    shared = {"sample_weight": share(weight, cuts), **held_out}
    model.fit(given(X, cuts), share(y, cuts), **shared)
    predictions = model.predict(given(X, cuts))
    score = model.score(given(X, cuts), share(y, cuts), share(weight, cuts))
    dealt = isinstance(model.machine_.centres, DealtPoints)
    on_disk = model.plan_.data_on_disk
    facts = (model.n_iter_, model.stop_reason_, model.n_features_in_, on_disk)
    return model.dual_coef_, predictions, score, facts, dealt, model.plan_.dealt


KINDS = (
    "fixed",
    "chosen",
    "solved",
    "components",
    "bytes",
    "classes",
    "stopped",
    "weights",
    "held out",
    "warm",
    "on disk",
)


FEW = ("fixed", "classes", "stopped")


def all_kinds(cuts, kinds=KINDS):
    return {kind: fitted(kind, cuts) for kind in kinds}


@pytest.fixture(scope="module")
def of_all_rows(pool):
    """What ranks that have all rows end with, by kind."""
    return cache(lambda kind: pool.run(2, all_kinds, None, (kind,))[0][kind])


@pytest.mark.parametrize(
    ("cuts", "size", "kinds"),
    [
        ("uneven", 3, FEW),
        ("empty", 2, FEW),
        pytest.param("uneven", 3, KINDS, marks=pytest.mark.slow),
        pytest.param("even", 1, FEW, marks=pytest.mark.slow),
        pytest.param("even", 2, FEW, marks=pytest.mark.slow),
        pytest.param("even", 3, FEW, marks=pytest.mark.slow),
        pytest.param("uneven", 2, FEW, marks=pytest.mark.slow),
        pytest.param("empty", 3, FEW, marks=pytest.mark.slow),
    ],
)
def test_shares_end_with_the_weights_of_ranks_that_have_all_rows(pool, of_all_rows, cuts, size, kinds):
    found = pool.run(size, all_kinds, cuts, kinds)
    for kind in kinds:
        weights, predictions, score, facts, *_ = of_all_rows(kind)
        for rank in range(size):
            again = found[rank][kind]
            np.testing.assert_array_equal(again[0], weights, err_msg=kind)
            assert again[2] == pytest.approx(score, abs=1e-6)
            assert again[3] == facts
            dealt = size > 1 and kind != "solved"
            assert again[4:] == (dealt, dealt)
        own = np.concatenate([found[rank][kind][1] for rank in range(size)])
        if kind == "classes":
            assert (own == predictions).mean() > 0.999
        else:
            np.testing.assert_allclose(own, predictions, atol=2e-5 * predictions.std())


def test_a_share_outside_a_group_is_all_there_is():
    X, y = some_data(700)
    model = KernelRegressor(**FIXED)
    plain = model.fit(X, y).predict(X)
    shared = model.fit(RowShare(X), y)
    np.testing.assert_array_equal(shared.predict(RowShare(X)), plain)
    assert shared.score(RowShare(X), y) == shared.score(X, y)
    tensors = model.predict(RowShare(torch.from_numpy(X)))
    assert isinstance(tensors, torch.Tensor)


# The fitted model


class Looks(Callback):
    """Predicts with the model as it is, on rank 0 alone."""

    def __init__(self):
        self.seen = []

    def on_epoch_end(self, run):
        self.seen.append(float(run.model.predict(some_data()[0][:3])[0]))

    def on_fit_end(self, run):
        self.seen.append(float(run.model.predict(some_data()[0][:3])[0]))


class LooksTooEarly(Callback):
    def on_panel_end(self, run):
        run.model.predict(some_data()[0][:3])


def used(folder):
    on_the_desk()
    X, y = some_data()
    path, looks = os.path.join(folder, "run.checkpoint"), Looks()
    callbacks = [looks, Checkpoint(path, minutes=0)]
    model = KernelRegressor(**FIXED, callbacks=callbacks)
    model.fit(given(X, "uneven"), share(y, "uneven"))
    model.save(os.path.join(folder, "model.mercer"))
    everywhere = model.predict(X[:30])
    errors = []
    with mercer.alone():
        for attempt in (lambda: model.predict(X[:3]), lambda: pickle.dumps(model), model.to_torch):
            with pytest.raises(RuntimeError) as error:
                attempt()
            errors.append(str(error.value))
    resumed = KernelRegressor(**FIXED).fit(given(X, "empty"), share(y, "empty"), resume=path)
    whole = KernelRegressor(**FIXED).fit(X, y, resume=path)
    return looks.seen, everywhere, errors, model.dual_coef_, resumed.dual_coef_, whole.dual_coef_


def test_a_model_of_shares_is_used_by_all_ranks_at_once_and_its_file_by_anyone(pool, tmp_path):
    found = pool.run(3, used, str(tmp_path))
    loaded = mercer.load(tmp_path / "model.mercer")
    X, _ = some_data()
    assert isinstance(loaded.predict(X[:3]), np.ndarray)
    for _, everywhere, errors, weights, *resumed in found:
        np.testing.assert_allclose(everywhere, loaded.predict(X[:30]), atol=1e-5)
        assert errors[0].startswith("What is shared out over 3 ranks needs all of them at once.")
        assert errors[1].endswith(
            "cannot be copied to another device or pickled: save it and load it instead."
        )
        assert errors[2].endswith("cannot be made a module: save it and load it instead.")
        np.testing.assert_array_equal(weights, loaded.dual_coef_)
        for again in resumed:
            np.testing.assert_array_equal(again, weights)
    assert [len(seen) for seen, *_ in found] == [4, 0, 0]
    assert found[0][0][-1] == pytest.approx(found[0][1][0], abs=1e-5)
    np.testing.assert_array_equal(pool.run(2, fitted, "fixed", None)[0][0], found[0][3])


def looks_too_early():
    on_the_desk()
    X, y = some_data()
    model = KernelRegressor(**FIXED, callbacks=[LooksTooEarly()])
    with pytest.raises(RuntimeError) as error:
        model.fit(given(X, "even"), share(y, "even"))
    return str(error.value)


def test_a_model_of_shares_cannot_be_used_while_the_other_ranks_go_on(pool):
    for told in pool.run(2, looks_too_early):
        assert "only rank 0 did, and the others went on" in told


# Shares that do not fit together


def disagree(what):
    on_the_desk()
    X, y = some_data(300)
    first = dist.get_rank() == 0
    X, y, weight = (X[:100], y[:100], None) if first else (X[100:], y[100:], None)
    if what == "columns" and not first:
        X = X[:, :4]
    if what == "type" and not first:
        X = X.astype(np.float32)
    if what == "length" and not first:
        y = y[:-1]
    if what == "labels" and not first:
        y = y.astype(str)
    if what == "weights" and not first:
        weight = np.ones(len(X))
    if what == "nothing":
        X, y = X[:0], y[:0]
    shares = RowShare(X) if what != "kind" or first else X
    kind = KernelClassifier if what == "labels" else KernelRegressor
    if what == "labels" and first:
        y = y.round().astype(int)
    try:
        model = kind(**FEW_ROWS).fit(shares, y, weight)
        if what == "predict":
            model.predict(RowShare(X) if first else X)
    except (ValueError, RankError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("columns", r"the same number of columns of X. Rank 1 \(process .*\) has 4, and rank 0 has 5"),
        ("type", r"the same type of X. Rank 1 \(process .*\) has float32, and rank 0 has float64"),
        ("labels", r"the same type of y. Rank 1 \(process .*\) has 'U', .* and rank 0 has 'i'"),
        ("weights", r"the same use of `sample_weight`. Rank 1 .* has weights, and rank 0 has none"),
        ("kind", r"the same kind of X. Rank 1 .* has one for all ranks, and rank 0 has a RowShare"),
        ("predict", r"the same kind of X. Rank 1 .* has one for all ranks, and rank 0 has a RowShare"),
        ("nothing", "The ranks must have rows. Got an empty share on all 2 of them."),
        ("length", "`y` must have a value for each row of this rank's share. Got 199 for 200 .* rank 1"),
    ],
)
def test_shares_that_do_not_fit_together_are_told_by_rank(pool, what, message):
    for told in pool.run(2, disagree, what):
        assert re.search(message, told)


# Memory

ROWS, FEATURES = 24_000, 4_000


class Resident:
    """The most memory that this process has had since the beginning of the block."""

    def __enter__(self):
        self.before = self.most = psutil.Process().memory_info().rss
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self):
        process = psutil.Process()
        while not self.ended.wait(0.005):
            self.most = max(self.most, process.memory_info().rss)

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


def grown(folder):
    """Bytes of all rows, and by how much the memory of this rank grew beside its share of them."""
    on_the_desk()
    # In proportion to these rows.
    mercer.data.rows.CHUNK_ELEMENTS = 1 << 20
    mercer.planning.levelling.FRESH_POINTS = 300
    size, rank = dist.get_world_size(), dist.get_rank()
    X = np.random.default_rng(rank).normal(size=(ROWS // size, FEATURES)).astype(np.float32)
    small = RowShare(X[:300]), X[:300, 0]
    fixed = {"ridge": 0.1, "subsample_size": 300, "early_stopping": False, "random_state": 0}
    model = KernelRegressor("gaussian", bandwidth=80.0, scale=False, max_iter=1, **fixed)
    model.fit(*small)  # loads libraries and starts threads
    with Resident() as resident:
        model.fit(RowShare(X), X[:, 0])
        model.predict(RowShare(X[:100]))
        model.save(os.path.join(folder, "model.mercer"))
    return ROWS * FEATURES * 4, resident.most - resident.before


@pytest.mark.slow
def test_no_rank_ever_holds_all_rows(tmp_path):
    pool = RankPool()  # processes that have not yet used much memory
    try:
        found = pool.run(3, grown, str(tmp_path))
    finally:
        pool.close()
    assert (tmp_path / "model.mercer").stat().st_size > 0.9 * found[0][0]
    for whole, growth in found:
        # A third of the points, what the plan looks at, and chunks of rows on their way.
        assert growth < 0.75 * whole


# The command line


def table(folder, kind):
    """A table whose categories and missing targets are in different parts of it; its arguments."""
    X, y = some_data(900)
    if kind == "npy":
        np.save(folder / "X.npy", X)
        np.save(folder / "y.npy", y)
        return [str(folder / "X.npy"), "-t", str(folder / "y.npy")]
    frame = pl.DataFrame(X, schema=list("abcde"), orient="row").with_columns(y=pl.Series(y))
    words = np.where(np.arange(900) < 500, "early", "late")
    words[::7] = "often"
    frame = frame.with_columns(word=pl.Series(words), y=pl.when(pl.int_range(900) % 90 > 3).then("y"))
    frame.write_parquet(folder / "data.parquet", row_group_size=100)
    return [str(folder / "data.parquet")]


@pytest.mark.parametrize("kind", ["parquet", pytest.param("npy", marks=pytest.mark.slow)])
def test_fit_reads_a_part_of_the_table_on_each_rank_and_ends_alike(pool, tmp_path, kind):
    data, told, models = table(tmp_path, kind), [], []
    for size in (1, 3):
        place = tmp_path / f"{size}.mercer"
        fit = ["fit", *data, "-o", str(place), "--report", str(tmp_path / f"{size}.html"), "--json"]
        fit += ["--kernel", "laplacian", "--bandwidth", "3", "--ridge", "0.01", "--epochs", "3"]
        first, *others = pool.run(size, command_line, *fit)
        assert [code for code, *_ in (first, *others)] == [0] * size, first[2]
        assert all(out == "" for _, out, _ in others)
        told.append(json.loads(first[1]))
        models.append(mercer.load(place))
    one, three = models
    np.testing.assert_array_equal(one.dual_coef_, three.dual_coef_)
    assert (one.plan_.dealt, three.plan_.dealt) == (False, True)
    assert told[0]["rows"] == told[1]["rows"]
    assert told[0]["notes"] == told[1]["notes"]
    if kind == "parquet":
        assert "dropped 40 of 900 rows because their target is missing" in told[1]["notes"]
        words = three.metadata_["columns"]["columns"][-1]
        assert sorted(words["levels"]) == ["early", "late", "often"]
