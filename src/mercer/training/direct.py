"""A run that solves the equations of few centres at once, in one pass over the rows.

It takes the place of steps and delayed projections in the loop (see `delayed.py`): every panel is added
to the equations, and at the end of the only epoch they are solved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from mercer.method.normal_equations import NormalEquations
from mercer.method.schedule import Schedule, Visit
from mercer.method.step import Losses
from mercer.model.expansion import ExpansionWithTemporaries
from mercer.operators.sharded_centres import ShardedCentres
from mercer.operators.to_centres import CentresOperator
from mercer.training.state import State
from mercer.training.stopping import SOLVED


class DirectSolve:
    """Adds up equations that have just been `made`, panel by panel, and solves them."""

    def __init__(
        self,
        operator: CentresOperator | ShardedCentres,
        model: ExpansionWithTemporaries,
        schedule: Schedule,
        ridge: float,
        made: Callable[[], NormalEquations],
    ) -> None:
        self.operator = operator
        self.model = model
        self.schedule = schedule
        self.ridge = ridge
        self._made = made
        self._equations: NormalEquations | None = None

    def begin(self, state: State) -> None:
        """Nothing has been added up yet."""
        self._equations = self._made()

    def resume(self, state: State) -> None:
        """Sums are not saved: an interrupted pass begins again."""
        state.begin_epoch()
        self.begin(state)

    def begin_epoch(self, state: State) -> None:
        """Resumed after its end, a run solves the same equations once more."""
        if self._equations is None:
            self.begin(state)

    def visit(self, visit: Visit, y: Tensor, weight: Tensor | None) -> Iterator[tuple[slice, Losses]]:
        """Add the rows of a panel; yields them with the losses of predicting nothing."""
        assert self._equations is not None
        rows = visit.panel.rows
        for part in self.operator.own_parts(rows):
            w = None if weight is None else weight[part]  # (., 1)
            self._equations.add(self.operator.values(part), y[part], w)
        w = None if weight is None else weight[rows]  # (R, 1)
        residual = y[rows] if w is None else y[rows] * w  # (R, l)
        yield rows, Losses((residual * y[rows]).mean(), residual.square().mean())

    def after_panel(self, visit: Visit, state: State, left: int) -> bool:
        """The state is complete after any panel: a run that is resumed begins again."""
        return True

    def end_epoch(self, state: State) -> None:
        """Solve; the losses of the epoch are those of the solution."""
        equations, weights, progress = self._equations, self.model.weights, state.progress
        assert equations is not None
        equations.complete()
        p = self.operator.centres
        K = self.operator.kernel.block(p, p, same=True).double()  # (p, p)
        factors = equations.factors(K, self.ridge, torch.finfo(weights.dtype).eps)
        alpha = equations.solve(K, self.ridge, factors)  # (p, l)
        weights.copy_(alpha)
        # That of predicting nothing, which was added up panel by panel, in the same units.
        progress.error *= equations.error(alpha) / equations.squares if equations.squares else 0.0
        left = equations.b - equations.G @ alpha - self.ridge * (K @ alpha)  # (p, l)
        progress.residual = float((left / self.schedule.n).square().mean())
        self._equations = None

    def verdict(self, stalled: bool) -> str:
        return SOLVED

    def best(self, state: State) -> Tensor:
        return self.model.weights
