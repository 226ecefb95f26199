"""Figures of the pages: colours, axes, and the one way to finish and write a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mercer.palette import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY_BLUE, VERMILION, YELLOW

PALETTE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY_BLUE, BLACK, GREY, YELLOW)
# Colour and marker of a method, the same on every page.
METHOD_STYLES = {
    "SGD": (ORANGE, "s"),
    "original EigenPro": (GREEN, "^"),
    "improved EigenPro": (BLUE, "o"),
    "Mercer": (BLUE, "o"),
    "Mercer (panels)": (GREY, "d"),
}
NAMES = {
    "mnist": "MNIST",
    "cifar10": "CIFAR-10, grey",
    "svhn": "SVHN, re-cropped, grey",
    "usps": "USPS",
    "covtype": "Covertype",
    "flights": "New York flights",
    "timit": "TIMIT",
}


def name_of(key: str) -> str:
    return NAMES.get(key, key)


def colour(index: int) -> str:
    """Colours of the palette in turn."""
    return PALETTE[index % len(PALETTE)]


def panels(
    columns: int, rows: int = 1, *, size: tuple[float, float], **shared: Any
) -> tuple[Any, list[Any]]:
    """A figure of `size` inches and its axes, row by row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, **shared).flat)


def plain_log(axis: Any) -> None:
    """1, 2, 5, 10, … on a logarithmic axis (`ax.xaxis` or `ax.yaxis`)."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def write_figure(figure: Any, path: Path, legend_columns: int = 0) -> Path:
    """Give all axes the same look and a legend where there are labels, and write the figure.

    With `legend_columns` there is one legend in so many columns below all axes instead.
    """
    labelled: dict[str, Any] = {}
    for ax in figure.axes:
        twin = ax.yaxis.get_ticks_position() == "right"
        ax.spines["top"].set_visible(False)
        ax.spines["right"].set_visible(twin)
        ax.set_axisbelow(True)
        if not twin:
            ax.grid(alpha=0.3, axis="x" if ax.containers else "both")  # none between bars
        handles, labels = ax.get_legend_handles_labels()
        labelled |= dict(zip(labels, handles, strict=True))
        if labels and not legend_columns:
            ax.legend(fontsize="small")
    if legend_columns:
        where = {"loc": "outside lower center", "ncols": legend_columns, "fontsize": "small"}
        figure.legend(list(labelled.values()), list(labelled), **where)
    figure.savefig(path, dpi=150)
    return path
