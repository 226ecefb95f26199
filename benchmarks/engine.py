"""How close training comes to the unavoidable arithmetic, as ratios within one run.

    make bench                                    # all parts, about ten minutes on two cores
    python benchmarks/engine.py --data DIR --parts bytes floats
    python benchmarks/engine.py --rows 2000       # smaller problems, without targets

The unit is the time of one full float32 matrix product of the same size: 2 n² d operations at the rate
measured in this run.  Compared parts alternate, and the best of several runs counts, since others may
share the machine.  Results are printed and, with --out, written to a JSON file.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits, make_friedman1
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import SVC

# Run as a script, Python looks for modules in this folder, and not in the one above it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.paper.data import FOLDER, Data, Set
from benchmarks.paper.peers import BANDWIDTHS, bandwidth_for, fitted
from benchmarks.paper.power_law import exponent
from benchmarks.paper.problem import (
    CPU,
    Problem,
    bytes_pay,
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
from benchmarks.row import Row
from mercer import Gaussian, KernelClassifier, KernelRegressor, Laplacian, release_memory
from mercer.engine import measure_resource
from mercer.kernels import Kernel
from mercer.method.schedule import first_epoch_values
from mercer.operators.tiled import panel_rows
from mercer.stopwatch import fastest

RUNS = 3
# The authors' bandwidth for MNIST.
WIDTH = BANDWIDTHS["mnist"]


@dataclass(frozen=True)
class Setting:
    """Where the data is, and the most training rows that a part may use."""

    folder: Path
    rows: int | None = None

    def at_most(self, n: int) -> int:
        return n if self.rows is None else min(n, self.rows)

    def mnist(self, n: int) -> Set:
        return Data(self.folder).load("mnist", self.at_most(n))


def full_product_seconds(n: int, d: int) -> float:
    """Seconds of 2 n² d operations at the rate of a product large enough for the full rate."""
    a, b = torch.randn(2048, d), torch.randn(8192, d)
    out = torch.empty(2048, 8192)
    return fastest(lambda: torch.mm(a, b.T, out=out), 5) * (n / 2048) * (n / 8192)


def exponential_seconds(count: float) -> float:
    tile = -torch.rand(512, 512)
    out = torch.empty_like(tile)
    return fastest(lambda: torch.exp(tile, out=out), 50) * count / tile.numel()


def fresh_memory_seconds(size: float) -> float:
    """Seconds to write `size` bytes of newly allocated memory, at the rate of one GiB."""
    return fastest(lambda: torch.empty(1 << 28).fill_(1.0), 1) * size / (1 << 30)


def epochs(problem: Problem, count: int, keep: bool) -> list[float]:
    """Seconds of each epoch, without set-up."""
    kept = problem.plan.kept_memory if keep else 0.0
    outcome = train(problem, exactly(count), kept_memory=kept)
    return [epoch.seconds for epoch in outcome.history.epochs]


def mnist_problem(setting: Setting, as_bytes: bool) -> Problem:
    digits = setting.mnist(60_000)
    # The whole dataset comes in the order of its file.
    order = np.random.default_rng(0).permutation(len(digits.X))
    machine, y = untrained(digits.X[order], digits.targets()[order], Gaussian(WIDTH), as_bytes)
    return planned(machine.kernel, machine.centres[:], y)


def fastest_mnist_problem(setting: Setting) -> tuple[Problem, str]:
    """MNIST as bytes where 8-bit products are faster and else as floats, and its name in rows."""
    as_bytes = bytes_pay()
    problem = mnist_problem(setting, as_bytes)
    kind = "bytes" if as_bytes else "float32, since 8-bit products are slower here"
    return problem, f"MNIST ({kind}), n = {problem.n:,}"


def random_problem(n: int, d: int, l: int, kernel: Kernel) -> Problem:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=generator)
    return planned(kernel, kernel.points(x), torch.randn(n, l, generator=generator))


def first_epochs(problem: Problem, d: int, runs: int = RUNS) -> tuple[float, float]:
    """Best seconds of a first epoch without kept values, and of the full product, in turn."""
    product, first = full_product_seconds(problem.n, d), math.inf
    for _ in range(runs):
        first = min(first, epochs(problem, 1, keep=False)[0])
        product = min(product, full_product_seconds(problem.n, d))
    return first, product


def part_bytes(setting: Setting) -> Iterator[Row]:
    problem, name = fastest_mnist_problem(setting)
    n, d, target = problem.n, 784, 0.25 if problem.points.is_bytes else None
    first, product = first_epochs(problem, d)
    release_memory()
    cold = epochs(problem, 5, keep=True)
    warm = epochs(problem, 5, keep=True)  # in the memory of the run before
    first = min(first, epochs(problem, 1, keep=False)[0])
    product = min(product, full_product_seconds(n, d))
    later = min(cold[1:] + warm[1:])
    yield Row(f"{name}, first epoch, no values kept ÷ full product", first / product, target)
    yield Row(
        f"{name}, first epoch, all values kept in memory used before ÷ none kept", warm[0] / first, 1.15
    )
    yield Row(f"{name}, first epoch, all values kept in fresh memory ÷ none kept", cold[0] / first)
    fresh = fresh_memory_seconds(problem.plan.kept_memory)
    yield Row("first write to the kept memory ÷ full product", fresh / product)
    yield Row(f"{name}, later epoch, all values kept ÷ full product", later / product, 0.028)


def part_floats(setting: Setting) -> Iterator[Row]:
    problem = mnist_problem(setting, as_bytes=False)
    first, product = first_epochs(problem, 784, runs=2)
    name = f"MNIST (float32), n = {problem.n:,}, first epoch ÷ full product"
    yield Row(name, first / product, 0.62)


def part_timit_shape(setting: Setting) -> Iterator[Row]:
    n, d, l = setting.at_most(50_000), 440, 144
    first, product = first_epochs(random_problem(n, d, l, Laplacian(30.0)), d)
    name = f"n = {n:,}, d = {d}, l = {l}, Laplacian, first epoch ÷ full product"
    yield Row(name, first / product, 0.70)


def part_low_dimension(setting: Setting) -> Iterator[Row]:
    n, d = setting.at_most(100_000), 18
    exponentials = exponential_seconds(n * n / 2)
    first, product = first_epochs(random_problem(n, d, 1, Gaussian(4.0)), d)
    exponentials = min(exponentials, exponential_seconds(n * n / 2))
    name = f"n = {n:,}, d = {d}, first epoch ÷ (product + n²/2 exp)"
    yield Row(name, first / (product + exponentials), 1.5)


def part_overhead(setting: Setting) -> Iterator[Row]:
    problem, name = fastest_mnist_problem(setting)
    m = problem.plan.batch_size
    ours, plain = [], []
    for _ in range(RUNS):
        ours.append(epochs(problem, 1, keep=False)[0])
        # The same batches and panels without levelling, which needs a much smaller step.
        sgd = train_sgd(problem, exactly(1), m=m, step=1e-3, rows_at_once=None)
        plain.append(sgd.history[0].seconds)
    overhead = min(ours) / min(plain) - 1
    yield Row(f"{name}, levelled kernel over plain SGD, one epoch", overhead, 0.10)


def part_setup(setting: Setting) -> Iterator[Row]:
    p, name = fastest_mnist_problem(setting)
    first = epochs(p, 1, keep=False)[0]

    def set_up() -> None:
        with tempfile.TemporaryDirectory() as empty:
            resource = measure_resource(CPU, cache=Path(empty) / "capacity.json")
            rehearsed(planned(p.kernel, p.points, p.y, resource), resource)

    steps = "calibration, spectrum, fresh estimates and rehearsal"
    yield Row(f"{name}, {steps} ÷ first epoch", fastest(set_up, 3) / first, 0.08)


def part_small(setting: Setting) -> Iterator[Row]:
    """Seconds of fits of few rows at all defaults; these are no ratios."""
    for n, d, target in ((500, 5, 0.3), (500, 20, 0.3), (2_000, 20, 2.0)):
        X, y = make_friedman1(setting.at_most(n), d, noise=1.0, random_state=0)
        model = KernelRegressor(random_state=0)
        model.fit(X, y)  # starts threads
        taken = fastest(partial(model.fit, X, y), RUNS)
        yield Row(f"fit of {len(X):,} rows with {d} columns, seconds", taken, target)


def part_answers(setting: Setting) -> Iterator[Row]:
    """A kernel value of `predict` next to one of a first epoch, in turn."""
    mnist = setting.mnist(20_000)
    for ridge in (0.0, 1.0):
        model = KernelClassifier(Gaussian(WIDTH), ridge=ridge, max_iter=1, random_state=0)
        trained = predicted = math.inf
        for _ in range(RUNS):
            model.fit(mnist.X, mnist.y)
            trained = min(trained, model.history_.epochs[0].seconds)
            predicted = min(predicted, fastest(partial(model.predict, mnist.X_test), 1))
        n, plan = len(mnist.X), model.plan_
        values = first_epoch_values(n, plan.subsample_size, max(plan.batch_size, panel_rows(CPU)))
        ratio = predicted / (n * len(mnist.X_test)) / (trained / values)
        name = f"MNIST, n = {n:,}, ridge {ridge:g}, a value of predict ÷ one of a first epoch"
        yield Row(name, ratio, 1.0, note=f"evaluated in float{64 if model.machine_.in_double else 32}")


def part_prediction(setting: Setting) -> Iterator[Row]:
    """The plan's predicted seconds next to the measured ones."""
    draws = np.random.default_rng(0)
    few = draws.normal(size=(setting.at_most(40_000), 18)).astype(np.float32)
    many = draws.normal(size=(setting.at_most(20_000), 440)).astype(np.float32)
    outputs = draws.normal(size=(len(many), 144))
    target = np.sin(few[:, 0])
    mnist = setting.mnist(60_000)
    common: dict[str, Any] = {"ridge": 0.0, "interpolation_tol": 0.0, "max_iter": 3, "random_state": 0}
    digits = KernelClassifier(Gaussian(WIDTH), **common)
    fits: list[tuple[str, Any, Any, Any]] = [
        ("MNIST", digits, mnist.X, mnist.y),
        ("half of MNIST", digits, mnist.X[::2], mnist.y[::2]),
        ("d = 18", KernelRegressor(Gaussian(4.0), **common), few, target),
        ("d = 440, l = 144", KernelRegressor(Laplacian(30.0), **common), many, outputs),
        ("d = 18, defaults", KernelRegressor(max_iter=3, random_state=0), few[:5_000], target[:5_000]),
    ]
    for name, model, X, y in fits:
        plan = model.plan(X, y)
        first, *later = (epoch.seconds for epoch in model.fit(X, y).history_.epochs)
        for epoch, predicted, taken in (
            ("first", plan.first_epoch_seconds, first),
            ("later", plan.later_epoch_seconds, min(later)),
        ):
            yield predicted_row(f"{name}, n = {len(X):,}, {epoch} epoch", predicted, taken, "s")


