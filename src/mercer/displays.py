"""Plots of a fitted estimator, in scikit-learn's Display convention.

    LearningCurveDisplay   the losses of every epoch, and the epoch whose weights were kept
    SpectrumDisplay        the kernel's eigenvalues, before and after levelling
    BatchSizeDisplay       seconds per iteration by batch size, on this device

`from_estimator(model)` takes a fitted estimator (of a pipeline, its last step) and draws at once;
`plot(ax=...)` draws the same data elsewhere.  Both return the display, with `ax_` and `figure_` set.
Only drawing needs matplotlib.

A confusion matrix needs nothing from here: scikit-learn's own `ConfusionMatrixDisplay.from_estimator`
takes these classifiers as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted
from typing_extensions import Self

from mercer.model.machine import KernelMachine
from mercer.operators.tiled import kernel_times
from mercer.planning.plan import Plan
from mercer.stopwatch import fastest
from mercer.training.loop import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# From Okabe and Ito's palette, chosen for colour-blind readers.
BLUE = "#0072B2"
VERMILION = "#D55E00"
GREY = "#666666"
FIGURE_INCHES = (6.0, 4.0)
# Where doubling ends unless sizes are given: beyond, timing takes longer than a plot is worth.
LARGEST_TIMED_BATCH = 4096
REPEATS = 3


class LearningCurveDisplay:
    """Training and held-out loss of every epoch; the epoch whose weights were kept is ringed.

    The training loss is that of each batch just before its step, so in the first epochs it may lie
    above the held-out loss, which is measured after the epoch.

    Parameters
    ----------
    history : History
    best : (float, float) or None
        Epochs after which the weights kept were reached, and their held-out loss; None for those of the
        epoch with the lowest.
    score_name : str, default="score"
        What the held-out score is called in the legend.
    """

    def __init__(
        self,
        history: History,
        *,
        best: tuple[float, float] | None = None,
        score_name: str = "score",
    ) -> None:
        self.history = history
        self.best = best
        self.score_name = score_name

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Axes | None = None) -> Self:
        """Draw the history of a fitted estimator."""
        check_is_fitted(estimator, "history_")
        score_name = "accuracy" if is_classifier(estimator) else "R²"
        kept = (estimator.best_epoch_, estimator.best_loss_)
        best = None if None in kept else kept
        return cls(estimator.history_, best=best, score_name=score_name).plot(ax)

    def plot(self, ax: Axes | None = None, **kwargs: Any) -> Self:
        """Draw on `ax` or a new figure; `kwargs` go to both lines."""
        ax = _axes(ax)
        from matplotlib.ticker import MaxNLocator

        names = ("number", "train_loss", "validation_loss", "validation_score")
        columns = [np.array(self.history.column(name), dtype=float) for name in names]  # NaN for None
        epochs, train, held_out, scores = columns
        ax.plot(epochs, train, **{"color": BLUE, "marker": ".", "label": "training", **kwargs})
        if np.isfinite(held_out).any():
            ax.plot(
                epochs, held_out, **{"color": VERMILION, "marker": ".", "label": "held out", **kwargs}
            )
            lowest = np.nanargmin(held_out)
            epoch, loss = self.best or (epochs[lowest], held_out[lowest])
            label = f"kept: epoch {epoch:.0f}" if epoch >= 1 else f"kept: after {epoch:.2g} epochs"
            if epoch == epochs[lowest] and np.isfinite(scores[lowest]):
                label += f"\n{self.score_name} {scores[lowest]:.4f}"
            ax.plot(epoch, loss, "o", ms=11, mfc="none", mec="black", label=label)
        scale = "log" if np.nanmax([train, held_out]) > 0 else "linear"  # constant targets have no loss
        ax.set(xlabel="Epoch", ylabel="Mean squared error", yscale=scale)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        ax.legend()
        self.ax_, self.figure_ = ax, ax.figure
        return self


class SpectrumDisplay:
    """Eigenvalues of the kernel operator as given, k, and with the first q levelled, k_G.

    Both are as the subsample sees them.  The critical batch sizes m* in the legend are the plan's,
    measured on fresh points.

    Parameters
    ----------
    eigenvalues : array of shape (q_max,)
        lambda_i = sigma_i / s, decreasing; at least the plan's q of them.
    plan : Plan
    """

    def __init__(self, eigenvalues: ArrayLike, plan: Plan) -> None:
        self.eigenvalues = np.asarray(eigenvalues)
        self.plan = plan

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Axes | None = None) -> Self:
        """Draw the spectrum of a fitted estimator."""
        check_is_fitted(estimator, ["eigenvalues_", "plan_"])
        return cls(estimator.eigenvalues_, estimator.plan_).plot(ax)

    def plot(self, ax: Axes | None = None, **kwargs: Any) -> Self:
        """Draw on `ax` or a new figure; `kwargs` go to both lines."""
        ax = _axes(ax)
        plan, q = self.plan, self.plan.preconditioner_rank
        index = np.arange(1, len(self.eigenvalues) + 1)
        levelled = np.minimum(self.eigenvalues, self.eigenvalues[q - 1])
        plain_label = f"$k$: $m^*$ = {plan.critical_batch_size_plain:.1f}"
        levelled_label = f"$k_G$, levelled: $m^*$ = {plan.critical_batch_size:,.0f}"
        ax.plot(index, self.eigenvalues, **{"color": BLUE, "label": plain_label, **kwargs})
        # Wide and underneath, so that both are seen where they agree.
        under = {"color": VERMILION, "linewidth": 4, "alpha": 0.6, "zorder": 1.5}
        ax.plot(index, levelled, **{**under, "label": levelled_label, **kwargs})
        ax.axvline(q, color=GREY, linestyle=":", linewidth=1, label=f"$q$ = {q:,}")
        ax.set(
            xlabel="Index $i$", ylabel=r"Eigenvalue $\lambda_i$ of $K / n$", xscale="log", yscale="log"
        )
        ax.legend()
        self.ax_, self.figure_ = ax, ax.figure
        return self


class BatchSizeDisplay:
    """Seconds per iteration against batch size, beside the paper's ideal device.

    An iteration is timed as the product that dominates it, of m rows of K with all weights.  The ideal
    device takes constant time until it is saturated and then time in proportion to m; it is drawn
    through the shortest time and the highest rate that were measured.

    Parameters
    ----------
    batch_sizes, seconds : arrays of shape (n_sizes,)
    plan : Plan
    """

    def __init__(self, batch_sizes: ArrayLike, seconds: ArrayLike, plan: Plan) -> None:
        self.batch_sizes = np.asarray(batch_sizes)
        self.seconds = np.asarray(seconds)
        self.plan = plan

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, batch_sizes: Sequence[int] | None = None, ax: Axes | None = None
    ) -> Self:
        """Time the estimator's own machine, at powers of two up to 4,096 unless sizes are given."""
        check_is_fitted(estimator, ["machine_", "plan_"])
        n = len(estimator.machine_.centres)
        if batch_sizes is None:
            batch_sizes = [1 << i for i in range(min(n, LARGEST_TIMED_BATCH).bit_length())]
        elif not (len(batch_sizes) and min(batch_sizes) >= 1 and max(batch_sizes) <= n):
            raise ValueError(
                f"`batch_sizes` must be at least 1 and at most the number of training points, {n}. "
                f"Got {list(batch_sizes)} instead. Leave out the others."
            )
        seconds = [_seconds_per_product(estimator.machine_, m) for m in batch_sizes]
        return cls(batch_sizes, seconds, estimator.plan_).plot(ax)

    def plot(self, ax: Axes | None = None, **kwargs: Any) -> Self:
        """Draw on `ax` or a new figure; `kwargs` go to the measured line."""
        ax = _axes(ax)
        m, plan = self.batch_sizes, self.plan
        least, per_row = self.seconds.min(), (self.seconds / m).min()
        ideal_m = np.array([m.min(), least / per_row, m.max()])
        ideal = np.maximum(least, per_row * ideal_m)
        ax.plot(m, self.seconds, **{"color": BLUE, "marker": ".", "label": "measured", **kwargs})
        ax.plot(ideal_m, ideal, color="black", linewidth=0.8, label="ideal device")
        # m often equals one of the others, so it is a band behind them.
        for name, value, style in (
            ("$m$", plan.batch_size, {"color": "0.85", "linewidth": 5}),
            ("$m^*(k_G)$", plan.critical_batch_size, {"color": GREY, "linestyle": "--"}),
            ("$m_C$", plan.capacity_batch_size, {"color": GREY, "linestyle": ":"}),
        ):
            if math.isfinite(value):  # a device written down by hand may have no limit
                ax.axvline(value, zorder=1, label=f"{name} = {value:,.0f}", **style)
        ax.set(xlabel="Batch size $m$", ylabel="Seconds per iteration", xscale="log", yscale="log")
        ax.legend()
        self.ax_, self.figure_ = ax, ax.figure
        return self


def _axes(ax: Axes | None) -> Axes:
    """The axes given, or those of a new figure."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            "matplotlib must be installed for drawing. Got none. "
            "Install it with `pip install 'mercer[plots]'`."
        ) from error
    if ax is not None:
        return ax
    _, ax = plt.subplots(figsize=FIGURE_INCHES, layout="constrained")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _seconds_per_product(machine: KernelMachine, m: int) -> float:
    rows = machine.centres[:m]

    def product() -> float:
        f = kernel_times(machine.kernel, rows, machine.centres, machine.alpha)  # (m, l)
        return float(f[0, 0])  # waits for the device

    return fastest(product, REPEATS)
