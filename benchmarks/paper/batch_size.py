"""Time to converge against batch size: plain SGD, the original EigenPro and Mercer.

Seconds are iterations times the seconds of one iteration.  Iterations are counted exactly with random
batches; the time of one is measured here, one batch at a time with no kernel values kept
(`convergence.py` does both).  The number of iterations alone is the time on an ideal device, where an
iteration takes as long for every batch size.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.paper.axes import METHOD_STYLES, panels, write_figure
from benchmarks.paper.convergence import (
    MERCER,
    METHODS,
    ORIGINAL,
    SGD,
    Method,
    Timer,
    agreement,
    centred,
    count,
    method,
    time_iterations,
)
from benchmarks.paper.data import Data
from benchmarks.paper.power_law import exponent
from benchmarks.paper.results import Claim, Result, Size, Table, judge, rounded

# (dataset, kernel, training error in the paper's figure).  The paper's second dataset is TIMIT.
SETS = (("mnist", "gaussian", 1e-4), ("cifar10", "laplacian", 2e-4))
LEVELS = (2e-4, 1e-4)
POINTS: dict[Size, int] = {"smoke": 400, "quick": 2_500, "full": 20_000}
MOST_EPOCHS: dict[Size, int] = {"smoke": 60, "quick": 200, "full": 1_500}
ROUNDS: dict[Size, int] = {"smoke": 1, "quick": 3, "full": 5}
# Batch sizes are powers of this.
RATIO: dict[Size, int] = {"smoke": 4, "quick": 2, "full": 2}
# With the paper's step, iterations beyond m* are in proportion to 1 / m + 1 / m*: the slope is -1/4 at
# 3 m* and tends to 0.  Up to m* it is -1.
FLAT_FROM = 3.0
LINEAR_SLOPE, FLAT_SLOPE = -0.8, -0.3
# Counting ignores only rounding.
AGREEMENT = 1e-3
# Relative error of the time of one iteration on a shared machine.
TIMING_ERROR = 0.1

Row = dict[str, Any]


def run(data: Data, size: Size) -> Result:
    found = [_one_set(data, size, *chosen) for chosen in SETS]
    curves = {"sets": found}
    n = POINTS[size]
    text = (
        f"{n:,} points each of MNIST (Gaussian kernel) and of CIFAR-10 in grey (Laplacian kernel; it "
        "replaces the paper's TIMIT, which is licensed), with one-hot targets, bandwidths from the "
        f"median distance, and s = {found[0]['s']:,}. The paper uses 10^5 points; counting epochs "
        "exactly for every batch size needs the whole kernel matrix in memory. Seconds are the number "
        "of iterations, with batches redrawn in every epoch, times the best measured time of one "
        "iteration, with one batch at a time and no kernel values kept. The original EigenPro uses "
        "Mercer's q. With eigenfunctions from a subsample and Mercer's step it diverged here, so its "
        "correction is scaled to be stable and its step follows from its own operator. Left: time on "
        "this device. Right: iterations, which is the time on a device where an iteration takes as long "
        f"for every batch size. Curves end where {MOST_EPOCHS[size]:,} epochs were not enough. The "
        "table after those of the datasets also lists the epochs at m* with a fixed batch order; they "
        "are the reason why Mercer's own loop changes the order. The last table lists complete runs in "
        "the fixed order and compares their measured seconds with the computed ones. Every method "
        "should follow the dotted line up to its own m* and then be flat."
    )
    tables = [_table(one) for one in found] + [_summary(found), _end_to_end(found)]
    return Result(
        name="batch_size",
        title="Time to converge against batch size",
        text=text,
        claims=(_linear(found), _extended(found), _on_device(found), _original(found)),
        tables=tuple(tables),
        curves=curves,
        size=size,
    )


def _one_set(data: Data, size: Size, name: str, kernel: str, level: float) -> dict[str, Any]:
    found = data.load(name, POINTS[size])
    given = centred(found).problem(kernel)
    n, ratio = given.n, RATIO[size]
    powers = [ratio**i for i in range(int(math.log(n, ratio)) + 1)]
    batch_sizes = [math.ceil(n / math.ceil(n / m)) for m in powers]  # batches have even sizes
    rows: list[Row] = []
    timers: list[Timer] = []
    critical: dict[str, float] = {}
    twice: dict[str, bool] = {}
    orders: dict[str, list[float | None]] = {}
    differences = math.nan
    for one in METHODS:
        of = method(one, given)
        critical[one] = of.critical
        counted = [row for m in batch_sizes if (row := _counted(of, m, MOST_EPOCHS[size]))]
        rows += counted
        timers += [Timer(of, row["m"]) for row in counted]
        twice[one] = _twice_is_worse(of, counted, level, MOST_EPOCHS[size])
        own = max(1, int(of.critical))
        orders[one] = [
            count(of, own, level, MOST_EPOCHS[size], fixed=fixed).epochs_to(level)
            for fixed in (False, True)
        ]
        if one == MERCER:
            differences = agreement(of)
    time_iterations(timers, ROUNDS[size])
    for row, timer in zip(rows, timers, strict=True):
        row["iteration_ms"] = 1e3 * timer.best
        row["seconds"] = [_times(i, timer.best) for i in row["iterations"]]
    fastest = {one: _fastest(one, rows, level) for one in METHODS}
    trained = {
        one: None if i is None else timers[i].train(level, MOST_EPOCHS[size])
        for one, i in fastest.items()
    }
    return {
        "name": name,
        "note": found.note,
        "kernel": str(given.kernel),
        "level": level,
        "n": n,
        "s": given.plan.subsample_size,
        "q": given.plan.preconditioner_rank,
        "m_C": given.plan.capacity_batch_size,
        "critical": critical,
        "twice_is_worse": twice,
        "orders": orders,  # epochs at m*, with redrawn batches and in a fixed order
        "agreement": differences,
        "trained": trained,
        "rows": rows,
    }


def _fastest(name: str, rows: list[Row], level: float) -> int | None:
    """Index of the method's row with the fewest seconds to the level."""
    reached = [i for i, row in enumerate(rows) if row["method"] == name and _at(row, "seconds", level)]
    return min(reached, key=lambda i: _at(rows[i], "seconds", level) or math.inf, default=None)


