"""Plots of a fitted estimator, in scikit-learn's Display convention.

    LearningCurveDisplay        training and held-out loss of every epoch
    SpectrumDisplay             eigenvalues of the kernel, before and after levelling
    BatchSizeDisplay            seconds per iteration against batch size, on this device
    FeatureImportancesDisplay   shares of the features, in the learned metric or by permutation

`from_estimator(model)` takes a fitted estimator (of a pipeline, its last step) and draws; `plot(ax=...)`
draws the same data on other axes.  Both return the display, with `ax_` and `figure_` set.  matplotlib is
imported only for drawing.

For a confusion matrix use scikit-learn's `ConfusionMatrixDisplay.from_estimator`.
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

from mercer.estimators.features import CATEGORY, Feature, by_importance, features_of
from mercer.model.machine import KernelMachine
from mercer.operators.workers import small_operations
from mercer.palette import BLACK, BLUE, GREY, LIGHT_GREY, VERMILION
from mercer.planning.plan import Plan
from mercer.stopwatch import Stopwatch
from mercer.training.history import History, loss_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

FIGURE_INCHES = (6.0, 4.0)
# Largest batch size timed by default; larger ones would take longer than a plot is worth.
LARGEST_TIMED_BATCH = 4096
# Characters of a feature's name.
LONGEST_TICK = 28
# Times that all sizes are measured in turn, so that other load does not fall on a single size.
SWEEPS = 5


class _Display:
    """What all displays have in common: the axes they are drawn on."""

    ax_: Axes
    figure_: Figure | SubFigure

    def _finish(self, ax: Axes, **properties: str) -> Self:
        """Label the axes, add the legend, and remember where this was drawn."""
        ax.set(**properties)
        ax.legend()
        self.ax_, self.figure_ = ax, ax.figure
        return self


class LearningCurveDisplay(_Display):
    """Training and held-out loss of every epoch, with a ring where the best weights were reached.

    These are the final weights, unless closing epochs, which have no held-out loss, went on from them.
    The training loss of a batch is measured just before its step, the held-out loss after the epoch, so
    in the first epochs the training loss may be the larger one.

    Parameters
    ----------
    history : History
    best : (float, float) or None, default=None
        `best_epoch_` and `best_loss_` of the estimator: the number of epochs after which the best
        weights were reached, and their held-out loss.  None draws no ring.
    score_name : str, default="score"
        Name of the held-out score in the legend.
    loss_name : str, default="mean squared error"
        What the losses are, for the vertical axis.
    """

    def __init__(
        self,
        history: History,
        *,
        best: tuple[float, float] | None = None,
        score_name: str = "score",
        loss_name: str = "mean squared error",
    ) -> None:
        self.history = history
        self.best = best
        self.score_name = score_name
        self.loss_name = loss_name

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Axes | None = None) -> Self:
        """Draw the history of a fitted estimator."""
        check_is_fitted(estimator, "history_")
        best = None if estimator.best_loss_ is None else (estimator.best_epoch_, estimator.best_loss_)
        return cls(
            estimator.history_,
            best=best,
            score_name="accuracy" if is_classifier(estimator) else "R²",
            loss_name=loss_name(estimator.plan_.n_outputs, is_classifier(estimator)),
        ).plot(ax)

    def plot(self, ax: Axes | None = None, **kwargs: Any) -> Self:
        """Draw on `ax` or a new figure; `kwargs` go to both lines."""
        ax = _axes(ax)
        from matplotlib.ticker import MaxNLocator

        names = ("number", "train_loss", "validation_loss", "validation_score")
        columns = [np.array(self.history.column(name), dtype=float) for name in names]  # NaN for None
        epochs, train, held_out, scores = columns
        ax.plot(epochs, train, **{"color": BLUE, "marker": ".", "label": "training", **kwargs})
        if np.isfinite(held_out).any():
            held_out_style = {"color": VERMILION, "marker": ".", "label": "held out"}
            ax.plot(epochs, held_out, **{**held_out_style, **kwargs})
        if self.best is not None:
            epoch, loss = self.best
            label = f"best: epoch {epoch:.0f}" if epoch >= 1 else f"best: after {epoch:.2g} epochs"
            for score in scores[(epochs == epoch) & (held_out == loss)]:
                label += f"\n{self.score_name} {score:.4f}"
            ax.plot(epoch, loss, "o", ms=11, mfc="none", mec=BLACK, label=label)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        scale = "log" if np.nanmax([train, held_out]) > 0 else "linear"  # 0 for constant targets
        return self._finish(ax, xlabel="Epoch", ylabel=self.loss_name.capitalize(), yscale=scale)


class SpectrumDisplay(_Display):
    """Eigenvalues of the kernel operator: k as given, and k_G with the first q levelled.

    Both are estimated on the subsample.  The critical batch sizes m* in the legend come from the plan,
    which estimates them on other points.

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
        plain_label = f"$k$: $m^*$ = {plan.critical_batch_size_plain:.1f}"
        ax.plot(index, self.eigenvalues, **{"color": BLUE, "label": plain_label, **kwargs})
        if q:  # none where the equations are solved at once
            levelled = np.minimum(self.eigenvalues, self.eigenvalues[q - 1])
            levelled_label = f"$k_G$, levelled: $m^*$ = {plan.critical_batch_size:,.0f}"
            # Wide and underneath, so that both are visible where they agree.
            under = {"color": VERMILION, "linewidth": 4, "alpha": 0.6, "zorder": 1.5}
            ax.plot(index, levelled, **{**under, "label": levelled_label, **kwargs})
            ax.axvline(q, color=GREY, linestyle=":", linewidth=1, label=f"$q$ = {q:,}")
        ylabel = r"Eigenvalue $\lambda_i$ of $K / n$"
        return self._finish(ax, xlabel="Index $i$", ylabel=ylabel, xscale="log", yscale="log")


