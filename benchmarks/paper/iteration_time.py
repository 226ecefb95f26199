"""Figures 3a and 3b of the paper: time per iteration and time per epoch against batch size.

In the paper's model of a device, an iteration takes constant time until its batch keeps all C_G parallel
units busy, (d + l) m n = C_G, and time in proportion to m beyond.  So a larger batch shortens an epoch,
n / m iterations, up to m_C and not beyond.

An iteration is timed as training runs it: the rows of K for one batch times all weights, the residual
and the step of the levelled kernel, with no kernel values kept.  Mercer itself evaluates the rows of
several batches together (panels); its epochs are timed in full.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.paper.axes import PALETTE, panels, write_figure
from benchmarks.paper.data import Data
from benchmarks.paper.power_law import exponent
from benchmarks.paper.problem import CPU, Iterations, Problem, exactly, planned, train
from benchmarks.paper.results import Claim, Result, Size, Table, judge, judge_each, shortfalls
from mercer import Gaussian
from mercer.engine import Requests, Resource, measure_resource
from mercer.palette import BLUE, GREY, VERMILION
from mercer.planning.calibration import SATURATED_SHARE
from mercer.stopwatch import Stopwatch

BANDWIDTH = 5.0
SUBSAMPLE, COMPONENTS = 1_000, 100
# Only time is measured: a step so small that training cannot diverge.
SMALL_STEP = 1e-6
# Exponents p of the time t ~ m^p: 0 for an ideal device below its capacity, 1 for a sequential one.
NEARLY_CONSTANT = 0.3
BETTER_THAN_SEQUENTIAL = 0.8
LINEAR = (0.85, 1.15)
POWERS = tuple(2**i for i in range(14))


@dataclass(frozen=True)
class Sizes:
    n: tuple[int, ...]
    batches: tuple[int, ...]
    whole: int  # the largest n with epochs run in full
    runs: int


SIZES: dict[Size, Sizes] = {
    "smoke": Sizes((400, 800), (1, 8, 64, 256), 800, 1),
    "quick": Sizes((3_000, 9_000, 27_000), POWERS[:13], 9_000, 3),
    "full": Sizes((7_500, 15_000, 30_000, 60_000), POWERS, 60_000, 5),
}
# Batch sizes of the epochs that are run in full.
WHOLE_BATCHES = (16, 64, 256, 1024)


def problem(x: torch.Tensor, y: torch.Tensor, resource: Resource) -> Problem:
    kernel = Gaussian(BANDWIDTH)
    s = min(SUBSAMPLE, len(x) // 4)
    requests = Requests(s, min(COMPONENTS, s // 4), batch_size=1)
    return planned(kernel, kernel.points(x), y, resource, requests)


def iteration_seconds(p: Problem, batches: Sequence[int], runs: int) -> list[float]:
    """The best time of one iteration with each batch size; the sizes run in turn."""
    stages = [Iterations(p, p.levelled, m) for m in batches]
    best = [math.inf] * len(batches)
    for _ in range(runs + 1):  # the first is a warm-up
        for i, iterations in enumerate(stages):
            last = len(iterations) - 1  # beyond the subsample
            with Stopwatch() as watch:
                iterations.run([last])
            # Batches have even sizes of at most m, so one may have slightly fewer rows.
            best[i] = min(best[i], watch.seconds * batches[i] / iterations.rows(last))
    return best


def epoch_seconds(p: Problem, m: int, runs: int) -> float:
    """The best time of an epoch in panels, as Mercer trains, with no kernel values kept."""
    outcomes = (train(p, exactly(2), m=m, step=SMALL_STEP) for _ in range(runs))
    return min(outcome.history[1].seconds for outcome in outcomes)


def knee(batches: Sequence[int], seconds: Sequence[float]) -> int:
    """The fewest rows at which the rows per second stop rising; C_G is measured in the same way."""
    rates = [m / t for m, t in zip(batches, seconds, strict=True)]
    return next(
        m for m, rate in zip(batches, rates, strict=True) if rate >= SATURATED_SHARE * max(rates)
    )


def rate_share(c: dict[str, Any]) -> float:
    """Rows per second with the batch size nearest to m_C, as a share of the best."""
    rates = [m / t for m, t in zip(c["batches"], c["seconds"], strict=True)]
    nearest = min(range(len(rates)), key=lambda i: abs(math.log(c["batches"][i] / c["m_C"])))
    return float(rates[nearest] / max(rates))


def run(data: Data, size: Size) -> Result:
    sizes = SIZES[size]
    resource = measure_resource(CPU)
    digits = data.load("mnist", sizes.n[-1])
    x, y = torch.from_numpy(digits.X), torch.from_numpy(digits.targets())
    d, l = x.shape[1], y.shape[1]
    curves = []
    for n in sizes.n:
        p = problem(x[:n], y[:n], resource)
        batches = [m for m in sizes.batches if m <= n // 2]
        seconds = iteration_seconds(p, batches, sizes.runs)
        m_C = resource.capacity_batch(n, d, l)
        found = knee(batches, seconds)
        below = [(m, t) for m, t in zip(batches, seconds, strict=True) if m <= found]
        beyond = [(m, t) for m, t in zip(batches, seconds, strict=True) if m >= found]
        whole = [m for m in WHOLE_BATCHES if m <= n // 2 and n <= sizes.whole]
        panelled = {m: epoch_seconds(p, m, min(2, sizes.runs)) for m in whole}
        curves.append(
            {
                "n": n,
                "batches": batches,
                "seconds": seconds,
                "m_C": m_C,
                "paper_m_C": resource.capacity / ((d + l) * n),
                "knee": found,
                "below": exponent(*zip(*below, strict=True)),
                "beyond": exponent(*zip(*beyond, strict=True)),
                "panelled_batches": list(panelled),
                "panelled_seconds": list(panelled.values()),
            }
        )
    largest = curves[-1]
    return Result(
        name="iteration_time",
        title="Time per iteration and per epoch",
        text=(
            f"MNIST as floats (d = {d}, l = {l}), Gaussian, s = {SUBSAMPLE:,}, q = {COMPONENTS}. "
            "Batches are evaluated one at a time; all batch sizes run in turn, and the best of several "
            "times counts. The ideal device takes the shortest measured time until it is saturated, and "
            "then runs at the highest measured rate. The measured capacity of this device is C_G = "
            f"{resource.capacity:.3g} operations, and its full rate needs {resource.full_rate_rows} "
            "rows. An epoch of single batches takes n / m times the time of an iteration; Mercer's "
            "epochs, in panels of up to 1,024 rows, were run in full."
        ),
        claims=(_shape_claim(largest), _capacity_claim(curves), _epoch_claim(curves), _n_claim(curves)),
        tables=(_iteration_table(curves), _knee_table(curves)),
        curves={"sizes": curves, "capacity": resource.capacity},
    )


def _shape_claim(c: dict[str, Any]) -> Claim:
    constant = c["below"] <= NEARLY_CONSTANT
    better = c["below"] <= BETTER_THAN_SEQUENTIAL
    linear = LINEAR[0] <= c["beyond"] <= LINEAR[1]
    longer = c["seconds"][c["batches"].index(c["knee"])] / c["seconds"][0]
    below = "sublinear but not constant" if better else "nearly linear"
    short = shortfalls(
        (constant, f"{below} below that: few rows saturate two cores"),
        (linear, f"above that it grows as m^{c['beyond']:.2f}"),
    )
    return Claim(
        "An iteration takes nearly constant time until the device is saturated, and then time in "
        "proportion to m.",
        "Figure 3a",
        "shown as a curve (Titan Xp)",
        f"n = {c['n']:,}: time grows as m^{c['below']:.2f} up to m = {c['knee']:,}, as "
        f"m^{c['beyond']:.2f} beyond; m = {c['knee']:,} takes {longer:.0f} times as long as m = 1",
        judge(not short, better and linear, short),
    )


def _capacity_claim(curves: list[dict[str, Any]]) -> Claim:
    close = [0.5 <= c["m_C"] / c["knee"] <= 2 for c in curves]
    shares = [rate_share(c) for c in curves]
    return Claim(
        "The batch size that saturates the device, m_C, can be calculated from C_G in advance.",
        "section 3",
        "C_G is a property of the device",
        ", ".join(f"n = {c['n']:,}: m_C = {c['m_C']:.0f}, knee at {c['knee']:,}" for c in curves)
        + f"; at m_C the device runs at {min(shares):.0%} to {max(shares):.0%} of its full rate",
        judge_each(close, "within a factor of two for {count} values of n"),
    )


def _epoch_claim(curves: list[dict[str, Any]]) -> Claim:
    gains, flats, slower = [], [], []
    for c in curves:
        epochs = [t / m for m, t in zip(c["batches"], c["seconds"], strict=True)]
        at = c["batches"].index(c["knee"])
        gains.append(epochs[0] / epochs[at])
        flats.append(epochs[at] / min(epochs))
        slower.append(epochs[-1] / epochs[at])
    falls = all(gain >= 2 for gain in gains)
    flat = all(f <= 1 / SATURATED_SHARE for f in flats)
    whole = [c["panelled_seconds"] for c in curves if c["panelled_seconds"]]
    panelled = max(max(seconds) / min(seconds) for seconds in whole)
    return Claim(
        "A larger batch shortens an epoch up to m_C, and not beyond.",
        "Figure 3b",
        "shown as curves (Titan Xp)",
        f"{min(gains):.0f} to {max(gains):.0f} times faster at the knee than with m = 1, at most "
        f"{max(flats):.2f} times faster still beyond it, and up to {max(slower):.2f} times slower with "
        f"the largest batch; in Mercer's panels the slowest batch size from {WHOLE_BATCHES[0]} to "
        f"{WHOLE_BATCHES[-1]:,} takes at most {panelled:.1f} times as long as the fastest",
        judge(
            falls and flat,
            falls,
            "the time goes on falling beyond the knee" if falls else "the time hardly falls",
        ),
    )


def _n_claim(curves: list[dict[str, Any]]) -> Claim:
    first, last = curves[0], curves[-1]
    factor = last["n"] / first["n"]
    shrink = first["knee"] / last["knee"]
    return Claim(
        "With more points a smaller batch saturates the device: m_C falls as 1 / n.",
        "section 3",
        "m_C = C_G / ((d + l) n)",
        f"n × {factor:.0f}: the formula's m_C falls from {first['paper_m_C']:.0f} to "
        f"{last['paper_m_C']:.0f}, the knee goes from {first['knee']:,} to {last['knee']:,}",
        judge(
            0.5 * factor <= shrink <= 2 * factor,
            shrink > 1.5,
            "on this device memory bandwidth limits a product with few rows at any n, and Mercer takes "
            "the rows of the full rate as a lower bound of m_C",
        ),
    )


def _iteration_table(curves: list[dict[str, Any]]) -> Table:
    rows = tuple(
        (m, *(1e3 * c["seconds"][c["batches"].index(m)] if m in c["batches"] else None for c in curves))
        for m in curves[-1]["batches"]
    )
    return Table("Milliseconds per iteration", ("m", *(f"n = {c['n']:,}" for c in curves)), rows)


def _knee_table(curves: list[dict[str, Any]]) -> Table:
    columns = ("n", "C_G / ((d + l) n)", "m_C", "knee", "exponent below", "exponent above")
    keys = ("n", "paper_m_C", "m_C", "knee", "below", "beyond")
    rows = tuple(tuple(c[k] for k in keys) for c in curves)
    return Table("Where the device is saturated", columns, rows)


def plot(result: Result, folder: Path) -> list[Path]:
    """Time per iteration with that of the ideal device, and time per epoch for every n."""
    curves = result.curves["sizes"]
    largest = curves[-1]
    figure, (left, right) = panels(2, size=(10.4, 4.4))
    m, t = np.array(largest["batches"]), np.array(largest["seconds"])
    least, per_row = t.min(), (t / m).min()
    ideal_m = np.sort(np.append(m, least / per_row))
    left.plot(m, t, color=BLUE, marker=".", label="this device")
    left.plot(ideal_m, np.maximum(least, per_row * ideal_m), color="black", lw=0.9, label="ideal device")
    left.axvline(largest["m_C"], color=VERMILION, linestyle="--", lw=1.2,
                 label=f"$m_C$ = {largest['m_C']:,.0f} from the measured $C_G$")  # fmt: skip
    left.axvline(largest["knee"], color=GREY, linestyle=":", label=f"full rate from {largest['knee']:,}")
    left.set(title=f"One iteration, $n$ = {largest['n']:,}", ylabel="Seconds per iteration")
    for c, colour in zip(curves, PALETTE, strict=False):
        m, t = np.array(c["batches"]), np.array(c["seconds"])
        right.plot(m, c["n"] / m * t, color=colour, marker=".", label=f"$n$ = {c['n']:,}")
        right.plot(c["panelled_batches"], c["panelled_seconds"], color=colour, marker="s", ms=4, ls="--")
        right.axvline(c["m_C"], color=colour, linestyle=":", lw=1)
    right.plot([], [], color=GREY, marker="s", ms=4, ls="--", label="Mercer, in panels")
    right.plot([], [], color=GREY, linestyle=":", lw=1, label="$m_C$")
    right.set(title="One epoch", ylabel="Seconds per epoch")
    for ax in (left, right):
        ax.set(xlabel="Batch size $m$", xscale="log", yscale="log")
    return [write_figure(figure, folder / "iteration_time.png")]
