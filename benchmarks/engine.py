"""How close training comes to the arithmetic it cannot avoid, as ratios within one run.

    make bench                    # all parts, about ten minutes on two cores
    python benchmarks/engine.py --data DIR --parts bytes floats

The yardstick is the time of one full float32 matrix product of the same size, 2 n² d operations at the
rate measured in this run.  Compared parts alternate, and of several runs the best counts, since others
may share the machine.  Results go to standard output and, with --out, to a JSON file.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.svm import SVC

# Run as a script, Python looks for modules in this folder, and not in the one above it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.paper.data import FOLDER, Data, Set
from benchmarks.paper.peers import BANDWIDTHS, fitted
from benchmarks.paper.power_law import exponent
from benchmarks.paper.problem import (
    CPU,
    Problem,
    exactly,
    planned,
    rehearsed,
    train,
    train_sgd,
    untrained,
)
from benchmarks.paper.results import machine
from benchmarks.paper.until import trained_until
from benchmarks.peak import run_apart
from benchmarks.stopwatch import fastest
from mercer import Gaussian, KernelClassifier, KernelRegressor, Laplacian
from mercer.kernels import Kernel
from mercer.planning.resource import measure_resource

RUNS = 3
# The authors' bandwidth for MNIST.
WIDTH = BANDWIDTHS["mnist"]


def full_product_seconds(n: int, d: int) -> float:
    """2 n² d operations at the rate of a product large enough to run at its best."""
    a, b = torch.randn(2048, d), torch.randn(8192, d)
    out = torch.empty(2048, 8192)
    return fastest(lambda: torch.mm(a, b.T, out=out), 5) * (n / 2048) * (n / 8192)


def exponential_seconds(count: float) -> float:
    tile = -torch.rand(512, 512)
    out = torch.empty_like(tile)
    return fastest(lambda: torch.exp(tile, out=out), 50) * count / tile.numel()


def fresh_memory_seconds(size: float) -> float:
    """Writing once to so many bytes of newly allocated memory, at the rate of one GiB."""
    return fastest(lambda: torch.empty(1 << 28).fill_(1.0), 1) * size / (1 << 30)


def epochs(problem: Problem, count: int, keep: bool) -> list[float]:
    """Seconds of each epoch, set-up not included."""
    kept = problem.plan.kept_memory if keep else 0.0
    outcome = train(problem, exactly(count), kept_memory=kept)
    return [epoch.seconds for epoch in outcome.history.epochs]


def mnist_points(folder: Path, as_bytes: bool, n: int = 60_000) -> Problem:
    digits = Data(folder).load("mnist")
    order = np.random.default_rng(0).permutation(len(digits.X))[:n]
    machine, y = untrained(digits.X[order], digits.targets()[order], Gaussian(WIDTH), as_bytes)
    return planned(machine.kernel, machine.centres, y)


def random_points(n: int, d: int, l: int, kernel: Kernel) -> Problem:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=generator)
    return planned(kernel, kernel.points(x), torch.randn(n, l, generator=generator))


def first_epochs(problem: Problem, n: int, d: int, runs: int = RUNS) -> tuple[float, float]:
    """Best seconds of a first epoch with nothing kept, and of the full product, taken in turn."""
    product, first = full_product_seconds(n, d), math.inf
    for _ in range(runs):
        first = min(first, epochs(problem, 1, keep=False)[0])
        product = min(product, full_product_seconds(n, d))
    return first, product


def part_bytes(folder: Path) -> list[dict[str, Any]]:
    problem = mnist_points(folder, as_bytes=True)
    first, product = first_epochs(problem, 60_000, 784)
    kept = epochs(problem, 5, keep=True)
    product = min(product, full_product_seconds(60_000, 784))
    fresh = fresh_memory_seconds(60_000**2 / 2 * 4)
    return [
        row("MNIST bytes, first epoch, nothing kept ÷ full product", first / product, 0.25),
        row("MNIST bytes, first epoch, all kept ÷ full product", kept[0] / product, 0.25),
        row("first touch of the memory kept ÷ full product", fresh / product, None),
        row("MNIST, later epoch, all kept ÷ full product", min(kept[1:]) / product, 0.06),
    ]


def part_floats(folder: Path) -> list[dict[str, Any]]:
    first, product = first_epochs(mnist_points(folder, as_bytes=False), 60_000, 784, runs=2)
    return [row("MNIST float32, first epoch ÷ full product", first / product, 0.62)]


def part_timit_shape(folder: Path) -> list[dict[str, Any]]:
    n, d = 50_000, 440
    first, product = first_epochs(random_points(n, d, 144, Laplacian(30.0)), n, d)
    name = "n = 50,000, d = 440, l = 144, Laplacian, first epoch ÷ full product"
    return [row(name, first / product, 0.70)]


def part_low_dimension(folder: Path) -> list[dict[str, Any]]:
    n, d = 100_000, 18
    exponentials = exponential_seconds(n * n / 2)
    first, product = first_epochs(random_points(n, d, 1, Gaussian(4.0)), n, d)
    exponentials = min(exponentials, exponential_seconds(n * n / 2))
    name = "n = 100,000, d = 18, first epoch ÷ (product + n²/2 exp)"
    return [row(name, first / (product + exponentials), 1.5)]


def part_overhead(folder: Path) -> list[dict[str, Any]]:
    problem = mnist_points(folder, as_bytes=True)
    m = problem.plan.batch_size
    ours, plain = [], []
    for _ in range(RUNS):
        ours.append(epochs(problem, 1, keep=False)[0])
        # The same batch and the same panels, nothing levelled; the step is small enough for that.
        sgd = train_sgd(problem, exactly(1), m=m, step=1e-3, rows_at_once=None)
        plain.append(sgd.history[0].seconds)
    overhead = min(ours) / min(plain) - 1
    return [row("levelled kernel over plain SGD, one epoch, n = 60,000", overhead, 0.10)]


def part_setup(folder: Path) -> list[dict[str, Any]]:
    p = mnist_points(folder, as_bytes=True)
    first = epochs(p, 1, keep=False)[0]

    def set_up() -> None:
        with tempfile.TemporaryDirectory() as empty:
            resource = measure_resource(CPU, cache=Path(empty) / "capacity.json")
            rehearsed(planned(p.kernel, p.points, p.y, resource), resource)

    name = "calibration, spectrum, fresh estimates and rehearsal ÷ first epoch, n = 60,000"
    return [row(name, fastest(set_up, 3) / first, 0.10)]


def part_prediction(folder: Path) -> list[dict[str, Any]]:
    """The plan's own prediction of seconds beside what training then takes."""
    mnist = Data(folder).load("mnist")
    images, digits = mnist.X, mnist.y
    generator = np.random.default_rng(0)
    few, many = (
        generator.normal(size=shape).astype(np.float32) for shape in ((40_000, 18), (20_000, 440))
    )
    outputs = generator.normal(size=(20_000, 144))
    common: dict[str, Any] = {"ridge": 0.0, "interpolation_tol": 0.0, "max_iter": 3, "random_state": 0}
    gaussian, laplacian = Gaussian(4.0), Laplacian(30.0)
    fits = {
        "MNIST, 60,000 rows": (KernelClassifier(Gaussian(WIDTH), **common), images, digits),
        "MNIST, 30,000 rows": (KernelClassifier(Gaussian(WIDTH), **common), images[::2], digits[::2]),
        "d = 18, 40,000 rows": (KernelRegressor(gaussian, **common), few, np.sin(few[:, 0])),
        "d = 440, l = 144, 20,000 rows": (KernelRegressor(laplacian, **common), many, outputs),
        "defaults on d = 18, 5,000 rows": (
            KernelRegressor(max_iter=3, random_state=0),
            few[:5_000],
            np.sin(few[:5_000, 0]),
        ),
    }
    rows = []
    for name, (model, X, y) in fits.items():
        plan = model.plan(X, y)
        first, *later = (epoch.seconds for epoch in model.fit(X, y).history_.epochs)
        assert plan.first_epoch_seconds is not None
        assert plan.later_epoch_seconds is not None
        for epoch, predicted, taken in (
            ("first", plan.first_epoch_seconds, first),
            ("later", plan.later_epoch_seconds, min(later)),
        ):
            factor = max(predicted / taken, taken / predicted)
            label = f"predicted {predicted:.2f} s, taken {taken:.2f} s: factor"
            rows.append(row(f"{name}, {epoch} epoch, {label}", factor, 1.5))
    return rows


