"""The main job, on a real dataset that comes with scikit-learn: plan, train, predict, compare.

make demo
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC

from mercer import KernelClassifier


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def learning_curve(model: KernelClassifier) -> str:
    """A bar for each epoch: training loss on a logarithmic scale."""
    lines = []
    for epoch in model.history_.epochs:
        bar = "█" * max(1, round(8 * (7 + math.log10(epoch.train_loss))))
        lines.append(f"  epoch {epoch.number:>3}  {epoch.train_loss:8.1e}  {bar}")
    return "\n".join(lines)


def main() -> None:
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0, stratify=y)
    print(f"Handwritten digits: {len(X_train):,} to train on, {len(X_test):,} to test on.\n")

    model = KernelClassifier(random_state=0, verbose=1)
    print("The plan, chosen from the data and this machine:\n")
    print(model.plan(X_train, y_train), "\n")
    print("Training:\n", flush=True)
    mercer_seconds = timed(lambda: model.fit(X_train, y_train))
    print(f"\nStopped because {model.stop_reason_}.\n")
    print("Training loss, a step of 8 being a factor of ten:\n" + learning_curve(model) + "\n")

    svc = SVC()
    svc_seconds = timed(lambda: svc.fit(X_train, y_train))
    print("Test error            seconds to fit")
    for name, estimator, seconds in (
        ("Mercer", model, mercer_seconds),
        ("sklearn.svm.SVC", svc, svc_seconds),
    ):
        error = 1 - estimator.score(X_test, y_test)
        print(f"  {name:<16} {error:6.2%}  {seconds:6.2f}")
    print("\nAt this size both take a moment; the difference grows with the data (see README.md).")


if __name__ == "__main__":
    main()
