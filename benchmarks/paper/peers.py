"""Methods that Mercer is compared with.

These are three implementations of support vector machines, a Nyström ridge classifier, which is Falkon's
model, gradient boosting, plain SGD and the original EigenPro.  Some need optional packages: `pip install
'mercer[paper]'`.  Methods whose package is missing are left out, and `missing` lists them.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC

from benchmarks.paper.data import Set, median_distance
from benchmarks.paper.problem import (
    bytes_pay,
    planned,
    train_original,
    train_sgd,
    untrained,
)
from mercer import Gaussian, KernelClassifier
from mercer.engine import HeldOutPart, Limits, Training, Watcher
from mercer.selection.trials import FINE_POINTS
from mercer.stopwatch import Stopwatch

# The penalty of every SVM: ten times the default, since images have little noise.
SVM_PENALTY = 10.0
# MB of LibSVM's kernel cache; the default of 200 would slow it down.
SVM_CACHE = 1_000
# Per point, while RidgeClassifier takes the sum.  Small, since the other methods interpolate.
NYSTROM_PENALTY = 1e-6
# Methods that take longer than this run once.
CHEAP_SECONDS = 3.0
OPTIONAL = {
    "scikit-learn-intelex": "sklearnex.svm",
    "ThunderSVM": "thundersvm",
    "LightGBM": "lightgbm",
    "XGBoost": "xgboost",
}
LIBSVM, INTELEX = "LibSVM (scikit-learn)", "scikit-learn-intelex SVM"
THUNDER = "ThunderSVM (CPU)"
SLOW = (THUNDER, "LightGBM", "XGBoost")  # with hundreds of features
# From the authors' repository.
BANDWIDTHS = {"mnist": 5.0}
SGD, ORIGINAL = "plain SGD", "original EigenPro"
# Share of the rows for early stopping, as in `KernelClassifier`.
HELD_OUT_SHARE = 0.1
LIMITS = Limits(max_iter=100, interpolation_tol=0.0, n_iter_no_change=3, tol=0.01)
Maker = Callable[[], Any]


@dataclass(frozen=True)
class Measured:
    """One method on one dataset."""

    method: str
    seconds: float  # of training
    error: float  # share of test rows that are misclassified
    note: str = ""


def optional(module: str) -> Any | None:
    """The module, or None where it is not installed or does not load."""
    try:
        return importlib.import_module(module)
    except (ImportError, OSError):
        return None


def missing() -> str:
    """A sentence about the optional methods that were left out; empty where there are none."""
    absent = [name for name, module in OPTIONAL.items() if optional(module) is None]
    return f"Not installed and left out: {', '.join(absent)}." if absent else ""


def bandwidth_for(data: Set) -> float:
    """The authors' bandwidth where it is known, else the one with the lowest leave-one-out error.

    For a stand-in, whose errors have no meaning, the median distance.
    """
    if data.name in BANDWIDTHS:
        return BANDWIDTHS[data.name]
    if data.stand_in:
        return median_distance(data.X)
    model = KernelClassifier("gaussian", ridge=0.0, scale=False, random_state=0, max_iter=1)
    rows = slice(0, FINE_POINTS)  # as many as the search uses
    return chosen_bandwidth(model.fit(data.X[rows], data.y[rows]))


def chosen_bandwidth(model: KernelClassifier) -> float:
    assert model.bandwidth_ is not None  # named kernels have one
    return float(model.bandwidth_)


def svm_peers(bandwidth: float) -> dict[str, Maker]:
    """Exact support vector machines with the Gaussian kernel exp(-||x - z||² / 2 bandwidth²)."""
    gamma = 1 / (2 * bandwidth**2)
    found: dict[str, Maker] = {LIBSVM: lambda: SVC(C=SVM_PENALTY, gamma=gamma, cache_size=SVM_CACHE)}
    intelex, thunder = optional(OPTIONAL["scikit-learn-intelex"]), optional(OPTIONAL["ThunderSVM"])
    if intelex is not None:
        found[INTELEX] = lambda: intelex.SVC(C=SVM_PENALTY, gamma=gamma)
    if thunder is not None:
        found[THUNDER] = lambda: thunder.SVC(C=SVM_PENALTY, gamma=gamma)
    return found


def nystrom_peer(bandwidth: float, n: int, centres: int) -> Maker:
    """Ridge regression on Nyström features: the model that Falkon fits, solved directly."""
    gamma = 1 / (2 * bandwidth**2)
    return lambda: make_pipeline(
        Nystroem(gamma=gamma, n_components=min(centres, n), random_state=0),
        RidgeClassifier(alpha=NYSTROM_PENALTY * n),
    )


def boosting_peers() -> dict[str, Maker]:
    """Gradient boosting with default parameters, on all cores."""
    found: dict[str, Maker] = {}
    light, extreme = optional(OPTIONAL["LightGBM"]), optional(OPTIONAL["XGBoost"])
    if light is not None:
        found["LightGBM"] = lambda: light.LGBMClassifier(random_state=0, verbose=-1)
    if extreme is not None:
        found["XGBoost"] = lambda: extreme.XGBClassifier(random_state=0, tree_method="hist")
    return found


def fitted(method: str, make: Maker, data: Set) -> Measured:
    """Seconds of `fit` and the error on the test rows."""
    model = make()
    with Stopwatch() as watch:
        model.fit(data.X, data.y)
    return Measured(method, watch.seconds, error_of(model.predict(data.X_test), data.y_test))


def error_of(labels: Any, y: NDArray[Any]) -> float:
    return float(np.mean(np.asarray(labels) != y))


def in_turn(methods: dict[str, Callable[[], Measured]], rounds: int) -> dict[str, Measured]:
    """Run each method once, then the cheap ones again in turn; the best time of each counts.

    Others may share the machine, whose speed then changes from minute to minute.
    """
    found = {name: run() for name, run in methods.items()}
    for _ in range(rounds - 1):
        for name, run in methods.items():
            if found[name].seconds < CHEAP_SECONDS:
                again = run()
                found[name] = replace(again, seconds=min(again.seconds, found[name].seconds))
    return found


def standard_error(error: float, n_test: int) -> float:
    """Standard error of a share of n_test rows."""
    return math.sqrt(max(error * (1 - error), 1 / n_test) / n_test)


class UntilTime(Watcher):
    """Ends training after a time limit."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.watch = seconds, Stopwatch()
        self.passed = False

    def on_panel(self, training: Training) -> str | None:
        self.passed = self.passed or self.watch.seconds > self.seconds
        return "the time limit is reached" if self.passed else None