class BatchSizeDisplay(_Display):
    """Seconds per iteration against batch size, compared with the paper's ideal device.

    The time of an iteration is that of the product that dominates it, of m rows of K with all weights.
    The ideal device takes constant time until it is saturated, and time proportional to m from there on;
    it is drawn through the shortest time and the highest rate measured.

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
        """Time the fitted model, by default at powers of two up to 4,096."""
        check_is_fitted(estimator, ["machine_", "plan_"])
        n = len(estimator.machine_.centres)
        if batch_sizes is None:
            batch_sizes = [1 << i for i in range(min(n, LARGEST_TIMED_BATCH).bit_length())]
        elif not (len(batch_sizes) and min(batch_sizes) >= 1 and max(batch_sizes) <= n):
            raise ValueError(
                f"`batch_sizes` must be at least 1 and at most the number of training points, {n}. "
                f"Got {list(batch_sizes)} instead."
            )
        machine = estimator.machine_
        with small_operations(machine.device):  # as in training
            sweeps = [[_seconds_per_product(machine, m) for m in batch_sizes] for _ in range(SWEEPS)]
        return cls(batch_sizes, np.min(sweeps, axis=0), estimator.plan_).plot(ax)

    def plot(self, ax: Axes | None = None, **kwargs: Any) -> Self:
        """Draw on `ax` or a new figure; `kwargs` go to the measured line."""
        ax = _axes(ax)
        m, plan = self.batch_sizes, self.plan
        least, per_row = self.seconds.min(), (self.seconds / m).min()
        ideal_m = np.array([m.min(), least / per_row, m.max()])
        ideal = np.maximum(least, per_row * ideal_m)
        ax.plot(m, self.seconds, **{"color": BLUE, "marker": ".", "label": "measured", **kwargs})
        ax.plot(ideal_m, ideal, color=BLACK, linewidth=0.8, label="ideal device")
        # A band behind the others, since m often equals one of them.
        for name, value, style in (
            ("$m$", plan.batch_size, {"color": LIGHT_GREY, "linewidth": 5}),
            ("$m^*(k_G)$", plan.critical_batch_size, {"color": GREY, "linestyle": "--"}),
            ("$m_C$", plan.capacity_batch_size, {"color": GREY, "linestyle": ":"}),
        ):
            if math.isfinite(value):  # a user-specified device may have no limit
                ax.axvline(value, zorder=1, label=f"{name} = {value:,.0f}", **style)
        ylabel = "Seconds per iteration"
        return self._finish(ax, xlabel="Batch size $m$", ylabel=ylabel, xscale="log", yscale="log")


class FeatureImportancesDisplay(_Display):
    """Shares of the features in the learned metric, or else by permutation, the largest at the top.

    Features beyond the first few share the last bar.

    Parameters
    ----------
    features : sequence of Feature
        Names, importances and how each is prepared.
    max_features : int, default=15
        Features with a bar of their own.
    share_name : str, default="Share in the learned metric"
        What the shares are, for the horizontal axis.
    """

    def __init__(
        self,
        features: Sequence[Feature],
        *,
        max_features: int = 15,
        share_name: str = "Share in the learned metric",
    ) -> None:
        self.features = by_importance(features)
        self.max_features = max_features
        self.share_name = share_name

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        feature_names: Sequence[str] | None = None,
        max_features: int = 15,
        ax: Axes | None = None,
    ) -> Self:
        """Draw `feature_importances_` of a fitted estimator."""
        check_is_fitted(estimator, "machine_")
        if not hasattr(estimator, "feature_importances_"):
            raise ValueError(
                "The estimator must have feature importances. It has none: no metric was learned, and "
                "shuffling so many columns would take too long. Use "
                "sklearn.inspection.permutation_importance on a few rows."
            )
        features = features_of(estimator, feature_names)
        learned = estimator.machine_.inputs.importances is not None
        share_name = "Share in the learned metric" if learned else "Share by permutation"
        return cls(features, max_features=max_features, share_name=share_name).plot(ax)

    def plot(self, ax: Axes | None = None, **kwargs: Any) -> Self:
        """Draw on `ax` or a new figure; `kwargs` go to the bars."""
        ax = _axes(ax)
        shown, rest = self.features[: self.max_features], self.features[self.max_features :]
        colours = (BLUE, VERMILION)
        for colour, is_category in zip(colours, (False, True), strict=True):
            places = [i for i, f in enumerate(shown) if (f.treatment == CATEGORY) == is_category]
            if places:
                label = "category" if is_category else f"number, {shown[places[0]].treatment}"
                shares = [100 * (shown[i].importance or 0.0) for i in places]
                ax.barh(places, shares, **{"color": colour, "label": label, **kwargs})
        names = [_on_axis(feature.name) for feature in shown]
        if rest:
            share = 100 * sum(feature.importance or 0.0 for feature in rest)
            ax.barh(len(shown), share, **{"color": LIGHT_GREY, "label": "all others", **kwargs})
            names.append(f"{len(rest):,} {'other' if len(rest) == 1 else 'others'}")
        ax.set_yticks(range(len(names)), names)
        if not ax.yaxis_inverted():
            ax.invert_yaxis()
        ax.tick_params(axis="y", length=0)
        self._finish(ax, xlabel=f"{self.share_name} (%)")
        ax.legend(loc="lower right")  # the shortest bars are there
        return self


def _on_axis(name: str) -> str:
    """A name on one line, shortened, that matplotlib does not typeset as mathematics."""
    line = " ".join(name.split())
    line = line if len(line) <= LONGEST_TICK else f"{line[: LONGEST_TICK - 1]}…"
    return line.replace("$", r"\$")


def _axes(ax: Axes | None) -> Axes:
    """These axes, or those of a new figure."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            "Plots need matplotlib. Install it with `pip install 'mercer[plots]'`."
        ) from error
    if ax is not None:
        return ax
    _, ax = plt.subplots(figsize=FIGURE_INCHES, layout="constrained")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _seconds_per_product(machine: KernelMachine, m: int) -> float:
    rows = machine.centres[:m]
    with Stopwatch() as watch:
        f = machine.at(rows)  # (m, l)
        float(f[0, 0])  # waits for the device
    return watch.seconds
