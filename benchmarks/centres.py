"""More rows than centres: errors and seconds beside other solvers of the same problem.

    python benchmarks/centres.py --out benchmarks/centres.json
    python benchmarks/centres.py --parts covtype flights --centres 4000
    python benchmarks/centres.py --parts growth memory

The kernel, its features, the ridge and the centres are those that Mercer chose, and its first epochs'
seconds include neither the choice nor the set-up that all solvers share.  Nyström + ridge solves the
normal equations (K_ZX K_XZ + r K_ZZ) alpha = K_ZX y, half of whose symmetric sums are computed, over
chunks of rows.  Where it would take more than `--longest` seconds, some chunks are timed, and the time
of the sums, which is proportional to the rows, is extrapolated.  scikit-learn's `Nystroem` and `Ridge`
find the same function from the same kernel values, but hold all n × p features: where those would take
more than `MOST_FEATURE_BYTES`, two numbers of rows are timed, and all of them extrapolated.  Falkon is
preconditioned conjugate gradients on the same equations (Rudi, Carratino, Rosasco, 2017), so its error
tends to that of Nyström + ridge.

`--model FILE` saves the model, or takes a saved one instead of training, so that solvers can be run
apart.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import Ridge
from torch import Tensor

# Run as a script, Python looks for modules in this folder, and not in the one above it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import mercer
from benchmarks import streaming
from benchmarks.paper.data import FOLDER
from benchmarks.paper.digits import deformed
from benchmarks.paper.power_law import exponent
from benchmarks.paper.results import machine
from benchmarks.peak import run_apart
from benchmarks.row import Row
from mercer import KernelClassifier, KernelRegressor
from mercer.data.points import Points
from mercer.kernels.base import Kernel
from mercer.method.normal_equations import NormalEquations
from mercer.operators.tiled import TiledOperator
from mercer.operators.workers import workers_for
from mercer.stopwatch import Stopwatch, fastest

TEST_ROWS = 20_000
CHUNK = 4_096
FALKON_ITERATIONS = 20
# Of Nyström + ridge on all rows; beyond, so many chunks are timed.
MOST_SECONDS = 240.0
TIMED_CHUNKS = 2
# Of scikit-learn's features of all rows, which are in memory more than once.
MOST_FEATURE_BYTES = 4 * 1024**3
STREAM_BYTES = 10 * 1024**3
SOLVERS = ("nystrom", "scikit-learn", "falkon", "lightgbm")
PARTS = ("covtype", "flights", "digits", "growth", "memory")


def normal_equations(
    kernel: Kernel, x: Points, z: Points, y: Tensor, ridge: float, longest: float
) -> Solved:
    """By a Cholesky factorisation; half of the symmetric sums, in float64, since squares lose digits."""
    p, cpu, done, watch = len(z), torch.device("cpu"), 0, Stopwatch()
    sums, first_chunk = NormalEquations(p, y.shape[1], workers_for(cpu), cpu), 0.0
    for number, first in enumerate(range(0, len(x), CHUNK)):
        rows = slice(first, min(first + CHUNK, len(x)))
        sums.add(kernel.block(z, x[rows]), y[rows])
        if number == 0:
            first_chunk = watch.seconds  # touches fresh memory
        done = rows.stop
        each = (watch.seconds - first_chunk) / max(1, number)
        if number == TIMED_CHUNKS and each * len(x) / CHUNK > longest:
            break
    summed = watch.seconds if done == len(x) else each * len(x) / CHUNK
    watch = Stopwatch()
    sums.complete()
    A = sums.G.add_(kernel.block(z, z, same=True), alpha=ridge)
    A.diagonal().add_(1e-9 * float(A.diagonal().mean()))
    alpha = torch.cholesky_solve(sums.b, torch.linalg.cholesky(A)).float()
    return Solved(alpha if done == len(x) else None, summed + watch.seconds, done)


def scikit_learn(kernel: Kernel, x: Points, z: Points, y: Tensor, ridge: float) -> Solved:
    """`Nystroem` and `Ridge` of Mercer's kernel values, in float32, which is sooner than float64."""
    n, p, watch = len(x), len(z), Stopwatch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of rows that are not kernel values of one another
        nystroem = Nystroem(kernel="precomputed", n_components=p, random_state=0)
        nystroem.fit(kernel.block(z, z, same=True).numpy())
    shared = watch.seconds

    def fitted(rows: slice) -> tuple[Ridge, float]:
        watch = Stopwatch()
        features = nystroem.transform(kernel.block(x[rows], z).numpy())
        return Ridge(alpha=ridge, fit_intercept=False).fit(features, y[rows].numpy()), watch.seconds

    if 4 * n * p <= MOST_FEATURE_BYTES:
        model, seconds = fitted(slice(0, n))
        weights = nystroem.normalization_.T @ model.coef_.reshape(-1, p).T  # (p, l)
        return Solved(torch.from_numpy(weights).float(), shared + seconds, n)
    (_, few), (_, more) = fitted(slice(0, p)), fitted(slice(0, 2 * p))
    return Solved(None, shared + few + (more - few) * (n - p) / p, 2 * p)