def _counted(of: Method, m: int, most_epochs: int) -> Row | None:
    """Epochs and iterations to both levels; None where neither is reached."""
    losses = count(of, m, min(LEVELS), most_epochs)
    epochs = [losses.epochs_to(level) for level in LEVELS]
    if epochs[0] is None:
        return None
    per_epoch = math.ceil(of.problem.n / m)
    iterations = [None if e is None else e * per_epoch for e in epochs]
    return {"method": of.name, "m": m, "epochs": epochs, "iterations": iterations}


def _twice_is_worse(of: Method, counted: list[Row], level: float, most_epochs: int) -> bool:
    """Whether doubling the step beyond m* does not help, so that the curve is flat for a reason."""
    beyond = [row for row in counted if row["m"] >= of.critical and _at(row, "epochs", level)]
    if not beyond:
        return False
    row = beyond[-1]
    epochs = count(of, row["m"], level, most_epochs, step=2.0).epochs_to(level)
    return epochs is None or epochs >= (_at(row, "epochs", level) or math.inf)


def _times(iterations: float | None, seconds: float) -> float | None:
    return None if iterations is None else iterations * seconds


def _at(row: Row, what: str, level: float) -> float | None:
    value: float | None = row[what][LEVELS.index(level)]
    return value


def _curve(one: dict[str, Any], name: str, what: str) -> tuple[list[int], list[float]]:
    """Batch sizes and iterations or seconds to the dataset's level."""
    rows = [row for row in one["rows"] if row["method"] == name and _at(row, what, one["level"])]
    return [row["m"] for row in rows], [float(_at(row, what, one["level"]) or 0) for row in rows]


def _slope(one: dict[str, Any], name: str, what: str, low: float, high: float) -> float:
    """Slope of the logarithm against that of m, for low <= m <= high; NaN for fewer than two sizes."""
    pairs = [(m, v) for m, v in zip(*_curve(one, name, what), strict=True) if low <= m <= high]
    return exponent([m for m, _ in pairs], [v for _, v in pairs])


def _best(one: dict[str, Any], name: str, what: str) -> float:
    return min(_curve(one, name, what)[1], default=math.nan)


