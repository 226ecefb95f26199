"""A demonstration on thirty thousand rows: plan, train, show what was learned, compare with others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sklearn.datasets import make_friedman1
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVR

from mercer.estimators import KernelRegressor
from mercer.planning.memory import in_words
from mercer.planning.plan import Plan
from mercer.stopwatch import Stopwatch

SHOWN_ROWS, CHECKED_ROWS = 30_000, 5_000
# Of these features the target depends on the first five only.
SHOWN_FEATURES = 10
NOISE = 1.0
# Characters of the longest bar.
LONGEST_BAR = 40
DOUBLE_BYTES = 8


@dataclass(frozen=True)
class Contender:
    """One method: its test error, 1 - R², and training time."""

    name: str
    error: float
    seconds: float


def demonstrate(
    show: Callable[[str], None] = print,
    show_plan: Callable[[Plan], None] = print,
    rows: int = SHOWN_ROWS,
) -> list[Contender]:
    """Show each step and return the comparison.  Progress goes to standard error."""
    X, y = make_friedman1(rows + CHECKED_ROWS, SHOWN_FEATURES, noise=NOISE, random_state=0)
    X_train, X_test, y_train, y_test = X[:rows], X[rows:], y[:rows], y[rows:]
    whole = in_words(DOUBLE_BYTES * rows**2)
    show(
        "Friedman's first problem: y = 10 sin(pi x1 x2) + 20 (x3 - 1/2)² + 10 x4 + 5 x5 + noise, and\n"
        f"{SHOWN_FEATURES - 5} more features of no use. {rows:,} rows for training, {CHECKED_ROWS:,} "
        f"for testing.\nThe kernel matrix would take {whole} in float64. Mercer chooses the kernel, its "
        "bandwidth, the\nridge and what the features are worth, and trains on all rows.\n"
    )
    model = KernelRegressor(random_state=0, verbose=1)
    show("Training:\n")
    mercer = _fitted("Mercer", model, X_train, y_train, X_test, y_test)
    show(f"\nStopped because {model.stop_reason_}. The plan, made for the data and this machine:\n")
    show_plan(model.plan_)
    if hasattr(model, "feature_importances_"):
        show("\nWhat the features are worth, as learned:\n\n" + _bars(model.feature_importances_) + "\n")
    else:
        show("")
    others = {
        "HistGradientBoosting": HistGradientBoostingRegressor(random_state=0),
        "SVR": make_pipeline(StandardScaler(), SVR()),
    }
    contenders = [mercer]
    show("                        test error, 1 - R²   seconds to fit")
    show(_line(mercer))
    for name, other in others.items():
        contenders.append(_fitted(name, other, X_train, y_train, X_test, y_test))
        show(_line(contenders[-1]))
    limit = NOISE**2 / float(y_test.var())
    show(f"  noise alone           {limit:18.4f}")
    show("\nEverything runs at its defaults. README.md compares on real data.")
    return contenders


def _fitted(name: str, model: Any, X: Any, y: Any, X_test: Any, y_test: Any) -> Contender:
    with Stopwatch() as watch:
        model.fit(X, y)
    return Contender(name, 1 - float(model.score(X_test, y_test)), watch.seconds)


def _line(one: Contender) -> str:
    return f"  {one.name:<22}{one.error:18.4f} {one.seconds:16.1f}"


def _bars(shares: Any) -> str:
    """One bar per feature."""
    lines = [
        f"  x{number:<3} {share:6.3f}  {'█' * round(LONGEST_BAR * share / max(shares))}".rstrip()
        for number, share in enumerate(shares, start=1)
    ]
    return "\n".join(lines)
