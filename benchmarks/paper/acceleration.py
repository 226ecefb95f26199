"""The acceleration over plain SGD, predicted and measured (section 4 of the paper).

The prediction is beta(K) / beta(K_G) · m_G / m*(k): the ratio of iterations to equal error with each
method at its own batch size, m*(k) for SGD and m_G for Mercer.  It is also the ratio of times on a
device whose iterations take as long with m_G as with m*(k).  Both are measured: iterations are counted
exactly, and time is taken on this device (`convergence.py`).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from benchmarks.paper.axes import colour, name_of, panels, write_figure
from benchmarks.paper.convergence import (
    MERCER,
    SGD,
    Method,
    Timer,
    centred,
    count,
    method,
    time_iterations,
)
from benchmarks.paper.data import Data
from benchmarks.paper.results import Claim, Result, Size, Table, judge, judge_each, rounded

SETS: dict[Size, tuple[tuple[str, str], ...]] = {
    "smoke": (("mnist", "gaussian"), ("usps", "laplacian")),
    "quick": (
        ("mnist", "gaussian"),
        ("mnist", "laplacian"),
        ("cifar10", "gaussian"),
        ("cifar10", "laplacian"),
        ("svhn", "gaussian"),
        ("svhn", "laplacian"),
        ("usps", "gaussian"),
        ("usps", "laplacian"),
        ("covtype", "laplacian"),
    ),
    "full": tuple(
        (name, kernel)
        for name in ("mnist", "cifar10", "svhn", "usps", "covtype", "connect4")
        for kernel in ("gaussian", "laplacian")
    ),
}
POINTS: dict[Size, int] = {"smoke": 400, "quick": 3_000, "full": 20_000}
MOST_EPOCHS: dict[Size, int] = {"smoke": 100, "quick": 150, "full": 2_000}
ROUNDS: dict[Size, int] = {"smoke": 1, "quick": 3, "full": 5}
# Training errors at which times are compared; the last decides.
LEVELS = (1e-2, 1e-3, 1e-4)
# m_G of the paper's device, from its table of parameters (MNIST, 12 GB).
PAPER_BATCH = 735
# At most this share of the points in one batch: with more, an epoch has too few steps to count.
LARGEST_BATCH_SHARE = 0.2
# The paper's range.
PUBLISHED = (50.0, 500.0)
# A prediction from two numbers of the spectrum counts as good within this factor.
GOOD_FACTOR = 2.0

Case = dict[str, Any]


def run(data: Data, size: Size) -> Result:
    cases: list[Case] = []
    for name, kernel in SETS[size]:
        found = data.load(name, POINTS[size])
        points = centred(found)
        sgd: Method | None = None
        large = min(PAPER_BATCH, int(LARGEST_BATCH_SHARE * len(found.X)))
        for device, rows in (("this device", None), ("larger device", large)):
            given = points.problem(kernel, rows)
            sgd = method(SGD, given) if sgd is None else sgd
            cases.append(_case(name, kernel, device, sgd, method(MERCER, given), size))
    text = (
        f"At most {POINTS[size]:,} points of each dataset, bandwidths from the median distance, and s a "
        "quarter of the points. Plain SGD uses the batch size m*(k), and Mercer min(m_G, m*(k_G)), as "
        "the prediction assumes. m_G is that of this device and that of a larger one such as the "
        f"paper's ({PAPER_BATCH}, or a fifth of the points where that is less). Iterations are counted "
        "exactly until both reach the same training error, and both redraw their batches in every "
        "epoch. Seconds are the number of iterations times the measured time of one, with one batch at "
        "a time and no kernel values kept; the time to compute the spectrum is listed separately. m*(k) "
        "need not be SGD's fastest batch size on this device: the page on batch sizes compares the best "
        "of each method, and shows what a fixed batch order would cost. Points on the diagonal of the "
        "plot are predicted exactly, and points in the band within a factor of two."
    )
    return Result(
        name="acceleration",
        title="Acceleration over plain SGD",
        text=text,
        claims=(_predicted(cases), _range(cases), _in_time(cases)),
        tables=(_table(cases, size),),
        curves={"cases": cases},
        size=size,
    )


def _case(name: str, kernel: str, device: str, sgd: Method, ours: Method, size: Size) -> Case:
    plan = ours.problem.plan
    m_sgd, m = max(1, int(sgd.critical)), plan.batch_size
    most = MOST_EPOCHS[size]
    slow, fast = count(sgd, m_sgd, LEVELS[-1], most), count(ours, m, LEVELS[-1], most)
    timers = [Timer(sgd, m_sgd), Timer(ours, m)]
    time_iterations(timers, ROUNDS[size])
    iterations: list[float | None] = []
    seconds: list[float | None] = []
    for level in LEVELS:
        a, b = slow.epochs_to(level), fast.epochs_to(level)
        if a is None or not b:
            iterations.append(None)
            seconds.append(None)
            continue
        ratio = (a * math.ceil(sgd.problem.n / m_sgd)) / (b * math.ceil(ours.problem.n / m))
        iterations.append(ratio)
        seconds.append(ratio * timers[0].best / timers[1].best)
    reached = fast.epochs_to(LEVELS[-1])
    per_epoch = math.ceil(ours.problem.n / m) * timers[1].best
    return {
        "set": name,
        "kernel": kernel,
        "device": device,
        "n": ours.problem.n,
        "q": plan.preconditioner_rank,
        "m": m,
        "m_star_plain": plan.critical_batch_size_plain,
        "m_star": plan.critical_batch_size,
        "predicted": plan.acceleration,
        "iterations": iterations,
        "seconds": seconds,
        "training_seconds": None if reached is None else reached * per_epoch,
        "setup_seconds": ours.problem.setup_seconds,
    }


def _measured(case: Case, what: str) -> float | None:
    """At the lowest error that both methods reached within the epochs allowed."""
    values = [value for value in case[what] if value is not None]
    return values[-1] if values else None


def _spread(values: list[float]) -> str:
    return f"{min(values):.0f} to {max(values):.0f}" if values else "none"


def _compare(cases: list[Case], what: str) -> tuple[list[float], list[float]]:
    """The measured values, and their ratios to the predicted ones."""
    pairs = [(_measured(case, what), case["predicted"]) for case in cases]
    known = [(value, predicted) for value, predicted in pairs if value is not None]
    return [value for value, _ in known], [value / predicted for value, predicted in known]


def _predicted(cases: list[Case]) -> Claim:
    values, shares = _compare(cases, "iterations")
    good = sum(1 / GOOD_FACTOR <= share <= GOOD_FACTOR for share in shares)
    return Claim(
        claim="The acceleration over plain SGD is about beta(K)/beta(K_G) · m_G/m*(k).",
        where="section 4",
        published="a prediction, not tabulated",
        ours="in iterations to equal training error: predicted "
        f"{_spread([c['predicted'] for c in cases])}, measured {_spread(values)}; "
        f"measured over predicted {min(shares, default=math.nan):.2f} to "
        f"{max(shares, default=math.nan):.2f}",
        verdict=judge(
            good == len(cases),
            good >= len(cases) / 2,
            f"within a factor of {GOOD_FACTOR:g} in {good} of {len(cases)} cases",
        ),
    )


def _range(cases: list[Case]) -> Claim:
    larger = [case for case in cases if case["device"] == "larger device"]
    low, high = PUBLISHED
    values = [_measured(case, "iterations") for case in larger]
    inside = [value is not None and low <= value <= high for value in values]
    promised = [case["predicted"] for case in larger]
    known = [value for value in values if value is not None]
    sizes = sorted({case["m"] for case in larger})
    return Claim(
        claim="In practice the acceleration is between 50 and 500.",
        where="section 4",
        published="50 to 500 (Titan Xp, m_G of hundreds to thousands)",
        ours=f"with m = {sizes[0]} to {sizes[-1]}: predicted {_spread(promised)}, measured in "
        f"iterations {_spread(known)}",
        verdict=judge_each(
            inside,
            f"in {{count}} cases; {sum(value < low for value in known)} are below, "
            f"{sum(value > high for value in known)} above",
        ),
    )


def _in_time(cases: list[Case]) -> Claim:
    here = [case for case in cases if case["device"] == "this device"]
    values, shares = _compare(here, "seconds")
    promised = _spread([case["predicted"] for case in here])
    good = sum(1 / GOOD_FACTOR <= share <= GOOD_FACTOR for share in shares)
    slowest = min(values, default=0.0)
    return Claim(
        claim="The prediction also holds for time.",
        where="section 4",
        published="50 to 500 (Titan Xp)",
        ours=f"in seconds on this device, without set-up: {_spread(values)}; predicted {promised}",
        verdict=judge(
            good == len(here),
            len(values) == len(here) and slowest > 1,
            "an iteration with m_G takes longer here than one with m*(k), and the acceleration is at "
            f"least {slowest:.1f}; within a factor of {GOOD_FACTOR:g} of the prediction in {good} of "
            f"{len(here)} cases",
        ),
    )


def _table(cases: list[Case], size: Size) -> Table:
    heads: tuple[str, ...] = ("dataset", "kernel", "device", "n", "q", "m*(k)", "m*(k_G)", "m")
    heads += ("predicted", *(f"iterations to {level:g}" for level in LEVELS))
    heads += (f"seconds to {LEVELS[-1]:g}", "Mercer's seconds", "set-up seconds")
    rows = []
    for case in cases:
        first = (case["set"], case["kernel"], case["device"], case["n"], case["q"])
        numbers = (
            case["m_star_plain"],
            case["m_star"],
            case["m"],
            case["predicted"],
            *case["iterations"],
        )
        last = (case["seconds"][-1], case["training_seconds"], case["setup_seconds"])
        rows.append((*first, *(rounded(value, 3) for value in (*numbers, *last))))
    title = f"Ratios of SGD to Mercer at equal training error (at most {MOST_EPOCHS[size]} epochs)"
    return Table(title, heads, tuple(rows))


def plot(result: Result, folder: Path) -> list[Path]:
    figure, axes = panels(2, size=(10, 4.6), sharey=True, sharex=True)
    cases = result.curves["cases"]
    sets = list(dict.fromkeys(case["set"] for case in cases))
    for ax, what, title in zip(
        axes, ("iterations", "seconds"), ("in iterations", "in time on this device"), strict=True
    ):
        for case in cases:
            value = _measured(case, what)
            if value is None or (what == "seconds" and case["device"] != "this device"):
                continue
            edge = colour(sets.index(case["set"]))
            filled = edge if case["device"] == "this device" else "none"
            marker = "o" if case["kernel"] == "gaussian" else "s"
            ax.plot(case["predicted"], value, marker, mfc=filled, mec=edge, ms=8)
        ends = [1.0, 1_000.0]
        ax.plot(ends, ends, color="0.3", linewidth=1)
        ax.fill_between(
            ends, [e / GOOD_FACTOR for e in ends], [e * GOOD_FACTOR for e in ends], color="0.9"
        )
        ax.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="Predicted acceleration")
        ax.set_title(f"Measured {title}", fontsize=10)
    axes[0].set_ylabel("Measured acceleration")
    for i, name in enumerate(sets):
        axes[0].plot([], [], "o", color=colour(i), label=name_of(name))
    for marker, filled, label in (
        ("o", "0.4", "Gaussian"),
        ("s", "0.4", "Laplacian"),
        ("o", "none", "larger device's batch"),
    ):
        axes[0].plot([], [], marker, mfc=filled, mec="0.4", label=label)
    return [write_figure(figure, folder / "acceleration.png")]
