"""More rows than centres, on Covertype and New York flights: what rows beyond the centres bring.

This is not in the paper.  Delayed projections, its authors' later method (Abedsoltan et al.,
2024), train a model of p centres on n > p rows.  Here p stays the same while n grows, beside a model of
p rows that are all centres: a prediction costs the same for all of them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.paper.axes import colour, name_of, panels, write_figure
from benchmarks.paper.data import Data, median_distance
from benchmarks.paper.results import Claim, Result, Size, Table, judge_each
from mercer import KernelClassifier, KernelRegressor
from mercer.stopwatch import Stopwatch

SETS = ("covtype", "flights")
RIDGE = 0.1
TEST_ROWS = 10_000


@dataclass(frozen=True)
class Scale:
    centres: int
    rows: tuple[int | None, ...]  # None for all


SCALES: dict[Size, Scale] = {
    "smoke": Scale(200, (2_000,)),
    "quick": Scale(2_000, (20_000, 100_000)),
    "full": Scale(10_000, (100_000, None)),
}


def run(data: Data, size: Size) -> Result:
    scale = SCALES[size]
    found = [(name, _errors(data, name, scale)) for name in SETS]
    cells = [
        (name_of(name), n, scale.centres, round(error, 4), round(seconds, 1))
        for name, rows in found
        for n, error, seconds in rows
    ]
    columns = ("data", "rows", "centres", "test error", "seconds of training")
    text = (
        f"{scale.centres:,} centres, a random sample of the rows; Laplacian kernel, its bandwidth the "
        f"median distance, ridge {RIDGE}. Test errors are 1 - accuracy (Covertype) and 1 - R² (flights) "
        f"on at most {TEST_ROWS:,} other rows. The first row of each dataset has every row as a centre. "
        "This is not in the paper."
    )
    curves = {
        name: {"rows": [r[0] for r in rows], "errors": [r[1] for r in rows]} for name, rows in found
    }
    table = Table("Test error by number of rows", columns, tuple(cells))
    title = "More rows than centres"
    return Result("centres", title, text, (_claim(scale, curves),), (table,), curves)


def _errors(data: Data, name: str, scale: Scale) -> list[tuple[int, float, float]]:
    """Rows, test error and seconds of training, from as many rows as centres on."""
    rows = []
    for n in (scale.centres, *scale.rows):
        part = data.load(name, n, test_rows=TEST_ROWS)
        kind = KernelRegressor if part.is_regression else KernelClassifier
        model = kind(
            "laplacian",
            bandwidth=median_distance(part.X),
            ridge=RIDGE,
            scale=False,
            n_centers=scale.centres,
            random_state=0,
        )
        with warnings.catch_warnings(), Stopwatch() as watch:
            warnings.simplefilter("ignore")
            model.fit(part.X, part.y)
        error = 1 - model.score(part.X_test, part.y_test)
        rows.append((len(part.X), float(error), watch.seconds))
    return rows


def _claim(scale: Scale, curves: dict[str, Any]) -> Claim:
    parts = [
        f"{name_of(name)} {curve['errors'][0]:.3f} with {curve['rows'][0]:,} rows and "
        f"{curve['errors'][-1]:.3f} with {curve['rows'][-1]:,}"
        for name, curve in curves.items()
    ]
    lower = [curve["errors"][-1] < curve["errors"][0] for curve in curves.values()]
    return Claim(
        "Training on more rows than centres lowers the error, at the same cost of a prediction.",
        "not in the paper; delayed projections (2024)",
        "not quoted",
        f"{scale.centres:,} centres: {'; '.join(parts)}",
        judge_each(lower, "so on {count} sets"),
    )


def plot(result: Result, folder: Path) -> list[Path]:
    """Error against the number of rows."""
    figure, axes = panels(len(result.curves), size=(8.4, 4.0))
    for i, (axis, (name, curve)) in enumerate(zip(axes, result.curves.items(), strict=True)):
        axis.plot(curve["rows"], curve["errors"], "o-", color=colour(i), label=name_of(name))
        axis.set(xscale="log", xlabel="Training rows", ylabel="Test error")
        axis.set_xticks(curve["rows"], [f"{n:,}" for n in curve["rows"]])
        axis.minorticks_off()
        axis.set_ylim(0, 1.2 * max(curve["errors"]))
    return [write_figure(figure, folder / "centres.png")]
