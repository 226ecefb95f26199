"""Interpolation: training past convergence, with clean and with noisy labels (the paper's premise).

Every run starts from zero weights and uses all its epochs, whatever the test error does.  Its limit is
known: the minimum-norm interpolant, found here by direct solution.  Test labels have no noise.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.paper.axes import colour, panels, write_figure
from benchmarks.paper.convergence import centred
from benchmarks.paper.data import Data, Set
from benchmarks.paper.problem import exactly, held_out, train
from benchmarks.paper.results import Claim, Result, Size, Table, judge, judge_each
from mercer import Epoch
from mercer.engine import Training, Watcher
from mercer.operators.base import Operator

SETS: dict[Size, tuple[str, ...]] = {
    "smoke": ("mnist",),
    "quick": ("mnist", "cifar10"),
    "full": ("mnist", "cifar10", "svhn", "covtype"),
}
KERNELS = ("gaussian", "laplacian")
# Shares of training labels that are replaced by a random class, which may be the right one.
NOISE: dict[Size, tuple[float, ...]] = {
    "smoke": (0.0, 0.4),
    "quick": (0.0, 0.1, 0.2, 0.4),
    "full": (0.0, 0.1, 0.2, 0.4),
}
POINTS: dict[Size, int] = {"smoke": 400, "quick": 3_000, "full": 20_000}
TEST_POINTS: dict[Size, int] = {"smoke": 400, "quick": 3_000, "full": 10_000}
EPOCHS: dict[Size, int] = {"smoke": 20, "quick": 100, "full": 300}
# The test error is measured after each of the first epochs, and later at geometric intervals.
DENSE_EPOCHS = 10
SPARSE_FACTOR = 1.2
# Differences below this many standard errors of a paired comparison count as chance.
CHANCE = 2.0

Run = dict[str, Any]


class TestErrors(Watcher):
    """Measures the test error during training, also within the first epoch."""

    def __init__(self, operator: Operator, labels: Tensor, offset: Tensor) -> None:
        self.operator, self.labels, self.offset = operator, labels, offset
        self.epochs: list[float] = []
        self.wrong: list[Tensor] = []  # each (n_test,)
        self.train_loss: list[float] = []  # at whole epochs
        self._next = 0.0

    def on_panel(self, training: Training) -> str | None:
        n_panels, progress = len(training.schedule.panels), training.state.progress
        if progress.epoch == 1 and progress.panel < n_panels:
            self._test(training, progress.panel / n_panels)
        return None

    def on_epoch(self, epoch: Epoch, training: Training) -> str | None:
        self.train_loss.append(epoch.train_loss)
        last = epoch.number == training.limits.max_iter
        if epoch.number <= DENSE_EPOCHS or epoch.number >= self._next or last:
            self._test(training, float(epoch.number))
            self._next = SPARSE_FACTOR * epoch.number
        return None

    def _test(self, training: Training, epochs: float) -> None:
        f = self.operator.times(training.model.weights) + self.offset  # (n_test, l)
        self.epochs.append(epochs)
        self.wrong.append(f.argmax(1) != self.labels)


def run(data: Data, size: Size) -> Result:
    runs: list[Run] = []
    for name in SETS[size]:
        found = data.load(name, POINTS[size])
        for kernel in KERNELS:
            runs += [_run(found, kernel, noise, size) for noise in NOISE[size]]
    text = (
        f"{POINTS[size]:,} training points, {TEST_POINTS[size]:,} test points with their true labels, "
        "bandwidths from the median distance, no ridge. A share of the training labels is replaced by "
        f"random ones, and training runs for {EPOCHS[size]} epochs, or to the limit of float32, "
        "whatever the test error does. The best epoch is the one with the lowest test error, which "
        "favours early stopping, since it is not known in advance. Dotted lines show the minimum-norm "
        "interpolant by direct solution, the limit of training. With clean labels the curves should "
        "stay low; with noisy ones they should rise again."
    )
    return Result(
        name="interpolation",
        title="Interpolation and early stopping",
        text=text,
        claims=(_clean(runs), _noisy(runs), _reached(runs)),
        tables=(_table(runs),),
        curves={"runs": runs},
        size=size,
    )


def _run(found: Set, kernel_name: str, noise: float, size: Size) -> Run:
    rng = np.random.default_rng(0)
    labels = found.y.copy()
    noised = rng.random(len(labels)) < noise
    labels[noised] = rng.integers(found.n_classes, size=int(noised.sum()))
    data = centred(replace(found, y=labels))
    given = data.problem(kernel_name)
    kernel, points, y = given.kernel, given.points, given.y
    tests = kernel.points(torch.from_numpy(found.X_test[: TEST_POINTS[size]]) - data.centre)
    test_labels = torch.from_numpy(found.y_test[: TEST_POINTS[size]].astype(np.int64))
    tested = TestErrors(held_out(given, tests), test_labels, data.offset)
    kept = given.plan.kept_memory
    outcome = train(given, exactly(EPOCHS[size]), kept_memory=kept, watcher=tested)
    wrong = torch.stack(tested.wrong).double()  # (times, n_test)
    errors = wrong.mean(1)
    best = int(errors.argmin())
    K = kernel.block(points, points, same=True).double()  # (n, n)
    alpha = torch.cholesky_solve(y.double(), torch.linalg.cholesky(K))  # (n, l)
    direct = kernel.block(tests, points).double() @ alpha + data.offset  # (n_test, l)
    direct_wrong = (direct.argmax(1) != test_labels).double()  # (n_test,)
    return {
        "set": found.name,
        "note": found.note,
        "kernel": kernel_name,
        "noise": noise,
        "epochs": tested.epochs,
        "errors": errors.tolist(),
        "train_loss": tested.train_loss,
        "best_epoch": tested.epochs[best],
        "best": float(errors[best]),
        "last": float(errors[-1]),
        "standard_error": _standard_error(wrong[-1] - wrong[best]),
        "interpolant": float(direct_wrong.mean()),
        "interpolant_standard_error": _standard_error(wrong[-1] - direct_wrong),
        "reason": outcome.reason,
    }


def _standard_error(difference: Tensor) -> float:
    """Standard error of the difference between two errors on the same test points, (n_test,)."""
    return float(difference.std()) / math.sqrt(len(difference))


def _loss(one: Run) -> float:
    return float(one["last"] - one["best"])


def _matters(one: Run) -> bool:
    """Whether stopping at the best epoch would have reduced the error by more than chance."""
    return bool(_loss(one) > CHANCE * one["standard_error"])


def _describe(runs: list[Run]) -> str:
    return "; ".join(
        f"{one['set']} {one['kernel']}{'' if one['noise'] == 0 else ' ' + format(one['noise'], '.0%')}: "
        f"{one['best']:.2%} at best, {one['last']:.2%} at the end"
        for one in runs
    )


def _clean(runs: list[Run]) -> Claim:
    clean = [one for one in runs if one["noise"] == 0]
    harmed = [one for one in clean if _matters(one)]
    names = ", ".join(f"{one['set']} {one['kernel']} (+{_loss(one):.2%})" for one in harmed)
    return Claim(
        claim="Near-zero training error leads to excellent test results: clean data needs no early "
        "stopping.",
        where="abstract (first version)",
        published="stated without a table",
        ours=_describe(clean),
        verdict=judge(
            not harmed, len(harmed) < len(clean), f"the end is worse than the best epoch for {names}"
        ),
    )


def _noisy(runs: list[Run]) -> Claim:
    most = max(one["noise"] for one in runs)
    noisy = [one for one in runs if one["noise"] == most]
    helped = [one for one in noisy if _matters(one)]
    gains = [_loss(one) for one in noisy]
    names = ", ".join(f"{one['set']} {one['kernel']}" for one in helped)
    where = f"only for {names}" if helped else "in no case"
    return Claim(
        claim="Where labels are noisy, early stopping regularises.",
        where="the method: stopped early on held-out data",
        published="stated without a table",
        ours=f"with {most:.0%} of the labels random: {_describe(noisy)}",
        verdict=judge(
            len(helped) == len(noisy),
            bool(helped),
            f"{where}; the best epoch is {min(gains):.2%} to {max(gains):.2%} better",
        ),
    )


def _reached(runs: list[Run]) -> Claim:
    """Training must end at the direct solution, which shows that it went past convergence."""
    gaps = [abs(one["last"] - one["interpolant"]) for one in runs]
    close = [
        gap <= CHANCE * one["interpolant_standard_error"] for gap, one in zip(gaps, runs, strict=True)
    ]
    losses = [one["train_loss"][-1] for one in runs]
    return Claim(
        claim="The levelled kernel gives a mathematically equivalent prediction function.",
        where="abstract",
        published="stated without a table",
        ours=f"training MSE at the end {min(losses):.1g} to {max(losses):.1g}; test errors differ from "
        f"those of the interpolant, found by direct solution, by at most {max(gaps):.2%}",
        verdict=judge_each(close, "within chance in {count} runs"),
    )


def _table(runs: list[Run]) -> Table:
    heads = (
        "dataset",
        "kernel",
        "random labels",
        "best test error",
        "at epoch",
        "at the end",
        "interpolant",
        "end − best",
        "standard error",
        "training MSE at the end",
    )
    rows = tuple(
        (
            one["set"],
            one["kernel"],
            f"{one['noise']:.0%}",
            f"{one['best']:.2%}",
            round(one["best_epoch"], 2),
            f"{one['last']:.2%}",
            f"{one['interpolant']:.2%}",
            f"{_loss(one):.2%}",
            f"{one['standard_error']:.2%}",
            float(f"{one['train_loss'][-1]:.2g}"),
        )
        for one in runs
    )
    return Table("Test errors", heads, rows)


def plot(result: Result, folder: Path) -> list[Path]:
    runs = result.curves["runs"]
    sets = list(dict.fromkeys(one["set"] for one in runs))
    notes = {one["set"]: one["note"] for one in runs}
    noises = sorted({one["noise"] for one in runs})
    paths = []
    for name in sets:
        figure, axes = panels(len(KERNELS), size=(10, 4.6), sharey=True)
        for ax, kernel in zip(axes, KERNELS, strict=True):
            for one in runs:
                if (one["set"], one["kernel"]) != (name, kernel):
                    continue
                shade = colour(noises.index(one["noise"]))
                percent = [100 * error for error in one["errors"]]
                label = f"{one['noise']:.0%} of labels random"
                ax.plot(one["epochs"], percent, color=shade, marker=".", ms=4, label=label)
                ring = {"mfc": "none", "mec": "black", "ms": 9, "label": "lowest test error"}
                ax.plot(one["best_epoch"], 100 * one["best"], "o", **ring)
                ax.axhline(100 * one["interpolant"], color=shade, linestyle=":", linewidth=1)
            ax.set(xscale="log", xlabel="Epochs", title=f"{notes[name]}, {kernel.capitalize()}")
        axes[0].set_ylabel("Test error, %")
        axes[0].plot([], [], ":", color="0.3", label="interpolant, by direct solution")
        path = folder / f"interpolation_{name}.png"
        paths.append(write_figure(figure, path, legend_columns=3))
    return paths
