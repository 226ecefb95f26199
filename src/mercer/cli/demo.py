"""The main job, on a real dataset that comes with scikit-learn: plan, train, predict, compare."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC

from mercer.estimators import KernelClassifier
from mercer.planning.plan import Plan


@dataclass(frozen=True)
class Contender:
    """One method: its error on rows it has not seen, and how long it took to learn."""

    name: str
    error: float
    seconds: float


def demonstrate(
    show: Callable[[str], None] = print, show_plan: Callable[[Plan], None] = print
) -> list[Contender]:
    """Tell the story as it happens; gives the comparison at its end.  Progress is on standard error."""
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0, stratify=y)
    show(f"Handwritten digits: {len(X_train):,} to train on, {len(X_test):,} to test on.\n")

    model = KernelClassifier(random_state=0, verbose=1)
    show("The plan, chosen from the data and this machine:\n")
    show_plan(model.plan(X_train, y_train))
    show("\nTraining:\n")
    mercer_seconds = _seconds(lambda: model.fit(X_train, y_train))
    show(f"\nStopped because {model.stop_reason_}.\n")
    show("Training loss, a step of 8 being a factor of ten:\n" + learning_curve(model) + "\n")

    svc = SVC()
    svc_seconds = _seconds(lambda: svc.fit(X_train, y_train))
    contenders = [
        Contender("Mercer", 1 - model.score(X_test, y_test), mercer_seconds),
        Contender("sklearn.svm.SVC", 1 - svc.score(X_test, y_test), svc_seconds),
    ]
    show("                  test error  seconds to fit")
    for one in contenders:
        show(f"  {one.name:<16} {one.error:9.2%} {one.seconds:15.2f}")
    show("\nAt this size both take a moment; the difference grows with the data (see README.md).")
    return contenders


def learning_curve(model: KernelClassifier) -> str:
    """A bar for each epoch: training loss on a logarithmic scale."""
    lines = []
    for epoch in model.history_.epochs:
        bar = "█" * max(1, round(8 * (7 + math.log10(epoch.train_loss))))
        lines.append(f"  epoch {epoch.number:>3}  {epoch.train_loss:8.1e}  {bar}")
    return "\n".join(lines)


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
