"""Each kind of bad or odd input either works or raises one clear sentence."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from mercer import KernelClassifier, KernelRegressor


@pytest.fixture
def data(rng):
    X = rng.normal(size=(80, 4))
    return X, (X[:, 0] > 0).astype(int)


def fails(message, X, y, estimator=KernelClassifier, **parameters):
    with pytest.raises(ValueError, match=message):
        estimator(random_state=0, **parameters).fit(X, y)


@pytest.mark.parametrize(("value", "message"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_values_that_are_not_finite(data, value, message):
    X, _ = data
    wrong = np.r_[X[:6, 0], value, value, X[8:, 0]]
    place = r"in 2 of 80 rows, first in row 7 \(counted from 1\). Leave these rows out"
    fails(f"Input y contains {message} {place}", X, wrong, KernelRegressor)
    fails(f"Input y contains {message} {place}", X, wrong[:, None], KernelRegressor)


def given_as(kind, X):
    """A matrix as people pass it, and the name of its third column."""
    frames = {"pandas": pd.DataFrame, "polars": pl.DataFrame}
    if kind in frames:
        return frames[kind](dict(zip("abcd", X.T, strict=True))), "c"
    if kind == "nullable":
        return pd.DataFrame(X, columns=list("abcd")).astype("Float64"), "c"
    makers = {"list": np.ndarray.tolist, "tensor": torch.from_numpy, "float32": np.float32}
    return makers.get(kind, lambda X: X)(X), "x2"


@pytest.mark.parametrize("kind", ["array", "float32", "list", "tensor", "pandas", "polars", "nullable"])
def test_an_infinite_value_is_named_with_its_row_and_column(data, kind):
    X, y = data
    model = KernelClassifier("gaussian", bandwidth=2.0, ridge=0.1).fit(given_as(kind, X)[0], y)
    X = X.copy()
    X[3, 2] = X[5, 1] = -np.inf
    X[0, 3] = np.nan  # which is no fault
    wrong, name = given_as(kind, X)
    message = rf"X contains infinity: the column '{name}' holds -inf in row 4 \(counted from 1\)"
    fails(message, wrong, y)
    with pytest.raises(ValueError, match=message):
        model.predict(wrong)
    with pytest.raises(ValueError, match=rf"Chunk 1.*{message}"):
        KernelClassifier("gaussian", bandwidth=2.0, ridge=0.1).fit(
            [(given_as(kind, np.nan_to_num(X, nan=0, posinf=0, neginf=0))[0], y), (wrong, y)]
        )


def test_a_missing_label_is_named_with_its_row(data):
    X, _ = data
    for missing in (None, np.nan, pd.NA):
        labels = ["yes", "no"] * 40
        labels[7] = missing
        message = r"Input y contains a missing value in 1 of 80 rows, first in row 8 \(counted from 1\)"
        fails(message, X, np.array(labels, dtype=object))
        fails(message, X, pd.Series(labels, dtype=object))


def test_empty(data):
    fails("0 sample", data[0][:0], data[1][:0])
    fails("0 feature", data[0][:, :0], data[1])


def test_one_sample():
    fails("at least 2 classes", [[1.0, 2.0]], [0])
    model = KernelRegressor(random_state=0).fit([[1.0, 2.0]], [3.0])
    assert model.predict([[1.0, 2.0]])[0] == pytest.approx(3.0)


def test_one_class(data):
    fails(
        r"`y` must contain at least 2 classes. Got 1 class instead: np.int64\(7\)",
        data[0],
        np.full(80, 7),
    )


def test_mismatched_lengths(data):
    fails("inconsistent numbers of samples", data[0], data[1][:-1])


def test_wrong_feature_count_at_predict(data):
    model = KernelClassifier(random_state=0).fit(*data)
    with pytest.raises(ValueError, match="X has 3 features, but KernelClassifier is expecting 4"):
        model.predict(data[0][:, :3])


def test_columns_that_are_not_numbers(data):
    mixed = np.array([["1", "2.5"]] * 80, dtype=object)
    mixed[4, 1] = "low"
    for X in (mixed, mixed.tolist(), mixed.astype(str)):
        message = (
            r"text: the column 'x1' holds 'low' in row 5 \(counted from 1\). Text becomes categories"
        )
        fails(message, X, data[1])


@pytest.mark.parametrize("value", [0, -2.0, np.nan, np.inf, "wide", True])
def test_bandwidth(data, value):
    fails("`bandwidth` must be", *data, bandwidth=value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ridge", -1),
        ("ridge", np.nan),
        ("subsample_size", 0),
        ("subsample_size", 2.5),
        ("preconditioner_rank", 0),
        ("batch_size", -3),
        ("batch_size", "big"),
        ("step_size", 0.0),
        ("max_iter", 0),
        ("n_iter_no_change", 0),
        ("interpolation_tol", -1),
        ("validation_fraction", 1.5),
        ("precision", "float16"),
        ("memory_limit", -5),
    ],
)
def test_parameters(data, name, value):
    fails(f"`{name}` must be .* Got {value!r} instead", *data, **{name: value})


def test_more_components_than_subsampled_points(data):
    fails(
        "less than the subsample size s=20. Got 20 instead. Lower `preconditioner_rank` or raise",
        *data,
        subsample_size=20,
        preconditioner_rank=20,
    )


def test_larger_subsample_than_points(data):
    fails("`subsample_size` must be between 1 and .* 80 .*Got 200", *data, subsample_size=200)


def test_only_half_of_a_validation_set(data):
    with pytest.raises(ValueError, match="must be given together"):
        KernelClassifier().fit(*data, X_val=data[0])


def test_new_class_in_the_validation_set(data):
    with pytest.raises(ValueError, match="`y_val` must hold only classes that occur in `y`"):
        KernelClassifier().fit(*data, X_val=data[0], y_val=data[1] + 5)


def good(model, X):
    assert np.isfinite(model.dual_coef_).all()
    assert np.isfinite(model.predict(X)).all()
    return model


def test_batch_larger_than_the_data_is_the_data(data):
    model = good(KernelClassifier(batch_size=10_000, random_state=0).fit(*data), data[0])
    assert model.plan_.batch_size == 80


def test_constant_features(data):
    X = np.hstack([data[0], np.full((80, 3), 7.0)])
    model = good(KernelClassifier(random_state=0).fit(X, data[1]), X)
    assert model.score(X, data[1]) == 1


@pytest.mark.parametrize(
    ("kernel", "n"),
    [
        ("gaussian", 80),
        ("laplacian", 80),
        ("neural_tangent", 80),
        ("laplacian", 2500),
        pytest.param("gaussian", 2500, marks=pytest.mark.slow),
        pytest.param("neural_tangent", 2500, marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore:.*never predicted")
def test_all_rows_identical(kernel, n):
    X, y = np.ones((n, 4)), np.arange(n) % 2
    good(KernelClassifier(kernel, random_state=0, max_iter=3).fit(X, y), X)
    model = good(KernelRegressor(kernel, random_state=0, max_iter=3).fit(X, y * 1.0), X)
    # No function fits rows that contradict each other; the answer stays near the targets.
    assert ((model.predict(X) > -0.5) & (model.predict(X) < 1.5)).all()


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
def test_duplicated_rows_with_equal_and_with_conflicting_targets(kernel, rng):
    X = np.repeat(rng.normal(size=(40, 3)), 5, axis=0)
    y = np.sin(X[:, 0])
    model = good(KernelRegressor(kernel, random_state=0).fit(X, y), X)
    np.testing.assert_allclose(model.predict(X), y, atol=0.05)
    noisy = y + rng.normal(size=200)
    good(KernelRegressor(kernel, random_state=0, max_iter=20).fit(X, noisy), X)


def test_constant_target(data):
    model = good(KernelRegressor(random_state=0).fit(data[0], np.full(80, 3.5)), data[0])
    np.testing.assert_allclose(model.predict(data[0]), 3.5)
    assert model.converged_


@pytest.mark.parametrize("scale", [1e6, 1e-6])
@pytest.mark.parametrize("kernel", ["gaussian", "laplacian", "neural_tangent"])
def test_features_of_any_scale(data, scale, kernel):
    X, y = data[0] * scale, data[1]
    assert good(KernelClassifier(kernel, random_state=0).fit(X, y), X).score(X, y) > 0.95


def test_a_far_offset_costs_no_accuracy(data):
    X = data[0]
    near = KernelRegressor(random_state=0).fit(X, X[:, 0])
    far = KernelRegressor(random_state=0).fit(X + 1000, X[:, 0])
    np.testing.assert_allclose(far.predict(X + 1000), near.predict(X), atol=1e-2)


def test_features_beyond_the_precision_are_refused(data):
    huge = data[0] * 1e30
    fails(
        'too large, so rescale them, or use precision="float64"',
        huge,
        data[1],
        kernel="gaussian",
        bandwidth=1.0,
        ridge=0.1,
    )
    model = KernelClassifier(scale="rank", random_state=0).fit(huge, data[1])  # size does not matter
    assert "by rank" in model.plan_.preparation


def test_a_class_of_one_point_is_kept_for_training(rng):
    X = rng.normal(size=(600, 3))
    y = (X[:, 0] > 0).astype(int)
    y[17] = 2
    settings = {"kernel": "laplacian", "bandwidth": 2.0, "ridge": 0.0, "max_iter": 1}
    for seed in range(30):  # a tenth of the rows is held out, and this row would be three times
        model = good(KernelClassifier(**settings, random_state=seed).fit(X, y), X)
        assert (model.dual_coef_[17] != 0).any()
        assert (model.dual_coef_ == 0).all(1).sum() == 60


def test_the_only_row_with_a_label_is_kept_for_training(rng):
    X = rng.normal(size=(600, 3))
    y = (X > 0).astype(int)
    y[:, 2] = 0
    y[17, 2] = 1
    settings = {"kernel": "laplacian", "bandwidth": 2.0, "ridge": 0.0, "max_iter": 1}
    for seed in range(30):
        model = good(KernelClassifier(**settings, random_state=seed).fit(X, y), X)
        assert (model.dual_coef_[17] != 0).any()
