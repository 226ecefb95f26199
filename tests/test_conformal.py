"""Intervals, sets and far rows: what is stated is what is measured on rows that nothing has seen."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest
import torch
from oracles import laplacian
from sklearn.datasets import load_breast_cancer, load_digits, load_iris

import mercer
from mercer import Checkpoint, KernelClassifier, KernelRegressor, TimeLimit
from mercer.estimators.calibration import far_shares
from mercer.estimators.conformal import conformal_quantile, interval_bounds, mass_above, tail_share
from mercer.model import landmarks as landmarks_module
from mercer.model.difficulty import DIFFICULTY_RIDGES, SMALLEST_ERROR, fit_difficulty
from mercer.model.landmarks import FIRST_LANDMARKS, beyond_range, landmarks, nearness

CLEAR = "There are no rows to take the coverage from"


def covers(intervals, y):
    return (intervals[:, 0] <= y) & (y <= intervals[:, 1])


def split(data_directory, name, n_train, n_test=4000, seed=0):
    with np.load(data_directory / f"{name}.npz") as file:
        X, y = file["X"], file["y"]
    rows = np.random.default_rng(seed).permutation(len(X))
    train, test = rows[:n_train], rows[n_train : n_train + n_test]
    return X[train], y[train], X[test], y[test]


@pytest.fixture(scope="module")
def noisy():
    """Numbers whose noise grows with the first feature, and a model of them."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, size=(5000, 2))
    y = np.sin(6 * X[:, 1]) + (0.05 + X[:, 0]) * rng.normal(size=5000)
    return KernelRegressor("gaussian", random_state=0).fit(X[:1000], y[:1000]), X, y


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return KernelClassifier("gaussian", random_state=0).fit(X, y), X, y


# The parts, against slow and obvious versions.


@pytest.mark.parametrize("m", [9, 10, 99, 150])
def test_quantile_is_the_order_statistic_of_split_conformal_prediction(rng, m):
    scores = rng.normal(size=m)
    for coverage in (0.5, 0.9):
        k = int(np.ceil(coverage * (m + 1) - 1e-9))
        assert conformal_quantile(scores, np.ones(m), coverage) == np.sort(scores)[k - 1]


def test_quantile_of_a_row_of_weight_two_is_that_of_the_row_given_twice(rng):
    scores, weights = rng.normal(size=50), rng.integers(1, 4, size=50)
    twice = np.repeat(scores, weights)
    found = conformal_quantile(scores, weights.astype(float), 0.8)
    assert found == conformal_quantile(twice, np.ones(len(twice)), 0.8)


def test_too_few_rows_have_no_finite_quantile():
    assert conformal_quantile(np.arange(8.0), np.ones(8), 0.9) == np.inf


@pytest.mark.parametrize("m", [19, 40, 200])
def test_coverage_over_many_splits_is_at_least_the_one_stated(m):
    rng = np.random.default_rng(m)
    hits = []
    for _ in range(2000):
        scores = rng.standard_t(2, size=m + 1)[:, None]
        low, high = interval_bounds(scores[:-1], np.ones(m), 0.9)
        hits.append(low[0] <= scores[-1, 0] <= high[0])
    assert np.mean(hits) > 0.9 - 3 * np.sqrt(0.09 / 2000)


def test_mass_above_is_the_sum_of_larger_probabilities(rng):
    p = rng.dirichlet(np.ones(6), size=40)
    dense = np.array([[row[row > value].sum() for value in row] for row in p])
    np.testing.assert_allclose(mass_above(p), dense, atol=1e-15)


def test_tail_share_counts_rows_that_are_at_most_as_large(rng):
    values, new = rng.normal(size=30), rng.normal(size=7)
    dense = [(1 + (values <= v).sum()) / 31 for v in new]
    np.testing.assert_allclose(tail_share(values, np.ones(30), new), dense)