@dataclass(frozen=True)
class Solved:
    """Weights, unless only some of the rows were timed, and the seconds for all of them."""

    alpha: Tensor | None
    seconds: float
    timed_rows: int


def falkon(
    kernel: Kernel, x: Points, z: Points, y: Tensor, ridge: float, iterations: int
) -> Iterator[Tensor]:
    """alpha after each iteration: conjugate gradients on B^T (K_ZX K_XZ + r K_ZZ) B, with
    B = T^-1 A^-1 of the Cholesky factors T^T T = K_ZZ and A^T A = n/p T T^T + r I."""
    n, p = len(x), len(z)
    K_zz = kernel.block(z, z, same=True).double()
    T = torch.linalg.cholesky(K_zz + 1e-6 * torch.eye(p)).T  # upper
    # In float32, which is enough for a preconditioner.
    TT = (T.float() @ T.float().T).double()
    A = torch.linalg.cholesky(n / p * TT + max(ridge, 1e-6) * torch.eye(p)).T
    del TT

    def solved(R: Tensor, v: Tensor, upper: bool) -> Tensor:
        found: Tensor = torch.linalg.solve_triangular(R if upper else R.T, v, upper=upper)
        return found

    def B(v: Tensor) -> Tensor:
        return solved(T, solved(A, v, True), True)

    def B_t(v: Tensor) -> Tensor:
        return solved(A, solved(T, v, False), False)

    def product(alpha: Tensor) -> Tensor:
        total = torch.zeros_like(alpha)
        for first in range(0, n, CHUNK):
            K = kernel.block(x[first : min(first + CHUNK, n)], z)  # (R, p)
            total += (K.T @ (K @ alpha.float())).double()
        return total + ridge * K_zz @ alpha

    rhs = torch.zeros(p, y.shape[1], dtype=torch.float64)
    for first in range(0, n, CHUNK):
        rows = slice(first, min(first + CHUNK, n))
        rhs += (kernel.block(x[rows], z).T @ y[rows]).double()
    u = torch.zeros_like(rhs)
    r = B_t(rhs)
    d, size = r.clone(), r.square().sum(0)
    for _ in range(iterations):
        q = B_t(product(B(d)))
        a = size / (d * q).sum(0)
        u, r = u + a * d, r - a * q
        new = r.square().sum(0)
        d, size = r + new / size * d, new
        yield B(u).float()


