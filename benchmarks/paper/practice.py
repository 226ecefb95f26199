"""The paper's advice for practice: the Laplacian kernel, and fewer dimensions by PCA.

The Laplacian and the Gaussian kernel are compared by epochs to a training error, critical batch size
m*(k), and test error over two decades of bandwidth.  PCA is measured by error and time, from the full
dimension down.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from benchmarks.paper.axes import colour, name_of, panels, plain_log, write_figure
from benchmarks.paper.data import Data, Set, median_distance
from benchmarks.paper.peers import (
    chosen_bandwidth,
    error_of,
    standard_error,
)
from benchmarks.paper.results import Cell, Claim, Result, Size, Table, judge, judge_each
from mercer import KernelClassifier
from mercer.palette import BLUE, VERMILION
from mercer.stopwatch import Stopwatch

KERNELS = ("laplacian", "gaussian")
# The training error of the paper's figures on batch size.
TRAIN_MSE = 1e-4
MOST_EPOCHS = 60
# A bandwidth is good if its error is within this factor of the kernel's best.
GOOD = 1.1
# Early stopping usually ends these runs sooner.
SWEEP_EPOCHS = 15
ROUNDS = 2
# The first two rows of a PCA table.
KINDS = {0: "raw pixels", 1: "all directions that vary"}


@dataclass(frozen=True)
class Scale:
    sets: tuple[str, ...]
    rows: int
    test_rows: int | None
    bandwidths: int  # over two decades
    pca_rows: int
    dimensions: tuple[int, ...]  # below the full one


SCALES: dict[Size, Scale] = {
    "smoke": Scale(("mnist",), 500, 500, 3, 500, (50,)),
    "quick": Scale(("mnist", "svhn"), 2_000, 2_000, 9, 10_000, (200, 100, 50, 25)),
    "full": Scale(
        ("mnist", "svhn", "cifar10"), 20_000, None, 13, 50_000, (500, 400, 300, 200, 100, 50, 25)
    ),
}


def fit(data: Set, kernel: str, **settings: Any) -> KernelClassifier:
    """Fit without a ridge, as in the paper."""
    model = KernelClassifier(kernel, ridge=0.0, scale=False, random_state=0, **settings)
    return model.fit(data.X, data.y)


def test_error(model: KernelClassifier, data: Set) -> float:
    return error_of(model.predict(data.X_test), data.y_test)


@dataclass(frozen=True)
class Trained:
    """One kernel on one dataset, with the bandwidth of the lowest leave-one-out error."""

    kernel: str
    bandwidth: float
    critical: float  # m*(k)
    epochs: int | None  # to TRAIN_MSE; None for more than MOST_EPOCHS
    error: float


@dataclass(frozen=True)
class Sweep:
    """One kernel on one dataset over a grid of bandwidths."""

    widths: list[float]
    errors: list[float]
    critical: list[float]  # m*(k)

    @property
    def decades(self) -> float:
        """Decades of good bandwidths, in steps of the grid."""
        step = math.log10(self.widths[1] / self.widths[0])
        return step * sum(error <= GOOD * min(self.errors) for error in self.errors)


@dataclass(frozen=True)
class Projected:
    dimensions: int
    seconds: float  # of `fit`, the projection included
    error: float


def trained(data: Set, kernel: str) -> Trained:
    y = data.targets()
    share = TRAIN_MSE / float((y - y.mean(0)).var())  # relative to the loss of predicting the mean
    model = fit(data, kernel, early_stopping=False, interpolation_tol=share, max_iter=MOST_EPOCHS)
    losses = [epoch.train_loss for epoch in model.history_.epochs]
    reached = losses[-1] <= TRAIN_MSE
    return Trained(
        kernel,
        chosen_bandwidth(model),
        model.plan_.critical_batch_size_plain,
        len(losses) if reached else None,
        test_error(model, data),
    )


def sweep(data: Set, kernel: str, count: int) -> Sweep:
    """Bandwidths from a tenth to ten times the median distance between points."""
    median = median_distance(data.X)
    widths = [float(median * factor) for factor in np.logspace(-1, 1, count)]
    errors, critical = [], []
    for width in widths:
        model = fit(data, kernel, bandwidth=width, max_iter=SWEEP_EPOCHS)
        errors.append(test_error(model, data))
        critical.append(float(model.plan_.critical_batch_size_plain))
    return Sweep(widths, errors, critical)


def by_dimension(data: Set, dimensions: tuple[int, ...]) -> list[Projected]:
    """Raw pixels, all directions that vary, then fewer of them, measured in turn.

    All have the bandwidth of the full data, since PCA only drops small parts of the distances.
    """
    bandwidth = chosen_bandwidth(fit(data, "laplacian", max_iter=1))
    wanted: list[Any] = [None, "auto", *dimensions]  # of `n_pca_components`
    best: list[Projected] = []
    for turn in range(ROUNDS):
        for i, components in enumerate(wanted):
            with Stopwatch() as watch:
                model = fit(data, "laplacian", bandwidth=bandwidth, n_pca_components=components)
            if turn == 0:
                best.append(Projected(model.plan_.d, watch.seconds, test_error(model, data)))
            best[i] = replace(best[i], seconds=min(watch.seconds, best[i].seconds))
    return best


def run(data: Data, size: Size) -> Result:
    scale = SCALES[size]
    kernels: dict[str, dict[str, Trained]] = {}
    sweeps: dict[str, dict[str, Sweep]] = {}
    reduced: dict[str, list[Projected]] = {}
    notes: dict[str, str] = {}
    n_test = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        # At the ends of the sweep the plan uses a fallback, and notes it.
        warnings.filterwarnings("ignore", "A fallback was used", UserWarning)
        for name in scale.sets:
            part = data.load(name, scale.rows, test_rows=scale.test_rows)
            notes[name], n_test = part.note, len(part.y_test)
            kernels[name] = {kernel: trained(part, kernel) for kernel in KERNELS}
            sweeps[name] = {kernel: sweep(part, kernel, scale.bandwidths) for kernel in KERNELS}
            wide = data.load(name, scale.pca_rows, test_rows=scale.test_rows)
            reduced[name] = by_dimension(wide, scale.dimensions)
    claims = (
        _epochs_claim(kernels),
        _critical_claim(kernels, sweeps),
        _robustness_claim(sweeps),
        _pca_claim(reduced, n_test),
    )
    sets = ", ".join(notes.values())
    text = (
        f"The Laplacian and the Gaussian kernel on {scale.rows:,} rows each of {sets}, without a ridge. "
        "Epochs and m* are measured at each kernel's own bandwidth, chosen by leave-one-out. PCA is "
        f"measured with the Laplacian kernel on {scale.pca_rows:,} rows, projected on fewer principal "
        "directions with the same bandwidth. Mercer keeps raw pixels as 8-bit integers where these "
        "multiply faster than floats. Projected data is in floating point, and the time of the "
        "projection counts."
    )
    tables = (
        _kernel_table(kernels, sweeps),
        _bandwidth_table(sweeps),
        _pca_table(reduced, notes),
    )
    curves = {
        "sweeps": {name: {k: asdict(v) for k, v in by.items()} for name, by in sweeps.items()},
        "pca": {name: [asdict(p) for p in line] for name, line in reduced.items()},
    }
    return Result("practice", "Practice: Laplacian kernel, PCA", text, claims, tables, curves)


def _kernel_table(
    kernels: dict[str, dict[str, Trained]],
    sweeps: dict[str, dict[str, Sweep]],
) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, by in kernels.items():
        for t in by.values():
            epochs: Cell = t.epochs if t.epochs is not None else f"more than {MOST_EPOCHS}"
            served = sweeps[name][t.kernel].decades
            rows.append(
                (name.upper(), t.kernel, round(t.bandwidth, 2), epochs, round(t.critical, 1),
                 round(100 * t.error, 2), round(served, 2))
            )  # fmt: skip
    columns = ("dataset", "kernel", "bandwidth", f"epochs to a training error of {TRAIN_MSE:g}",
               "m*(k)", "test error, %",
               f"decades of bandwidth within a factor {GOOD:g} of the best error")  # fmt: skip
    return Table("Laplacian and Gaussian", columns, tuple(rows))


def _bandwidth_table(sweeps: dict[str, dict[str, Sweep]]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, by in sweeps.items():
        for i, width in enumerate(by[KERNELS[0]].widths):
            errors = (round(100 * by[kernel].errors[i], 2) for kernel in KERNELS)
            critical = (round(by[kernel].critical[i], 1) for kernel in KERNELS)
            rows.append((name.upper(), round(width, 3), *errors, *critical))
    columns = (
        "dataset",
        "bandwidth",
        *(f"{kernel}: test error, %" for kernel in KERNELS),
        *(f"{kernel}: m*(k)" for kernel in KERNELS),
    )
    return Table("Over two decades of bandwidth", columns, tuple(rows))


def _pca_table(reduced: dict[str, list[Projected]], notes: dict[str, str]) -> Table:
    rows = tuple(
        (notes[name], p.dimensions, KINDS.get(i, ""), round(100 * p.error, 2), round(p.seconds, 2))
        for name, line in reduced.items()
        for i, p in enumerate(line)
    )
    columns = ("dataset", "dimensions", "data", "test error, %", "seconds of training")
    return Table("Fewer dimensions by PCA", columns, rows)


def _epochs_claim(kernels: dict[str, dict[str, Trained]]) -> Claim:
    def told(t: Trained) -> str:
        return f"{t.epochs} epochs" if t.epochs is not None else f"more than {MOST_EPOCHS} epochs"

    fewer = [
        (by["laplacian"].epochs or math.inf) < (by["gaussian"].epochs or math.inf)
        for by in kernels.values()
    ]
    ours = "; ".join(
        f"{name}: Laplacian {told(by['laplacian'])}, Gaussian {told(by['gaussian'])}"
        for name, by in kernels.items()
    )
    return Claim(
        "The Laplacian kernel needs fewer epochs than the Gaussian.",
        "section on practice",
        "stated in words only",
        ours,
        judge_each(fewer, "fewer on {count} datasets"),
    )


def _critical_claim(
    kernels: dict[str, dict[str, Trained]], sweeps: dict[str, dict[str, Sweep]]
) -> Claim:
    """Compared at each kernel's own bandwidth, and at equal ones, which can make it hold partly."""
    larger = sum(by["laplacian"].critical > by["gaussian"].critical for by in kernels.values())
    pairs = [
        (one, other)
        for by in sweeps.values()
        for one, other in zip(by["laplacian"].critical, by["gaussian"].critical, strict=True)
    ]
    at_equal = sum(one > other for one, other in pairs)
    ours = "; ".join(
        f"{name}: Laplacian {by['laplacian'].critical:.1f}, Gaussian {by['gaussian'].critical:.1f}"
        for name, by in kernels.items()
    )
    why = (
        f"larger at its own bandwidth on {larger} of {len(kernels)} datasets, and at {at_equal} of "
        f"{len(pairs)} equal bandwidths"
    )
    return Claim(
        "The Laplacian kernel has the larger critical batch size m*(k).",
        "section on practice",
        "stated in words only",
        ours + f"; larger at {at_equal} of {len(pairs)} equal bandwidths",
        judge(larger == len(kernels), larger > 0 or at_equal > len(pairs) / 2, why),
    )