def test_difficulty_equals_weighted_kernel_ridge_regression_and_its_leave_one_out_error(rng):
    m, p = 60, 15
    x, marks = rng.normal(size=(m, 2)), rng.normal(size=(p, 2))
    K, K_p = laplacian(x, marks, 2.0), laplacian(marks, marks, 2.0)
    errors = np.exp(2 * x[:, :1]) * rng.normal(size=(m, 1))
    omega = rng.uniform(0.5, 2, size=m)
    found = fit_difficulty(*map(torch.from_numpy, (K, K_p, errors, omega)))
    t = np.log(np.abs(errors) + SMALLEST_ERROR * np.abs(errors).mean(0))
    mean = omega @ t / omega.sum()

    def solved(rows, ridge):
        A = K[rows].T @ (omega[rows, None] * K[rows]) + ridge * K_p
        return np.linalg.solve(A, K[rows].T @ (omega[rows, None] * (t[rows] - mean)))

    def left_out(ridge):
        others = [np.delete(np.arange(m), i) for i in range(m)]
        f = np.array([K[i] @ solved(rows, ridge) for i, rows in enumerate(others)])
        return (omega[:, None] * (t - mean - f) ** 2).sum()

    w = solved(np.arange(m), min(DIFFICULTY_RIDGES, key=left_out))
    g = np.clip(mean + K @ w, t.min(0), t.max(0))
    np.testing.assert_allclose(found.sizes(torch.from_numpy(K)), np.exp(g), rtol=1e-6)


# Models.


def test_intervals_cover_and_widen_where_the_noise_is_larger(noisy):
    model, X, y = noisy
    hits = covers(model.predict_interval(X[1000:], coverage=0.9), y[1000:])
    assert 0.87 < hits.mean() < 0.93
    widths = np.diff(model.predict_interval([[0.05, 0.5], [0.95, 0.5]]), axis=1)
    assert 3 * widths[0] < widths[1]
    fifths = np.array_split(np.argsort(X[1000:, 0]), 5)
    assert min(hits[rows].mean() for rows in fifths) > 0.82


def test_intervals_of_higher_coverage_contain_those_of_lower(noisy):
    model, X, _ = noisy
    narrow, wide = model.predict_interval(X[:50], 0.5), model.predict_interval(X[:50], 0.95)
    assert (wide[:, 0] < narrow[:, 0]).all()
    assert (narrow[:, 1] < wide[:, 1]).all()
    assert (narrow[:, 0] < model.predict(X[:50])).mean() > 0.9


def test_every_target_of_several_has_its_interval(rng):
    X = rng.normal(size=(400, 2))
    Y = np.column_stack([X[:, 0] + 0.1 * rng.normal(size=400), 100 * rng.normal(size=400)])
    model = KernelRegressor("gaussian", random_state=0).fit(X[:250], Y[:250])
    intervals = model.predict_interval(X[250:])
    assert intervals.shape == (150, 2, 2)
    for column in range(2):
        assert 0.8 < covers(intervals[:, column], Y[250:, column]).mean() <= 1


@pytest.mark.parametrize("name", ["california_houses", "house_16H"])
def test_intervals_cover_real_prices_in_every_fifth_of_difficulty(data_directory, name):
    X, y, X_test, y_test = split(data_directory, name, 1000)
    model = KernelRegressor("laplacian", metric=False, random_state=0).fit(X, y)
    intervals = model.predict_interval(X_test)
    hits, widths = covers(intervals, y_test), np.diff(intervals, axis=1)[:, 0]
    assert 0.86 < hits.mean() < 0.94
    assert widths.max() > 1.5 * widths.min()
    fifths = np.array_split(np.argsort(widths), 5)
    assert min(hits[rows].mean() for rows in fifths) > 0.78


def test_rows_held_out_for_stopping_calibrate_as_well(data_directory):
    X, y, X_test, y_test = split(data_directory, "california_houses", 3000)
    scale = X.std(0)
    model = KernelRegressor("laplacian", bandwidth=4.0, ridge=0.1, random_state=0).fit(X / scale, y)
    assert model._calibration.source == "held out"
    hits = covers(model.predict_interval(X_test / scale), y_test)
    assert 0.86 < hits.mean() < 0.94


@pytest.mark.parametrize("loader", [load_digits, load_breast_cancer])
def test_sets_cover_the_class_of_new_rows(loader):
    X, y = loader(return_X_y=True)
    rows = np.random.default_rng(0).permutation(len(X))
    train, test = rows[:300], rows[300:]
    model = KernelClassifier("laplacian", metric=False, random_state=0).fit(X[train], y[train])
    for coverage in (0.9, 0.99):
        sets = model.predict_set(X[test], coverage)
        assert sets[np.arange(len(test)), y[test]].mean() > coverage - 0.02
        assert sets.any(1).all()
        assert sets.sum(1).mean() < 0.5 * len(model.classes_) + 0.6


