"""Operations of a run: what levelling more eigenvalues costs, and what an epoch saved is worth.

The unit is one multiplication and addition of a matrix product, as for one feature of a kernel value.
Counts depend on the problem and on constants only, never on a measurement, so that the plan that is
built on them is the same on every run and for any number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass

from mercer.method.spectrum import POWER_PASSES

# Elementwise passes of one kernel value cost about as much as this many features.
ELEMENTWISE_FEATURES = 50
# So does reading a kept value, directly and transposed, beside its product with the weights: a later
# epoch of MNIST, 60,000 rows of bytes, takes 0.28 of the first.
KEPT_FEATURES = 30
# Columns of the products by which the largest eigenvalue of a dense matrix is estimated, in all.
ESTIMATE_COLUMNS = 16 * 10
# Time of an operation of the spectrum and of the estimates: their matrices are narrow, or fit no cache.
DENSE_OPERATION = 1.5


@dataclass(frozen=True)
class Work:
    """Operations of a run with n rows and l outputs, on so many ranks."""

    n: int
    l: int
    value: float  # of a kernel value and its product with the weights
    kept: bool  # later epochs read kernel values instead of evaluating them
    ranks: int = 1

    def levelling(self, s: int, q: int) -> float:
        """Z = Phi V for all rows."""
        return self.n * s * q / self.ranks

    def later_epoch(self, s: int, q: int) -> float:
        """Products with all weights, and what steps add for q levelled eigenvalues."""
        value = KEPT_FEATURES + self.l if self.kept else self.value
        Z = 0.0 if self.kept else self.levelling(s, q)
        return self.n * self.n * value / self.ranks + Z + 2 * self.n * q * self.l

    def later_epochs(self, count: float, s: int, q: int) -> float:
        """All but the first of so many epochs."""
        return max(0.0, count - 1) * self.later_epoch(s, q)


def decomposition(s: int, width: int) -> float:
    """Leading eigenpairs of s points by subspace iteration: products, and QR decompositions."""
    operations = (POWER_PASSES + 1) * s * s * width + 2.0 * POWER_PASSES * s * width * width
    return DENSE_OPERATION * operations


def fresh_estimate(f: int, s: int, q: int) -> float:
    """beta and lambda_1 on f fresh points."""
    return DENSE_OPERATION * (f * s * q + f * f * (q + ESTIMATE_COLUMNS))