def _linear(found: list[dict[str, Any]]) -> Claim:
    good, bad, parts = 0, [], []
    for one in found:
        for name in (SGD, MERCER):
            m_star = one["critical"][name]
            below = _slope(one, name, "iterations", 1, m_star)
            beyond = _slope(one, name, "iterations", FLAT_FROM * m_star, math.inf)
            parts.append(
                f"{one['name']} {name}: {_text(below)} up to m*, {_text(beyond)} beyond {FLAT_FROM:g} m*"
            )
            linear = below <= LINEAR_SLOPE
            flat = beyond >= FLAT_SLOPE and one["twice_is_worse"][name]
            good += linear and flat
            if not (linear and flat):
                bad.append(f"{one['name']} {name}")
    exact = max(one["agreement"] for one in found) <= AGREEMENT
    why = f"not for {', '.join(bad)}" if exact else "the count does not agree with training"
    return Claim(
        claim="The number of iterations falls in proportion to 1/m up to m*, and hardly beyond.",
        where="section 3, and the figure of time to converge against batch size",
        published="slope −1, then 0 (theory; curves without numbers)",
        ours="slopes of log iterations against log m: " + "; ".join(parts),
        verdict=judge(exact and not bad, exact and good > 0, why),
    )


def _extended(found: list[dict[str, Any]]) -> Claim:
    parts, gains, fewer = [], [], []
    for one in found:
        critical = one["critical"]
        gains.append(critical[MERCER] / critical[SGD])
        fewer.append(_best(one, SGD, "iterations") / _best(one, MERCER, "iterations"))
        parts.append(
            f"{one['name']}: m* from {critical[SGD]:.1f} to {critical[MERCER]:.0f}, fewest iterations "
            f"{_best(one, SGD, 'iterations'):,.0f} (SGD) and {_best(one, MERCER, 'iterations'):,.0f} "
            "(Mercer)"
        )
    # Beyond m*, iterations are in proportion to lambda_1, so they should fall about as m* / beta rises.
    shares = [f / g for f, g in zip(fewer, gains, strict=True)]
    holds = min(gains) >= 10 and min(shares) >= 0.5
    return Claim(
        claim="The levelled kernel extends linear scaling from m*(k) to the batch size that the device "
        "can use.",
        where="section 4, and the figure of time to converge against batch size",
        published="m*(k) about 4–7 on real data, m*(k_G) = m_G (hundreds to thousands; Titan Xp)",
        ours="; ".join(parts),
        verdict=judge(
            holds,
            min(gains) > 1 and min(fewer) > 1,
            f"m* grows at least {min(gains):.0f} times, and iterations fall {min(fewer):.0f} times",
        ),
    )


def _on_device(found: list[dict[str, Any]]) -> Claim:
    slopes, ratios, parts = [], [], []
    for one in found:
        until = min(one["critical"][MERCER], one["m_C"])
        slope = _slope(one, MERCER, "seconds", 1, until)
        ratios.append(_best(one, SGD, "seconds") / _best(one, MERCER, "seconds"))
        slopes.append(slope)
        parts.append(
            f"{one['name']}: Mercer's slope {_text(slope)} up to m = {until:.0f}, best times "
            f"{_best(one, SGD, 'seconds'):.2f} s (SGD) and {_best(one, MERCER, 'seconds'):.2f} s "
            "(Mercer)"
        )
    flattest = max(slopes)
    return Claim(
        claim="Time, too, falls in proportion to 1/m until the device is saturated.",
        where="the figure of time to converge against batch size",
        published="curves without numbers (Titan Xp)",
        ours="seconds on this device: " + "; ".join(parts),
        verdict=judge(
            flattest <= LINEAR_SLOPE,
            flattest <= FLAT_SLOPE and min(ratios) > 1 + TIMING_ERROR,
            "this device is saturated by smaller batches than a GPU, and time falls only as "
            f"m^{flattest:.2f}; SGD's best time is at least {min(ratios):.1f} times Mercer's",
        ),
    )


def _original(found: list[dict[str, Any]]) -> Claim:
    ratios = [_best(one, ORIGINAL, "seconds") / _best(one, MERCER, "seconds") for one in found]
    parts = [
        f"{one['name']}: {_best(one, ORIGINAL, 'seconds'):.2f} s against "
        f"{_best(one, MERCER, 'seconds'):.2f} s, m* {one['critical'][ORIGINAL]:.0f} against "
        f"{one['critical'][MERCER]:.0f}"
        for one in found
    ]
    return Claim(
        claim="The improved iteration converges sooner than the original EigenPro.",
        where="the figure of time to converge against batch size",
        published="curves without numbers (Titan Xp)",
        ours="best times over batch sizes, original against Mercer: " + "; ".join(parts),
        verdict=judge(
            min(ratios) > 1 + TIMING_ERROR,
            min(ratios) > 1 - TIMING_ERROR,
            f"the original takes {min(ratios):.2f} times as long on one dataset",
        ),
    )


