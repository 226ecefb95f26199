"""What a run needs, beside its problem, in order to go on.

The loop, the guard and the checkpoints all work on this one record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from mercer.files.records import from_data, to_data
from mercer.method.conjugate import N_EARLIER
from mercer.method.step import Step
from mercer.operators.summation import by_output
from mercer.training.history import Epoch, History
from mercer.training.stopping import EarlyStopping, Limits

STATE_VERSION = 1
# Epochs without a fall of a hundredth after which training is said to have stalled.
STALLED_EPOCHS = 5
STALLED_TOLERANCE = 0.01


@dataclass
class ClosingProgress:
    """Of a run that trains on the rows that were held out; see closing.py."""

    first: int  # the epoch that it began with
    most: int  # epochs
    level: float  # mean squared residual that the new rows are brought down to
    reason: str  # why training had ended before
    residual: float = 0.0  # the part of the new rows in the residual of this epoch so far


@dataclass
class Progress:
    """How far a run has come, in numbers."""

    step: Step  # halved by the guard where training diverged
    stopping: EarlyStopping  # on the held-out loss
    stalling: EarlyStopping  # on the residual
    epochs: list[Epoch] = field(default_factory=list)
    epoch: int = 1  # the current one
    panel: int = 0  # the next of this epoch, in the order of visits
    error: float = 0.0  # mean squared error of this epoch so far
    residual: float = 0.0  # mean square of what training brings to 0, likewise
    seconds: float = 0.0  # that this epoch has taken so far
    halvings: int = 0  # of the step, in this epoch
    best_epoch: float = 0.0  # epochs after which the best weights were reached
    best_residual: float = math.inf  # the lowest of an epoch
    all_seen_from: int = 2  # the first epoch that began with weights for all points
    projections: int = 0  # onto fewer centres than rows, so far; see delayed.py
    missing: float = 0.0  # mean square of what the last one had to add, as a share of the values
    averaged: int = 0  # projections whose weights were added up in this epoch
    gradient: float = math.inf  # mean square of the levelled gradient of the last epoch
    last_residual: float = math.inf  # that epoch's
    error_now: float = 0.0  # at the end of that epoch, on some rows
    lowest: float = math.inf  # of these
    remembers: bool = False  # the residuals of a whole epoch are known
    n_earlier: int = 0  # epochs whose beginnings are remembered
    closing: ClosingProgress | None = None  # where held-out rows are trained on
    version: int = STATE_VERSION


@dataclass
class Remembered:
    """What a run with fewer centres than rows knows beside its weights; see delayed.py."""

    values: Tensor  # (p, l)  F
    started: Tensor  # (p, l)  F when this epoch began
    residuals: Tensor  # (n, l)  of each row at its last visit
    gradient: Tensor  # (p, l)  H, of the last epoch, in float64
    change: Tensor  # (p, l)  of H in this epoch so far, likewise
    weight_sum: Tensor  # (p, l)  of weights after projections, to be averaged, likewise
    value_sum: Tensor  # (p, l)  and of F
    best: Tensor  # (p, l)  weights at the end of the epoch with the lowest error
    # What the last epochs began with, the latest first; see conjugate.py.
    earlier_weights: Tensor  # (k, p, l)
    earlier_values: Tensor  # (k, p, l)
    earlier_residuals: Tensor  # (k, n, l)
    earlier_gradients: Tensor  # (k, p, l)  in float64
    earlier_f: Tensor  # (k, w, l)  the function on w rows

    @classmethod
    def nothing(cls, values: Tensor, best: Tensor, n: int, n_watched: int) -> Remembered:
        """At the start of a run on n rows; `values`, (p, l), are those of its weights on the centres."""
        gradient, change, weight_sum, value_sum = (
            torch.zeros_like(values, dtype=torch.float64) for _ in range(4)
        )
        (p, l), k = values.shape, N_EARLIER
        return cls(
            values=values,
            started=values.clone(),
            residuals=values.new_zeros(n, l),
            gradient=gradient,
            change=change,
            weight_sum=weight_sum,
            value_sum=value_sum,
            best=best.clone(),
            earlier_weights=values.new_zeros(k, p, l),
            earlier_values=values.new_zeros(k, p, l),
            earlier_residuals=values.new_zeros(k, n, l),
            earlier_gradients=gradient.new_zeros(k, p, l),
            earlier_f=values.new_zeros(k, n_watched, l),
        )


@dataclass
class State:
    """Weights and progress of a run between two panels."""

    progress: Progress
    weights: Tensor  # (p, l)
    safe: Tensor  # (n, 1)  w_i of step.py, set at a point's first visit
    # A loss is measured before its step, so weights are known to be good only once an epoch has started
    # from them and ended well.
    good: Tensor  # (p, l)  where the last good epoch began
    started: Tensor  # (p, l)  where this one did
    best: Tensor | None = None  # (p, l)  of the lowest held-out loss
    best_predictions: Tensor | None = None  # (n_val, l)
    settled: Tensor | None = None  # (n_val, l)  see validation.py
    refined: Tensor | None = None  # (p, l)  weights whose product was last evaluated; see loop.py
    remembered: Remembered | None = None  # in a run with fewer centres than rows

    @classmethod
    def begin(cls, step: Step, limits: Limits, weights: Tensor, n: int) -> State:
        progress = Progress(
            step,
            EarlyStopping(limits.n_iter_no_change, limits.tol),
            EarlyStopping(STALLED_EPOCHS, STALLED_TOLERANCE),
        )
        safe = weights.new_ones(n, 1)
        return cls(progress, weights, safe, weights.clone(), weights.clone())

    @property
    def history(self) -> History:
        return History(tuple(self.progress.epochs))

    def keep_best(
        self, predictions: Tensor, loss: float, epoch: float, weights: Tensor | None = None
    ) -> None:
        """The weights as they are, or these, have the lowest held-out loss so far."""
        self.best = (self.weights if weights is None else weights).clone()
        self.best_predictions = predictions
        self.progress.best_epoch, self.progress.stopping.best_loss = epoch, loss

    def begin_epoch(self) -> None:
        progress = self.progress
        progress.panel, progress.error, progress.residual, progress.seconds = 0, 0.0, 0.0, 0.0
        if self.settled is not None:
            self.settled.zero_()
        progress.averaged = 0
        if progress.closing is not None:
            progress.closing.residual = 0.0
        if self.remembered is not None:
            known = self.remembered
            for tensor in (known.change, known.weight_sum, known.value_sum):
                tensor.zero_()

    def parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and plain data that `from_parts` takes."""
        tensors = {f.name: getattr(self, f.name) for f in fields(self) if f.name in TENSORS}
        if self.remembered is not None:
            known = {f.name: getattr(self.remembered, f.name) for f in fields(Remembered)}
            tensors |= {REMEMBERED_PREFIX + name: tensor for name, tensor in known.items()}
        return {k: v for k, v in tensors.items() if v is not None}, to_data(self.progress)

    @classmethod
    def from_parts(cls, tensors: dict[str, Tensor], data: dict[str, Any], like: Tensor) -> State:
        """The state that `parts` gave, on the device and in the precision of `like`."""
        progress = from_data(Progress, data, "The checkpoint")
        if progress.version > STATE_VERSION:
            raise ValueError(
                f"The checkpoint has a state of version {progress.version}, and this Mercer reads "
                f"versions up to {STATE_VERSION}: install a newer one."
            )
        missing = {"weights", "safe", "good", "started"} - set(tensors)
        if missing:
            raise ValueError(f"The checkpoint lacks {', '.join(sorted(missing))}: it is damaged.")
        # Laid out in memory as in training, so that sums round alike.
        weights = {"weights", "good", "started", "best", "refined"}
        found = {
            name: by_output(tensor.to(like)) if name in weights else tensor.to(like, copy=True)
            for name, tensor in tensors.items()
            if name in TENSORS
        }
        known = {f.name: tensors.get(REMEMBERED_PREFIX + f.name) for f in fields(Remembered)}
        state = cls(progress, **found)  # type: ignore[arg-type]
        if known["values"] is None:
            return state
        if any(tensor is None for tensor in known.values()):
            raise ValueError("The checkpoint lacks some of what descent remembers: it is damaged.")
        moved = {
            name: tensor.to(like.device, tensor.dtype if tensor.dtype == torch.float64 else like.dtype)
            for name, tensor in known.items()
            if tensor is not None
        }
        state.remembered = Remembered(**moved)
        return state


REMEMBERED_PREFIX = "remembered."
TENSORS = {f.name for f in fields(State)} - {"progress", "remembered"}
