"""Axes as people read them: sets by the names they go by, powers of ten as plain numbers."""

from __future__ import annotations

from typing import Any

NAMES = {
    "mnist": "MNIST",
    "cifar10": "CIFAR-10, grey",
    "svhn": "SVHN, re-cropped, grey",
    "usps": "USPS",
    "covtype": "Covertype",
    "timit": "TIMIT",
}


def name_of(key: str) -> str:
    return NAMES.get(key, key)


def plain_log(axis: Any) -> None:
    """1, 2, 5, 10, … on a logarithmic axis (`ax.xaxis` or `ax.yaxis`)."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
