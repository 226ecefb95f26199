"""MNIST with deformed digits: the paper's result of 0.72 % with 10^6 points, and smaller sizes.

The training set is real digits and an increasing number of deformed copies (`digits.py`).  Where memory
cannot keep kernel values, later epochs take twice as long as the first, so at full size there is one
epoch only.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

from sklearn.exceptions import ConvergenceWarning

from benchmarks.paper.axes import panels, write_figure
from benchmarks.paper.data import Data
from benchmarks.paper.digits import deformed
from benchmarks.paper.peers import BANDWIDTHS, error_of, standard_error
from benchmarks.paper.results import Claim, Result, Size, Table, judge
from mercer import KernelClassifier
from mercer.palette import BLUE
from mercer.stopwatch import Stopwatch

# Published, on one GTX Titan Xp.
PUBLISHED_ROWS, PUBLISHED_ERROR = 1_000_000, 0.0072


@dataclass(frozen=True)
class Scale:
    real: int
    totals: tuple[int, ...]  # real and deformed rows together
    most_epochs: int


SCALES: dict[Size, Scale] = {
    "smoke": Scale(500, (1_000,), 5),
    "quick": Scale(5_000, (10_000, 20_000, 40_000), 100),
    "full": Scale(60_000, (250_000, 1_000_000), 1),
}


def run(data: Data, size: Size) -> Result:
    scale = SCALES[size]
    digits = data.load("mnist", scale.real)
    n_test = len(digits.y_test)
    rows: list[tuple[int, float, int, float]] = []
    X, y = deformed(digits.X, digits.y, scale.totals[-1])
    for total in (scale.real, *scale.totals):
        model = KernelClassifier(
            "gaussian",
            bandwidth=BANDWIDTHS["mnist"],
            ridge=0.0,
            max_iter=scale.most_epochs,
            random_state=0,
        )
        with warnings.catch_warnings(), Stopwatch() as watch:
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(X[:total], y[:total])
        error = error_of(model.predict(digits.X_test), digits.y_test)
        rows.append((total, error, model.n_iter_, watch.seconds))
    epochs = "one epoch each" if scale.most_epochs == 1 else "until the held-out loss stops falling"
    text = (
        f"{scale.real:,} real digits and deformed copies of them, which are rotated, scaled, sheared "
        "and shifted a little and displaced by a smooth random field. Gaussian kernel of bandwidth 5, "
        f"no ridge, part of the rows held out, {epochs}. Test errors are on {n_test:,} real digits; the "
        f"last one has a standard error of {100 * standard_error(rows[-1][1], n_test):.2f} percentage "
        "points. The authors' deformations are not known."
    )
    cells = tuple((n, round(100 * e, 2), k, round(s, 1)) for n, e, k, s in rows)
    table = Table(
        "Test error by number of rows", ("rows", "test error, %", "epochs", "seconds of training"), cells
    )
    curves = {"rows": [r[0] for r in rows], "errors": [r[1] for r in rows]}
    title = "MNIST with deformed digits"
    return Result("deformed", title, text, (_claim(scale, rows),), (table,), curves)


def _claim(scale: Scale, rows: list[tuple[int, float, int, float]]) -> Claim:
    plain, (total, error, epochs, seconds) = rows[0][1], rows[-1]
    ours = (
        f"{error:.2%} with {scale.real:,} digits and deformed copies, {total:,} rows in total, after "
        f"{epochs} epoch{'s' * (epochs != 1)} and {seconds:.0f} s; {plain:.2%} without the copies"
    )
    return Claim(
        "MNIST with deformed digits, 10^6 points, reaches a test error of 0.72 %.",
        "comparison table",
        "0.72 % with 10^6 points; one GTX Titan Xp",
        ours,
        judge(error <= PUBLISHED_ERROR, error < plain, ours),
    )


def plot(result: Result, folder: Path) -> list[Path]:
    """Error against the number of rows, and the paper's result."""
    figure, (axis,) = panels(1, size=(6.4, 4.4))
    rows, errors = result.curves["rows"], [100 * e for e in result.curves["errors"]]
    label = f"Mercer, {rows[0]:,} digits and deformed copies"
    axis.plot(rows, errors, "o-", color=BLUE, label=label)
    axis.plot(PUBLISHED_ROWS, 100 * PUBLISHED_ERROR, "k*", ms=12, label="the paper, 0.72 %")
    for n, error in zip(rows, errors, strict=True):
        axis.annotate(f"{error:.2f} %", (n, error), (0, 8), textcoords="offset points", ha="center")
    axis.set(xscale="log", xlabel="Training rows", ylabel="Test error, %")
    ticks = sorted({*rows, PUBLISHED_ROWS})
    axis.set_xticks(ticks, [f"{n:,}" for n in ticks])
    axis.minorticks_off()
    axis.margins(x=0.12)
    axis.set_ylim(0, 1.2 * max(errors))
    return [write_figure(figure, folder / "deformed.png")]
