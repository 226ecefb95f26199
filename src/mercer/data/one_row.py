"""A single row as the kernel sees it, with all that does not depend on the row computed once.

The numbers are those of `Inputs.reachable`, to the last bit: every operation on them is the same.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mercer.data.inputs import Inputs
from mercer.data.rows import widest


class OneRowInputs:
    """Prepares one row after the other, on the CPU; `reach` is that of the kernel."""

    def __init__(self, inputs: Inputs, reach: float) -> None:
        self._inputs, self._reach = inputs, reach
        wide = widest(torch.device("cpu"))
        self._nothing = torch.zeros(1, dtype=wide)
        self._columns = inputs.columns
        if inputs.columns is not None:
            dropped = torch.ones(inputs.n_features, dtype=torch.bool)
            dropped[inputs.columns] = False
            self._dropped = dropped.nonzero()[:, 0]
        table = inputs.table
        self._numbers = self._tables = None
        self._n_categories = 0
        if table is not None and len(table.owners):
            self._numbers = table.numbers
            self._n_categories = len(torch.unique(table.owners))
        if table is not None and table.knots is not None and table.scores is not None:
            knots, scores = table.knots.to(wide), table.scores.to(wide)  # (a, k)
            self._knots, self._last = knots, knots.shape[1] - 1
            parts = [knots[:, :-1], knots[:, 1:] - knots[:, :-1], scores[:, :-1], scores[:, 1:]]
            self._tables = torch.stack([part.flatten() for part in parts])  # (4, a (k - 1))
            self._first = torch.arange(len(knots)) * self._last - 1  # (a,)
        self._longest = math.sqrt(reach / max(1, inputs.width))

    @staticmethod
    def suits(inputs: Inputs) -> bool:
        """Whether rows are prepared feature by feature, from columns that need no other pass."""
        knots = None if inputs.table is None else inputs.table.knots
        mapped = knots is None or knots.shape[1] > 1  # a single knot has nothing to interpolate
        return inputs.projection is None and inputs.grid is None and mapped

    def at(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The row x, (1, d), prepared, (1, w), and its squared distance from the rest, (1,)."""
        inputs, beyond = self._inputs, self._nothing
        varying = x
        if self._columns is not None:
            apart = x.index_select(1, self._dropped) - inputs.constants
            beyond = (apart.abs() if inputs.absolute else apart.square()).sum(1)
            varying = x.index_select(1, self._columns)
        z = varying
        if inputs.table is not None:
            z = varying if self._numbers is None else varying.index_select(1, self._numbers)
            z = z.to(beyond.dtype)  # (1, a)
            if self._tables is not None:
                z = self._by_rank(z)
            if self._n_categories:
                known = inputs.table.indicators(varying)  # (1, b)
                z = torch.cat([z, known.to(z)], 1)
                if inputs.scale is not None and int(known.sum()) < self._n_categories:
                    return inputs.reachable(x, self._reach)
        z = z - inputs.shift  # (1, w)
        if inputs.scale is not None:
            z /= inputs.scale
        if z.numel() and not float(z.abs().max()) <= self._longest:
            return inputs.reachable(x, self._reach)
        return z, beyond if beyond is self._nothing else beyond.clamp(max=self._reach)

    def _by_rank(self, numbers: Tensor) -> Tensor:
        """The scores of numbers, (1, a), linearly between knots, as `TableMap` has them."""
        upper = torch.searchsorted(self._knots, numbers.view(-1, 1)).clamp_(1, self._last)  # (a, 1)
        place = upper.view(-1).add_(self._first)  # (a,)
        assert self._tables is not None
        low, width, from_, to = self._tables.index_select(1, place).unbind()  # (a,) each
        share = (numbers.view(-1) - low).div_(width).nan_to_num_(nan=0.0).clamp_(0, 1)
        return torch.lerp(from_, to, share)[None]
