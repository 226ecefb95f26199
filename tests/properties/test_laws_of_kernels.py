"""Kernels are symmetric, positive semi-definite, 1 at distance 0 where they are radial, and what the
formulas say."""

from __future__ import annotations

import numpy as np
import oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mercer

KERNELS = {
    "gaussian": (mercer.Gaussian, oracles.gaussian),
    "laplacian": (mercer.Laplacian, oracles.laplacian),
    "l1_laplacian": (mercer.L1Laplacian, oracles.l1_laplacian),
    "cauchy": (mercer.Cauchy, oracles.cauchy),
    "matern32": (mercer.Matern32, oracles.matern32),
    "matern52": (mercer.Matern52, oracles.matern52),
    "exponential_power": (
        mercer.ExponentialPower,
        lambda x, z, s: oracles.exponential_power(x, z, s, 1),
    ),
    "neural_tangent": (mercer.NeuralTangent, lambda x, z, s: oracles.neural_tangent(x, z, s, 2)),
}
# The angle of two close inputs, computed from its cosine, is off by the square root of the rounding.
ANGLE = 1e-7
# A distance that is not computed again is at least 10 sqrt(eps) |x|, and off by eps |x|² / d.
ROUGH = 1e-9
EXAMPLES = 20


def rounding(name, width):
    """Error of a value in float64, as a share of the largest one."""
    return (ANGLE if name == "neural_tangent" else ROUGH) / min(1, width)


@st.composite
def points(draw):
    """Rows around 0, some of them equal or close to others, in some unit."""
    n, d = draw(st.integers(2, 60)), draw(st.integers(1, 8))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = rng.normal(size=(n, d))
    x[1::5] = x[0]
    x[2::5] = x[0] + 10.0 ** draw(st.integers(-9, -1)) * rng.normal(size=x[2::5].shape)
    return draw(st.sampled_from([1e-3, 1.0, 1e3])) * x


@pytest.mark.parametrize("name", KERNELS)
@settings(max_examples=EXAMPLES)
@given(x=points(), width=st.floats(0.05, 20))
def test_a_kernel_equals_its_formula(name, x, width):
    make, oracle = KERNELS[name]
    sigma = width * np.abs(x).max()
    K = make(sigma)(torch.from_numpy(x), torch.from_numpy(x.copy())).numpy()
    expected = oracle(x, x, sigma)
    np.testing.assert_allclose(K, expected, rtol=0, atol=rounding(name, width) * expected.max())


@pytest.mark.parametrize("name", KERNELS)
@settings(max_examples=EXAMPLES)
@given(x=points(), width=st.floats(0.05, 20))
def test_a_kernel_in_float32_equals_its_formula(name, x, width):
    """Squared distances that lose a hundredth to cancellation are computed again, and no others."""
    make, oracle = KERNELS[name]
    x = x.astype(np.float32)
    sigma = width * float(np.abs(x).max())
    rows = torch.from_numpy(x)
    K = make(sigma)(rows, rows.clone()).numpy()
    expected = oracle(x.astype(np.float64), x.astype(np.float64), sigma)
    np.testing.assert_allclose(K, expected, rtol=0, atol=1e-4 * expected.max() / min(1, width))


@pytest.mark.parametrize("name", KERNELS)
@settings(max_examples=EXAMPLES)
@given(x=points(), width=st.floats(0.05, 20))
def test_a_kernel_matrix_is_symmetric_and_positive_semidefinite(name, x, width):
    rows = torch.from_numpy(x)
    K = KERNELS[name][0](width * np.abs(x).max())(rows, rows).numpy()
    np.testing.assert_allclose(K, K.T, rtol=0, atol=rounding(name, width) * K.max())
    assert np.linalg.eigvalsh((K + K.T) / 2).min() >= -1e-9 * np.trace(K)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [name for name in KERNELS if name != "neural_tangent"])
@settings(max_examples=EXAMPLES)
@given(x=points(), width=st.floats(0.05, 20))
def test_a_radial_kernel_is_1_at_distance_0_and_never_more(name, dtype, x, width):
    rows = torch.from_numpy(x).to(dtype)
    K = KERNELS[name][0](width * np.abs(x).max())(rows, rows)
    assert bool((K.diagonal() == 1).all())
    assert float(K.min()) >= 0
    # A negative squared distance from rounding may lift a smooth kernel by as much as it is allowed.
    assert float(K.max()) <= 1 + 2e-6