PEAK_SCRIPT = """
import sys, warnings
import numpy as np
from benchmarks.peak import peak_bytes
from mercer import KernelRegressor
warnings.simplefilter("ignore")
n, d, memory = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
rng = np.random.default_rng(0)
X = rng.normal(size=(n, d)).astype(np.float32)
y = np.sin(X[:, :3])
KernelRegressor("laplacian", random_state=0).fit(X[:300], y[:300])  # libraries and threads are there
model = KernelRegressor("laplacian", random_state=0, memory_limit=memory, max_iter=2)
taken = peak_bytes(lambda: model.fit(X, y))
print(model.plan_.peak_memory, taken)
"""


def part_peak(folder: Path) -> list[dict[str, Any]]:
    """The plan's own prediction of peak memory beside what training then takes (Linux)."""
    rows = []
    for n, d, memory in ((12_000, 20, "250MB"), (20_000, 20, "auto"), (12_000, 400, "auto")):
        printed = run_apart(["-c", PEAK_SCRIPT, str(n), str(d), memory])
        predicted, taken = (float(text) / 1024**2 for text in printed.split())
        factor = max(predicted / taken, taken / predicted)
        label = f"predicted {predicted:.0f} MiB, taken {taken:.0f} MiB: factor"
        rows.append(row(f"peak memory, n = {n:,}, d = {d}, memory {memory}, {label}", factor, 1.5))
    return rows


