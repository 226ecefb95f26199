"""Mercer with default parameters next to common alternatives, on the same splits: errors and seconds.

    python benchmarks/defaults.py --data DIR --rows 3000 --out benchmarks/defaults.json

Large datasets are cut to `--rows` training rows, since a grid search with an SVM takes hours on more.
Small ones are split several times and the means reported, since a single row is a large share of their
errors.  The error is 1 - accuracy, or 1 - R² for regression.  The alternatives get standardised features
(images: pixels over 255).  The grid search tries C and gamma on a 4 by 4 grid with three folds, on all
cores where that is faster.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR

# Run as a script, Python looks for modules in this folder, and not in the one above it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.paper.data import FOLDER, SOURCES, read
from benchmarks.paper.results import machine
from mercer import KernelClassifier, KernelRegressor
from mercer.stopwatch import Stopwatch

Array = NDArray[Any]
Split = tuple[Array, Array, Array, Array]
REGRESSION = {s.file for s in SOURCES.values() if s.kind == "regression"} | {"diabetes"}
TEST_ROWS = 5_000
SMALL_SPLITS = 10
# With fewer values than this, a grid search ends before other processes have started.
PARALLEL_VALUES = 1_000_000


def splits(folder: Path, rows: int) -> Iterator[tuple[str, list[Split]]]:
    """Splits of every available dataset; small ones are split several times."""
    small = {
        "breast cancer": load_breast_cancer,
        "wine": load_wine,
        "digits": load_digits,
        "diabetes": load_diabetes,
    }
    for name, loader in small.items():
        X, y = loader(return_X_y=True)
        yield name, [tuple(train_test_split(X, y, random_state=i)) for i in range(SMALL_SPLITS)]
    for path in sorted(folder.glob("*.npz")):
        X, y, *test = read(path)
        if test:
            X_test, y_test = test
            rng = np.random.default_rng(0)
            chosen, tested = rng.permutation(len(X))[:rows], rng.permutation(len(X_test))[:TEST_ROWS]
            X, y, X_test, y_test = X[chosen], y[chosen], X_test[tested], y_test[tested]
        else:
            X, X_test, y, y_test = train_test_split(
                X, y, train_size=rows, test_size=TEST_ROWS, random_state=0
            )
        X, X_test = (v.reshape(len(v), -1) for v in (X, X_test))
        if X.dtype == np.uint8:
            X, X_test = (v.astype(np.float32) / 255 for v in (X, X_test))
        yield path.stem, [(X.astype(np.float64), X_test.astype(np.float64), y, y_test)]


def peers(X: Array, regression: bool) -> dict[str, Callable[[], Any]]:
    images = X.shape[1] >= 200  # pixels are on one scale
    steps: list[Any] = [] if images else [StandardScaler()]
    variance = 1.0 if not images else float(X.var())
    base = 1 / (X.shape[1] * variance)  # scikit-learn's "scale"
    grid = {"C": [0.1, 1, 10, 100], "gamma": [base / 8, base / 2, 2 * base, 8 * base]}
    svm = SVR if regression else SVC

    def searched(model: Any, parameters: dict[str, list[float]]) -> Any:
        pipe = make_pipeline(*steps, model)
        prefix = type(model).__name__.lower()
        jobs = -1 if X.size > PARALLEL_VALUES else None
        grid = {f"{prefix}__{k}": v for k, v in parameters.items()}
        return GridSearchCV(pipe, grid, cv=3, n_jobs=jobs)

    found: dict[str, Callable[[], Any]] = {
        "SVM": lambda: make_pipeline(*steps, svm()),
        "SVM, grid search": lambda: searched(svm(), grid),
        "gradient boosting": lambda: (
            HistGradientBoostingRegressor(random_state=0)
            if regression
            else HistGradientBoostingClassifier(random_state=0)
        ),
    }
    if regression:
        ridge_grid = {"alpha": [1e-3, 1e-2, 0.1, 1.0], "gamma": grid["gamma"]}
        found["kernel ridge, grid search"] = lambda: searched(KernelRidge(kernel="rbf"), ridge_grid)
    return found


def measure(make: Callable[[], Any], parts: list[Split], regression: bool) -> dict[str, float]:
    """Mean error and seconds."""
    errors, times = [], []
    for X, X_test, y, y_test in parts:
        model = make()
        if regression and not isinstance(model, KernelRegressor):
            model = TransformedTargetRegressor(model, transformer=StandardScaler())
        with Stopwatch() as watch:
            model.fit(X, y)
        times.append(watch.seconds)
        errors.append(1 - model.score(X_test, y_test))
    return {"error": float(np.mean(errors)), "seconds": float(np.mean(times))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=FOLDER)
    parser.add_argument("--rows", type=int, default=3_000, help="training rows of the large datasets")
    parser.add_argument("--sets", nargs="*", help="only these datasets")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    results: dict[str, dict[str, dict[str, float]]] = {}
    for name, parts in splits(arguments.data, arguments.rows):
        if arguments.sets and name not in arguments.sets:
            continue
        regression = name in REGRESSION
        ours = KernelRegressor if regression else KernelClassifier
        models = {"Mercer": partial(ours, random_state=0)} | peers(parts[0][0], regression)
        results[name] = {label: measure(make, parts, regression) for label, make in models.items()}
        cells = [
            f"{label} {r['error']:.4f} ({r['seconds']:.1f} s)" for label, r in results[name].items()
        ]
        print(f"{name}, {len(parts[0][0])} rows: " + ", ".join(cells), flush=True)
    if arguments.out:
        contents = {"machine": machine(), "rows": arguments.rows, "results": results}
        arguments.out.write_text(json.dumps(contents, indent=1) + "\n")


if __name__ == "__main__":
    main()
