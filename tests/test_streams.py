"""Rows that come in chunks: bytes, frames, gaps, faults of the stream, checkpoints, devices."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from stand_in import StandIn
from torch.utils._python_dispatch import TorchDispatchMode

from mercer import Callback, Checkpoint, KernelClassifier, KernelRegressor
from mercer.data.checksums import ROWS_EACH, Checksums
from mercer.data.streams import RowStream, StreamedPoints
from mercer.kernels import KERNELS, Gaussian

# With so little memory only a sample of the 6,000 rows is held, so they are read in every epoch.
N = 6_000
FIXED = {"kernel": "laplacian", "bandwidth": 3.0, "ridge": 0.1, "scale": False, "metric": False}
FIXED |= {"categorical_features": None, "n_centers": 100, "memory_limit": "1MB", "max_iter": 2}
FIXED |= {"random_state": 0, "early_stopping": False}


@pytest.fixture
def gpu(monkeypatch):
    for name, answer in {"is_available": True, "device_count": 1, "current_device": 0}.items():
        monkeypatch.setattr(torch.cuda, name, lambda answer=answer: answer)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (8 << 30, 12 << 30))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Stand-in 3000")
    with StandIn() as stand_in:
        yield stand_in


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 5))
    return X, np.sin(X[:, 0]) + X[:, 1]


def cut(X, y, size=1_000):
    return [(X[i : i + size], y[i : i + size]) for i in range(0, len(X), size)]


def readers():
    """Threads that read streams ahead."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("mercer-rows")]


def streamed(model):
    """Whether a model was trained on a stream of which it held a sample."""
    return model.plan_.n_centers == 100 and model.plan_.data_on_disk


def test_no_thread_is_left_after_a_fit_on_a_stream(data):
    model = KernelRegressor(**FIXED).fit(cut(*data))
    assert streamed(model)
    assert model.score(*data) > 0.8
    assert not readers()


def test_how_a_stream_is_cut_into_chunks_does_not_matter(data):
    sizes = iter([700, 1_500, 250, 999])
    one = KernelRegressor(**FIXED).fit(cut(*data))
    other = KernelRegressor(**FIXED).fit(lambda: iter(cut(*data, next(sizes))))
    assert np.array_equal(one.dual_coef_, other.dual_coef_)


def test_the_plan_of_a_stream_is_the_one_that_fit_follows(data):
    chunks = cut(*data)
    plan = KernelRegressor(**FIXED).plan(chunks)
    assert (plan.n, plan.n_centers, plan.batch_size) == (N, 100, plan.batch_size)
    assert plan.step_size == KernelRegressor(**FIXED).fit(chunks).plan_.step_size


# Faults of the stream.


def test_an_empty_chunk_is_passed_over(data):
    X, y = data
    chunks = [(X[:0], y[:0]), *cut(X, y), (X[:0], y[:0])]
    model = KernelRegressor(**FIXED).fit(chunks)
    assert np.array_equal(model.dual_coef_, KernelRegressor(**FIXED).fit(cut(X, y)).dual_coef_)


def test_a_chunk_with_another_number_of_columns_is_named(data):
    chunks = cut(*data)
    chunks[3] = (chunks[3][0][:, :4], chunks[3][1])
    with pytest.raises(ValueError, match=r"Chunk 3 of the stream .*: X has 4 features"):
        KernelRegressor(**FIXED).fit(chunks)


def test_a_chunk_with_fewer_targets_than_rows_is_named(data):
    chunks = cut(*data)
    chunks[2] = (chunks[2][0], chunks[2][1][:7])
    with pytest.raises(ValueError, match=r"Chunk 2 of the stream .*: it has 1,000 rows, 7 targets"):
        KernelRegressor(**FIXED).fit(chunks)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_target_that_is_no_number_is_named_by_its_chunk(data, wrong):
    X, y = data
    y = y.copy()
    y[4_321] = wrong
    with pytest.raises(ValueError, match=r"Chunk 4 of the stream .*: Input y contains"):
        KernelRegressor(**FIXED).fit(cut(X, y))


def test_targets_of_another_shape_are_named_by_their_chunk(data):
    chunks = cut(*data)
    chunks[1] = (chunks[1][0], np.tile(chunks[1][1][:, None], 2))
    with pytest.raises(ValueError, match=r"Chunk 1 of the stream .*: its targets have the shape"):
        KernelRegressor(**FIXED).fit(chunks)