def _robustness_claim(sweeps: dict[str, dict[str, Sweep]]) -> Claim:
    served = {name: {k: v.decades for k, v in by.items()} for name, by in sweeps.items()}
    wider = [by["laplacian"] > by["gaussian"] for by in served.values()]
    ours = "; ".join(
        f"{name}: within a factor {GOOD:g} of its best error over {by['laplacian']:.2g} decades "
        f"(Laplacian), {by['gaussian']:.2g} (Gaussian)"
        for name, by in served.items()
    )
    return Claim(
        "The Laplacian kernel is less sensitive to its bandwidth.",
        "section on practice",
        "stated in words only",
        ours,
        judge_each(wider, "on {count} datasets"),
    )


def _pca_claim(reduced: dict[str, list[Projected]], n_test: int) -> Claim:
    """Whether a smaller dimension takes less time, with an error no larger than by chance.

    The paper's claim is about floats.  Users would also compare with raw pixels, which may be bytes.
    """
    over_floats, over_raw, told = 0, 0, []
    for name, (raw, floats, *fewer) in reduced.items():
        allowed = floats.error + standard_error(floats.error, n_test)
        as_good = [p for p in fewer if p.error <= allowed]
        if not as_good:
            told.append(f"{name}: no smaller dimension is as accurate")
            continue
        found = min(as_good, key=lambda p: p.seconds)
        over_floats += found.seconds < floats.seconds
        over_raw += found.seconds < raw.seconds
        told.append(
            f"{name}: {found.dimensions} of {floats.dimensions} dimensions, error {found.error:.2%} "
            f"instead of {floats.error:.2%}, {found.seconds:.2f} s instead of {floats.seconds:.2f} s "
            f"with all directions and {raw.seconds:.2f} s with raw pixels"
        )
    count = len(reduced)
    why = (
        f"saves time over all directions on {over_floats} of {count} datasets, and over raw pixels on "
        f"{over_raw}"
    )
    return Claim(
        "Reducing the dimension by PCA saves time with almost no loss of accuracy.",
        "section on practice",
        "stated in words only",
        "; ".join(told),
        judge(over_floats == over_raw == count, over_floats > 0, why),
    )


