from __future__ import annotations

import numpy as np
import oracles
import pytest
import torch

import mercer
from mercer.method import spectrum as module
from mercer.method.spectrum import largest_eigenvalue, nystrom_spectrum, top_eigenpairs


def points(rng, n=300, d=5, dtype=torch.float64):
    x = torch.from_numpy(rng.normal(size=(n, d))).to(dtype)
    return mercer.Gaussian(2.0), mercer.Gaussian(2.0).points(x)


def test_eigenpairs_equal_a_dense_decomposition(rng):
    kernel, x_r = points(rng)
    found = nystrom_spectrum(kernel, x_r, 40)
    K = kernel.block(x_r, x_r, same=True).numpy()
    expected = np.linalg.eigvalsh(K)[::-1][:40]
    np.testing.assert_allclose(found.sigma.numpy(), expected, rtol=1e-9)
    np.testing.assert_allclose(K @ found.V.numpy(), found.V.numpy() * expected, atol=1e-8)


def test_subspace_iteration_finds_the_leading_pairs(rng):
    # More rows than SMALL_MATRIX, so that the iteration runs.
    kernel, x_r = points(rng, n=1200)
    K = kernel.block(x_r, x_r, same=True)
    sigma, V = top_eigenpairs(K, 60)
    expected = torch.linalg.eigvalsh(K).flip(0)[:60]
    torch.testing.assert_close(sigma[:30], expected[:30], rtol=1e-3, atol=0)
    torch.testing.assert_close(sigma, expected, rtol=0.1, atol=0)
    torch.testing.assert_close(V.T @ V, torch.eye(60, dtype=K.dtype), rtol=0, atol=1e-10)


def test_levelling_with_inexact_pairs_stays_positive_semi_definite(rng):
    kernel, x_r = points(rng, n=1200)
    K = kernel.block(x_r, x_r, same=True)
    sigma, V = top_eigenpairs(K, 60)
    KV = K @ V
    levelled = K - (KV * ((1 - sigma[-1] / sigma) / sigma)) @ KV.T
    assert torch.linalg.eigvalsh(levelled)[0] > -1e-9


def test_pairs_below_rounding_error_are_cut(rng):
    # A rank of 21: a polynomial kernel of degree 2 in 5 variables.
    kernel = mercer.Custom(lambda a, b: (a @ b.T + 1) ** 2)
    x_r = kernel.points(torch.from_numpy(rng.normal(size=(200, 5))))
    assert len(nystrom_spectrum(kernel, x_r, 100).sigma) == 21


def test_identical_points_have_one_component():
    kernel = mercer.Laplacian(1.0)
    found = nystrom_spectrum(kernel, kernel.points(torch.ones(50, 3)), 20)
    assert len(found.sigma) == 1
    assert float(found.sigma[0]) == pytest.approx(50, rel=1e-5)


def test_failure_in_single_precision_is_retried_in_double_and_told(rng, monkeypatch):
    kernel, x_r = points(rng, dtype=torch.float32)
    real = module.top_eigenpairs

    def flaky(K, q_max):
        sigma, V = real(K, q_max)
        return (sigma * torch.nan, V) if K.dtype == torch.float32 else (sigma, V)

    monkeypatch.setattr(module, "top_eigenpairs", flaky)
    found = nystrom_spectrum(kernel, x_r, 10)
    assert found.sigma.dtype == torch.float32
    assert bool(torch.isfinite(found.sigma).all())
    assert found.notes == ("the eigen-solver failed in single precision and was run again in double",)


@pytest.mark.parametrize("q_max", [0, 300, 301])
def test_too_many_or_no_components_are_refused(q_max, rng):
    kernel, x_r = points(rng)
    with pytest.raises(ValueError, match=f"less than the subsample size s=300. Got {q_max} instead"):
        nystrom_spectrum(kernel, x_r, q_max)


def test_infinite_kernel_values_are_refused():
    kernel = mercer.Custom(lambda a, b: (a @ b.T) * torch.inf)
    with pytest.raises(ValueError, match="The kernel must be finite on the data"):
        nystrom_spectrum(kernel, kernel.points(torch.ones(5, 2)), 2)


def test_a_kernel_that_is_not_positive_is_refused():
    kernel = mercer.Custom(lambda a, b: -torch.ones(len(a), len(b), dtype=a.dtype))
    with pytest.raises(ValueError, match="must be positive semi-definite"):
        nystrom_spectrum(kernel, kernel.points(torch.ones(5, 2)), 2)


def test_largest_eigenvalue_is_close_from_below(rng):
    kernel, x_r = points(rng)
    K = kernel.block(x_r, x_r, same=True)
    expected = float(torch.linalg.eigvalsh(K)[-1])
    assert 0.99 * expected < largest_eigenvalue(K) <= expected * (1 + 1e-12)


@pytest.mark.parametrize("n", [12, 1_300])
def test_the_largest_eigenvalue_is_that_of_the_matrix_with_scaled_rows_and_columns(rng, n):
    X = rng.normal(size=(n, 3))
    K, root = oracles.gaussian(X, X, 2.0), rng.uniform(0.1, 1.0, size=n)
    for scale in (np.ones(n), root):
        exact = np.linalg.eigvalsh(scale[:, None] * K * scale)[-1]
        given = None if scale is not root else torch.from_numpy(root)
        assert 0.99 * exact <= largest_eigenvalue(torch.from_numpy(K), given) <= exact * (1 + 1e-9)
