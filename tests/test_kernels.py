from __future__ import annotations

import numpy as np
import oracles
import pytest
import torch

import mercer
from mercer.data.points import Points
from mercer.kernels import KERNELS, Kernel, as_kernel, kernel_from_dict
from mercer.kernels.distances import squared_distances

CASES = [
    (mercer.Gaussian(1.3), lambda x, z: oracles.gaussian(x, z, 1.3)),
    (mercer.Laplacian(1.3), lambda x, z: oracles.laplacian(x, z, 1.3)),
    (mercer.L1Laplacian(1.3), lambda x, z: oracles.l1_laplacian(x, z, 1.3)),
    (mercer.Cauchy(1.3), lambda x, z: oracles.cauchy(x, z, 1.3)),
    (mercer.Matern32(1.3), lambda x, z: oracles.matern32(x, z, 1.3)),
    (mercer.Matern52(1.3), lambda x, z: oracles.matern52(x, z, 1.3)),
    (mercer.ExponentialPower(1.3, exponent=0.7), lambda x, z: oracles.exponential_power(x, z, 1.3, 0.7)),
    (mercer.ExponentialPower(1.3, exponent=2), lambda x, z: oracles.exponential_power(x, z, 1.3, 2)),
    (mercer.NeuralTangent(1.3, depth=1), lambda x, z: oracles.neural_tangent(x, z, 1.3, 1)),
    (mercer.NeuralTangent(1.3, depth=3), lambda x, z: oracles.neural_tangent(x, z, 1.3, 3)),
    (mercer.Custom(lambda a, b: (a @ b.T + 1) ** 2), lambda x, z: (x @ z.T + 1) ** 2),
]


@pytest.mark.parametrize(
    ("kernel", "oracle"), CASES, ids=lambda c: str(c) if isinstance(c, Kernel) else ""
)
def test_block_equals_formula(kernel, oracle, rng):
    x, z = rng.normal(size=(40, 5)), rng.normal(size=(30, 5))
    block = kernel(torch.from_numpy(x), torch.from_numpy(z)).numpy()
    np.testing.assert_allclose(block, oracle(x, z), rtol=1e-10)
    out = torch.empty(40, 30, dtype=torch.float64)
    a, b = kernel.points(torch.from_numpy(x)), kernel.points(torch.from_numpy(z))
    assert kernel.block(a, b, out=out) is out
    np.testing.assert_allclose(out.numpy(), block, rtol=1e-12)


