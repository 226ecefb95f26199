"""The held-out part: its loss and score along the way, and the best weights seen.

In the first epoch a point that has been visited keeps its weight, apart from the fixed block's.  So
held-out predictions grow with the panels at no extra cost: `settled` holds K[held-out, visited] @
weights beyond the fixed block, and a look adds the fixed block's part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mercer.method.schedule import Schedule, Visit
from mercer.model.expansion import Expansion
from mercer.operators.base import Operator
from mercer.training.state import State

# Looks at the held-out points within the first epoch: noisy data can be overfitted before it ends.
FIRST_EPOCH_CHECKS = 8


@dataclass(frozen=True)
class Validation:
    """Held-out points, their targets on the training scale, and a score, larger being better."""

    operator: Operator  # K(held-out points, centres)
    y: Tensor  # (n_val, l)
    score: Callable[[Tensor], float]  # of predictions, (n_val, l)

    def loss(self, predictions: Tensor) -> float:
        return float((predictions - self.y).square().mean())


class HeldOut:
    """Looks at the held-out part during a run, and keeps the best weights in the run's state."""

    def __init__(self, validation: Validation, schedule: Schedule, n_weighted: int) -> None:
        self.validation = validation
        self.schedule = schedule
        # With weights from the start, or steps that change all weights, nothing settles.
        self.settles = schedule.triangular and not n_weighted

    def begin(self, model: Expansion, state: State) -> None:
        """The first candidates: zero weights, which predict the mean, and those to start from."""
        state.settled = torch.zeros_like(self.validation.y)
        nothing = torch.zeros_like(self.validation.y)  # (n_val, l)
        zero = torch.zeros_like(model.weights)
        state.keep_best(nothing, self.validation.loss(nothing), 0.0, zero)
        if model.n_weighted:
            predictions = self.validation.operator.times(model.weights)
            loss = self.validation.loss(predictions)
            if loss < state.progress.stopping.best_loss:
                state.keep_best(predictions, loss, 0.0)

    def after_panel(self, visit: Visit, model: Expansion, state: State) -> None:
        """In the first epoch, keep the weights with the lowest held-out loss along the way."""
        if state.progress.epoch > 1 or not self.settles:
            return
        assert state.settled is not None
        if visit.panel.start >= self.schedule.s:
            state.settled += self.validation.operator.times(model.weights, columns=visit.panel.rows)
        if not self._looks_after(visit.index):
            return
        predictions = self._first_epoch_predictions(model, state)
        loss = self.validation.loss(predictions)
        if loss < state.progress.stopping.best_loss:
            state.keep_best(predictions, loss, (visit.index + 1) / len(self.schedule.panels))

    def predictions(self, model: Expansion, state: State) -> Tensor:
        """At the end of an epoch, (n_val, l)."""
        if state.progress.epoch == 1 and self.settles:
            return self._first_epoch_predictions(model, state)
        return self.validation.operator.times(model.weights)

    def replay(self, visited: int, model: Expansion, state: State) -> None:
        """Evaluate again what an interrupted run had kept after so many panels, in the same pieces."""
        if not self.settles:
            return
        times, nothing = self.validation.operator.times, torch.zeros_like(model.weights)
        panels, s = self.schedule.panels, self.schedule.s
        for index in range(visited):
            if panels[index].start >= s:
                times(nothing, columns=panels[index].rows)
            if s and (self._looks_after(index) or index + 1 == len(panels)):
                times(nothing, columns=slice(0, s))
        if state.progress.epoch > 2:
            times(nothing)

    def _looks_after(self, index: int) -> bool:
        """Whether the first epoch looks at the held-out part after this panel, not being its last."""
        n_panels = len(self.schedule.panels)
        return index + 1 < n_panels and (index + 1) % max(1, n_panels // FIRST_EPOCH_CHECKS) == 0

    def _first_epoch_predictions(self, model: Expansion, state: State) -> Tensor:
        assert state.settled is not None
        if not self.schedule.s:
            return state.settled.clone()
        fixed = slice(0, self.schedule.s)
        return state.settled + self.validation.operator.times(model.weights, columns=fixed)
