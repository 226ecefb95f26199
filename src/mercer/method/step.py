"""Steps of double coordinate block descent (the paper's Algorithm 1), batch by batch through a panel.

With residual g = f(x_t) + r alpha_t - y_t on the batch t, a step changes two blocks of weights:

    alpha_t  <-  alpha_t - (2 eta / m) W g                          sampled block
    alpha_r  <-  alpha_r + (2 eta / m) V D V^T Phi^T W g            fixed block

r is the ridge, 0 in the paper.  W is the identity in the paper.  Here its diagonal is

    w_i = min(1, (beta + r) / (k_q(x_i, x_i) + r))

because one point with (2 eta / m) k_q(x_i, x_i) > 2 diverges by itself while all others look well,
and such points are rare enough for a sample to miss.  A positive weight does not move the solution:
where W g = 0, g = 0.

The change of the fixed block is V c with c of only q rows, and other points see it through
Phi V c = Z c.  So a panel's batches carry c along instead of the block itself, at q operations a point
and output instead of s, and V c is added to the weights once, at the panel's end.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from mercer.operators.tiled import Panel, PanelRows


class Preconditioner(Protocol):
    """What a step takes back, and from which points."""

    @property
    def V(self) -> Tensor:
        """(s, q)"""

    @property
    def D(self) -> Tensor:
        """(q,)"""

    def diagonal(self, k_diag: Tensor, Z: Tensor) -> Tensor:
        """k_q(x, x), (m,), from k(x, x) and Z = Phi V."""

    def take_back(self, alpha: Tensor, c: Tensor) -> None:
        """Add the change given by c, (q, l), to the weights."""


def safe_weights(
    levelled: Preconditioner, k_diag: Tensor, Z: Tensor, beta: float, ridge: float
) -> Tensor:
    """w_i for a batch, (m, 1); `beta` includes the ridge."""
    k_q = levelled.diagonal(k_diag, Z) + ridge  # (m,)
    return (beta / k_q.clamp_(min=beta))[:, None]


class PanelDescent:
    """The weights of a panel and of the fixed block while its batches are visited, once each.

    `alpha` is written to by `finish` only.
    """

    def __init__(
        self, panel: Panel, rows: PanelRows, levelled: Preconditioner, alpha: Tensor, ridge: float
    ) -> None:
        self.panel = panel
        self.rows = rows
        self.levelled = levelled
        self.alpha = alpha
        self.ridge = ridge
        self.change = alpha.new_zeros(len(panel), alpha.shape[1])  # (R, l)  of the panel's own weights
        self.c = alpha.new_zeros(rows.Z.shape[1], alpha.shape[1])  # (q, l)  of the fixed block, over V
        self.changed = False

    def residual(self, batch: slice, y_t: Tensor, weight: Tensor | None = None) -> Tensor:
        """g = f + r alpha_t - y_t, (m, l), with all that earlier batches changed.

        With sample weights, (m, 1), g = w (f - y_t) + r alpha_t.
        """
        t = self._local(batch)
        f = self.rows.f[t]  # (m, l)
        if self.changed:
            f.addmm_(self.rows.own[t], self.change)
            f.addmm_(self.rows.Z[t], self.c)
        g = f.sub_(y_t)
        if weight is not None:
            g.mul_(weight)
        if self.ridge:
            g.add_(self.alpha[batch], alpha=self.ridge)
            V_t = self.levelled.V[batch]  # (m, q); of no rows outside the fixed block
            if len(V_t):
                g.addmm_(V_t, self.c, alpha=self.ridge)
        return g

    def step(self, batch: slice, g: Tensor, gamma: float) -> None:
        """The step of size gamma = 2 eta / m along the weighted residual g, (m, l)."""
        t = self._local(batch)
        self.change[t].sub_(g, alpha=gamma)
        self.changed = True
        taken = self.levelled.D[:, None] * (g.T.contiguous() @ self.rows.Z[t]).T  # (q, l)
        self.c.add_(taken, alpha=gamma)

    def finish(self) -> None:
        """Write the weights back."""
        self.alpha[self.panel.rows].add_(self.change)
        self.levelled.take_back(self.alpha, self.c)

    def _local(self, batch: slice) -> slice:
        return slice(batch.start - self.panel.start, batch.stop - self.panel.start)
