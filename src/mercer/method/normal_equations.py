"""Few centres: the equations of the projected problem, solved at once.

The weights that minimise sum_i w_i (f(x_i) - y_i)^2 + r ||f||^2 over functions of the centres Z solve

    (G + r K_ZZ) alpha = b,        G = K_ZX W K_XZ,        b = K_ZX W y.

The condition number of G is the square of that of K_XZ.  Two things keep digits:

- G and b are sums in float64 of products that are exact there if K is in float32.  So G is the Gram
  matrix of the values as they were evaluated: their rounding error changes features, not squares.
- It is solved in the coordinates of the features K_XZ L^-T, K_ZZ = L L^T, in which the ridge is r I
  (the preconditioner of Falkon; Rudi, Carratino, Rosasco, 2017).

L needs a jitter, and the factor of L^-1 G L^-T + r I a ridge above the rounding error of G.  Both only
make a preconditioner: conjugate gradients on the equations as they are remove what they changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mercer.operators.summation import pieces
from mercer.operators.workers import Workers

# Jitter of K_ZZ in units of the rounding error of its spectrum, and the least in units of k(x, x): below
# it, the rounding error of G would be as large as G itself in these directions.
JITTER_ROUNDINGS = 4.0
LEAST_JITTER = 1e-10
# Columns of a block of G, one product of a core: smaller ones waste less on the diagonal.  With 2,048
# centres, blocks of 256 took 0.88 of the processor time with 512, and 0.65 of that of the whole matrix.
GRAM_BLOCK = 256
# Conjugate gradients end when the residual, in the norm of the preconditioner, is this share of the
# right-hand side's, or after so many iterations, each of which reads G once.
GRADIENTS_TOLERANCE = 1e-12
MOST_ITERATIONS = 100


@dataclass(frozen=True)
class Factors:
    """Lower triangular factors of K_ZZ and of L^-1 G L^-T + r I, which make a preconditioner.

    That of the equations of most rows is nearly that of all.
    """

    L: Tensor  # (p, p)
    C: Tensor  # (p, p)

    def forward(self, v: Tensor) -> Tensor:
        return _divided(_divided(v, self.L), self.C)  # C^-1 L^-1 v

    def back(self, v: Tensor) -> Tensor:
        v = _divided(v, self.C.T, upper=True)
        return _divided(v, self.L.T, upper=True)  # L^-T C^-T v


class NormalEquations:
    """Sums over rows of the two sides of the equations, in float64."""

    def __init__(self, p: int, n_outputs: int, workers: Workers, device: torch.device) -> None:
        self.workers = workers
        self.G = torch.zeros(p, p, dtype=torch.float64, device=device)  # below the diagonal's blocks
        self.b = torch.zeros(p, n_outputs, dtype=torch.float64, device=device)  # (p, l)
        self.squares = 0.0  # sum of w_i y_i²
        self._blocks = pieces(0, p, GRAM_BLOCK)

    def add(self, K: Tensor, y: Tensor, weight: Tensor | None = None) -> None:
        """Add rows: K(Z, rows), (p, R), their targets, (R, l), and weights, (R, 1)."""
        y = y.double()
        weighted = y if weight is None else weight.double() * y  # (R, l)
        root = None if weight is None else weight.double().sqrt().T  # (1, R)
        exact = torch.empty(K.shape, dtype=torch.float64, device=K.device)  # (p, R)
        self.squares += float((weighted * y).sum())

        def convert(i: int, worker: int) -> None:
            c = self._blocks[i]
            exact[c] = K[c]
            self.b[c].addmm_(exact[c], weighted)
            if root is not None:
                exact[c].mul_(root)

        pairs = [(c, d) for i, c in enumerate(self._blocks) for d in self._blocks[: i + 1]]

        def multiply(i: int, worker: int) -> None:
            c, d = pairs[i]
            self.G[c, d].addmm_(exact[c], exact[d].T)

        self.workers.run(convert, len(self._blocks))
        self.workers.run(multiply, len(pairs))

    def complete(self) -> None:
        """Fill in the other half of G, which is symmetric."""
        for i, c in enumerate(self._blocks):
            for d in self._blocks[:i]:
                self.G[d, c] = self.G[c, d].T

    def include(self, more: NormalEquations) -> None:
        """Add the sums of other rows; both are complete."""
        self.G += more.G
        self.b += more.b
        self.squares += more.squares

    def factors(self, K: Tensor, ridge: float, eps: float) -> Factors | None:
        """Those that `solve` needs, after `complete`; K is K_ZZ, with a rounding error eps.

        None for a kernel that is not positive definite.
        """
        L = _jittered(K, eps)
        return None if L is None else Factors(L, _ridged(self._in_features(L), ridge))

    def solve(self, K: Tensor, ridge: float, factors: Factors | None) -> Tensor:
        """alpha, (p, l), in float64, with the factors of these equations or of most of their rows."""
        if factors is None:
            return self._least_norm(K, ridge)
        forward, back = factors.forward, factors.back

        def product(alpha: Tensor) -> Tensor:
            return self.G @ alpha + ridge * (K @ alpha)  # (p, l)

        alpha = back(forward(self.b))  # (p, l)
        r = forward(self.b - product(alpha))
        wanted = GRADIENTS_TOLERANCE**2 * forward(self.b).square().sum(0)  # (l,)
        d, left = r.clone(), r.square().sum(0)
        best, lowest = alpha.clone(), left.clone()
        for _ in range(MOST_ITERATIONS):
            if bool((lowest <= wanted).all()):
                break
            step = back(d)
            q = forward(product(step))
            curvature = (d * q).sum(0)  # (l,)
            rate = torch.where(curvature > 0, left / curvature, 0.0)
            alpha, r = alpha + rate * step, r - rate * q
            new = r.square().sum(0)
            d, left = r + torch.where(left > 0, new / left, 0.0) * d, new
            better = new < lowest
            best, lowest = torch.where(better, alpha, best), torch.where(better, new, lowest)
        return best

    def solve_each(self, K: Tensor, ridges: Sequence[float], eps: float) -> list[Tensor]:
        """alpha for each ridge, to the digits that the preconditioner leaves: enough to judge it."""
        L = _jittered(K, eps)
        if L is None:
            return [self._least_norm(K, ridge) for ridge in ridges]
        H, b = self._in_features(L), _divided(self.b, L)  # (p, p), (p, l)
        found = []
        for ridge in ridges:
            beta = torch.cholesky_solve(b, _ridged(H, ridge))  # (p, l)
            found.append(_divided(beta, L.T, upper=True))
        return found

    def error(self, alpha: Tensor) -> float:
        """sum_i w_i (f(x_i) - y_i)² of the weights, (p, l)."""
        squares = float((alpha * (self.G @ alpha)).sum()) - 2 * float((alpha * self.b).sum())
        return max(0.0, squares + self.squares)

    def _in_features(self, L: Tensor) -> Tensor:
        """L^-1 G L^-T, (p, p)."""
        return self._solved(L, self._solved(L, self.G).T)

    def _solved(self, L: Tensor, B: Tensor) -> Tensor:
        """L^-1 B, (p, p), a block of columns a core."""
        found = torch.empty_like(L)

        def work(i: int, worker: int) -> None:
            c = self._blocks[i]
            found[:, c] = _divided(B[:, c], L)

        self.workers.run(work, len(self._blocks))
        return found

    def _least_norm(self, K: Tensor, ridge: float) -> Tensor:
        """Without the directions that have no positive eigenvalue."""
        values, U = torch.linalg.eigh(self.G + ridge * K)
        known = values > torch.finfo(values.dtype).eps * len(values) * values.abs().max()
        alpha: Tensor = U @ (torch.where(known, 1 / values, 0.0)[:, None] * (U.T @ self.b))
        return alpha


def _divided(v: Tensor, T: Tensor, upper: bool = False) -> Tensor:
    """T^-1 v for a triangular T."""
    found: Tensor = torch.linalg.solve_triangular(T, v, upper=upper)
    return found


def _jittered(K: Tensor, eps: float) -> Tensor | None:
    """The factor of K_ZZ and a jitter above its rounding error, if that is positive definite."""
    jitter = max(JITTER_ROUNDINGS * eps * math.sqrt(len(K)), LEAST_JITTER)
    return _cholesky(K, float(K.diagonal().mean()) * jitter)


def _ridged(H: Tensor, ridge: float) -> Tensor:
    """The factor of H and a ridge, or more than that if the rounding error of H is larger."""
    noise = torch.finfo(torch.float64).eps * math.sqrt(len(H)) * float(H.diagonal().max())
    shift = max(ridge, noise)
    while (C := _cholesky(H, shift)) is None:
        shift *= 10
    return C


def _cholesky(A: Tensor, shift: float) -> Tensor | None:
    """The factor of A + shift I, if that is positive definite."""
    shifted = A.clone()
    shifted.diagonal().add_(shift)
    factor, failed = torch.linalg.cholesky_ex(shifted)
    return None if bool(failed) else factor
