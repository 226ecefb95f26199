"""Threads: any number gives the same bits, forks and nested pools end, and models may be shared.

A child process that has not ended after `TIME_LIMIT` hangs: each takes a few seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.torture.datasets import MADE, median_distance, plain, pool
from benchmarks.torture.fits import KERNELS
from benchmarks.torture.record import Count, Size
from mercer import KernelClassifier, KernelRegressor

Array = NDArray[Any]
PROBLEMS = 24
JOBS = (1, 2, 4)
ROWS = 1_200
FORKS = 12
SEARCHES = 3
PREDICTING_THREADS = 8
ROUNDS = 12
TIME_LIMIT = 120.0  # seconds
ENOUGH_FAILURES = 3  # of one law: a hang takes the whole time limit


def run(size: Size) -> list[Count]:
    def times(full: int) -> int:
        return max(1, round(full * size.scale))

    return [
        _count(f"{JOBS} threads give the same bits", _same_bits, times(PROBLEMS), size.seed),
        _count("a fork after a fit in two threads predicts and fits", _fork, times(FORKS), size.seed),
        _count(
            "a grid search in two processes with two threads each ends",
            _grid_search,
            times(SEARCHES),
            size.seed,
        ),
        _count(
            f"{PREDICTING_THREADS} threads share a model while another fits",
            _shared_model,
            times(ROUNDS),
            size.seed,
        ),
    ]


def _count(what: str, broken: Callable[[int], str], cases: int, seed: int) -> Count:
    """`broken` gets the seed of a case, and returns what is wrong or nothing."""
    failures, tried = list[str](), 0
    for number in range(1_000 * seed, 1_000 * seed + cases):
        tried += 1
        text = broken(number)
        if text:
            failures.append(f"benchmarks.torture.threads.{broken.__name__}({number}): {text}")
        if len(failures) == ENOUGH_FAILURES:
            break
    return Count(what, tried, tuple(failures))


def _problem(number: int) -> tuple[Any, Array, Array]:
    """An estimator with everything set that is otherwise measured on the device, and its data.

    The number of threads changes the measured capacity, and with it the batch size.
    """
    rng = np.random.default_rng(number)
    table = plain(pool(tuple(MADE)[number % len(MADE)]), int(rng.integers(100, ROWS)), rng)
    n = len(table.y)
    kind = KernelRegressor if table.numeric else KernelClassifier
    kernel = KERNELS[number % len(KERNELS)]
    model = kind(
        kernel,
        bandwidth=float(rng.choice([0.3, 1.0, 3.0])) * median_distance(table.X),
        ridge=float(rng.choice([0.0, 0.01])),
        precision="float32" if rng.random() < 0.5 else "float64",
        subsample_size=n // 2,
        preconditioner_rank=max(1, n // 20),
        batch_size=int(rng.integers(20, n)),
        max_iter=10,
        random_state=number,
    )
    return model, table.X, table.y


def _fit(model: Any, X: Array, y: Array) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ten epochs are not enough to converge
        return model.fit(X, y)


def _values(model: Any, X: Array) -> Array:
    return np.asarray(model.predict_proba(X) if hasattr(model, "predict_proba") else model.predict(X))


def _same_bits(number: int) -> str:
    expected: tuple[Array, Array] | None = None
    for jobs in JOBS:
        model, X, y = _problem(number)
        found = _fit(model.set_params(n_jobs=jobs), X, y)
        got = (found.dual_coef_, _values(found, X))
        expected = expected or got
        for name, ours, theirs in zip(("weights", "predictions"), got, expected, strict=True):
            if not np.array_equal(ours, theirs):
                off = np.abs(ours - theirs).max() / np.abs(theirs).max()
                return f"{name} with {jobs} threads differ by {off:.2g} from those with {JOBS[0]}"
    return ""


FORK = """
import os, sys, warnings
from benchmarks.torture.threads import _fit, _problem, _values
warnings.simplefilter("ignore")  # forking a process with threads is what is tested
model, X, y = _problem(int(sys.argv[1]))
_fit(model.set_params(n_jobs=2), X, y)
expected = _values(model, X)
child = os.fork()
if child == 0:
    same = (_values(model, X) == expected).all()
    again = _values(_fit(_problem(int(sys.argv[1]))[0].set_params(n_jobs=2), X, y), X)
    os._exit(0 if same and (again == expected).all() else 3)
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status))
"""
GRID_SEARCH = """
import sys, warnings
from sklearn.model_selection import GridSearchCV
from benchmarks.torture.threads import _problem
warnings.simplefilter("ignore")
model, X, y = _problem(int(sys.argv[1]))
model.set_params(n_jobs=2, subsample_size="auto", preconditioner_rank="auto", batch_size="auto")
search = GridSearchCV(model, {"ridge": [0.01, 0.1]}, cv=3, n_jobs=2, error_score="raise").fit(X, y)
sys.exit(0 if len(search.predict(X)) == len(y) else 3)
"""


def _ends(script: str, number: int) -> str:
    """Run a script in a process group of its own, so that nothing of it is left after a hang."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))}
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(number)],
        env=env,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, told = process.communicate(timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return f"it has not ended after {TIME_LIMIT:g} s"
    last = told.strip().splitlines()[-1:] or [""]
    return f"exit code {process.returncode} {last[0]}" if process.returncode else ""


def _fork(number: int) -> str:
    return _ends(FORK, number)


def _grid_search(number: int) -> str:
    return _ends(GRID_SEARCH, number)


def _shared_model(number: int) -> str:
    """Eight threads predict with one model while a ninth fits another one, with `n_jobs` of its own."""
    model, X, y = _problem(number)
    other, X_other, y_other = _problem(number + 1)
    model.set_params(n_jobs=(None, 1, 2)[number % 3])
    other.set_params(n_jobs=(None, 1, 2)[number // 3 % 3])
    expected = _values(_fit(model, X, y), X)
    weights = _fit(other, X_other, y_other).dual_coef_.copy()
    threads_before = torch.get_num_threads()
    fitting, wrong = threading.Event(), list[str]()
    fitting.set()

    def predict() -> None:
        predicted = 0
        while fitting.is_set() or not predicted:
            off = float(np.abs(_values(model, X) - expected).max() / np.abs(expected).max())
            if off != 0:
                wrong.append(f"predictions differ by {off:.2g} from those made alone")
                return
            predicted += 1

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error}")

    crowd = [threading.Thread(target=guarded, args=(predict,)) for _ in range(PREDICTING_THREADS)]
    for thread in crowd:
        thread.start()

    def fit() -> None:
        if not np.array_equal(_fit(other, X_other, y_other).dual_coef_, weights):
            wrong.append("the fit differs from the one made alone")

    guarded(fit)
    fitting.clear()
    for thread in crowd:
        thread.join()
    if torch.get_num_threads() != threads_before:
        wrong.append(f"PyTorch is left with {torch.get_num_threads()} threads, not {threads_before}")
        torch.set_num_threads(threads_before)
    return "; ".join(sorted(set(wrong)))
