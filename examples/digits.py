"""The main job, on a real dataset that comes with scikit-learn: plan, train, predict, compare.

make demo
"""

from __future__ import annotations

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
    """A bar for each epoch, its length on a linear scale from zero."""
    losses = [epoch.validation_loss or 0.0 for epoch in model.history_.epochs]
    top = max(losses)
    lines = []
    for number, loss in enumerate(losses, start=1):
        bar = "█" * max(1, round(50 * loss / top))
        lines.append(f"  epoch {number:>3}  {bar} {loss:.4f}")
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
    print("Held-out loss:\n" + learning_curve(model) + "\n")

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
