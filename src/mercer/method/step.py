"""Steps of double coordinate block descent (the paper's Algorithm 1), batch by batch through a panel.

With residual g = f(x_t) + r alpha_t - y_t on the batch t, a step changes two blocks of weights:

    alpha_t  <-  alpha_t - (2 eta / m) W g                          sampled block
    alpha_r  <-  alpha_r + (2 eta / m) V D V^T Phi^T W g            fixed block

r is the ridge, 0 in the paper.  W is the identity in the paper.  Here its diagonal is

    w_i = min(1, (beta + r) / (k_q(x_i, x_i) + r))

because a single point with (2 eta / m) k_q(x_i, x_i) > 2 diverges on its own, and such points are rare
enough for a sample to miss them.  A positive weight does not move the solution: W g = 0 only if g = 0.

A batch can hold a direction of larger eigenvalue than its points have on average: rows that are alike,
for example, two of which have an eigenvalue of 2 beta.  Along the direction p = W g that the step takes,
the distance from the solution in the Hilbert space of k_q changes by

    -gamma (2 g^T p - gamma p^T K_q[t, t] p),

so the step gamma = 2 eta / m is bounded, for each output, by the one that brings the largest fall.  The
distance then falls at every step, whatever the batch holds.

Where all points are one batch and nothing is levelled, an exact step may be taken instead: it solves the
equations of the batch, and its losses are those after the step.

The change of the fixed block is V c with c of only q rows, and other points see it through
Phi V c = Z c.  So a panel's batches carry c along instead of the block itself, at q operations per point
and output instead of s, and V c is added to the weights once, at the panel's end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mercer.method.direct import solve
from mercer.method.preconditioner import Preconditioner
from mercer.method.schedule import Panel, Visit
from mercer.model.expansion import Expansion
from mercer.operators.base import PanelProducts
from mercer.operators.summation import by_output

# Share of the largest stable step taken beyond m*, as the paper's implementation does for a full batch.
STABILITY_MARGIN = 0.95


@dataclass(frozen=True)
class Step:
    """The numbers that a step needs."""

    eta: float
    m: int
    beta: float  # typical k_q(x, x), with the ridge
    ridge: float = 0.0
    exact: bool = False  # solve the equations of the batch, which is all points

    @property
    def gamma(self) -> float:
        """Change of a point's weight for a unit of its residual."""
        return 2 * self.eta / self.m

    def halved(self) -> Step:
        return replace(self, eta=self.eta / 2)


def best_step_size(m: int, beta: float, lambda_1: float) -> float:
    """eta for batch m.

    Per point the step 2 eta / m is 1 / beta up to m*, and 2 / (beta + (m - 1) lambda_1) beyond, less a
    margin: the latter is the limit of stability, where a direction that holds all of a batch (identical
    rows, for example) oscillates forever.
    """
    limit = 2 / (beta + (m - 1) * lambda_1)
    return 0.5 * m * (1 / beta if m <= beta / lambda_1 else min(1 / beta, STABILITY_MARGIN * limit))


def safe_weights(
    preconditioner: Preconditioner, k_diag: Tensor, Z: Tensor, beta: float, ridge: float
) -> Tensor:
    """w_i of the points, (m, 1); `beta` includes the ridge."""
    k_q = preconditioner.diagonal(k_diag, Z) + ridge  # (m,)
    return (beta / k_q.clamp_(min=beta))[:, None]


@dataclass(frozen=True)
class Losses:
    """Of a batch before its step, on the device: means over its points and outputs.

    Of an exact step, after it.
    """

    error: Tensor  # ()  (f - y)², weighted where there are sample weights
    residual: Tensor  # ()  g², which training brings to 0


def descend(
    visit: Visit,
    products: PanelProducts,
    preconditioner: Preconditioner,
    model: Expansion,
    step: Step,
    y: Tensor,
    safe: Tensor,
    sample_weight: Tensor | None = None,
    remembered: Tensor | None = None,
) -> Iterator[tuple[slice, Losses]]:
    """Step through the batches of a panel; yields each batch with its losses before its step.

    `y`, `safe` and `sample_weight` have a row for each training row.  So have the residuals
    `remembered`, if given: steps are taken along the difference from them, which is then written there.
    """
    descent = PanelDescent(visit.panel, products, preconditioner, model, step.ridge)
    for batch in visit.batches:
        weight = None if sample_weight is None else sample_weight[batch]
        error = descent.error(batch, y[batch])  # (m, l)
        if step.exact:
            error = descent.solve(batch, error, weight)
        squares = error.square()
        g = descent.residual(batch, error, weight)  # (m, l)
        losses = Losses((squares if weight is None else squares.mul_(weight)).mean(), g.square().mean())
        if remembered is not None:
            known = remembered[batch].clone()  # (m, l)
            remembered[batch] = g
            g = g.sub_(known)
        if not step.exact:
            descent.step(batch, g, safe[batch], step.gamma, weight)
        yield batch, losses
    descent.finish()


