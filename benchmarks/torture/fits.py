"""Fits on hard data, by a random design, and what must be true of every one of them.

    python -m benchmarks.torture --parts fits
    python -m benchmarks.torture.fits 0 123       # case 123 of seed 0 again, in full

A case is one dataset with its rows repeated in some way, features and targets in some unit and at some
distance from 0, and a kernel, a bandwidth, a ridge and a precision.  The laws:

- Nothing but finite numbers comes out: predictions, weights, history.
- No exception, except an error that the documentation promises for such data.
- The model predicts its training rows, and its held-out rows, no worse than the mean does.
- The divergence guard is a last resort, and not part of training.
- A model that says that it interpolates its training points, or solves its equations, does.
"""

from __future__ import annotations

import math
import os
import re
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any, Literal

import numpy as np
import torch

from benchmarks.torture.datasets import ROWS, Array, Floats, Table, median_distance, names, pool
from benchmarks.torture.record import Count, Size
from mercer import KernelClassifier, KernelRegressor
from mercer.method.critical_batch import ROUNDING_IN_TARGETS
from mercer.training.stopping import INTERPOLATED, SOLVED

Precision = Literal["float32", "float64"]
CASES = 6_000
CHUNK = 16  # cases that a process takes at once
FEWEST_ROWS, MOST_ROWS = 150, 1_500
KERNELS = (
    "laplacian",
    "l1_laplacian",
    "gaussian",
    "cauchy",
    "matern32",
    "matern52",
    "exponential_power",
    "neural_tangent",
    "auto",
)
WIDTHS = (1 / 16, 1 / 4, 1.0, 4.0, 16.0, None)  # times the median distance; None is "auto"
RIDGES = (0.0, 0.01, 1.0, None)
# The worst of a decade matters less than its order of magnitude.
X_SCALES = (1.0, 1.0, 1e-6, 1e-3, 1e3, 1e6)
X_OFFSETS = (0.0, 0.0, 1e4)  # in standard deviations of each feature
Y_SCALES = (1.0, 1.0, 1e-8, 1e-4, 1e4, 1e8)
Y_OFFSETS = (0.0, 0.0, 1e4, 1e8)  # in standard deviations
TOLERANCES = (1e-4, 1e-4, 1e-2, 1e-6)  # interpolation_tol
MAX_ITERS = (20, 50, 100)
SCALES = ("auto", "auto", "rank")
# Half of the cases have their rows as drawn.
PLAIN_SHARE = 0.5
# The mean itself passes, with the rounding error of computing both sides.
NO_WORSE = 1 + 1e-6
ROUNDING_UNITS = 4  # of a prediction and its mean, each computed and stored
# Losses are measured before the steps of the last epoch.  An epoch whose loss is more than twice the
# best is taken for divergence, so up to twice the loss is what training itself regards as stable.
MEASURED_BEFORE = 2.0
MOST_HALVED_SHARE = 0.01
# Stop reasons that claim a residual f + r alpha - y within the tolerance.
CLAIMS = (INTERPOLATED, SOLVED)
# Errors that the documentation promises.
DOCUMENTED = ("at least 2 classes", "Squared lengths of rows must be finite")


