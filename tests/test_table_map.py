"""Columns of tables: ranks, categories, and the models that see them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm, rankdata

import mercer
from mercer import KernelClassifier, KernelRegressor
from mercer.data.inputs import fit_inputs
from mercer.data.table_map import MOST_KNOTS, REVEALING_ROWS, TableMap, find_categories
from mercer.selection.setting import SettingRequest
from mercer.selection.variants import Variant, with_table


def fitted(X, coded=None, *, ranked=False):
    rows = np.arange(len(X))
    weights = torch.ones(len(rows), dtype=torch.float64)
    return TableMap.fit(X, rows, torch.arange(X.shape[1]), coded or {}, weights, ranked=ranked)


def test_ranks_are_mapped_to_normal_scores_at_the_training_values(rng):
    X = np.column_stack([rng.integers(0, 40, 500), np.exp(3 * rng.normal(size=500))]).astype(float)
    mapped = fitted(X, ranked=True).apply(torch.from_numpy(X)).numpy()
    expected = norm.ppf((rankdata(X, axis=0) - 0.5) / len(X))
    np.testing.assert_allclose(mapped[:, 0], expected[:, 0], rtol=1e-12)
    # The second column has more values than quantiles are kept.
    assert len(np.unique(X[:, 1])) > MOST_KNOTS
    inner = np.abs(expected[:, 1]) < 2
    np.testing.assert_allclose(mapped[inner, 1], expected[inner, 1], atol=0.03)


def test_the_map_is_monotone_and_constant_beyond_the_data(rng):
    X = rng.standard_cauchy(size=(300, 1))
    table = fitted(X, ranked=True)
    new = np.sort(10 * rng.standard_cauchy(size=(1000, 1)), axis=0)
    mapped = table.apply(torch.from_numpy(new)).numpy()
    assert (np.diff(mapped[:, 0]) >= 0).all()
    ends = table.apply(torch.tensor([[-1e30], [X.min()], [X.max()], [1e30]], dtype=torch.float64))
    assert ends[0] == ends[1] < ends[2] == ends[3]


def test_units_do_not_matter_to_ranks(rng):
    X = rng.normal(size=(400, 3))
    a = fitted(X, ranked=True).apply(torch.from_numpy(X))
    Z = np.exp(X) * [1e-6, 1.0, 1e6]
    b = fitted(Z, ranked=True).apply(torch.from_numpy(Z))
    torch.testing.assert_close(a, b, atol=0.02, rtol=0)  # linear between quantiles of either


@pytest.mark.parametrize("kernel", [mercer.Laplacian(2.0), mercer.L1Laplacian(2.0)], ids=str)
def test_different_categories_are_equally_far_apart_and_so_is_a_new_one(kernel, rng):
    X = np.column_stack([rng.normal(size=200), rng.integers(0, 5, 200)]).astype(float)
    plain, _ = fit_inputs(X, np.arange(200))
    coded = find_categories(X, np.arange(200), torch.arange(2))
    assert list(coded) == [1]
    inputs = with_table(plain, X, np.arange(200), coded, ranked=True)
    inputs = Variant("", inputs, torch.zeros(0, 6)).prepared(kernel)
    like = torch.zeros((), dtype=torch.float64)
    known = inputs.points(np.array([[0.3, c] for c in range(5)]), None, like, True)
    new = inputs.points(np.array([[0.3, 7.0]]), None, like)
    K = kernel.block(known, known, same=True).numpy()
    apart = K[~np.eye(5, dtype=bool)]
    np.testing.assert_allclose(apart, np.exp(-1 / 2.0), rtol=1e-9)
    np.testing.assert_allclose(kernel.block(new, known).numpy(), np.exp(-1 / 2.0), rtol=1e-9)


def test_only_whole_numbers_with_few_values_may_be_categories(rng):
    columns = [rng.integers(0, 9, 300), rng.integers(0, 2, 300), rng.normal(size=300), np.arange(300)]
    X = np.column_stack([*columns, rng.integers(0, 9, 300) / 2]).astype(float)
    assert list(find_categories(X, np.arange(300), torch.arange(5))) == [0]
    declared = find_categories(X, np.arange(300), torch.arange(5), torch.tensor([1, 4]))
    assert [len(v) for v in declared.values()] == [2, 9]


def test_values_that_only_late_rows_have_count(rng):
    n = 3 * REVEALING_ROWS
    X = rng.integers(0, 5, size=(n, 3)).astype(float)
    X[-1, 0], X[-1, 1], X[2 * REVEALING_ROWS :, 2] = 9, 2.5, np.arange(REVEALING_ROWS)
    found = find_categories(X, np.arange(n), torch.arange(3))
    assert {i: v.tolist() for i, v in found.items()} == {0: [0, 1, 2, 3, 4, 9]}


def table_problem(rng, n=400):
    X = np.column_stack(
        [rng.normal(size=n), np.exp(3 * rng.normal(size=n)), rng.integers(0, 4, n), np.full(n, 3.0)]
    )
    effect = np.array([0.0, 3.0, -2.0, 1.0])
    return X, np.log(X[:, 1]) + effect[X[:, 2].astype(int)] + 0.1 * rng.normal(size=n)


def test_a_table_model_is_the_same_from_a_file_and_as_a_module(rng, tmp_path):
    X, y = table_problem(rng)
    model = KernelRegressor("l1_laplacian", scale="rank", categorical_features=[2], random_state=0)
    model.fit(X, y)
    assert model.machine_.inputs.table is not None
    assert model.machine_.inputs.n_absolute == 2
    assert model.score(X, y) > 0.98
    new = np.column_stack([*table_problem(rng, 50)[0].T[:3], np.linspace(0, 5, 50)])
    new[:5, 2] = 9.0  # never seen
    expected = model.predict(new)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(mercer.load(tmp_path / "model").predict(new), expected)
    module = model.to_torch().double()
    np.testing.assert_allclose(module(torch.from_numpy(new))[:, 0], expected, rtol=1e-5, atol=1e-5)


def test_codes_that_are_no_round_numbers_are_known_in_any_precision(rng):
    codes = np.array([0.1, 0.2, 0.7])
    X = np.column_stack([rng.normal(size=300), codes[rng.integers(0, 3, 300)]])
    y = X[:, 0] + 3 * (X[:, 1] == 0.2)
    model = KernelRegressor("laplacian", categorical_features=[1], random_state=0).fit(X, y)
    expected, module = model.predict(X), model.to_torch()
    assert model.score(X, y) > 0.99
    np.testing.assert_allclose(model.predict(X.astype(np.float32)), expected, atol=1e-4)
    np.testing.assert_allclose(module(torch.from_numpy(X))[:, 0], expected, atol=1e-3)
    np.testing.assert_allclose(module.double()(torch.from_numpy(X))[:, 0], expected, atol=1e-3)
    large = np.array([1e9, 1e9 + 1, 1e9 + 2])  # alike in single precision
    X[:, 1] = large[np.searchsorted(codes, X[:, 1])]
    again = KernelRegressor("laplacian", categorical_features=[1], random_state=0).fit(X, y)
    np.testing.assert_allclose(again.predict(X), expected, atol=1e-5)


def test_declared_categories_may_be_named_numbered_or_marked(rng):
    pandas = pytest.importorskip("pandas")
    X, y = table_problem(rng)
    frame = pandas.DataFrame(X, columns=["a", "b", "kind", "same"])
    settings = {"kernel": "laplacian", "random_state": 0}
    expected = KernelRegressor(categorical_features=[2], **settings).fit(X, y).predict(X)
    for given, data in (["kind"], frame), ([False, False, True, False], X), ([-2], X):
        model = KernelRegressor(categorical_features=given, **settings).fit(data, y)
        np.testing.assert_array_equal(model.predict(data), expected)
    for wrong in (["colour"], [4], [True]):
        with pytest.raises(ValueError, match="categorical_features"):
            KernelRegressor(categorical_features=wrong).fit(X, y)
    many = np.column_stack([np.arange(1500.0), rng.normal(size=1500)])
    with pytest.raises(ValueError, match="at most 1,000 different values"):
        KernelRegressor(categorical_features=[0]).fit(many, many[:, 1])


def test_heavy_tails_and_codes_are_learned_as_well_as_clean_columns(rng):
    """By default: ranks undo any monotone map of a column, and codes may be in any order."""
    n = 1_200
    z, code = rng.normal(size=(n, 3)), rng.integers(0, 8, n)
    y = np.sin(2 * z[:, 0]) + z[:, 1] + rng.permutation(8)[code] / 2
    clean = np.column_stack([z, np.eye(8)[code]])
    raw = np.column_stack([np.exp(4 * z[:, 0]), z[:, 1] ** 3, z[:, 2], code])
    train, test = slice(0, 800), slice(800, None)
    scores = [
        KernelRegressor(random_state=0).fit(X[train], y[train]).score(X[test], y[test])
        for X in (clean, raw)
    ]
    assert scores[1] > scores[0] - 0.02 > 0.9


def test_principal_directions_do_not_go_with_absolute_differences(rng):
    X = rng.normal(size=(60, 3))
    with pytest.raises(ValueError, match="depends on the axes"):
        KernelRegressor("l1_laplacian", n_pca_components=2).fit(X, X[:, 0])


def test_the_request_of_a_search_is_open_by_default():
    request = SettingRequest()
    assert (request.scale, request.categorical_features, request.metric) == ("auto", "auto", True)


def test_binary_classes_with_codes(rng):
    X = rng.integers(0, 3, size=(900, 12)).astype(float)
    y = ((X == 1).sum(1) > (X == 2).sum(1)).astype(int)  # codes are no order
    model = KernelClassifier(random_state=0).fit(X[:600], y[:600])
    assert any("categories" in candidate.features for candidate in model.selection_.candidates)
    assert model.score(X[600:], y[600:]) > 0.9


def test_a_warm_start_goes_on_with_the_same_table(rng):
    X, y = table_problem(rng, 600)
    settings = {"kernel": "laplacian", "scale": "rank", "categorical_features": [2], "random_state": 0}
    model = KernelRegressor(warm_start=True, **settings).fit(X[:400], y[:400])
    bandwidth, knots = model.bandwidth_, model.machine_.inputs.table.knots
    model.fit(X, y)
    assert model.bandwidth_ == bandwidth
    assert torch.equal(model.machine_.inputs.table.knots, knots)
    assert model.score(X, y) > 0.95
    for column, value in (2, 9.0), (3, 4.0):  # a category and a constant that were not seen
        other = X.copy()
        other[500, column] = value
        with pytest.raises(ValueError, match="fit a new model"):
            model.fit(other, y)


def test_a_resumed_fit_of_a_table_ends_the_same(rng, tmp_path):
    X, y = table_problem(rng, 450)
    labels = (y > np.median(y)).astype(int)
    path = tmp_path / "checkpoint"
    settings = {"kernel": "l1_laplacian", "interpolation_tol": 1e-9, "random_state": 0}
    settings["batch_size"] = 150
    checkpoint = mercer.Checkpoint(path, minutes=0)
    with pytest.warns(match="max_iter"):
        KernelClassifier(**settings, max_iter=2, callbacks=[checkpoint]).fit(X, labels)
    resumed = KernelClassifier(**settings, max_iter=6).fit(X, labels, resume=path)
    whole = KernelClassifier(**settings, max_iter=6).fit(X, labels)
    np.testing.assert_array_equal(resumed.dual_coef_, whole.dual_coef_)
    assert resumed.logit_scale_ == whole.logit_scale_
    assert resumed.left_out_score_ == whole.left_out_score_


def test_the_left_out_score_of_several_outputs_is_in_their_units(rng):
    X = rng.normal(size=(300, 3))
    Y = np.column_stack([np.sin(X[:, 0]), 1e4 * (5 + X[:, 1])])
    model = KernelRegressor(random_state=0).fit(X, Y)
    assert 0.9 < model.left_out_score_ <= 1


def test_ranks_do_not_go_with_kernels_that_see_the_origin(rng):
    X = rng.normal(size=(60, 3))
    with pytest.raises(ValueError, match="depends on the origin"):
        KernelRegressor("neural_tangent", scale="rank").fit(X, X[:, 0])


@pytest.mark.parametrize("kind", ["wide", "bytes"])
def test_absolute_differences_are_taken_wherever_they_are_asked_for(kind, rng):
    X = rng.normal(size=(200, 90))
    if kind == "bytes":
        X = rng.integers(0, 256, size=(200, 90)).astype(np.uint8)
    y = X[:, 0].astype(float)
    model = KernelRegressor("l1_laplacian", random_state=0).fit(X, y)
    assert model.kernel_.name == "l1_laplacian"
    assert model.left_out_score_ is not None


def test_the_plan_says_what_was_done_to_the_features(rng):
    X, y = table_problem(rng)
    said = {}
    for scale in (True, False, "rank"):
        settings = {"scale": scale, "categorical_features": None, "metric": False}
        said[scale] = (
            KernelRegressor("laplacian", random_state=0, **settings).fit(X, y).plan_.preparation
        )
    assert said[True].endswith("standardised")
    assert said[False] == "1 constant features dropped"
    assert said["rank"].endswith("3 numbers by rank")