def test_chunks_of_several_types_are_one_stream(data):
    X, y = data
    X = np.rint(10 * X)
    chunks = cut(X, y)
    types = [np.float32, np.float64, np.int64, np.int16, np.float16, np.int8]
    mixed = [(a.astype(dtype), b) for (a, b), dtype in zip(chunks, types, strict=True)]
    options = {**FIXED, "bandwidth": 30.0}
    found = KernelRegressor(**options).fit(mixed).predict(X[:50])
    np.testing.assert_allclose(found, KernelRegressor(**options).fit(chunks).predict(X[:50]), rtol=1e-5)


def test_text_among_numbers_is_named_by_its_chunk(data):
    X, y = data
    chunks = cut(X, y)
    chunks[2] = (np.full((1_000, 5), "a"), chunks[2][1])
    with pytest.raises(ValueError, match="Chunk 2 of the stream"):
        KernelRegressor(**FIXED).fit(chunks)


def later(first, other):
    """A stream that has other chunks from its second pass on."""
    count = iter([first] + [other] * 10)
    return lambda: iter(next(count))


def test_a_stream_that_ends_early_is_refused(data):
    chunks = cut(*data)
    message = "first pass had 6,000 rows, and a later one has only 4,000"
    with pytest.raises(ValueError, match=message):
        KernelRegressor(**FIXED).fit(later(chunks, chunks[:4]))
    assert not readers()


def test_a_function_that_returns_the_same_iterator_is_refused(data):
    iterator = iter(cut(*data))
    with pytest.raises(ValueError, match="only 0: if it is a function, it must return a new iterator"):
        KernelRegressor(**FIXED).fit(lambda: iterator)


def test_rows_in_another_order_in_a_later_pass_are_refused(data):
    X, y = data
    swapped = np.arange(N)
    swapped[[4_500, 4_501]] = [4_501, 4_500]
    other = cut(X[swapped], y)  # targets alone would not tell
    with pytest.raises(ValueError, match=r"Some of the rows 4,096 to 8,191 .* not those of the first"):
        KernelRegressor(**FIXED).fit(later(cut(X, y), other))


def test_a_class_first_seen_in_a_later_pass_is_refused(data):
    X, y = data
    labels = np.where(y > 0, "a", "b")
    other = labels.copy()
    other[2_345] = "c"
    with pytest.raises(ValueError, match=r"Row 2,345 .* has the target c in a later one, and [ab] in"):
        KernelClassifier(**FIXED).fit(later(cut(X, labels), cut(X, other)))


class Lost(Exception):
    pass


@pytest.mark.parametrize("at", [1, 2])
def test_an_exception_of_the_iterator_passes_through_untouched(data, at):
    closed, starts, error = [], [], Lost("no connection")

    def rows():
        starts.append(1)
        try:
            for i, chunk in enumerate(cut(*data)):
                if len(starts) == at and i == 3:
                    raise error
                yield chunk
        finally:
            closed.append(1)

    model = KernelRegressor(**FIXED)
    with pytest.raises(Lost) as caught:
        model.fit(rows)
    assert caught.value is error
    assert len(closed) == at
    assert not readers()
    assert not hasattr(model, "machine_")


class Stop(Callback):
    """End training after so many panels at which it may be ended, following so many epochs."""

    def __init__(self, panels, epochs=0):
        self.panels, self.epochs = panels, epochs

    def on_panel_end(self, run):
        self.panels -= len(run.history) >= self.epochs
        return "enough" if self.panels == 0 else None


def test_the_iterator_is_closed_where_training_ends_within_a_pass(data):
    closed = []

    def rows():
        try:
            yield from cut(*data, 100)
        finally:
            closed.append(1)

    KernelRegressor(**FIXED, callbacks=[Stop(1)]).fit(rows)
    assert len(closed) == 2
    assert not readers()


def test_control_c_ends_a_fit_on_a_stream_with_the_model_so_far(data):
    class Press(Callback):
        def on_panel_end(self, run):
            if not run.interrupted:
                os.kill(os.getpid(), signal.SIGINT)

    model = KernelRegressor(**FIXED, callbacks=[Press()])
    with pytest.warns(UserWarning, match="interrupted"):
        model.fit(cut(*data))
    assert model.stop_reason_.startswith("interrupted")
    assert not readers()


