"""A run that solves the equations of few centres at once, in one pass over the rows.

It takes the place of steps and delayed projections in the loop (see `delayed.py`): every panel is added
to the equations, and at the end of the epoch they are solved.  Rows that were held out can be added once
they have judged the solution (see `closing.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from mercer.method.normal_equations import Factors, NormalEquations
from mercer.method.schedule import Panel, Schedule, Visit
from mercer.method.step import Losses
from mercer.model.expansion import ExpansionWithTemporaries
from mercer.operators.sharded_centres import ShardedCentres
from mercer.operators.to_centres import CentresOperator
from mercer.training.state import State
from mercer.training.stopping import SOLVED


class DirectSolve:
    """Adds up equations, panel by panel, and solves them.

    `made` makes equations of some rows, to which nothing has been added yet.  `closing` are panels of
    rows that follow those of the schedule, to be added in the end.
    """

    def __init__(
        self,
        operator: CentresOperator | ShardedCentres,
        model: ExpansionWithTemporaries,
        schedule: Schedule,
        ridge: float,
        made: Callable[[slice], NormalEquations],
        closing: Sequence[Panel] = (),
    ) -> None:
        self.operator = operator
        self.model = model
        self.schedule = schedule
        self.ridge = ridge
        self._made = made
        self._closing = closing
        self._equations: NormalEquations | None = None
        # (p, p)  K_ZZ and its factors, while closing rows may follow
        self._solved_with: tuple[Tensor, Factors | None] | None = None

    def begin(self, state: State) -> None:
        """Nothing has been added up yet."""
        self._equations = self._made(slice(0, self.schedule.n))

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
        self._add(self._equations, rows, y, weight)
        w = None if weight is None else weight[rows]  # (R, 1)
        residual = y[rows] if w is None else y[rows] * w  # (R, l)
        yield rows, Losses((residual * y[rows]).mean(), residual.square().mean())

    def after_panel(self, visit: Visit, state: State, left: int) -> bool:
        """The state is complete after any panel: a run that is resumed begins again."""
        return True

    def end_epoch(self, state: State) -> None:
        """Solve; the losses of the epoch are those of the solution."""
        equations, progress = self._equations, state.progress
        assert equations is not None
        equations.complete()
        p = self.operator.centres
        K = self.operator.kernel.block(p, p, same=True).double()  # (p, p)
        factors = equations.factors(K, self.ridge, torch.finfo(self.model.weights.dtype).eps)
        alpha = equations.solve(K, self.ridge, factors)  # (p, l)
        self.model.weights.copy_(alpha)
        # That of predicting nothing, which was added up panel by panel, in the same units.
        progress.error *= equations.error(alpha) / equations.squares if equations.squares else 0.0
        left = equations.b - equations.G @ alpha - self.ridge * (K @ alpha)  # (p, l)
        progress.residual = float((left / self.schedule.n).square().mean())
        if self._closing:
            self._solved_with = K, factors
        else:
            self._equations = None

    def close(self, state: State, y: Tensor, weight: Tensor | None) -> None:
        """Solve with the closing rows as well: with the same factors, which they change little."""
        equations, solved_with = self._equations, self._solved_with
        assert equations is not None
        assert solved_with is not None
        more = self._made(slice(self._closing[0].start, self._closing[-1].stop))
        for panel in self._closing:
            self._add(more, panel.rows, y, weight)
        more.complete()
        equations.include(more)
        K, factors = solved_with
        alpha = equations.solve(K, self.ridge, factors)  # (p, l)
        self.model.weights.copy_(alpha)
        rows = len(y) if weight is None else float(weight.sum())
        state.progress.error = equations.error(alpha) / (rows * y.shape[1])
        self._equations = self._solved_with = None

    def _add(self, equations: NormalEquations, rows: slice, y: Tensor, weight: Tensor | None) -> None:
        for part in self.operator.own_parts(rows):
            w = None if weight is None else weight[part]  # (., 1)
            equations.add(self.operator.values(part), y[part], w)

    def verdict(self, stalled: bool) -> str:
        return SOLVED

    def best(self, state: State) -> Tensor:
        return self.model.weights