def baseline(method: str, data: Set, bandwidth: float, seconds: float) -> Measured:
    """Plain SGD with its best batch size, or the original EigenPro with Mercer's q, m and eta.

    Both run on Mercer's engine and use its plan.  The time of planning counts, as for Mercer.
    """
    rows = np.random.default_rng(0).permutation(len(data.X))
    n_held_out = int(HELD_OUT_SHARE * len(rows))
    held, rows = rows[:n_held_out], rows[n_held_out:]
    X, targets, held_out_targets = data.X[rows], data.targets()[rows], data.targets()[held]
    train = train_sgd if method == SGD else train_original
    with Stopwatch() as watch:
        machine, y = untrained(X, targets, Gaussian(bandwidth), bytes_pay())
        problem = planned(machine.kernel, machine.centres[:], y, n_held_out=n_held_out)
        part = HeldOutPart(
            machine.points(data.X[held]), machine.units.encode(held_out_targets, problem.y)
        )
        limit = UntilTime(seconds)
        outcome = train(problem, LIMITS, part=part, watcher=limit)
    trained = replace(machine, alpha=outcome.alpha.contiguous())
    labels = trained.predict(data.X_test).argmax(1).numpy()
    note = f"stopped after {seconds:g} s" if limit.passed else ""
    return Measured(method, watch.seconds, error_of(labels, data.y_test), note)
