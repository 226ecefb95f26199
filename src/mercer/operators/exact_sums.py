"""Sums that do not depend on the order of their terms, nor on who adds them.

Floating point addition rounds, so the order of terms shows in the last bits.  It does not round where
all terms are multiples of one unit and their sum is below 2^53 units.  So each term is first rounded to
such a unit, a power of two small against the largest sum that is possible,

    (x + M) - M,    M = 1.5 * 2^52 units,

and the sum of these is exact in float64, in any order and over any number of processes.  One unit is
2^-50 of the largest sum: for terms in float32 nothing that shows.  Terms in float64 have more digits, so
what rounding left over is added up in the same way with a unit 2^-40 as large.

Terms are themselves sums, of the products of a lane: tiles whose products one worker adds in a fixed
order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mercer.data.points import ADDRESS_BYTES
from mercer.operators.summation import Job, Scratch, tile_elements
from mercer.operators.workers import workers_for

# Bits that a sum may have in units: below 53, so that adding up to a few thousand terms stays exact.
SUM_BITS = 50
# Bits of the next unit below the one before: 2^12 remainders of half a unit stay below 2^53.
NEXT_BITS = 40


@dataclass(frozen=True)
class Lane:
    """Products that are added in the order given, for some of the rows."""

    rows: slice  # of those that are summed for
    jobs: Sequence[Job]


class ExactSums:
    """Runs lanes on all cores and adds up their sums; workspaces are allocated once."""

    def __init__(self, device: torch.device, dtype: torch.dtype, rows: int, n_outputs: int) -> None:
        self.workers = workers_for(device)
        self.n_units = 1 if dtype == torch.float32 else 2
        size, count = max(rows, tile_elements(device)), self.workers.count
        memory = torch.empty(count, size, dtype=dtype, device=device)
        self._scratch = [Scratch(memory[i]) for i in range(count)]
        # Lanes of all workers are aligned alike, since products may round by the address of the sum.
        padded = -(-rows // ADDRESS_BYTES) * ADDRESS_BYTES
        self._lane = memory.new_empty(count, n_outputs, padded)  # (workers, l, rows)
        self._term = torch.empty(count, n_outputs, rows, dtype=torch.float64, device=device)
        self._rest = torch.empty_like(self._term)
        self._totals = self._term.new_empty(count, self.n_units, n_outputs, rows)

    def of(self, lanes: Sequence[Lane], rows: int, bound: float) -> Tensor:
        """The sum of all lanes in units that get smaller, (n_units, l, rows), exact.

        `bound` is one on the absolute value of any sum of some of the terms.
        """
        largest = largest_unit(bound)
        totals = self._totals[..., :rows].zero_()

        def work(i: int, worker: int) -> None:
            span = lanes[i].rows
            length = span.stop - span.start
            lane, term = self._lane[worker, :, :length], self._term[worker, :, :length]
            lane.zero_()
            for job in lanes[i].jobs:
                job(lane, self._scratch[worker])
            term.copy_(lane)
            rest = self._rest[worker, :, :length]
            add_in_units(totals[worker, :, :, span], term, rest, largest)

        self.workers.run(work, len(lanes))
        return totals.sum(0) if len(totals) > 1 else totals[0].clone()


def add_in_units(
    total: Tensor, term: Tensor, rest: Tensor, unit: float, next_bits: int = NEXT_BITS
) -> None:
    """Add a term, in float64, to a total in units, (n_units, ...); overwrites the term.

    `rest` is memory like the term.  `unit` is the largest one, each further one is 2^-`next_bits` as
    large as the one before.
    """
    for i in range(len(total)):
        last = i + 1 == len(total)
        if not last:
            rest.copy_(term)
        shift = 1.5 * unit * 2.0**52
        term.add_(shift).sub_(shift)
        total[i].add_(term)
        if not last:
            torch.sub(rest, term, out=term)
            unit *= 2.0**-next_bits


def largest_unit(bound: float) -> float:
    """A power of two that is about 2^-50 of the bound."""
    # Where there is nothing to add, or weights are not finite, any unit will do.
    return 2.0 ** (math.ceil(math.log2(bound)) - SUM_BITS) if 0 < bound < math.inf else 1.0


def in_one(units: Tensor, dtype: torch.dtype) -> Tensor:
    """A sum in units, (n_units, ...), rounded once, (...)."""
    return units.flip(0).sum(0).to(dtype)
