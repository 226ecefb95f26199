"""Descent on more rows than centres, with delayed projections and gradients that are remembered.

Between two projections the function has weights alpha on the centres, a on temporary centres (the rows
visited since), and b on the fixed block.  `step.py` changes a and b; here is what happens to their sum.
With F the values of the function on the centres, H the gradient there, and P the levelling,

    for a panel        F -= gamma (R / n) P (H + r F), and alpha accordingly
                       pending += K(Z, panel) a, on each rank for its own centres
    at a projection    F += pending + K(Z, X_r) b
                       one pass over the centres brings alpha nearer to K(Z, Z)^-1 F
                       a and b are cleared

Where p < n centres cannot fit all rows, residuals do not vanish, and steps along them never end: the
weights stay at a distance from the solution that is proportional to the step.  So a step takes the
difference between the residual of a row and that at its last visit, and H = K(Z, X) residuals of the
last epoch makes up for it: as the weights settle, both vanish (amortised variance reduction; Ying, Yuan,
Sayed, "Variance-reduced stochastic learning under random reshuffling", 2020).  H costs a few more
columns of a product that is computed anyway.

In the first epoch there is nothing to remember, and its weights are noisy.  They are averaged over the
second half of it.  Later steps are at most half as long.

At the end of an epoch, its weights are combined with those of the two before (`method/conjugate.py`).
Values, residuals and H are linear in them, and combined in the same way.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from mercer.method.conjugate import N_EARLIER, Reached, coefficients, combine_
from mercer.method.projection import Projection
from mercer.method.schedule import Schedule, Visit
from mercer.model.expansion import ExpansionWithTemporaries
from mercer.operators.sharded_centres import ShardedCentres
from mercer.operators.to_centres import CentresOperator
from mercer.training.state import Remembered, State
from mercer.training.stopping import SETTLED
from mercer.training.validation import Validation

# The share of the first epoch after which weights are averaged.
AVERAGED_FROM = 0.5
# Passes over the centres go on while what is missing of the values exceeds so many times what was added
# to them, in mean squares, but not for ever.
LAG = 4.0
MOST_PASSES = 4
# Share of the mean square of P H that its weights may miss.
DRIFT_MISSING = 0.01
# Later steps, in units of the first epoch's: differences of residuals have twice their variance.  And H
# counts every row in full, so steps must be short enough for the row that needs the shortest.
LATER_STEP = 0.5
# An error on the watched rows so many times the lowest so far shows that steps are too long: training
# goes back to the weights it had then, with shorter ones.  Residuals on the way do not tell, since
# temporary centres can hide what the others cannot fit.
RUNAWAY = 1.5
RUNAWAY_STEP = 0.25


class DelayedProjection:
    """Keeps a model of p centres and temporary ones, and its state, from panel to panel."""

    def __init__(
        self,
        operator: CentresOperator | ShardedCentres,
        projection: Projection,
        model: ExpansionWithTemporaries,
        schedule: Schedule,
        ridge: float,
        watched: Validation,
        watched_weight: Tensor | None = None,
    ) -> None:
        """`watched` are a sample of the rows, and `watched_weight`, (w, 1), their weights."""
        self.operator = operator
        self.projection = projection
        self.model = model
        self.schedule = schedule
        self.ridge = ridge
        self.watched = watched
        self.watched_weight = watched_weight
        self.most = len(model.weights) - model.p  # temporary centres
        # (p, 2 l)  what panels add to the values and to the gradient, since the last projection
        self._pending = torch.zeros_like(model.weights[: model.p].repeat(1, 2), dtype=torch.float64)
        s = len(projection.preconditioner.V)
        self._fixed = model.weights[:s].clone()  # (s, l)  at the last projection
        self._before = model.weights[:0]  # residuals of the panel's rows at their last visit
        self._drift = torch.zeros_like(model.weights[: model.p])  # (p, l)  weights of P H
        self._drift_values = self._drift  # (p, l)  P H
        self._started = self._drift
        self._top: Tensor | None = None  # what levelling takes from the ridge's part
        self._top_values = self._top_weights = self._drift

    def begin(self, state: State) -> None:
        """The record of a run that starts from the model's weights."""
        self._clear()
        alpha, panels = self._alpha, self.projection.schedule.panels
        values = torch.zeros_like(alpha)
        if bool(alpha.any()):
            values = torch.cat([self.projection.product(panel.rows, alpha) for panel in panels])
        best = None if state.remembered is None else state.remembered.best
        best = alpha if best is None else best
        state.remembered = Remembered.nothing(values, best, self.schedule.n, len(self.watched.y))
        state.progress.remembers, state.progress.averaged, state.progress.n_earlier = False, 0, 0

    def resume(self, state: State) -> None:
        """Go on from an interrupted run, whose weights the model has: checkpoints follow projections."""
        self._clear()

    def begin_epoch(self, state: State) -> None:
        """Weights for what the gradient of the last epoch does to the values."""
        known, progress = _known(state), state.progress
        if progress.panel == 0:
            known.started.copy_(known.values)
        self._started = state.started[: self.model.p]  # (p, l)
        gradient = known.gradient.to(known.values) + self.ridge * known.started
        self._drift_values = self.projection.levelled(gradient)  # (p, l)
        self._drift.zero_()
        size = float(self._drift_values.square().mean())
        for number in range(MOST_PASSES if progress.remembers else 0):
            missing = self.projection.advance(self._drift, self._drift_values, number)
            if self.projection.is_exact or missing <= DRIFT_MISSING * size:
                break

    def before_panel(self, visit: Visit, state: State) -> None:
        """Make room for the panel, and let the gradient of the last epoch act for as many rows."""
        known, panel = _known(state), visit.panel
        self.model.make_room(panel.rows)
        self._before = known.residuals[panel.rows].clone()
        share = state.progress.step.gamma * len(panel) / self.schedule.n
        change = -share * self._drift  # (p, l)  of alpha
        known.values.sub_(self._drift_values, alpha=share)
        if self.ridge:  # what has changed since the epoch began
            moved = known.values - known.started  # (p, l)
            alpha = self._alpha - self._started  # (p, l)
            alpha[: len(self._fixed)] = self._fixed - self._started[: len(self._fixed)]
            if self._top is None:
                V, D = self.projection.preconditioner.V, self.projection.preconditioner.D
                self._top = D[:, None] * (V.T @ moved[: len(V)])  # (q, l)
                self._top_values = self.projection.Z @ self._top  # (p, l)
                self._top_weights = V @ self._top  # (s, l)
            alpha[: len(self._fixed)] -= self._top_weights
            change.sub_(alpha, alpha=share * self.ridge)
            known.values.sub_(moved - self._top_values, alpha=share * self.ridge)
        self._alpha.add_(change)
        self._fixed.add_(change[: len(self._fixed)])

    def after_panel(self, visit: Visit, state: State, left: int) -> bool:
        """Account for the panel's steps; project where the next panel may not fit, or none is `left`.

        Returns whether there are no temporary centres now, and the state is complete.
        """
        known, rows = _known(state), visit.panel.rows
        a = self.model.of_rows(rows)  # (R, l)
        changed = known.residuals[rows] - self._before  # (R, l)
        self._pending += self.operator.transposed(torch.cat([a, changed], 1))
        if left and self.operator.n_temporary + self.schedule.longest <= self.most:
            return False
        self._project(state)
        return True

    def _project(self, state: State) -> None:
        progress, known, alpha = state.progress, _known(state), self._alpha
        V, values = self.projection.preconditioner.V, known.values
        b = alpha[: len(V)] - self._fixed  # (s, l)
        alpha[: len(V)] = self._fixed
        before = values.clone()  # (p, l)
        self.operator.complete(self._pending)
        n_outputs = values.shape[1]
        known.change += self._pending[:, n_outputs:]
        values += self._pending[:, :n_outputs].to(values)
        values.addmm_(self.projection.Z, V.T @ b)
        added = float((values - before).square().mean())
        for _ in range(MOST_PASSES):
            missing = self.projection.advance(alpha, values, progress.projections)
            progress.projections += 1
            if self.projection.is_exact or missing <= LAG * added:
                break
        progress.missing = missing / max(float(values.square().mean()), torch.finfo(values.dtype).tiny)
        self._clear()
        if not progress.remembers and progress.panel >= AVERAGED_FROM * len(self.schedule.panels):
            known.weight_sum += alpha
            known.value_sum += values
            progress.averaged += 1

    def end_epoch(self, state: State) -> None:
        """The gradient of the epoch is known now."""
        progress, known, alpha = state.progress, _known(state), self._alpha
        if not progress.remembers and progress.averaged:
            alpha.copy_(known.weight_sum / progress.averaged)
            known.values.copy_(known.value_sum / progress.averaged)
            self._clear()
        known.gradient += known.change
        step = self.projection.levelled(known.gradient.to(alpha) + self.ridge * known.values)  # (p, l)
        size = float(step.square().mean())
        f = self.watched.operator.times(alpha)  # (w, l)
        if self.watched.loss(f) > RUNAWAY * progress.lowest:
            alpha.copy_(known.best)
            progress.error_now = progress.lowest
            _shorten(state, RUNAWAY_STEP)
            self.begin(state)
            return
        changed = self._combine(state, f)
        progress.error_now = error = self.watched.loss(f)
        if error < progress.lowest:
            known.best.copy_(alpha)
            progress.lowest = error
        if not progress.remembers:
            _shorten(state, LATER_STEP * float(state.safe.min()))
        elif size > progress.gradient and progress.residual > progress.last_residual:
            _shorten(state, 0.5)
        # What follows weights that were combined is not comparable with what led to them.
        progress.gradient = math.inf if changed else size
        progress.last_residual, progress.remembers = progress.residual, True

    def _combine(self, state: State, f: Tensor) -> bool:
        """Combine all that is linear in the weights with the same of earlier epochs; f, (w, l), too.

        Returns whether that changed anything.
        """
        changed = False
        known, alpha, k = _known(state), self._alpha, state.progress.n_earlier
        pairs = [
            (f, known.earlier_f),
            (alpha, known.earlier_weights),
            (known.values, known.earlier_values),
            (known.residuals, known.earlier_residuals),
            (known.gradient, known.earlier_gradients),
        ]
        if k:
            last = Reached(f, alpha, known.values)
            before = [Reached(*(earlier[j] for _, earlier in pairs[:3])) for j in range(k)]
            scale = self.schedule.n / len(f)
            found = coefficients(last, before, self.watched.y, self.watched_weight, scale, self.ridge)
            changed = any(bool(c.any()) for c in found)
        if changed:
            for now, earlier in pairs:
                combine_(now, [earlier[j] for j in range(k)], found)
            self._clear()
        for now, earlier in pairs:
            earlier[1:].copy_(earlier[:-1].clone())
            earlier[0].copy_(now)
        state.progress.n_earlier = min(k + 1, N_EARLIER)
        return changed

    def verdict(self, stalled: bool) -> str:
        """Why training is done, if it is: residuals of rows that are no centres do not vanish."""
        return SETTLED if stalled else ""

    def best(self, state: State) -> Tensor:
        """Weights, (p, l), of the epoch with the lowest error."""
        return _known(state).best

    @property
    def _alpha(self) -> Tensor:
        return self.model.weights[: self.model.p]  # (p, l)

    def _clear(self) -> None:
        """Between two projections."""
        self.model.clear()
        self.operator.clear()
        self._fixed = self._alpha[: len(self._fixed)].clone()
        self._pending.zero_()
        self._top = None


def _shorten(state: State, factor: float) -> None:
    """Shorter steps from here on; rows that had to take shorter ones need not be held back as much."""
    step = state.progress.step
    state.progress.step = replace(step, eta=step.eta * factor)
    state.safe.div_(factor).clamp_(max=1.0)


def _known(state: State) -> Remembered:
    assert state.remembered is not None
    return state.remembered
