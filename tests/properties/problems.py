"""Small problems for the laws: data, inputs to predict, and parameters of an estimator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from mercer import KernelClassifier, KernelRegressor

Array = NDArray[Any]
INVARIANT = (
    "laplacian",
    "l1_laplacian",
    "gaussian",
    "cauchy",
    "matern32",
    "matern52",
    "exponential_power",
)
KERNELS = (*INVARIANT, "neural_tangent")
# Differences between computations of the same quantity, as a share of the targets' spread: float32 has
# seven digits, and sums over a hundred points cost up to two of them.
ROUNDING = 1e-5
SEEDS = st.integers(0, 2**32 - 1)
# Every fit of a law takes the same number of steps.
FIXED = {"interpolation_tol": 0.0, "early_stopping": False, "max_iter": 8, "random_state": 0}


@dataclass(frozen=True)
class Problem:
    X: Array  # (n, d)
    y: Array  # (n,)  numbers with standard deviation 1, or labels
    X_new: Array  # (m, d)
    parameters: dict[str, Any]

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What Hypothesis prints of a problem that breaks a law."""
        printer.text(f"X {self.X.shape}, X_new {self.X_new.shape}, {self.parameters}")

    @property
    def rounding(self) -> float:
        """The same for two models: weights are of the size of the targets over the ridge."""
        return ROUNDING / min(1.0, 10 * self.parameters["ridge"])

    @property
    def is_regression(self) -> bool:
        return self.y.dtype.kind == "f"

    def model(self, **changes: Any) -> Any:
        kind = KernelRegressor if self.is_regression else KernelClassifier
        return kind(**self.parameters | changes)

    def fitted(self, **changes: Any) -> Any:
        return self.model(**changes).fit(self.X, self.y)


@st.composite
def problems(draw: st.DrawFn, kernels: tuple[str, ...] = KERNELS, classes: int = 0) -> Problem:
    """A regression, or a classification with up to so many classes."""
    n, d, m = draw(st.tuples(st.integers(20, 120), st.integers(1, 4), st.integers(1, 40)))
    rng = np.random.default_rng(draw(SEEDS))
    X, X_new = rng.normal(size=(n, d)), rng.normal(size=(m, d))
    y = np.sin(X.sum(1)) + 0.3 * rng.normal(size=n)
    y = (y - y.mean()) / y.std()
    if classes:
        count = draw(st.integers(2, classes))
        y = np.argsort(np.argsort(y)) * count // n
    parameters = FIXED | {
        "kernel": draw(st.sampled_from(kernels)),
        "bandwidth": draw(st.floats(0.5, 4)),
        "ridge": draw(st.sampled_from([0.01, 0.1, 1.0])),
        "precision": draw(st.sampled_from(["float32", "float64"])),
    }
    return Problem(X, y, X_new, parameters)


def assert_same(found: Any, expected: Any, rounding: float = ROUNDING) -> None:
    """Equal but for rounding; the spread of all targets is 1."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=rounding)
