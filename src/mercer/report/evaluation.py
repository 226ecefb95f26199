"""Predictions of a model on rows that it was not trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Coverage:
    """Intervals or sets, compared with the true values."""

    asked: float
    hits: NDArray[np.bool_]  # (m,)  the true value is inside
    widths: NDArray[Any]  # (m,)  or numbers of classes

    @property
    def share(self) -> float:
        """The share of rows whose true value is inside."""
        return float(self.hits.mean())

    def to_dict(self) -> dict[str, float]:
        return {
            "coverage": self.asked,
            "measured": self.share,
            "mean_width": float(self.widths.mean()),
            "median_width": float(np.median(self.widths)),
        }


@dataclass(frozen=True)
class Evaluation:
    """True values and predictions."""

    y: NDArray[Any]  # (m,)
    predicted: NDArray[Any]  # (m,)
    probabilities: NDArray[Any] | None  # (m, classes), None for a regression
    rows: NDArray[Any]  # (m,)  row numbers in the file, from 1
    source: str  # such as "20 % of train.csv, held out"
    coverage: Coverage | None = None

    def __post_init__(self) -> None:
        shapes = [np.shape(values) for values in (self.y, self.predicted, self.rows)]
        if len(set(shapes)) > 1 or len(shapes[0]) != 1 or shapes[0][0] == 0:
            raise ValueError(
                "`y`, `predicted` and `rows` must be one-dimensional, of the same length and not empty. "
                f"Got shapes {shapes}."
            )

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Which rows are classified correctly, (m,)."""
        return np.asarray(self.y == self.predicted)

    @property
    def confidence(self) -> NDArray[np.float64] | None:
        """The probability of the predicted class, (m,)."""
        if self.probabilities is None:
            return None
        return np.asarray(self.probabilities.max(1), dtype=np.float64)

    @property
    def residuals(self) -> NDArray[np.float64]:
        """True minus predicted values, (m,)."""
        return np.asarray(np.float64(self.y) - np.float64(self.predicted))


def rms(values: NDArray[np.float64]) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean(np.square(values))))