def table(
    name: str,
    folder: Path,
    p: int,
    solvers: tuple[str, ...],
    target: float | None,
    saved: Path | None = None,
    longest: float = MOST_SECONDS,
    kernel_name: str = "auto",
    iterations: int = FALKON_ITERATIONS,
) -> list[Row]:
    """A table of the data folder, Mercer and the others with the same kernel and centres."""
    data = np.load(folder / f"{name}.npz")
    X, y = data["X"], data["y"]
    order = np.random.default_rng(0).permutation(len(X))
    test, rows = order[:TEST_ROWS], order[TEST_ROWS:]
    kind = KernelClassifier if name == "covtype" else KernelRegressor
    with warnings.catch_warnings(), Stopwatch() as whole:
        warnings.simplefilter("ignore")
        if saved is not None and saved.exists():
            model = mercer.load(saved)
        else:
            model = kind(kernel_name, n_centers=p, random_state=0, verbose=1).fit(X[rows], y[rows])
    if saved is not None and not saved.exists():
        model.save(saved)
    trained = sum(epoch.seconds for epoch in model.history_.epochs)
    error = 1 - model.score(X[test], y[test])
    n, label = len(rows), f"{name}, {len(rows):,} rows, p = {p:,}"
    epochs = "solved at once" if model.plan_.direct else f"{len(model.history_)} epochs"
    about = f"{epochs}, {whole.seconds:.0f} s with choice and set-up"
    found = [
        Row(f"{label}: Mercer, error", error, note=f"{model.plan_.kernel}"),
        Row(f"{label}: Mercer, training seconds", trained, note=about),
    ]
    first, later = model.plan_.first_epoch_seconds, model.plan_.later_epoch_seconds
    if first is not None and later is not None:
        predicted = first if model.plan_.direct else first + (len(model.history_) - 1) * later
        found.append(
            Row(f"{label}: predicted ÷ measured", predicted / trained, note=f"first {first:.0f} s")
        )
    print(*found, sep="\n", flush=True)
    m = model.machine_
    kernel, z, targets = m.kernel, m.centres, model._targets
    x = m.inputs.points(X[rows], None, m.alpha, True)
    centred = m.units.encode(targets.encode(y[rows]), m.alpha)  # (n, l)
    test_points = m.points(X[test])
    assert isinstance(z, Points)

    def judged(alpha: Tensor) -> float:
        f = m.units.decode(TiledOperator(kernel, test_points, z, alpha.shape[1]).times(alpha))
        return 1 - float(targets.score(y[test], f.numpy()))

    def told(solver: str, error: float, seconds: float, note: str = "") -> None:
        more = [
            Row(f"{label}: {solver}, error", error),
            Row(f"{label}: {solver}, seconds", seconds, note=note),
        ]
        print(*more, sep="\n", flush=True)
        found.extend(more)

    if not model.plan_.direct:
        value = _value_seconds(kernel, x, z, centred.shape[1])
        epoch = min(epoch.seconds for epoch in model.history_.epochs)
        ratio = Row(f"{label}: epoch ÷ 2.5 n p kernel values", epoch / (2.5 * n * p * value), 1.2)
        print(ratio, flush=True)
        found.append(ratio)
    if "nystrom" in solvers:
        solved = normal_equations(kernel, x, z, centred, model.plan_.ridge, longest)
        if solved.alpha is not None:
            exact = judged(solved.alpha)
            told("Nyström + ridge", exact, solved.seconds)
            note = f"{error:.5f} and {exact:.5f}"
            found.append(Row(f"{label}: Mercer's error ÷ Nyström's", error / exact, 1.0, note=note))
        else:
            note = f"extrapolated from {solved.timed_rows:,} rows"
            found.append(Row(f"{label}: Nyström + ridge, seconds", solved.seconds, note=note))
        found.append(Row(f"{label}: Mercer's seconds ÷ Nyström's", trained / solved.seconds, target))
        print(*found[-2:], sep="\n", flush=True)
    if "scikit-learn" in solvers:
        solved = scikit_learn(kernel, x, z, centred, model.plan_.ridge)
        if solved.alpha is not None:
            told("scikit-learn", judged(solved.alpha), solved.seconds)
        else:
            note = f"extrapolated from {solved.timed_rows:,} rows"
            found.append(Row(f"{label}: scikit-learn, seconds", solved.seconds, note=note))
            print(found[-1], flush=True)
        found.append(
            Row(f"{label}: Mercer's seconds ÷ scikit-learn's", trained / solved.seconds, target)
        )
        print(found[-1], flush=True)
    if "falkon" in solvers:
        spent, best = 0.0, math.inf
        watch = Stopwatch()
        for i, alpha in enumerate(falkon(kernel, x, z, centred, model.plan_.ridge, iterations), start=1):
            if i in (1, 5, 10, iterations):
                spent, best = watch.seconds, judged(alpha)
                told(f"Falkon, {i} iterations", best, spent)
    if "lightgbm" in solvers:
        found += _lightgbm(label, X[rows], y[rows], X[test], y[test], kind is KernelClassifier)
    return found


def _lightgbm(label: str, X: Any, y: Any, X_test: Any, y_test: Any, classify: bool) -> list[Row]:
    try:
        import lightgbm  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        print("lightgbm is not installed: left out", flush=True)
        return []
    kind = lightgbm.LGBMClassifier if classify else lightgbm.LGBMRegressor
    with Stopwatch() as watch:
        model = kind(verbose=-1, n_jobs=torch.get_num_threads()).fit(X, y)
    rows = [
        Row(f"{label}: LightGBM, error", 1 - model.score(X_test, y_test)),
        Row(f"{label}: LightGBM, seconds", watch.seconds),
    ]
    print(*rows, sep="\n", flush=True)
    return rows


def _value_seconds(kernel: Kernel, x: Points, z: Points, n_outputs: int) -> float:
    """Of one kernel value and its product with weights, at the engine's own rate."""
    rows = x[: 8 * 1024]
    operator = TiledOperator(kernel, rows, z, n_outputs)
    weights = torch.randn(len(z), n_outputs)
    return fastest(lambda: operator.times(weights), 3) / (len(rows) * len(z))