class PanelDescent:
    """The weights of a panel and of the fixed block while its batches are visited, once each.

    The model is written to by `finish` only.
    """

    def __init__(
        self,
        panel: Panel,
        products: PanelProducts,
        preconditioner: Preconditioner,
        model: Expansion,
        ridge: float,
    ) -> None:
        self.panel = panel
        self.products = products
        self.preconditioner = preconditioner
        self.model = model
        self.ridge = ridge
        # All laid out by output, like the weights: with some outputs, products take a third of the time.
        self.f = by_output(products.f)  # (R, l)
        self.change = torch.zeros_like(self.f)  # (R, l)  of the panel's own weights
        self.c = by_output(self.f.new_zeros(products.Z.shape[1], self.f.shape[1]))  # (q, l)  c
        self.changed: slice | None = None  # rows of the panel whose weights may have changed

    def error(self, batch: slice, y_t: Tensor) -> Tensor:
        """f - y_t, (m, l), including the changes of earlier batches; overwrites f."""
        t, u = self._local(batch), self.changed
        f = self.f[t]  # (m, l)
        if u is not None:
            f.T.addmm_(self.change[u].T, self.products.own[t, u].T)
            f.T.addmm_(self.c.T, self.products.Z[t].T)
        return f.sub_(y_t)

    def residual(self, batch: slice, error: Tensor, weight: Tensor | None = None) -> Tensor:
        """g = f + r alpha_t - y_t, (m, l); with sample weights, (m, 1), g = w (f - y_t) + r alpha_t.

        Overwrites the error.
        """
        g = error if weight is None else error.mul_(weight)
        if self.ridge:
            g.add_(self.model.of_rows(batch), alpha=self.ridge)
            g.add_(self.change[self._local(batch)], alpha=self.ridge)  # not 0 after an exact step
            V_t = self.preconditioner.V[batch]  # (m, q); of no rows outside the fixed block
            if len(V_t):
                g.addmm_(V_t, self.c, alpha=self.ridge)
        return g

    def solve(self, batch: slice, error: Tensor, weight: Tensor | None = None) -> Tensor:
        """Change the batch's weights so that its residual is 0; the error, (m, l), after that."""
        t = self._local(batch)
        own = self.products.own[t, t]  # (m, m)
        short = self.ridge * self.model.of_rows(batch)  # (m, l)
        missing = error + (short if weight is None else short / weight)  # W^-1 g
        self.change[t].sub_(solve(own, missing, self.ridge, weight))
        self._has_changed(t)
        return error.addmm_(own, self.change[t])

    def step(
        self, batch: slice, g: Tensor, safe: Tensor, gamma: float, weight: Tensor | None = None
    ) -> None:
        """The step along the residual g, (m, l), of size gamma = 2 eta / m where that is stable."""
        t = self._local(batch)
        p = g * safe  # (m, l)
        Zp = (p.T @ self.products.Z[t]).T  # (q, l)
        taken = self.preconditioner.D[:, None] * Zp  # (q, l)
        rate = self._largest_fall(batch, g, p, Zp, weight).clamp_(max=gamma)  # (l,)
        self.change[t].addcmul_(p, rate, value=-1)
        self._has_changed(t)
        self.c.addcmul_(taken, rate)

    def _largest_fall(
        self, batch: slice, g: Tensor, p: Tensor, Zp: Tensor, weight: Tensor | None
    ) -> Tensor:
        """The size of a step along p that brings each output nearest to the solution, (l,)."""
        t = self._local(batch)
        g_p, p_p = g * p, p.square()  # (m, l)
        if weight is not None:  # the solution minimises a loss whose gradient is g / w
            g_p, p_p = g_p.div_(weight), p_p.div_(weight)
        own = self.products.own[t, t]  # (m, m)
        curvature = (p * (p.T @ own).T).sum(0) - self.preconditioner.removed(Zp)  # (l,)
        if self.ridge:
            curvature += self.ridge * p_p.sum(0)
        # Where rounding error hides the curvature, or there is nothing to step along, no bound.
        return torch.where(curvature > 0, g_p.sum(0) / curvature, torch.inf)

    def finish(self) -> None:
        """Write the changes to the model."""
        self.model.of_rows(self.panel.rows).add_(self.change)
        self.preconditioner.correct(self.model, self.c)

    def _has_changed(self, t: slice) -> None:
        u = t if self.changed is None else self.changed
        self.changed = slice(min(t.start, u.start), max(t.stop, u.stop))

    def _local(self, batch: slice) -> slice:
        return slice(batch.start - self.panel.start, batch.stop - self.panel.start)