def test_sets_of_adult_cover_in_every_fifth_of_confidence_and_each_class_if_asked(data_directory):
    X, y, X_test, y_test = split(data_directory, "adult", 1000)
    model = KernelClassifier("laplacian", metric=False, random_state=0).fit(X, y)
    places = np.arange(len(y_test)), np.searchsorted(model.classes_, y_test)
    hits = model.predict_set(X_test)[places]
    assert 0.87 < hits.mean() < 0.94
    fifths = np.array_split(np.argsort(model.predict_proba(X_test).max(1)), 5)
    assert min(hits[rows].mean() for rows in fifths) > 0.7
    hits = model.predict_set(X_test, per_class=True)[places]
    assert min(hits[y_test == label].mean() for label in model.classes_) > 0.85


def test_a_class_with_too_few_rows_to_tell_is_in_every_set_per_class(iris):
    model, X, y = iris
    few = np.r_[0:5, 50:100, 100:150]
    found = pickle.loads(pickle.dumps(model)).calibrate(X[few], y[few])
    assert found.predict_set(X, per_class=True)[:, 0].all()
    assert not found.predict_set(X)[:, 0].all()


def test_calibrating_on_fresh_rows_changes_what_later_calls_use(noisy):
    model, X, y = noisy
    other = pickle.loads(pickle.dumps(model)).calibrate(X[1000:3000], y[1000:3000])
    assert other._calibration.source == "given"
    hits = covers(other.predict_interval(X[3000:]), y[3000:])
    assert 0.87 < hits.mean() < 0.93
    assert model._calibration.source == "left out"


def test_intervals_and_sets_survive_files_and_pickle(noisy, iris, tmp_path):
    for i, (model, X, _) in enumerate((noisy, iris)):
        ask = "predict_interval" if i == 0 else "predict_set"
        model.save(tmp_path / "model.mercer")
        for again in (mercer.load(tmp_path / "model.mercer"), pickle.loads(pickle.dumps(model))):
            assert np.array_equal(getattr(again, ask)(X[:20]), getattr(model, ask)(X[:20]))
            assert np.array_equal(again.is_far(X[:20] * 50), model.is_far(X[:20] * 50))


@pytest.mark.filterwarnings("ignore:Training:sklearn.exceptions.ConvergenceWarning")
def test_a_run_that_was_resumed_gives_the_same_intervals(rng, tmp_path):
    X = rng.normal(size=(3200, 3))
    y = X[:, 0] + 0.1 * rng.normal(size=3200)
    settings = {"kernel": "gaussian", "bandwidth": 2.0, "random_state": 0, "interpolation_tol": 1e-9}
    place = tmp_path / "run.checkpoint"
    stopped = [Checkpoint(place, minutes=0), TimeLimit(0)]
    KernelRegressor(**settings, max_iter=3, callbacks=stopped).fit(X, y)
    whole = KernelRegressor(**settings, max_iter=3).fit(X, y)
    again = KernelRegressor(**settings, max_iter=3).fit(X, y, resume=place)
    assert np.array_equal(whole.predict_interval(X[:9]), again.predict_interval(X[:9]))


def test_tensors_get_tensors(noisy, iris):
    for model, ask in ((noisy[0], "predict_interval"), (iris[0], "predict_set"), (iris[0], "is_far")):
        X = torch.zeros(3, model.n_features_in_)
        assert isinstance(getattr(model, ask)(X), torch.Tensor)


# Rows far from everything.


def test_rows_like_those_of_training_are_rarely_far(noisy):
    model, X, _ = noisy
    assert model.is_far(X[1000:], false_alarm_rate=0.05).mean() < 0.08
    assert model.is_far(X[1000:]).mean() < 0.02


@pytest.mark.parametrize("kernel", ["laplacian", "gaussian", "l1_laplacian", "neural_tangent"])
@pytest.mark.parametrize("scale", [True, "rank"])
def test_a_row_with_one_feature_times_a_thousand_is_far(rng, kernel, scale):
    if kernel == "neural_tangent" and scale == "rank":
        return
    X = rng.lognormal(size=(200, 3))
    y = X[:, 0] + 0.1 * rng.normal(size=200)
    model = KernelRegressor(kernel, scale=scale, metric=False, random_state=0).fit(X, y)
    row = np.median(X, axis=0)
    assert not model.is_far([row])[0]
    assert model.is_far([row * [1, 1000, 1]])[0]