def test_control_c_before_training_leaves_the_model_unfitted(data):
    def rows():
        yield from cut(*data)[:2]
        os.kill(os.getpid(), signal.SIGINT)
        yield from cut(*data)[2:]

    model = KernelRegressor(**FIXED)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            model.fit(rows)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not hasattr(model, "machine_")


# Checkpoints.


@pytest.fixture(scope="module")
def interrupted(data, tmp_path_factory):
    """A checkpoint of a fit on a stream that was ended within its first pass, and the whole fit."""
    path = tmp_path_factory.mktemp("stream") / "run.checkpoint"
    options = {**FIXED, "early_stopping": True, "random_state": None}
    callbacks = [Checkpoint(path, minutes=0), Stop(3)]
    KernelRegressor(**options, callbacks=callbacks).fit(cut(*data))
    return path, options


@pytest.mark.parametrize(
    ("changes", "epochs"),
    [
        ({}, 0),
        ({"batch_size": 60}, 0),  # by steps, within the first epoch
        ({"batch_size": 60}, 1),  # and within the second, with the gradient of the first
        ({"subsample_size": 80, "ridge": 0.0}, 1),
    ],
)
def test_an_interrupted_fit_on_a_stream_goes_on_with_the_same_bits(changes, epochs, data, tmp_path):
    path = tmp_path / "run.checkpoint"
    options = {**FIXED, "early_stopping": True, **changes}
    callbacks = [Checkpoint(path, minutes=0), Stop(3, epochs)]
    ended = KernelRegressor(**options, callbacks=callbacks).fit(cut(*data))
    assert (ended.stop_reason_, len(ended.history_)) == ("enough", epochs)
    whole = KernelRegressor(**options).fit(cut(*data))
    assert not (changes and whole.plan_.direct)
    resumed = KernelRegressor(**options).fit(cut(*data, 777), resume=path)
    assert len(resumed.history_) == len(whole.history_)
    assert np.array_equal(resumed.dual_coef_, whole.dual_coef_)
    assert np.array_equal(resumed._training_rows, whole._training_rows)
    assert resumed.best_loss_ == whole.best_loss_


def test_the_sample_of_a_resumed_stream_needs_no_seed_and_no_memory_limit(data, interrupted):
    path, options = interrupted
    found = [
        KernelRegressor(**{**options, "memory_limit": limit}).fit(cut(*data), resume=path)
        for limit in ("1MB", "900KB")
    ]
    assert np.array_equal(found[0].dual_coef_, found[1].dual_coef_)


def test_a_stream_of_another_length_is_not_resumed(data, interrupted):
    X, y = data
    path, options = interrupted
    message = r"made with `X` of shape \(6000, 5\) in chunks of float64, and this one is of shape \(5900"
    with pytest.raises(ValueError, match=message):
        KernelRegressor(**options).fit(cut(X[:5_900], y[:5_900]), resume=path)


def test_a_stream_of_other_rows_is_not_resumed(data, interrupted):
    X, y = data
    path, options = interrupted
    other = X.copy()
    other[5_000, 2] += 1
    with pytest.raises(ValueError, match="made with other values in `X`, or in another order"):
        KernelRegressor(**options).fit(cut(other, y), resume=path)


def test_a_stream_is_not_resumed_with_arrays(data, interrupted):
    path, options = interrupted
    with pytest.raises(ValueError, match=r"in chunks of float64, and this one is .* in float64"):
        KernelRegressor(**options).fit(*data, resume=path)


# What a stream may hold.


def images(n, d=64):
    rng = np.random.default_rng(1)
    X = rng.integers(3, 250, size=(n, d)).astype(np.uint8)  # the sample has not all bytes
    X[-1, 0], X[-2, 0] = 0, 255
    return X, X[:, 0] / 100 + X[:, 1] / 200


BYTES = {**FIXED, "bandwidth": 800.0, "memory_limit": "4MB"}