def part_exponent(folder: Path) -> list[dict[str, Any]]:
    sizes = [10_000, 20_000, 40_000, 80_000]
    seconds = []
    for n in sizes:
        problem = random_points(n, 100, 10, Gaussian(10.0))
        seconds.append(min(epochs(problem, 1, keep=False)[0] for _ in range(RUNS)))
    p = exponent(sizes, seconds)
    return [row("epoch time ~ n^p, n = 10,000 to 80,000: p", p, 2.05)]


def against(svm: Callable[..., Any], data: Set, error: float | None = None) -> float:
    """Seconds that the SVM takes over Mercer's to the test error `error`, by default the SVM's own."""
    theirs = fitted("SVM", lambda: svm(C=10, gamma=1 / (2 * WIDTH**2)), data)
    ours = trained_until("Mercer", data, theirs.error if error is None else error, WIDTH, ridge=0.0)
    for one in (theirs, ours):
        print(f"  {one.method}: {one.seconds:.1f} s, error {one.error:.2%}")
    return theirs.seconds / ours.seconds


def part_svc(folder: Path) -> list[dict[str, Any]]:
    mnist = Data(folder).load("mnist")
    first = replace(mnist, X=mnist.X[:20_000], y=mnist.y[:20_000])
    name = "sklearn.svm.SVC(C=10) time ÷ Mercer's to its error, 20,000 of MNIST"
    return [row(name, against(SVC, first), 15, larger=True)]


def part_intelex(folder: Path) -> list[dict[str, Any]]:
    try:
        from sklearnex.svm import SVC as FastSVC
    except ImportError:
        print("scikit-learn-intelex is not installed: left out (pip install 'mercer[bench]')")
        return []
    name = "scikit-learn-intelex SVC(C=10) time ÷ Mercer's to 1.40 %, full MNIST"
    return [row(name, against(FastSVC, Data(folder).load("mnist"), 0.0140), 5, larger=True)]


PARTS: dict[str, Callable[[Path], list[dict[str, Any]]]] = {
    "bytes": part_bytes,
    "floats": part_floats,
    "timit-shape": part_timit_shape,
    "low-dimension": part_low_dimension,
    "overhead": part_overhead,
    "setup": part_setup,
    "prediction": part_prediction,
    "peak": part_peak,
    "exponent": part_exponent,
    "svc": part_svc,
    "intelex": part_intelex,
}


def row(measure: str, value: float, target: float | None, larger: bool = False) -> dict[str, Any]:
    """A line of the table; without a target it explains another."""
    if target is None:
        print(f"{measure}: {value:.3f}", flush=True)
        return {"measure": measure, "value": round(value, 3)}
    met = value >= target if larger else value <= target
    sign = "≥" if larger else "≤"
    print(f"{measure}: {value:.3f} (target {sign} {target}) {'met' if met else 'NOT MET'}", flush=True)
    return {"measure": measure, "value": round(value, 3), "target": f"{sign} {target}", "met": bool(met)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=FOLDER)
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    arguments = parser.parse_args()
    print(machine())
    rows = [line for name in arguments.parts for line in PARTS[name](arguments.data)]
    if arguments.out:
        arguments.out.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
