"""Which rows should be centres: random ones, k-means++, or by leverage scores, at equal p.

    python benchmarks/samplers.py

Every set of centres gets the exact solution of (K_ZX K_XZ + r K_ZZ) alpha = K_ZX y, with the Laplacian
kernel on standardised features, the median distance of rows as its bandwidth, and the ridge that is best
on held-out rows.  Only errors are compared.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import kmeans_plusplus
from torch import Tensor

# Run as a script, Python looks for modules in this folder, and not in the one above it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.paper.data import FOLDER
from mercer.kernels import Laplacian

TABLES = ("nycflights13", "covtype", "california_houses")
HELD_OUT, TEST = 2_000, 10_000
PILOT = 2_000  # random rows that leverage scores are estimated with
RIDGES = (0.01, 0.1, 1.0, 10.0)
Array = NDArray[Any]


def by_leverage(kernel: Laplacian, x: Tensor, p: int, ridge: float, rng: np.random.Generator) -> Array:
    """Rows drawn in proportion to their ridge leverage scores in the span of some random rows."""
    points = kernel.points(x)
    few = kernel.points(x[torch.from_numpy(rng.permutation(len(x))[:PILOT])])
    K = kernel.block(few, few, same=True).double()
    L = torch.linalg.cholesky(K + 1e-6 * torch.eye(len(K)))
    F = torch.linalg.solve_triangular(L, kernel.block(few, points).double(), upper=False)  # (s, n)
    C = torch.linalg.cholesky(F @ F.T + ridge * torch.eye(len(F)))
    scores = torch.linalg.solve_triangular(C, F, upper=False).square().sum(0).numpy()  # (n,)
    return rng.choice(len(x), p, replace=False, p=scores / scores.sum())


def errors(name: str, folder: Path, n: int, p: int, seed: int) -> dict[str, float]:
    """Test error with the centres of each kind."""
    data, rng = np.load(folder / f"{name}.npz"), np.random.default_rng(seed)
    order = rng.permutation(len(data["X"]))
    n = min(n, len(order) - HELD_OUT - 2_000)
    order = order[: n + HELD_OUT + TEST]
    X, y = data["X"][order].astype(np.float64), data["y"][order]
    X = (X - X[:n].mean(0)) / np.maximum(X[:n].std(0), 1e-12)
    classify = name == "covtype"
    Y = (y[:, None] == np.unique(y)).astype(float) if classify else y[:, None].astype(float)
    Y = Y - Y[:n].mean(0)
    x = torch.from_numpy(X).float()
    kernel = Laplacian(bandwidth=float(torch.pdist(x[:1_000]).median()))
    points, targets = kernel.points(x), torch.from_numpy(Y)

    def error(f: Tensor, rows: slice) -> float:
        if classify:
            return float((f.argmax(1) != targets[rows].argmax(1)).double().mean())
        return float((f - targets[rows]).square().mean() / targets[rows].var())

    def judged(centres: Array) -> float:
        z = kernel.points(x[torch.from_numpy(np.asarray(centres))])
        K, K_zz = kernel.block(points, z).double(), kernel.block(z, z, same=True).double()
        G, b = K[:n].T @ K[:n], K[:n].T @ targets[:n]
        found = []
        for ridge in RIDGES:
            A = G + ridge * K_zz + 1e-9 * G.diagonal().mean() * torch.eye(p)
            f = K[n:] @ torch.cholesky_solve(b, torch.linalg.cholesky(A))
            rest = slice(n + HELD_OUT, len(x))
            found.append((error(f[:HELD_OUT], slice(n, n + HELD_OUT)), error(f[HELD_OUT:], rest)))
        return min(found)[1]

    return {
        "random": judged(rng.permutation(n)[:p]),
        "k-means++": judged(kmeans_plusplus(X[:n], p, random_state=seed)[1]),
        "leverage": judged(by_leverage(kernel, x[:n], p, 1.0, rng)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=FOLDER)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--centres", type=int, default=1_000)
    given = parser.parse_args()
    for name in TABLES:
        for seed in (0, 1):
            found = errors(name, given.data, given.rows, given.centres, seed)
            print(name, seed, {kind: round(error, 4) for kind, error in found.items()}, flush=True)


if __name__ == "__main__":
    main()
