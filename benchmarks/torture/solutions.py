"""Converged models next to the dense solution of (K + r I) alpha = y in float64.

Training ends with a residual g = (K + r I) alpha - y whose mean square is at most `interpolation_tol`
times the variance of y.  With A = K + r I, predictions then differ from those of the solution by

    f(x) - f*(x) = k(x)^T A^-1 g,    so |f(x) - f*(x)| <= ||A^-1 k(x)|| ||g||,

which is what the conditioning of the problem allows.  An error of at most kappa in kernel values changes
the residual and f(x) by at most kappa ||alpha||_1 each.  The dense solution carries its own residual, of
the order of n eps ||A|| ||alpha||.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.torture.datasets import Array, Floats, median_distance, names, plain, pool
from benchmarks.torture.fits import CLAIMS, MEASURED_BEFORE, Precision, encoded
from benchmarks.torture.record import Count, Size
from mercer import KernelRegressor
from tests import oracles

CASES = 400
FEWEST_ROWS, MOST_ROWS, TEST_ROWS = 60, 400, 50
# Entries of the array of differences that the oracle makes for one block of rows.
BLOCK_ELEMENTS = 1 << 24
NTK_DEPTH = 2  # of the kernel by name
KERNELS: dict[str, Callable[[Floats, Floats, float], Floats]] = {
    "laplacian": oracles.laplacian,
    "gaussian": oracles.gaussian,
    "cauchy": oracles.cauchy,
    "matern32": oracles.matern32,
    "matern52": oracles.matern52,
    "exponential_power": lambda x, z, sigma: oracles.exponential_power(x, z, sigma, 1.0),
    "neural_tangent": lambda x, z, sigma: oracles.neural_tangent(x, z, sigma, NTK_DEPTH),
}
WIDTHS = (1 / 4, 1.0, 4.0)
RIDGES = (0.0, 1e-3, 0.01, 1.0)
MAX_ITER = 400
# interpolation_tol, and the error of a kernel value: smooth kernels are allowed 2e-6 in float32, and
# a few units of rounding of distances come on top.
PRECISIONS: dict[Precision, tuple[float, float]] = {"float64": (1e-10, 1e-11), "float32": (1e-6, 1e-5)}
# Where the bound is larger than this share of the targets' spread, it says nothing.
USEFUL = 0.1


@dataclass(frozen=True)
class Case:
    seed: int
    number: int
    data: str
    n: int
    kernel: str
    width: float  # times the median distance
    ridge: float
    precision: Precision

    @classmethod
    def draw(cls, seed: int, number: int) -> Case:
        rng = np.random.default_rng([seed, number, 2])

        def one(values: tuple[Any, ...]) -> Any:
            return values[rng.integers(len(values))]

        return cls(
            seed=seed,
            number=number,
            data=one(names()),
            n=int(rng.integers(FEWEST_ROWS, MOST_ROWS + 1)),
            kernel=one(tuple(KERNELS)),
            width=one(WIDTHS),
            ridge=one(RIDGES),
            precision=one(tuple(PRECISIONS)),
        )


@dataclass(frozen=True)
class Comparison:
    converged: bool
    reason: str
    error: float = 0.0  # largest of the held-out inputs, as a share of the targets' spread
    bound: float = 0.0  # on the same input and scale
    worst: float = 0.0  # largest error as a share of its bound


def compare(case: Case) -> Comparison:
    rng = np.random.default_rng([case.seed, case.number, 3])
    table = plain(pool(case.data), case.n + TEST_ROWS, rng)
    n = len(table.y) - TEST_ROWS
    X = (table.X - table.X.mean(0)) / (table.X.std(0) + 1e-12)
    Y = encoded(table)
    X, X_test, Y = X[:n], X[n:], Y[:n]
    sigma = case.width * median_distance(X)
    tolerance, kappa = PRECISIONS[case.precision]
    model = KernelRegressor(
        case.kernel,
        bandwidth=sigma,
        ridge=case.ridge,
        scale=False,
        interpolation_tol=tolerance,
        max_iter=MAX_ITER,
        early_stopping=False,
        precision=case.precision,
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, Y)
    if not (model.converged_ and model.stop_reason_ in CLAIMS):
        return Comparison(False, model.stop_reason_)
    A = kernel_matrix(case.kernel, X, X, sigma) + case.ridge * np.eye(n)
    k = kernel_matrix(case.kernel, X, X_test, sigma)  # (n, t)
    centred = Y - Y.mean(0)  # (n, l)
    alpha = oracles.solution(A, centred)
    expected = k.T @ alpha + Y.mean(0)  # (t, l)
    size = np.abs(A).max()  # of a kernel value: not 1 for every kernel
    norm = np.linalg.norm
    rounding = n * np.finfo(np.float64).eps * norm(A, 2) * norm(alpha)
    weights = np.abs(model.dual_coef_).sum(0).max()  # ||alpha||_1 of the worst output
    residual = np.sqrt(MEASURED_BEFORE * tolerance * centred.size) * centred.std()
    residual += rounding + np.sqrt(n) * kappa * size * weights
    reach = norm(np.linalg.solve(A, k), axis=0)  # (t,)
    bound = reach * residual + kappa * size * weights  # (t,)
    error = np.abs(model.predict(X_test).reshape(expected.shape) - expected).max(1)  # (t,)
    spread = centred.std() or 1.0
    worst = int((error / bound).argmax())
    return Comparison(
        True,
        model.stop_reason_,
        error[worst] / spread,
        bound[worst] / spread,
        error[worst] / bound[worst],
    )


def kernel_matrix(name: str, x: Floats, z: Floats, sigma: float) -> Array:
    """By the oracle, some rows at a time."""
    step = max(1, BLOCK_ELEMENTS // z.size)
    return np.vstack([KERNELS[name](x[i : i + step], z, sigma) for i in range(0, len(x), step)])


def run(size: Size) -> list[Count]:
    failures, compared, useful, not_converged = [], 0, 0, 0
    cases = max(1, round(CASES * size.scale))
    largest = 0.0
    for number in range(cases):
        case = Case.draw(size.seed, number)
        found = compare(case)
        if not found.converged:
            not_converged += 1
            continue
        compared += 1
        useful += found.bound <= USEFUL
        largest = max(largest, found.worst)
        if found.worst > 1:
            command = f"python -m benchmarks.torture.solutions {case.seed} {case.number}"
            failures.append(f"{command} ({case}): off by {found.error:.3g}, bound {found.bound:.3g}")
    note = (
        f"{not_converged} did not converge in {MAX_ITER} epochs; the bound is below {USEFUL:.0%} of the "
        f"targets' spread for {useful}; the largest error is {largest:.2g} of its bound"
    )
    return [
        Count("converged models predict what the dense solution does", compared, tuple(failures), note)
    ]


if __name__ == "__main__":
    case = Case.draw(*map(int, sys.argv[1:3]))
    found = compare(case)
    print(case, found, sep="\n")
    sys.exit(1 if found.worst > 1 else 0)