def plot(result: Result, folder: Path) -> list[Path]:
    """Error against bandwidth, and error and time against dimension."""
    return [
        _plot_bandwidths(result.curves["sweeps"], folder / "practice_bandwidth.png"),
        _plot_dimensions(result.curves["pca"], folder / "practice_pca.png"),
    ]


def _plot_bandwidths(sweeps: dict[str, Any], path: Path) -> Path:
    figure, axes = panels(len(sweeps), size=(4.6 * len(sweeps), 3.8))
    for axis, (name, by) in zip(axes, sweeps.items(), strict=True):
        for i, (marker, (kernel, found)) in enumerate(zip("os", by.items(), strict=True)):
            errors = [100 * error for error in found["errors"]]
            label = kernel.capitalize()
            axis.plot(found["widths"], errors, f"-{marker}", color=colour(i), label=label)
        axis.set(xscale="log", yscale="log", title=name_of(name))
        axis.set(xlabel="Bandwidth", ylabel="Test error, %")
        plain_log(axis.yaxis)
    return write_figure(figure, path)


def _plot_dimensions(reduced: dict[str, Any], path: Path) -> Path:
    figure, axes = panels(len(reduced), size=(4.6 * len(reduced), 3.8))
    for axis, (name, line) in zip(axes, reduced.items(), strict=True):
        raw, *floats = line
        dimensions = [p["dimensions"] for p in floats]
        axis.plot(dimensions, [100 * p["error"] for p in floats], "-o", color=BLUE)
        axis.set(xscale="log", title=name_of(name), xlabel="Dimensions")
        axis.set_ylabel("Test error, %", color=BLUE)
        # Raw pixels include constant ones; one tick serves for both.
        ticks = sorted(dimensions)
        axis.set_xticks(ticks, [str(d) for d in ticks], fontsize=8, rotation=45)
        axis.minorticks_off()
        other = axis.twinx()
        other.plot(dimensions, [p["seconds"] for p in floats], "--s", color=VERMILION)
        star = {"color": VERMILION, "markersize": 13}
        other.plot(raw["dimensions"], raw["seconds"], "*", **star)
        other.set_ylabel("Seconds of training (star: raw pixels)", color=VERMILION)
        other.set_ylim(bottom=0)
    return write_figure(figure, path)