def digits(folder: Path, p: int, n: int) -> list[Row]:
    """Deformed digits in bytes: p centres and n rows, beside every row a centre for p rows."""
    data = np.load(folder / "mnist.npz")
    X = data["X_train"].reshape(-1, 784).astype(np.float32) / 255
    X, y = deformed(X, data["y_train"], n)
    X = np.rint(255 * X).astype(np.uint8)
    test = data["X_test"].reshape(-1, 784)
    options: dict[str, Any] = {"kernel": "gaussian", "bandwidth": 5 * 255, "ridge": 0.0, "scale": False}
    options |= {"metric": False, "random_state": 0, "max_iter": 1, "categorical_features": None}
    found = []
    for label, rows, centres in ((f"{p:,} rows, all centres", p, None), (f"{n:,} rows", n, p)):
        model = KernelClassifier(**options, n_centers=centres, early_stopping=False)
        with warnings.catch_warnings(), Stopwatch() as watch:
            warnings.simplefilter("ignore")
            model.fit(X[:rows], y[:rows])
        error = 1 - model.score(test, data["y_test"])
        last = centres is not None
        found.append(Row(f"deformed digits, {label}, one epoch: error", error))
        found.append(
            Row(f"deformed digits, {label}, one epoch: seconds", watch.seconds, 300.0 if last else None)
        )
        print(*found[-2:], sep="\n", flush=True)
    found.append(
        Row("deformed digits: error ÷ that of all centres", found[2].value / found[0].value, 1.0)
    )
    print(found[-1], flush=True)
    return found


def growth(p: int) -> list[Row]:
    """Seconds of an epoch as n doubles."""
    sizes, seconds = [100_000, 200_000, 400_000, 800_000], []
    rng = np.random.default_rng(0)
    X = rng.normal(size=(sizes[-1], 20)).astype(np.float32)
    y = np.sin(X[:, 0]) + X[:, 1]
    options: dict[str, Any] = {"kernel": "laplacian", "bandwidth": 5.0, "ridge": 0.1, "scale": False}
    for n in sizes:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = KernelRegressor(
                **options, n_centers=p, max_iter=2, random_state=0, early_stopping=False
            ).fit(X[:n], y[:n])
        seconds.append(min(epoch.seconds for epoch in model.history_.epochs))
        print(Row(f"an epoch of {n:,} rows, p = {p:,}: seconds", seconds[-1]), flush=True)
    row = Row("exponent of an epoch's seconds in n", exponent(sizes, seconds), 1.05)
    print(row, flush=True)
    return [row]


def memory(size: int) -> list[Row]:
    """Resident memory of processes that stream a file of `size` bytes with a budget of 1 GB."""
    script, found = Path(__file__).with_name("streaming.py"), []
    with tempfile.TemporaryDirectory(prefix="mercer-stream-") as folder:
        path = Path(folder) / "rows.npy"
        rows = streaming.write(path, size)
        for how, label in (("python", "chunks"), ("cli", "mercer fit")):
            took = json.loads(run_apart([str(script), str(path), how]).splitlines()[-1])
            found.append(
                Row(
                    f"resident memory above the libraries', GB, with a budget of 1 GB: {label}",
                    took["above"] / 1024**3,
                    1.1,
                    note=f"{size / 1024**3:.1f} GB, {rows:,} rows, {took['seconds']:.0f} s",
                )
            )
            print(found[-1], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=FOLDER)
    parser.add_argument("--parts", nargs="*", default=PARTS, choices=PARTS)
    parser.add_argument("--centres", type=int, default=None, help="of the tables; 20,000 and 10,000")
    parser.add_argument("--model", type=Path, default=None, help="of one table, saved or to be saved")
    parser.add_argument("--solvers", nargs="*", default=SOLVERS, choices=SOLVERS)
    parser.add_argument("--kernel", default="auto", help="of the tables")
    parser.add_argument("--longest", type=float, default=MOST_SECONDS, help="seconds of Nyström")
    parser.add_argument("--iterations", type=int, default=FALKON_ITERATIONS, help="of Falkon")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the deformed digits")
    parser.add_argument("--bytes", type=int, default=STREAM_BYTES, help="of the file that is streamed")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    solvers, folder = tuple(given.solvers), given.data
    more = (0.5, given.model, given.longest, given.kernel, given.iterations)
    parts: dict[str, Callable[[], list[Row]]] = {
        "covtype": lambda: table("covtype", folder, given.centres or 20_000, solvers, *more),
        "flights": lambda: table("nycflights13", folder, given.centres or 10_000, solvers, *more),
        "digits": lambda: digits(folder, 60_000, given.rows),
        "growth": lambda: growth(5_000),
        "memory": lambda: memory(given.bytes),
    }
    rows = [row for part in given.parts for row in parts[part]()]
    if given.out is not None:
        found = {"machine": machine(), "rows": [row.to_dict() for row in rows]}
        given.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