def predicted_row(name: str, predicted: float, measured: float, unit: str) -> Row:
    factor = max(predicted / measured, measured / predicted)
    note = f"predicted {predicted:.3g} {unit}, measured {measured:.3g} {unit}"
    return Row(f"{name}: predicted ÷ measured or its inverse", factor, 1.5, note=note)


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
KernelRegressor("laplacian", random_state=0).fit(X[:300], y[:300])  # loads libraries, starts threads
model = KernelRegressor("laplacian", random_state=0, memory_limit=memory, max_iter=2)
taken = peak_bytes(lambda: model.fit(X, y))
print(model.plan_.peak_memory, taken)
"""


def part_peak(setting: Setting) -> Iterator[Row]:
    """The plan's predicted peak memory next to the measured one (Linux)."""
    for most, d, memory in ((12_000, 20, "250MB"), (20_000, 20, "auto"), (12_000, 400, "auto")):
        n = setting.at_most(most)
        printed = run_apart(["-c", PEAK_SCRIPT, str(n), str(d), memory])
        predicted, taken = (float(text) / 1024**2 for text in printed.split())
        name = f"peak memory, n = {n:,}, d = {d}, memory {memory}"
        yield predicted_row(name, predicted, taken, "MiB")


def part_exponent(setting: Setting) -> Iterator[Row]:
    largest = setting.at_most(80_000)
    sizes = [largest // 8, largest // 4, largest // 2, largest]
    seconds = []
    for n in sizes:
        problem = random_problem(n, 100, 10, Gaussian(10.0))
        seconds.append(min(epochs(problem, 1, keep=False)[0] for _ in range(RUNS)))
    name = f"epoch time ~ n^p, n = {sizes[0]:,} to {largest:,}: p"
    yield Row(name, exponent(sizes, seconds), 2.05)


def svm_rows(name: str, svm: Any, data: Set, cold: float | None, warm: float | None) -> Iterator[Row]:
    """Seconds of the SVM over Mercer's to its test error, in fresh memory and in memory used before."""
    width = bandwidth_for(data)
    theirs = fitted("SVM", lambda: svm(C=10, gamma=1 / (2 * width**2)), data)
    release_memory()
    for memory, target in (("fresh memory", cold), ("memory used before", warm)):
        ours = trained_until("Mercer", data, theirs.error, width, ridge=0.0)
        note = ", ".join(f"{m.method} {m.seconds:.1f} s at {m.error:.2%}" for m in (theirs, ours))
        note += f", {ours.note}"
        measure = (
            f"{name}(C=10) time ÷ Mercer's to its error, {len(data.X):,} rows of {data.name}, {memory}"
        )
        yield Row(measure, theirs.seconds / ours.seconds, target, larger=True, note=note)


def part_svc(setting: Setting) -> Iterator[Row]:
    mnist = setting.mnist(60_000)
    n = setting.at_most(20_000)
    first = replace(mnist, X=mnist.X[:n], y=mnist.y[:n])
    yield from svm_rows("sklearn.svm.SVC", SVC, first, None, 15)


def part_intelex(setting: Setting) -> Iterator[Row]:
    try:
        from sklearnex.svm import SVC as FastSVC
    except ImportError:
        print("intelex: left out. Install scikit-learn-intelex with pip install 'mercer[bench]'.")
        return
    for name, cold, warm in (("mnist", 3.0, 4.5), ("cifar10", None, 15.0), ("svhn", None, 8.0)):
        data = Data(setting.folder).load(name, setting.rows)
        yield from svm_rows("scikit-learn-intelex SVC", FastSVC, data, cold, warm)


BUSY_SCRIPT = "while True: pass"
BUSY_PROCESSES = 2


def part_load(setting: Setting) -> Iterator[Row]:
    """A fit beside busy processes next to one without, in turn."""
    X, y = load_digits(return_X_y=True)
    model = KernelClassifier(random_state=0)
    idle = busy = math.inf
    for _ in range(RUNS):
        idle = min(idle, fastest(lambda: model.fit(X, y), 1))
        others = [subprocess.Popen([sys.executable, "-c", BUSY_SCRIPT]) for _ in range(BUSY_PROCESSES)]
        try:
            busy = min(busy, fastest(lambda: model.fit(X, y), 1))
        finally:
            for other in others:
                other.kill()
                other.wait()
    note = f"{idle:.2f} s and {busy:.2f} s"
    yield Row(
        f"fit of the digits beside {BUSY_PROCESSES} busy processes ÷ alone", busy / idle, 3, note=note
    )


PARTS: dict[str, Callable[[Setting], Iterator[Row]]] = {
    "bytes": part_bytes,
    "floats": part_floats,
    "timit-shape": part_timit_shape,
    "low-dimension": part_low_dimension,
    "overhead": part_overhead,
    "setup": part_setup,
    "small": part_small,
    "answers": part_answers,
    "prediction": part_prediction,
    "peak": part_peak,
    "exponent": part_exponent,
    "svc": part_svc,
    "intelex": part_intelex,
    "load": part_load,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=FOLDER, help="folder of the datasets")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rows", type=int, help="most training rows of a part; no targets then")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)  # a few epochs are enough to time them
    print(machine())
    setting, rows = Setting(arguments.data, arguments.rows), []
    for name in arguments.parts:
        for row in PARTS[name](setting):
            rows.append(row if setting.rows is None else replace(row, target=None))
            print(rows[-1], flush=True)
    if arguments.out:
        contents = {"machine": machine(), "rows": [row.to_dict() for row in rows]}
        arguments.out.write_text(json.dumps(contents, indent=1) + "\n")


if __name__ == "__main__":
    main()
