"""Products with approximate kernel values that are as exact as they need to be.

With weights alpha_0 whose product with K is known exactly,

    K alpha  =  K alpha_0  +  K (alpha - alpha_0),

and kept values serve for the second product only.  Their error then counts by how far the weights have
moved since.  Training to interpolation is a sequence of such refinements: each evaluates K once, and the
epochs in between read what was kept (iterative refinement; Wilkinson, 1963).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mercer.operators.base import PanelProducts
from mercer.operators.kept import KeptSquare

# Rows that show the error of products.
ERROR_ROWS = 64


@dataclass(frozen=True)
class KnownProduct:
    """Weights whose product with K is known exactly."""

    weights: Tensor  # (n, l)  alpha_0
    f: Tensor  # (n, l)  K alpha_0
    change: Tensor  # (n, l)  workspace for alpha - alpha_0
    stop: int  # columns from here on have zero weights in alpha_0


class Refined:
    """An operator that keeps values approximately, corrected by a product that is known exactly."""

    def __init__(self, kept: KeptSquare) -> None:
        self.kept = kept
        self._known: KnownProduct | None = None

    def refine(self, weights: Tensor, stop: int) -> None:
        """Evaluate the product with these weights, which must not change and are zero from `stop` on."""
        f = self.kept.times(weights, columns=slice(0, stop))
        self._known = KnownProduct(weights, f, torch.empty_like(weights), stop)

    def error(self, rows: slice, weights: Tensor, stop: int) -> float:
        """Mean squared error of the products with a panel's rows, as its first few show it."""
        few = slice(rows.start, min(rows.start + ERROR_ROWS, rows.stop))
        exact = self.kept.times(weights, few, slice(0, stop))  # (R, l)
        found = self.panel(rows, weights, stop).f[: len(exact)]
        return float((found - exact).square().mean())

    def times(self, weights: Tensor, rows: slice | None = None, columns: slice | None = None) -> Tensor:
        return self.kept.times(weights, rows, columns)

    def panel(self, rows: slice, weights: Tensor, stop: int) -> PanelProducts:
        known = self._known
        if known is None:
            return self.kept.panel(rows, weights, stop)
        change = torch.sub(weights, known.weights, out=known.change)  # (n, l)
        found = self.kept.panel(rows, change, max(stop, known.stop))
        return replace(found, f=found.f.add_(known.f[rows]))

    def block(self, rows: slice, columns: slice) -> Tensor:
        return self.kept.block(rows, columns)

    def diagonal(self, rows: slice) -> Tensor:
        return self.kept.diagonal(rows)
