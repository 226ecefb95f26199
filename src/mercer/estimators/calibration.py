"""What rows that were not trained on say about the predictions of a model for new ones.

They are the rows held out to stop training or, without any, rows of the search with their leave-one-out
predictions, or rows that the user gave to `calibrate`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mercer.data.rows import Array, Matrix
from mercer.estimators.conformal import (
    conformal_quantile,
    fewest_rows,
    interval_bounds,
    mass_above,
    tail_share,
)
from mercer.estimators.targets import Labels, Targets, Unseen
from mercer.files.checks import expect, stored_tensor, stored_tensor_if_any
from mercer.model.difficulty import DIFFICULTY_LANDMARKS, Difficulty, fit_difficulty
from mercer.model.landmarks import beyond_range, kernel_matrix, landmarks, nearness, nearness_below
from mercer.model.machine import KernelMachine

HELD_OUT = "held out"
LEFT_OUT = "left out"
GIVEN = "given"
# With fewer rows, all are needed for the quantiles and intervals have one width.
FEWEST_FOR_DIFFICULTY = 200
# A number so many ranges outside the training range of its column is far from it.
FAR_OUTSIDE = 1.0
# Kernel values, or inverse squared distances, below this share of the least one of ordinary rows.
OUT_OF_PROPORTION = 0.01
# The exponential of a larger number is not finite.
LARGEST_LOG_SIZE = 700.0
CALIBRATION_PREFIX = "calibration."


@dataclass(frozen=True)
class Calibration:
    """Scores of rows that were not trained on."""

    source: str  # HELD_OUT, LEFT_OUT or GIVEN
    scores: Array  # (m, l)  residuals divided by their expected size; (m, 1) for classes
    weights: Array  # (m,)
    codes: Array | None  # (m,)  numbers of the true classes
    near: Array  # (k,)  how near rows are to the training data
    near_weights: Array  # (k,)
    difficulty: Difficulty | None = None

    @property
    def n_rows(self) -> int:
        """Rows that quantiles are taken of."""
        return len(self.scores)

    def intervals(self, coverage: float) -> tuple[Array, Array]:
        """The lowest and highest normalised residual of each output, (l,)."""
        self._check(float(self.weights.sum()), coverage, 2)
        return interval_bounds(self.scores, self.weights, coverage)

    def largest_mass(self, coverage: float, n_classes: int, per_class: bool) -> Array:
        """The largest probability above a class that is in the set, (n_classes,)."""
        assert self.codes is not None
        if not per_class:
            self._check(float(self.weights.sum()), coverage, 1)
            return np.full(n_classes, conformal_quantile(self.scores[:, 0], self.weights, coverage))
        found = np.ones(n_classes)  # a class with too few rows is in every set
        for c in np.unique(self.codes):
            rows = self.codes == c
            found[c] = conformal_quantile(self.scores[rows, 0], self.weights[rows], coverage)
        return found

    def far_share(self, near: Array) -> Array:
        """The share of rows like those of training that are as far from it as these, (m,).

        It is 0 for rows that are out of all proportion.
        """
        nearest = float(self.near.min())  # of the farthest row; negative if it is a distance, negated
        limit = nearest * OUT_OF_PROPORTION if nearest > 0 else nearest / OUT_OF_PROPORTION
        return np.where(near < limit, 0.0, tail_share(self.near, self.near_weights, near))

    def near_enough(self, rate: float) -> float:
        """How near a row is at least if its `far_share` is above the rate."""
        order = np.argsort(self.near, kind="stable")
        shares = tail_share(self.near, self.near_weights, self.near[order])  # ascending; the last is 1
        return float(self.near[order[np.argmax(shares > rate)]])

    @property
    def least_far_share(self) -> float:
        """What `far_share` is for a row that is farther out than all."""
        return 1 / (1 + float(self.near_weights.sum()))

    def _check(self, rows: float, coverage: float, sides: int) -> None:
        needed = fewest_rows(coverage, sides)
        if rows < needed:
            raise ValueError(
                f"A coverage of {coverage:g} needs {needed:,} rows that were not trained on. Got "
                f"{rows:,.0f}: ask for a lower coverage, or give more rows to `calibrate`."
            )


def calibrate(
    machine: KernelMachine,
    targets: Targets,
    logit_scale: float,
    source: str,
    unseen: Unseen,
    X: Matrix,
    own: Array | None = None,
) -> Calibration | None:
    """From rows X and what was predicted for them; `own` are their places among the centres, or -1."""
    if not len(unseen.y) or (isinstance(targets, Labels) and targets.multilabel):
        return None
    weights = np.ones(len(unseen.y)) if unseen.weights is None else unseen.weights  # (m,)
    points, marks = machine.points(X), landmarks(machine)
    places = None if own is None else torch.from_numpy(np.where(own < len(marks), own, -1))
    near = nearness(machine.kernel, points, marks, places).numpy()
    if isinstance(targets, Labels):
        codes = np.searchsorted(targets.classes, unseen.y)
        above = mass_above(targets.probabilities(unseen.decisions, logit_scale))  # (m, n_classes)
        scores = above[np.arange(len(codes)), codes][:, None]
        return Calibration(source, scores, weights, codes, near, weights)
    residuals = targets.encode(unseen.y) - unseen.decisions  # (m, l)
    if len(residuals) < FEWEST_FOR_DIFFICULTY:
        return Calibration(source, residuals, weights, None, near, weights)
    # One half says how large errors are where, the other how far they spread around that.
    order = np.random.default_rng(0).permutation(len(residuals))
    sizes, rest = np.split(order, [len(order) // 2])
    marks = marks[:DIFFICULTY_LANDMARKS]
    K = kernel_matrix(machine.kernel, points, marks)  # (m, p)
    K_p = kernel_matrix(machine.kernel, marks, marks)  # (p, p)
    found = fit_difficulty(
        K[sizes], K_p, torch.from_numpy(residuals[sizes]), torch.from_numpy(weights[sizes])
    )
    if found is None:
        return Calibration(source, residuals, weights, None, near, weights)
    scores = residuals[rest] / found.sizes(K[rest]).numpy()
    return Calibration(source, scores, weights[rest], None, near, weights, found)


def error_sizes(machine: KernelMachine, calibration: Calibration, X: Matrix) -> Array:
    """The expected size of the error of each output at each row, (m, l); 1 if it is the same for all."""
    found = calibration.difficulty
    if found is None:
        return np.ones((len(X), calibration.scores.shape[1]))
    marks = landmarks(machine, len(found.w))
    return found.sizes(kernel_matrix(machine.kernel, machine.points(X), marks)).numpy()


def far_shares(machine: KernelMachine, calibration: Calibration, X: Matrix, rate: float) -> Array:
    """For each row, the share of rows like those of training that are as far from it, (m,).

    Shares above the rate may be given as 1, which takes much less time.
    """
    enough = calibration.near_enough(rate)
    near = nearness_below(machine.kernel, machine.points(X), landmarks(machine), enough).numpy()
    outside = beyond_range(machine.inputs, X, FAR_OUTSIDE).numpy()
    return np.where(outside, 0.0, calibration.far_share(near))


def calibration_tensors(calibration: Calibration) -> dict[str, Tensor]:
    """All its numbers, for a file."""
    found = {
        "scores": torch.from_numpy(np.ascontiguousarray(calibration.scores)),
        "weights": torch.from_numpy(np.ascontiguousarray(calibration.weights)),
        "near": torch.from_numpy(calibration.near),
        "near_weights": torch.from_numpy(np.ascontiguousarray(calibration.near_weights)),
    }
    if calibration.codes is not None:
        found["codes"] = torch.from_numpy(np.asarray(calibration.codes, dtype=np.int64))
    if calibration.difficulty is not None:
        for field in fields(Difficulty):
            found[f"difficulty_{field.name}"] = getattr(calibration.difficulty, field.name)
    return {CALIBRATION_PREFIX + name: tensor.contiguous() for name, tensor in found.items()}


def calibration_from(
    tensors: dict[str, Tensor], source: str, machine: KernelMachine, n_classes: int | None
) -> Calibration:
    """The inverse, whose parts must fit the machine; `n_classes` is None for a regressor."""
    expect(source in (HELD_OUT, LEFT_OUT, GIVEN), f"calibration cannot be from rows {source!r}")
    n, n_outputs = machine.alpha.shape
    float64 = torch.float64

    def stored(name: str, *shape: int | None) -> Any:
        return stored_tensor(tensors, CALIBRATION_PREFIX + name, shape, float64).numpy()

    columns = n_outputs if n_classes is None else 1
    scores, near = stored("scores", None, columns), stored("near", None)
    weights, near_weights = stored("weights", len(scores)), stored("near_weights", len(near))
    for values in (weights, near_weights):
        expect(
            len(values) > 0 and values.min() >= 0 and values.sum() < np.inf,
            "weights of calibration must be finite and not negative",
        )
    codes = None
    if n_classes is not None:
        found = stored_tensor(tensors, f"{CALIBRATION_PREFIX}codes", (len(scores),), torch.int64).numpy()
        expect(found.min() >= 0 and found.max() < n_classes, "calibration must be on known classes")
        codes = found
    w = stored_tensor_if_any(tensors, f"{CALIBRATION_PREFIX}difficulty_w", (None, n_outputs), float64)
    difficulty = None
    if w is not None:
        expect(0 < len(w) <= n, "the difficulty of rows must be over some of the centres")
        mean, low, high = (
            stored_tensor(tensors, f"{CALIBRATION_PREFIX}difficulty_{name}", (n_outputs,), float64)
            for name in ("mean", "low", "high")
        )
        difficulty = Difficulty(mean, low, high, w)
        bounded = bool((difficulty.high < LARGEST_LOG_SIZE).all())
        expect(bounded, "the sizes of errors must be finite")
    return Calibration(source, scores, weights, codes, near, near_weights, difficulty)