@dataclass(frozen=True)
class Case:
    """One fit."""

    seed: int
    number: int
    data: str
    rows: str
    n: int
    kernel: str
    width: float | None
    ridge: float | None
    X_scale: float
    X_offset: float
    y_scale: float
    y_offset: float
    tolerance: float
    max_iter: int
    precision: Precision
    single_inputs: bool  # X in float32
    early_stopping: bool | Literal["auto"]
    scale: Literal["rank", "auto"]

    @classmethod
    def draw(cls, seed: int, number: int) -> Case:
        """The case of this number, whatever the number of cases."""
        rng = np.random.default_rng([seed, number])

        def one(values: tuple[Any, ...]) -> Any:
            return values[rng.integers(len(values))]

        n = FEWEST_ROWS * (MOST_ROWS / FEWEST_ROWS) ** rng.random()
        found = cls(
            seed=seed,
            number=number,
            data=one(names()),
            rows="plain" if rng.random() < PLAIN_SHARE else one(tuple(ROWS)),
            n=round(n),
            kernel=one(KERNELS),
            width=one(WIDTHS),
            ridge=one(RIDGES),
            X_scale=one(X_SCALES),
            X_offset=one(X_OFFSETS),
            y_scale=one(Y_SCALES),
            y_offset=one(Y_OFFSETS),
            tolerance=one(TOLERANCES),
            max_iter=one(MAX_ITERS),
            precision=one(("float32", "float32", "float64")),
            single_inputs=rng.random() < 0.25,
            early_stopping=one(("auto", True, False)),
            scale=one(SCALES),
        )
        # Ranks are refused with a kernel that depends on the origin.
        return replace(found, scale="auto") if found.kernel == "neural_tangent" else found

    def table(self) -> Table:
        """The data, in its units."""
        rng = np.random.default_rng([self.seed, self.number, 1])
        found = ROWS[self.rows](pool(self.data), self.n, rng)
        X = self.X_scale * (found.X + self.X_offset * found.X.std(0))
        y = found.y
        if found.numeric:
            y = self.y_scale * (y / (y.std() or 1.0) + self.y_offset)
        dtype = np.float32 if self.single_inputs else np.float64
        return Table(X.astype(dtype), y, found.numeric)

    def estimator(self, X: Array) -> Any:
        width = None if self.width is None else self.width * self._unit(X)
        return self.kind(
            kernel=self.kernel,
            bandwidth="auto" if width is None else width,
            ridge="auto" if self.ridge is None else self.ridge,
            interpolation_tol=self.tolerance,
            max_iter=self.max_iter,
            precision=self.precision,
            early_stopping=self.early_stopping,
            scale=self.scale,
            random_state=self.number,
        )

    def _unit(self, X: Array) -> float:
        """The median distance between rows, as the kernel sees them."""
        if self.scale == "rank":  # of independent normal features
            return math.sqrt(2 * X.shape[1])
        return median_distance(X.astype(np.float64))

    @property
    def kind(self) -> type[KernelClassifier] | type[KernelRegressor]:
        return KernelRegressor if pool(self.data).numeric else KernelClassifier

    @property
    def line(self) -> str:
        """The command that repeats the case, and what it is."""
        return (
            f"python -m benchmarks.torture.fits {self.seed} {self.number} ({self.data}, {self.rows}, "
            f"{self.n} rows, {self.kernel}, width {self.width}, ridge {self.ridge}, {self.precision}, "
            f"scale {self.scale})"
        )


@dataclass(frozen=True)
class Outcome:
    """What became of a case."""

    case: Case
    broken: tuple[tuple[str, str], ...] = ()  # laws, and how each was broken
    reason: str = "no model"  # why training stopped
    halvings: int = 0  # by the guard
    slowed: bool = False  # the step became smaller in any way
    warned: tuple[str, ...] = ()  # kinds of warnings


def encoded(table: Table) -> Floats:
    """Targets as the machine sees them: ±1 for two classes, else one column a class."""
    if table.numeric:
        return table.y[:, None].astype(np.float64)
    classes, index = np.unique(table.y, return_inverse=True)
    columns = np.eye(len(classes))[index]  # (n, l)
    return columns if len(classes) > 2 else 2 * columns[:, 1:] - 1


def decisions(model: Any, X: Array) -> Floats:
    """f(x) for each row, (m, l)."""
    f = model.decision_function(X) if isinstance(model, KernelClassifier) else model.predict(X)
    return np.asarray(f, dtype=np.float64).reshape(len(X), -1)


def mean_square(values: Floats) -> float:
    return float(np.square(values).mean())


FINITE = "predictions, weights and history are finite"
NO_ERROR = "no exception but those documented"
TRAINING = "training rows are predicted no worse than by the mean"
HELD_OUT = "held-out rows are predicted no worse than by the mean"
HONEST = "a model that says it interpolates, or solves its equations, does"
LAWS = (FINITE, NO_ERROR, TRAINING, HELD_OUT, HONEST)