@pytest.mark.parametrize(
    ("kernel", "oracle"), CASES, ids=lambda c: str(c) if isinstance(c, Kernel) else ""
)
def test_diagonal_is_the_diagonal_of_the_block(kernel, oracle, rng):
    x = torch.from_numpy(rng.normal(size=(150, 5)))
    points = kernel.points(x)
    block = kernel.block(points, points, same=True)
    torch.testing.assert_close(kernel.diagonal(points), block.diagonal(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("same", [True, False])
def test_close_pairs_far_from_the_origin_keep_their_distance(same, rng):
    # Two clusters 2,000 apart: centring cannot help, and float32 products are off by 0.1.
    x = rng.normal(size=(60, 4)) * 1e-2
    x[:30] += 1000
    x[30:] -= 1000
    x32 = torch.from_numpy(x).float()
    kernel = mercer.Gaussian(1.0)
    points = kernel.points(x32)
    d2 = squared_distances(points, points if same else kernel.points(x32.clone()), same=same)
    expected = oracles.distances(x32.double().numpy(), x32.double().numpy()) ** 2
    np.testing.assert_allclose(d2.numpy(), expected, rtol=1e-4)


def test_few_close_pairs_among_many_keep_their_distance(rng):
    x = rng.normal(size=(400, 6)) + 50
    x[7] = x[300] + 1e-3
    x32 = torch.from_numpy(x).float()
    kernel = mercer.Laplacian(1.0)
    d2 = squared_distances(kernel.points(x32), kernel.points(x32.clone()), same=False)
    expected = oracles.distances(x32.double().numpy(), x32.double().numpy()) ** 2
    assert d2[7, 300] == pytest.approx(expected[7, 300], rel=1e-3)
    assert bool((d2.diagonal() == 0).all())


def test_a_point_has_distance_exactly_zero_to_itself(rng):
    x = torch.from_numpy(rng.normal(size=(50, 300)) * 1e3).float()
    for kernel in (mercer.Gaussian(1.0), mercer.Laplacian(1.0), mercer.Matern52(1.0)):
        points = kernel.points(x)
        assert bool((kernel.block(points, points, same=True).diagonal() == 1).all())


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", sorted(KERNELS))
def test_bandwidth_must_be_positive_and_finite(name, value):
    with pytest.raises(ValueError, match=r"`bandwidth` must be a positive, finite number\. Got"):
        as_kernel(name, value)


@pytest.mark.parametrize("value", [1e-30, 1e30])
def test_a_bandwidth_whose_square_the_precision_cannot_hold_is_refused(rng, value):
    X = rng.normal(size=(60, 2))
    with pytest.raises(ValueError, match=r"between 1e-18 and 1e\+18 in float32.*rescale the features"):
        mercer.KernelRegressor("gaussian", bandwidth=value, ridge=0.1).fit(X, X[:, 0])
    with pytest.raises(ValueError, match=r"between 1e-150 and 1e\+150 in float64"):
        mercer.Gaussian(value**9)


def test_exponent_and_depth_are_checked():
    with pytest.raises(ValueError, match=r"`exponent` must lie in \(0, 2\]"):
        mercer.ExponentialPower(1.0, exponent=2.5)
    with pytest.raises(ValueError, match="`depth` must be a whole number"):
        mercer.NeuralTangent(1.0, depth=0)


def test_unknown_kernel_names_the_known_ones():
    with pytest.raises(ValueError, match=r"`kernel` must be one of cauchy.*Got 'linear' instead"):
        as_kernel("linear", 1.0)


def test_function_of_the_wrong_shape_is_refused():
    kernel = mercer.Custom(lambda a, b: a.sum(1))
    with pytest.raises(ValueError, match=r"must return a tensor of shape \(3, 2\).*Got \(3,\)"):
        kernel(torch.ones(3, 2), torch.ones(2, 2))


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_kernel_survives_a_dictionary(name):
    kernel = as_kernel(name, 2.5)
    assert kernel_from_dict(kernel.to_dict()) == kernel


def test_custom_kernel_is_not_read_back():
    with pytest.raises(ValueError, match="cannot be read back"):
        kernel_from_dict(mercer.Custom(torch.cdist).to_dict())


def test_absolute_differences_of_mixed_features_equal_the_formula(rng):
    # Three numbers, and two features that stand for categories.
    x, z = rng.normal(size=(300, 5)), rng.normal(size=(200, 5))
    a, b = (Points.extend(torch.from_numpy(v), n_absolute=3) for v in (x, z))
    differences = x[:, None, :] - z[None, :, :]
    u = np.abs(differences[..., :3]).sum(2) + np.square(differences[..., 3:]).sum(2)
    block = mercer.L1Laplacian(1.3).block(a, b).numpy()
    np.testing.assert_allclose(block, np.exp(-u / 1.3), rtol=1e-10)
    some = torch.arange(7, 100, 3)
    np.testing.assert_allclose(
        mercer.L1Laplacian(1.3).block(a[some], b[20:30]), block[some, 20:30], rtol=1e-12
    )


@pytest.mark.parametrize("offset", [0.0, 1000.0], ids=["fast path", "far from the origin"])
def test_absolute_differences_in_float32_are_those_of_the_points(offset, rng):
    x = torch.from_numpy(rng.normal(size=(700, 9))).float()  # added up in several parts
    x[:350] += offset
    x[350:] -= offset
    kernel = mercer.L1Laplacian(20.0)
    expected = oracles.l1_laplacian(x.double().numpy(), x.double().numpy(), 20.0)
    points = kernel.points(x)
    block = kernel.block(points, points, same=True)
    np.testing.assert_allclose(block, expected, atol=3e-6)
    np.testing.assert_allclose(kernel.block(points, kernel.points(x.clone())), expected, atol=3e-6)