def _text(slope: float) -> str:
    return "too few sizes" if math.isnan(slope) else f"{slope:.2f}"


def _table(one: dict[str, Any]) -> Table:
    rows = []
    for row in one["rows"]:
        numbers = [
            rounded(v) for i in range(len(LEVELS)) for v in (row["iterations"][i], row["seconds"][i])
        ]
        rows.append((row["method"], row["m"], round(row["iteration_ms"], 3), *numbers))
    heads = [f"{what} to {level:g}" for level in LEVELS for what in ("iterations", "seconds")]
    title = f"{one['name']}, {one['kernel']}, n = {one['n']:,}, s = {one['s']:,}, q = {one['q']}"
    return Table(title, ("method", "batch size", "ms per iteration", *heads), tuple(rows))


def _summary(found: list[dict[str, Any]]) -> Table:
    rows = tuple(
        (
            one["name"],
            name,
            round(one["critical"][name], 1),
            rounded(_best(one, name, "iterations")),
            rounded(_best(one, name, "seconds")),
            "no" if one["twice_is_worse"][name] else "yes, or not seen",
            *(rounded(epochs) for epochs in one["orders"][name]),
        )
        for one in found
        for name in METHODS
    )
    heads = (
        "dataset",
        "method",
        "m*",
        "fewest iterations",
        "best seconds",
        "doubling the step beyond m* helps",
        "epochs at m*, batches redrawn",
        "epochs at m*, fixed order",
    )
    worst = max(one["agreement"] for one in found)
    title = f"Best batch sizes; counted losses differ from those of training by {worst:.1e}"
    return Table(title, heads, rows)


def _end_to_end(found: list[dict[str, Any]]) -> Table:
    rows = []
    for one in found:
        for name, run in one["trained"].items():
            if run is not None:
                numbers = (run["epochs"], rounded(run["counted_seconds"]), rounded(run["seconds"]))
                rows.append((one["name"], name, run["m"], *numbers, rounded(run["error"])))
    heads = (
        "dataset",
        "method",
        "batch size",
        "epochs",
        "seconds, computed",
        "seconds, measured",
        "training error",
    )
    title = "Complete runs at the best batch size, with a fixed batch order"
    return Table(title, heads, tuple(rows))


def plot(result: Result, folder: Path) -> list[Path]:
    paths = []
    for one in result.curves["sets"]:
        figure, axes = panels(2, size=(10, 4.6))
        for ax, what, label in zip(
            axes,
            ("seconds", "iterations"),
            ("Seconds to converge, this device", "Iterations to converge"),
            strict=True,
        ):
            for name in METHODS:
                colour, marker = METHOD_STYLES[name]
                m, values = _curve(one, name, what)
                ax.plot(m, values, color=colour, marker=marker, ms=4, label=name)
                ax.axvline(one["critical"][name], color=colour, linestyle="--", linewidth=1)
            m, values = _curve(one, MERCER, what)
            if m:
                ideal = np.array([m[0], min(m[-1], one["critical"][MERCER])])
                ax.plot(ideal, values[0] * m[0] / ideal, ":", color="0.3", label="linear scaling")
            ax.axvline(one["m_C"], color="0.3", linestyle="-.", linewidth=1)
            ax.set(xscale="log", yscale="log", xlabel="Batch size $m$", ylabel=label)
            _mark(ax, one)
        title = f"{one['note']}, {one['kernel'].capitalize()}, n = {one['n']:,}"
        figure.suptitle(f"{title}, to a training error of {one['level']:g}", fontsize=10)
        path = folder / f"batch_size_{one['name']}.png"
        paths.append(write_figure(figure, path, legend_columns=4))
    return paths


def _mark(ax: Any, one: dict[str, Any]) -> None:
    """Label the vertical lines: critical batch sizes above the axes, the device's at the bottom."""
    critical, across = one["critical"], ax.get_xaxis_transform()
    names = {
        "$m^*(k)$": critical[SGD],
        "$m^*$, original": critical[ORIGINAL],
        "$m^*(k_G)$": critical[MERCER],
    }
    for name, value in names.items():
        ax.text(value, 1.01, name, transform=across, rotation=45, fontsize=8)
    ax.text(one["m_C"], 0.02, "$m_C$ ", transform=across, fontsize=8, ha="right")