@pytest.mark.parametrize("kernel", sorted(KERNELS))
def test_bytes_of_a_stream_stay_bytes_for_kernels_of_their_products(kernel, on_byte_desk):
    X, y = images(1_500)
    options = {**BYTES, "kernel": kernel, "memory_limit": "800KB"}
    model = KernelRegressor(**options).fit(cut(X, y, 300))
    assert streamed(model)
    # Absolute differences are no products, and neural tangents need a constant feature.
    in_products = kernel not in ("l1_laplacian", "neural_tangent")
    assert model.machine_.centres.is_bytes == in_products
    assert ("8-bit" in model.plan_.products) == in_products
    floats = KernelRegressor(**options).fit(cut(X.astype(np.float32), y, 300))
    assert not floats.machine_.centres.is_bytes
    np.testing.assert_allclose(model.predict(X[-50:]), floats.predict(X[-50:]), atol=2e-3)


def test_bytes_followed_by_floats_are_trained_on_as_floats(on_byte_desk):
    X, y = images(N)
    chunks = cut(X, y)
    chunks[-1] = (chunks[-1][0] + 0.5, chunks[-1][1])
    assert not KernelRegressor(**BYTES).fit(chunks).machine_.centres.is_bytes


def test_several_outputs_and_classes_are_learned_from_streams_of_bytes(on_byte_desk):
    X, y = images(N)
    both = np.column_stack([y, -y])
    assert KernelRegressor(**BYTES).fit(cut(X, both)).score(X, both) > 0.5
    labels = np.digitize(y, [1.3, 2.2])
    assert KernelClassifier(**BYTES).fit(cut(X, labels)).score(X, labels) > 0.6


def frames(kind, data, size=1_000):
    X, y = data
    rng = np.random.default_rng(2)
    town = np.array(["Bath", "Cork", "Ely"])[rng.integers(0, 3, len(X))]
    town[: 2 * size] = "Bath"  # others come in later chunks only
    number = X[:, 0].copy()
    number[::17] = np.nan
    when = np.datetime64("2020-01-01") + np.arange(N).astype("timedelta64[h]")
    columns = {"number": number, "other": X[:, 1], "town": town, "when": when.astype("M8[us]")}
    whole = pd.DataFrame(columns) if kind == "pandas" else pl.DataFrame(columns, nan_to_null=True)
    y = y + (town == "Ely")
    parts = [whole[i : i + size] for i in range(0, N, size)]
    parts[2] = parts[2][["town", "when", "other", "number"]]  # by name, not by place
    return whole, y, [(part, y[i * size : (i + 1) * size]) for i, part in enumerate(parts)]


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_frames_are_prepared_alike_in_all_chunks(kind, data):
    whole, _, chunks = frames(kind, data)
    model = KernelRegressor(**FIXED).fit(chunks)
    assert streamed(model)
    town = next(column for column in model.columns_.columns if column.name == "town")
    assert set(town.levels) == {"Bath", "Cork", "Ely"}
    assert list(model.feature_names_in_) == list(whole.columns)
    assert np.isfinite(model.predict(whole[:10])).all()
    number = next(column for column in model.columns_.columns if column.name == "number")
    assert number.fill == pytest.approx(np.nanmean(data[0][:, 0][np.arange(N) % 17 != 0]))


def test_a_small_stream_of_frames_is_fitted_as_one_frame(data):
    whole, y, chunks = frames("pandas", data)
    options = {**FIXED, "memory_limit": "100MB", "n_centers": 50}
    small = KernelRegressor(**options).fit(chunks)
    large = KernelRegressor(**options).fit(whole, y)
    assert small.columns_.feature_names == large.columns_.feature_names
    np.testing.assert_allclose(small.predict(whole), large.predict(whole), atol=1e-3)


def test_a_frame_without_a_column_is_named_by_its_chunk(data):
    _, _, chunks = frames("pandas", data)
    chunks[4] = (chunks[4][0].drop(columns="town"), chunks[4][1])
    with pytest.raises(ValueError, match=r"Chunk 4 of the stream .* no column 'town'"):
        KernelRegressor(**FIXED).fit(chunks)


def test_missing_values_in_a_later_chunk_are_filled_as_in_a_matrix(data):
    X, y = data
    X = X.copy()
    X[5_000:5_100, 2] = np.nan
    model = KernelRegressor(**FIXED).fit(cut(X, y))
    assert streamed(model)
    column = model.columns_.columns[2]
    assert column.fill == pytest.approx(np.nanmean(X[:, 2]))
    assert np.isfinite(model.predict(X[4_990:5_010])).all()


