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
COVERAGE = 0.9
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
        "1. The data: Friedman's first problem\n\n"
        "  y = 10 sin(pi x1 x2) + 20 (x3 - 1/2)² + 10 x4 + 5 x5 + noise\n\n"
        f"  {rows:,} rows to train on and {CHECKED_ROWS:,} others to test on. Columns x6 to "
        f"x{SHOWN_FEATURES} are of no use.\n  The kernel matrix would take {whole}; it is never held "
        "as a whole.\n"
    )
    show("2. Training: kernel, bandwidth, ridge and the weight of each column are chosen\n")
    model = KernelRegressor(random_state=0, verbose=1)
    mercer = _fitted("Mercer", model, X_train, y_train, X_test, y_test)
    show(f"\n  Stopped because {model.stop_reason_}.\n")
    show("3. The plan, made for the data and this machine\n")
    show_plan(model.plan_)
    show("\n4. What was learned\n")
    if hasattr(model, "feature_importances_"):
        show(_bars(model.feature_importances_))
        show(
            "\n  Where y depends on a column almost linearly, as on x4 and x5, a small weight is enough."
        )
    low, high = model.predict_interval(X_test, coverage=COVERAGE).T
    inside = float(((low <= y_test) & (y_test <= high)).mean())
    show(f"  Of the test rows, {inside:.1%} are inside their {COVERAGE:.0%} interval.\n")
    others = {
        "HistGradientBoosting": HistGradientBoostingRegressor(random_state=0),
        "SVR": make_pipeline(StandardScaler(), SVR()),
    }
    limit = NOISE**2 / float(y_test.var())
    contenders = [mercer]
    show("5. Beside other methods, all at their defaults\n")
    show("                        test error, 1 - R²   above the noise   seconds to fit")
    show(_line(mercer, limit))
    for name, other in others.items():
        contenders.append(_fitted(name, other, X_train, y_train, X_test, y_test))
        show(_line(contenders[-1], limit))
    show(f"  noise alone           {limit:18.4f}   no method can be better than this")
    show("\nThis data is made. README.md compares on real data; try yours:")
    show("  mercer explore FILE --target COLUMN")
    return contenders


def _fitted(name: str, model: Any, X: Any, y: Any, X_test: Any, y_test: Any) -> Contender:
    with Stopwatch() as watch:
        model.fit(X, y)
    return Contender(name, 1 - float(model.score(X_test, y_test)), watch.seconds)


def _line(one: Contender, limit: float) -> str:
    above = f"{one.error / limit - 1:.0%}"
    return f"  {one.name:<22}{one.error:18.4f} {above:>17} {one.seconds:16.1f}"


def _bars(shares: Any) -> str:
    """One bar per feature."""
    lines = [
        f"  x{number:<3} {share:6.3f}  {'█' * round(LONGEST_BAR * share / max(shares))}".rstrip()
        for number, share in enumerate(shares, start=1)
    ]
    return "\n".join(lines)
