"""A demonstration on the digits of scikit-learn: plan, train, compare with a support vector machine."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC

from mercer.estimators import KernelClassifier
from mercer.planning.plan import Plan
from mercer.report.headline import left_out
from mercer.stopwatch import Stopwatch


@dataclass(frozen=True)
class Contender:
    """One method: its test error and training time."""

    name: str
    error: float
    seconds: float


def demonstrate(
    show: Callable[[str], None] = print, show_plan: Callable[[Plan], None] = print
) -> list[Contender]:
    """Show each step and return the comparison.  Progress goes to standard error."""
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0, stratify=y)
    show(f"Handwritten digits: {len(X_train):,} for training, {len(X_test):,} for testing.\n")

    # With a part held out there are epochs to be seen; so few rows would be solved at once.
    model = KernelClassifier(early_stopping=True, random_state=0, verbose=1)
    show("The plan, chosen for the data and this machine:\n")
    show_plan(model.plan(X_train, y_train))
    show("\nTraining:\n")
    with Stopwatch() as mercer_watch:
        model.fit(X_train, y_train)
    show(f"\nStopped because {model.stop_reason_}.")
    found = left_out(model)
    if found is not None:
        show(f"The {found.name} by {found.source} is {found.figure}.")
    show("")
    show(
        "Training loss on a logarithmic scale (8 characters for a factor of ten):\n"
        + learning_curve(model)
        + "\n"
    )

    with Stopwatch() as svc_watch:
        svc = SVC().fit(X_train, y_train)
    contenders = [
        Contender("Mercer", 1 - model.score(X_test, y_test), mercer_watch.seconds),
        Contender("sklearn.svm.SVC", 1 - svc.score(X_test, y_test), svc_watch.seconds),
    ]
    show("                  test error  seconds to fit")
    for one in contenders:
        show(f"  {one.name:<16} {one.error:9.2%} {one.seconds:15.2f}")
    show("\nOn so few rows choosing the kernel takes most of the time; README.md compares larger data.")
    return contenders


def learning_curve(model: KernelClassifier) -> str:
    """One bar per epoch: the training loss on a logarithmic scale."""
    lines = []
    for epoch in model.history_.epochs:
        bar = "█" * max(1, round(8 * (7 + math.log10(epoch.train_loss))))
        lines.append(f"  epoch {epoch.number:>3}  {epoch.train_loss:8.1e}  {bar}")
    return "\n".join(lines)