def test_a_stream_may_have_a_held_out_part_and_centres_of_its_own(data):
    X, y = data
    model = KernelRegressor(**FIXED).fit(cut(X, y), X_val=X[:200], y_val=y[:200], centers=X[:100])
    assert model.best_loss_ is not None
    assert sorted(model._training_rows) == list(range(100))


def test_all_rows_of_a_stream_cannot_be_centres_where_they_do_not_fit(data):
    with pytest.raises(
        ValueError, match=r"`n_centers=None` needs all rows in memory, and .* of the 6,000"
    ):
        KernelRegressor(**{**FIXED, "n_centers": None}).fit(cut(*data))


# Parts.


def test_checksums_do_not_depend_on_chunks_and_find_the_first_difference():
    rows = np.random.default_rng(0).normal(size=(3 * ROWS_EACH + 7, 2))
    one, other, changed = Checksums(), Checksums(), Checksums()
    one.add(rows)
    for part in np.array_split(rows, 10):
        other.add(part)
    assert one.digest == other.digest
    assert other.difference(one) is None
    rows[2 * ROWS_EACH + 1] += 1e-9
    changed.add(rows)
    assert changed.difference(one) == 2 * ROWS_EACH
    assert changed.digest != one.digest


class There(TorchDispatchMode):
    """The stand-in device, in a thread other than its own."""

    def __init__(self, gpu):
        super().__init__()
        self.gpu = gpu

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return self.gpu.run(function, args, kwargs or {})


class Lane:
    """Stands for a CUDA stream, which only CUDA has, and says which blocks were copied.

    The stand-in device is known to one thread, and here to a second one.
    """

    def __init__(self, gpu):
        self.gpu = gpu
        self.done = [threading.Event() for _ in range(100)]
        self.waiting = iter(self.done)

    def copied(self, prepare, block):
        assert threading.current_thread() is not threading.main_thread()
        with There(self.gpu):
            points = prepare(block)
        next(self.waiting).set()
        return points

    def arrived(self, points):
        assert threading.current_thread() is threading.main_thread()


def test_rows_go_to_the_device_while_earlier_ones_are_worked_on(gpu, monkeypatch):
    lane = Lane(gpu)
    monkeypatch.setattr("mercer.data.streams.CopyLane", lambda device: lane)
    x = np.random.default_rng(0).normal(size=(4_000, 3)).astype(np.float32)
    stream = RowStream(lambda: iter(np.split(x, 8)), 4_000, np.zeros(0, int), 1_000, 0)
    kernel = Gaussian(bandwidth=1.0)
    like = torch.zeros((), device=gpu.device)
    points = StreamedPoints(
        stream, lambda rows: kernel.points(torch.from_numpy(rows).to(gpu.device)), like, 3
    )
    for i in range(4):
        block = points[i * 1_000 : (i + 1) * 1_000]
        assert block.device == gpu.device
        assert i == 3 or lane.done[i + 1].wait(60)  # the next is there without being asked for
    assert np.array_equal(block.x.cpu().numpy(), x[stream.order[3_000:]])
    points.close()
    assert not readers()


@pytest.mark.parametrize("bytes_", [False, True])
def test_a_stream_trains_on_the_device_as_on_the_cpu(bytes_, data, gpu, monkeypatch, on_byte_desk):
    monkeypatch.setattr("mercer.data.streams.CopyLane", lambda device: Lane(gpu))
    X, y = images(N) if bytes_ else data
    options = BYTES if bytes_ else {**FIXED, "precision": "float64"}  # bytes are multiplied in float32
    for module in ("operators.tiled", "training.assemble", "planning.centres"):
        monkeypatch.setattr(f"mercer.{module}.panel_rows", lambda device: 512)
    there = KernelRegressor(**options, device="cuda").fit(cut(X, y))
    assert streamed(there)
    assert there.machine_.device == gpu.device
    assert there.machine_.centres.is_bytes == bytes_
    here = KernelRegressor(**options, device="cpu").fit(cut(X, y))
    atol = 1e-4 if bytes_ else 1e-7
    np.testing.assert_allclose(there.predict(X[:50]), here.predict(X[:50]), atol=atol)