@pytest.mark.parametrize("kernel", ["laplacian", "gaussian", "l1_laplacian", "neural_tangent"])
def test_far_rows_are_those_that_a_comparison_with_all_landmarks_finds(rng, kernel):
    X = np.concatenate([rng.normal(size=(600, 3)), rng.normal(size=(400, 3)) * 4])
    model = KernelRegressor(kernel, bandwidth=2.0, ridge=0.1, scale=False, early_stopping=False)
    model.fit(X[::2], X[::2, 0]).calibrate(X[2::4] + 0.1, X[2::4, 0])
    new = np.concatenate([X[1::2], X[1::20] * 3, X[1:20:2] * 1000])
    machine, calibration = model.machine_, model._calibration
    near = nearness(machine.kernel, machine.points(new), landmarks(machine)).numpy()
    assert len(landmarks(machine)) > FIRST_LANDMARKS
    for rate in (0.01, 0.1, 0.5, 0.99):
        plain = calibration.far_share(near)
        quick = far_shares(machine, calibration, new, rate)
        far = plain <= rate
        assert far.any()
        np.testing.assert_array_equal(quick[far], plain[far])
        assert (quick[~far] > rate).all()
        np.testing.assert_array_equal(model.is_far(new, rate), far)


def test_ordinary_rows_are_compared_with_few_landmarks(noisy, monkeypatch):
    model, X, _ = noisy
    pairs = 0

    def counted(kernel, points, marks):
        nonlocal pairs
        pairs += len(points) * len(marks)
        return nearness(kernel, points, marks)

    monkeypatch.setattr(landmarks_module, "nearness", counted)
    model.is_far(X[1000:])
    assert pairs < 0.2 * 4000 * len(landmarks(model.machine_))


def test_numbers_by_rank_are_far_outside_from_one_range_beyond_theirs(rng):
    X = np.column_stack([rng.uniform(0, 2, 300), rng.normal(size=300)])
    X[0, 0], X[1, 0] = 0, 2
    model = KernelRegressor("laplacian", scale="rank", random_state=0).fit(X, X[:, 1])
    inside, outside = [[-1.9, 0], [3.9, 0], [1, 0]], [[-2.1, 0], [4.1, 0]]
    found = beyond_range(model.machine_.inputs, np.array(inside + outside), 1.0)
    assert found.tolist() == [False] * 3 + [True] * 2
    assert model.is_far(outside).all()


def test_a_training_row_is_not_its_own_neighbour_when_distances_are_calibrated(rng):
    X = rng.normal(size=(150, 4))
    model = KernelRegressor("laplacian", metric=False, scale=False, random_state=0)
    model.fit(X, X[:, 0] + rng.normal(size=150))
    K = laplacian(X, X, model.bandwidth_)
    np.fill_diagonal(K, 0)
    np.testing.assert_allclose(np.sort(model._calibration.near), np.sort(K.max(1)), rtol=1e-6)


# What cannot be had is said in one sentence.


@pytest.mark.parametrize("coverage", [0, 1, 1.5, -0.1, "0.9", True, None])
def test_a_coverage_is_a_share(noisy, coverage):
    with pytest.raises(ValueError, match="`coverage` must be a number between 0 and 1"):
        noisy[0].predict_interval([[0.5, 0.5]], coverage)


def test_a_coverage_that_needs_more_rows_says_how_many(noisy):
    with pytest.raises(ValueError, match=r"A coverage of 0.9999 needs 19,999 rows .* Got \d+: ask"):
        noisy[0].predict_interval([[0.5, 0.5]], 0.9999)
    with pytest.raises(ValueError, match=r"`false_alarm_rate`=0.0001 needs 9,999 rows"):
        noisy[0].is_far([[0.5, 0.5]], 0.0001)


def test_a_model_without_such_rows_says_so_until_it_is_calibrated(rng):
    X, y = rng.normal(size=(100, 2)), rng.normal(size=100)
    model = KernelRegressor("gaussian", bandwidth=1.0, ridge=1.0, random_state=0).fit(X, y)
    for ask in (model.predict_interval, model.is_far):
        with pytest.raises(ValueError, match=CLEAR):
            ask(X)
    X, y = rng.normal(size=(100, 2)), rng.normal(size=100)
    assert model.calibrate(X, y).predict_interval(X).shape == (100, 2)


def test_calibrating_on_a_class_that_is_not_known_is_refused(iris):
    model, X, y = iris
    with pytest.raises(ValueError, match=re.escape("Got np.int64(7): leave its rows out")):
        pickle.loads(pickle.dumps(model)).calibrate(X, np.where(y == 0, 7, y))


def test_several_labels_have_no_sets(rng):
    X = rng.normal(size=(100, 2))
    model = KernelClassifier("gaussian", random_state=0).fit(X, (X > 0).astype(int))
    with pytest.raises(ValueError, match="one label for each row"):
        model.predict_set(X)
