from __future__ import annotations

import numpy as np
import oracles
import pytest
import torch

import mercer
from mercer import KernelClassifier, KernelRegressor
from mercer.data.inputs import fit_inputs, projected
from mercer.engine import Data, Limits, SettingRequest, Settings, prepare
from mercer.kernels.distances import squared_distances

LIKE = torch.zeros((), dtype=torch.float64)


def distances(inputs, x, z):
    points = [inputs.points(v, None, LIKE) for v in (x, z)]
    return squared_distances(*points, same=False).numpy()


class Counted(np.ndarray):
    """An array that counts the rows taken from it."""

    rows_read = 0

    def __getitem__(self, key):
        found = super().__getitem__(key)
        if found.ndim == 2:
            Counted.rows_read += len(found)
        return found


@pytest.mark.parametrize("ridge", [0.1, None])
def test_features_are_read_twice_and_a_sample_once_more(rng, desk, ridge, monkeypatch):
    """Once for their statistics and once to prepare them; a search looks at some of them."""
    X = rng.normal(size=(25_000, 8)).view(Counted)
    data = Data(X, np.sin(np.asarray(X)[:, :1]), rng.permutation(25_000))
    monkeypatch.setattr(Counted, "rows_read", 0)
    request = SettingRequest("laplacian", 3.0, ridge)
    prepare(data, Settings(Limits(1, 0.0, 1, 0.0), request, resource=desk))
    sample = 0 if ridge is not None else 4_500
    assert Counted.rows_read == 2 * 25_000 + sample


def test_constant_features_are_dropped_and_distances_stay_exact(rng):
    X = rng.normal(size=(50, 6))
    X[:, [1, 4]] = [3.0, -7.0]
    inputs, _ = fit_inputs(X, np.arange(50))
    assert inputs.width == 4
    other = rng.normal(size=(20, 6))  # whose values differ there
    expected = np.square(other[:, None] - X[None]).sum(2)
    found = distances(inputs, other, X)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    near = X[:5] + np.array([0, 1e-7, 0, 0, 0, 0])  # close pairs are computed from differences
    np.testing.assert_allclose(np.diag(distances(inputs, near, X[:5])), 1e-14, rtol=1e-2)


def test_bytes_lose_constant_features_exactly_too(rng):
    X = rng.integers(0, 256, size=(60, 90)).astype(np.float32)
    X[:, :10] = 7
    inputs, _ = fit_inputs(X, np.arange(60), as_bytes=True)
    assert inputs.grid is not None
    like = torch.zeros(())
    other = X[:5].copy()
    other[:, 0] = [7, 8, 20, 0, 255]
    points = inputs.points(other, None, like)
    assert points.is_bytes
    centres = inputs.points(X, None, like, known=True)
    found = -2 * mercer.Gaussian(1000.0).block(points, centres).log() * 1000**2
    np.testing.assert_allclose(found, np.square(other[:, None] - X[None]).sum(2), rtol=1e-4, atol=1)


def test_auto_projection_keeps_all_of_data_that_spans_less(rng):
    flat = rng.normal(size=(80, 3)) @ rng.normal(size=(3, 10))
    rows = np.arange(80)
    inputs = projected(fit_inputs(flat, rows)[0], flat, rows, "auto")
    assert inputs.width == 3
    other = rng.normal(size=(20, 10))  # outside the span
    expected = np.square(other[:, None] - flat[None]).sum(2)
    np.testing.assert_allclose(distances(inputs, other, flat), expected, rtol=1e-8)
    full = rng.normal(size=(80, 10))
    assert projected(fit_inputs(full, rows)[0], full, rows, "auto").projection is None


def test_projection_on_a_number_of_directions_is_that_of_principal_components(rng):
    X = rng.normal(size=(200, 6)) * [5, 4, 3, 0.1, 0.1, 0.1]
    model = KernelRegressor("gaussian", bandwidth=4.0, ridge=1e-3, n_pca_components=3, random_state=0)
    model.fit(X, X[:, 0])
    assert model.machine_.centres.x.shape[1] == 3
    assert "projected on 3 principal directions (approximate)" in " ".join(str(model.plan_).split())
    assert model.score(X, X[:, 0]) > 0.95


def test_features_of_different_units_are_standardised_and_the_plan_says_so(rng):
    X = rng.normal(size=(700, 4))
    y = np.sin(2 * X[:, 0]) + X[:, 1]
    units = X * [1, 1e3, 1e-3, 50] + [0, 5, 0, -1e4]
    model = KernelRegressor(random_state=0).fit(units, y)
    assert "standardised" in model.plan_.preparation
    assert model.selection_.best.features != "as given"
    assert model.score(units, y) > 0.9
    plain = KernelRegressor(random_state=0, scale=False).fit(units, y)
    assert plain.machine_.inputs.scale is None
    # A bandwidth given by hand is in the units of the data.
    by_hand = KernelRegressor("gaussian", bandwidth=100.0, random_state=0).fit(units, y)
    assert by_hand.machine_.inputs.scale is None


def test_data_on_one_scale_is_left_as_it_is(rng):
    X = rng.uniform(size=(300, 4))
    model = KernelRegressor(metric=False, random_state=0).fit(X, X.sum(1))
    assert model.machine_.inputs.scale is None
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
