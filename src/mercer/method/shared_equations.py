"""The equations of few centres, added up by the ranks of a group.

Each rank adds its own rows to G and b.  At the end one collective adds the parts.  Sums are in units
(`operators/exact_sums.py`), so the result does not depend on who has which rows.  The second unit is
2^-82 of the largest sum that is possible, for a million parts: G must keep the digits of float64, since
its condition number is the square of that of K.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mercer.method.normal_equations import NormalEquations
from mercer.operators.exact_sums import add_in_units, in_one, largest_unit
from mercer.operators.workers import Workers
from mercer.processes.group import Group

N_UNITS = 2
# Bits of the sum of what rounding to the first unit leaves over.
REST_BITS = 52


class SharedEquations(NormalEquations):
    """Sums over the rows of all ranks; `largest` is a bound on kernel values.

    `y`, (n, l), and `weight`, (n, 1), are those of all rows, which are added in at most `n_terms` parts.
    """

    def __init__(
        self,
        p: int,
        y: Tensor,
        weight: Tensor | None,
        largest: float,
        n_terms: int,
        workers: Workers,
        group: Group,
    ) -> None:
        super().__init__(p, y.shape[1], workers, y.device)
        self.G = self.G[:0]  # until all is added up
        self.group = group
        weighted = y.double() if weight is None else weight.double() * y.double()  # (n, l)
        self.squares = float((weighted * y.double()).sum())
        self._unit = largest_unit(len(y) * largest**2)
        self._b_unit = largest_unit(largest * float(weighted.abs().sum(0).max()))
        self._next_bits = REST_BITS - math.ceil(math.log2(max(1, n_terms)))
        self._pairs = [(c, d) for i, c in enumerate(self._blocks) for d in self._blocks[: i + 1]]
        self._sums = self.b.new_zeros(N_UNITS * sum(_area(c, d) for c, d in self._pairs))
        self._b_sums = self.b.new_zeros(N_UNITS, *self.b.shape)
        self._totals: list[Tensor] = []  # views of the sums of each pair of blocks
        first = 0
        for c, d in self._pairs:
            last = first + N_UNITS * _area(c, d)
            self._totals.append(self._sums[first:last].view(N_UNITS, c.stop - c.start, -1))
            first = last

    def add(self, K: Tensor, y: Tensor, weight: Tensor | None = None) -> None:
        y = y.double()
        weighted = y if weight is None else weight.double() * y  # (R, l)
        root = None if weight is None else weight.double().sqrt().T  # (1, R)
        exact = torch.empty(K.shape, dtype=torch.float64, device=K.device)  # (p, R)

        def convert(i: int, worker: int) -> None:
            c = self._blocks[i]
            exact[c] = K[c]
            term = exact[c] @ weighted  # (t, l)
            add_in_units(self._b_sums[:, c], term, torch.empty_like(term), self._b_unit, self._next_bits)
            if root is not None:
                exact[c].mul_(root)

        def multiply(i: int, worker: int) -> None:
            c, d = self._pairs[i]
            term = exact[c] @ exact[d].T  # (t, t')
            add_in_units(self._totals[i], term, torch.empty_like(term), self._unit, self._next_bits)

        self.workers.run(convert, len(self._blocks))
        self.workers.run(multiply, len(self._pairs))

    def complete(self) -> None:
        """Add the parts of all ranks."""
        self.group.add(self._sums, self._b_sums)
        self.b = in_one(self._b_sums, torch.float64)
        self.G = self.b.new_empty(len(self.b), len(self.b))
        for (c, d), total in zip(self._pairs, self._totals, strict=True):
            self.G[c, d] = in_one(total, torch.float64)
        self._totals, self._sums = [], self._sums[:0]
        super().complete()


def _area(c: slice, d: slice) -> int:
    return int((c.stop - c.start) * (d.stop - d.start))