def broken_laws(case: Case, model: Any, table: Table) -> Iterator[tuple[str, str]]:
    """The laws that a fitted model breaks, with numbers."""
    try:
        f, Y = decisions(model, table.X), encoded(table)
    except ValueError as error:
        if "finite" not in str(error):
            raise
        yield FINITE, str(error)
        return
    history = [v for e in model.history_.to_dicts() for v in e.values() if v is not None]
    for name, values in (("predictions", f), ("weights", model.dual_coef_), ("history", history)):
        if not np.isfinite(np.asarray(values, dtype=np.float64)).all():
            yield FINITE, f"{name} have NaN or infinity"
            return
    rows = np.asarray(model._training_rows)
    held_out = np.setdiff1d(np.arange(len(Y)), rows)
    mean = Y[rows].mean(0)
    # Predictions have the precision of X, and offsets take their share of it.
    rounding = (ROUNDING_UNITS * np.finfo(table.X.dtype).eps * float(np.abs(Y).max())) ** 2
    ours, theirs = mean_square(f[rows] - Y[rows]), mean_square(Y[rows] - mean)
    if ours > NO_WORSE * theirs + rounding:
        yield TRAINING, f"{ours:.4g}, and the mean {theirs:.4g}"
    if len(held_out):
        ours, theirs = mean_square(f[held_out] - Y[held_out]), mean_square(Y[held_out] - mean)
        if max(ours, model.best_loss_) > NO_WORSE * theirs + rounding:
            yield HELD_OUT, f"{ours:.4g}, best_loss_ {model.best_loss_:.4g}, the mean {theirs:.4g}"
    elif model.converged_ and model.stop_reason_ in CLAIMS:
        residual = f + model.ridge_ * model.dual_coef_.astype(np.float64) - Y
        tolerance = case.tolerance
        if case.precision == "float32":
            tolerance += ROUNDING_IN_TARGETS**2
        ours = mean_square(residual)
        if ours > MEASURED_BEFORE * tolerance * theirs + rounding:
            yield HONEST, f"{ours:.3g}, and the variance {theirs:.3g}, tolerance {case.tolerance}"


def attempt(case: Case) -> Outcome:
    table = case.table()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            model = case.estimator(table.X).fit(table.X, table.y)
            broken = tuple(broken_laws(case, model, table))
        except Exception as error:
            if isinstance(error, ValueError) and any(text in str(error) for text in DOCUMENTED):
                return Outcome(case)
            where = traceback.extract_tb(error.__traceback__)[-1]
            how = f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"
            return Outcome(case, ((NO_ERROR, how),))
    epochs = model.history_.epochs
    halvings = sum(epoch.halvings for epoch in epochs)
    slowed = bool(epochs) and epochs[-1].step_size < epochs[0].step_size
    warned = {f"{w.category.__name__}: {_kind(str(w.message))}" for w in told}
    return Outcome(case, broken, model.stop_reason_, halvings, slowed, tuple(sorted(warned)))


def outcomes(size: Size) -> Iterator[Outcome]:
    """Of all cases, each core taking one at a time: a thousand rows are too few to share."""
    cases = [Case.draw(size.seed, number) for number in range(max(1, round(CASES * size.scale)))]
    with ProcessPoolExecutor(
        os.cpu_count(), get_context("spawn"), torch.set_num_threads, (1,)
    ) as processes:
        yield from processes.map(attempt, cases, chunksize=CHUNK)


def run(size: Size) -> list[Count]:
    found = list(outcomes(size))
    cases = len(found)
    broken = [(law, f"{o.case.line}: {how}") for o in found for law, how in o.broken]
    counts = [Count(law, cases, tuple(line for name, line in broken if name == law)) for law in LAWS]
    halved = tuple(f"{o.case.line}: {o.halvings} halvings" for o in found if o.halvings)
    share = len(halved) / cases
    what = f"the guard halves the step in fewer than {MOST_HALVED_SHARE:.0%} of fits"
    exceeded = halved if share >= MOST_HALVED_SHARE else ()
    slowed = sum(o.slowed and not o.halvings for o in found)
    note = f"{len(halved)} fits, {share:.2%}; {slowed} more ended with a smaller step than at first"
    counts.append(Count(what, cases, exceeded, note))
    counts.append(Count("stop reasons", cases, note=_listed(o.reason for o in found)))
    counts.append(Count("warnings", cases, note=_listed(w for o in found for w in o.warned)))
    return counts


def _kind(message: str) -> str:
    """The first words of a warning, the same for all numbers and names in it.

    >>> _kind("On the 1,200 rows predicted, the class 7 (12 rows) is never predicted. More.")
    'On the … rows predicted'
    """
    return re.sub(r"\d[\d,.]*", "…", re.split(r"[.,:(] |$", message)[0])


def _listed(texts: Iterable[str]) -> str:
    return "; ".join(f"{count} × {text}" for text, count in Counter(texts).most_common()) or "none"


if __name__ == "__main__":
    outcome = attempt(Case.draw(*map(int, sys.argv[1:3])))
    print(outcome)
    sys.exit(1 if outcome.broken else 0)
