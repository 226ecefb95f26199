from __future__ import annotations

import numpy as np
import oracles
import pytest
import torch

import mercer
from mercer import KernelClassifier, KernelRegressor
from mercer.data.inputs import fit_preparation, projected
from mercer.kernels.distances import squared_distances

LIKE = torch.zeros((), dtype=torch.float64)


def distances(preparation, x, z):
    points = [preparation.points(v, None, LIKE) for v in (x, z)]
    return squared_distances(*points, same=False).numpy()


def test_constant_features_are_dropped_and_distances_stay_exact(rng):
    X = rng.normal(size=(50, 6))
    X[:, [1, 4]] = [3.0, -7.0]
    preparation, _ = fit_preparation(X, np.arange(50))
    assert preparation.width == 4
    other = rng.normal(size=(20, 6))  # whose values differ there
    expected = np.square(other[:, None] - X[None]).sum(2)
    found = distances(preparation, other, X)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    near = X[:5] + np.array([0, 1e-7, 0, 0, 0, 0])  # close pairs are computed from differences
    np.testing.assert_allclose(np.diag(distances(preparation, near, X[:5])), 1e-14, rtol=1e-2)


def test_bytes_lose_constant_features_exactly_too(rng):
    X = rng.integers(0, 256, size=(60, 90)).astype(np.float32)
    X[:, :10] = 7
    preparation, _ = fit_preparation(X, np.arange(60), as_bytes=True)
    assert preparation.grid is not None
    like = torch.zeros(())
    other = X[:5].copy()
    other[:, 0] = [7, 8, 20, 0, 255]
    points = preparation.points(other, None, like)
    assert points.is_bytes
    centres = preparation.points(X, None, like, known=True)
    found = -2 * mercer.Gaussian(1000.0).block(points, centres).log() * 1000**2
    np.testing.assert_allclose(found, np.square(other[:, None] - X[None]).sum(2), rtol=1e-4, atol=1)


def test_auto_projection_keeps_all_of_data_that_spans_less(rng):
    flat = rng.normal(size=(80, 3)) @ rng.normal(size=(3, 10))
    rows = np.arange(80)
    preparation = projected(fit_preparation(flat, rows)[0], flat, rows, "auto")
    assert preparation.width == 3
    other = rng.normal(size=(20, 10))  # outside the span
    expected = np.square(other[:, None] - flat[None]).sum(2)
    np.testing.assert_allclose(distances(preparation, other, flat), expected, rtol=1e-8)
    full = rng.normal(size=(80, 10))
    assert projected(fit_preparation(full, rows)[0], full, rows, "auto").projection is None


def test_projection_on_a_number_of_directions_is_that_of_principal_components(rng):
    X = rng.normal(size=(200, 6)) * [5, 4, 3, 0.1, 0.1, 0.1]
    model = KernelRegressor("gaussian", bandwidth=4.0, ridge=1e-3, n_pca_components=3, random_state=0)
    model.fit(X, X[:, 0])
    assert model.machine_.centres.x.shape[1] == 3
    assert "projected on 3 principal directions (approximate)" in str(model.plan_)
    assert model.score(X, X[:, 0]) > 0.95


def test_features_of_different_units_are_standardised_and_the_plan_says_so(rng):
    X = rng.normal(size=(700, 4))
    y = np.sin(2 * X[:, 0]) + X[:, 1]
    units = X * [1, 1e3, 1e-3, 50] + [0, 5, 0, -1e4]
    model = KernelRegressor(random_state=0).fit(units, y)
    assert "standardised" in model.plan_.preparation
    assert model.selection_.best.scaled
    assert model.score(units, y) > 0.9
    plain = KernelRegressor(random_state=0, scale=False).fit(units, y)
    assert plain.machine_.preparation.scale is None
    # A bandwidth given by hand is in the units of the data.
    by_hand = KernelRegressor("gaussian", bandwidth=100.0, random_state=0).fit(units, y)
    assert by_hand.machine_.preparation.scale is None


def test_data_on_one_scale_is_left_as_it_is(rng):
    X = rng.uniform(size=(300, 4))
    model = KernelRegressor(random_state=0).fit(X, X[:, 0])
    assert model.machine_.preparation.scale is None
    assert model.plan_.preparation == "as given"


def test_large_offsets_do_not_cost_precision(rng):
    X = rng.normal(size=(300, 3))
    y = np.sin(X[:, 0])
    model = KernelRegressor("gaussian", bandwidth=1.0, ridge=0.1, random_state=0)
    near = model.fit(X, y).predict(X)
    far = model.fit(X + 1e7, y).predict(X + 1e7)
    np.testing.assert_allclose(near, far, atol=1e-3)


def test_all_features_constant_gives_the_mean():
    model = KernelRegressor(random_state=0).fit(np.ones((20, 3)), np.arange(20.0))
    np.testing.assert_allclose(model.predict(np.ones((2, 3))), 9.5, atol=0.05)


@pytest.mark.parametrize("n_pca_components", [0, "some", 1.5])
def test_a_wrong_number_of_features_is_refused(n_pca_components):
    with pytest.raises(ValueError, match="`n_pca_components` must be"):
        KernelClassifier(n_pca_components=n_pca_components).fit(np.eye(4), [0, 1, 0, 1])


def test_a_kernel_that_sees_the_origin_gets_the_data_as_it_is(rng):
    X = rng.normal(size=(60, 3)) + 2
    X[:, 1] = 1
    kernel = mercer.NeuralTangent(bandwidth=1.0)
    model = KernelRegressor(
        kernel, ridge=0.1, precision="float64", interpolation_tol=1e-20, max_iter=2000, random_state=0
    ).fit(X, X[:, 0])
    K = kernel.block(*[kernel.points(torch.from_numpy(X))] * 2, same=True).numpy()
    expected = oracles.solution(K, X[:, 0] - X[:, 0].mean(), ridge=0.1)
    np.testing.assert_allclose(model.dual_coef_[:, 0], expected, atol=1e-4)
