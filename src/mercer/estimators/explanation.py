"""Which training rows a prediction rests on.

f(x) = offset + sum_i scale alpha_i k(x_i, x): the term of row i is its contribution to the prediction,
and its share is that of the sum of all absolute contributions.  Rows near x have the largest kernel
values; contributions of either sign may cancel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mercer.data.rows import Array, Matrix, widest
from mercer.estimators.validation import to_numpy
from mercer.kernels import Custom
from mercer.model.machine import KernelMachine
from mercer.operators.summation import pieces

# Rows to explain, and centres that they are compared with, at a time.
EXPLAINED_AT_ONCE = 256
EXPLAINING_AT_ONCE = 8_192


@dataclass(frozen=True)
class Explanation:
    """For each of m rows, the training rows that weigh most in its prediction, and the nearest ones.

    Rows are numbered as in the data given to `fit`.
    """

    rows: Array  # (m, k)  the largest contributions first
    contributions: Array  # (m, k)  to the prediction, in its units; classes: to the decision
    shares: Array  # (m, k)  of the absolute contributions of all training rows
    nearest: Array  # (m, k)  the largest kernel values first
    kernel_values: Array  # (m, k)
    offset: Array  # (m,)  the prediction without any row: the mean of the targets
    total: Array  # (m,)  offset and all contributions


def explain(machine: KernelMachine, X: Matrix, outputs: Array, numbers: Array, k: int) -> Explanation:
    """Of the output of each row, (m,); `numbers` are those of the centres in the user's data."""
    points, places = machine.points(X), torch.from_numpy(outputs)
    scale = machine.units.scale[places]  # (m,)
    exact = widest(machine.device) == torch.float64 and not isinstance(machine.kernel, Custom)
    found: list[tuple[Tensor, ...]] = []
    for rows in pieces(0, len(points), EXPLAINED_AT_ONCE):
        some = points[rows].double() if exact else points[rows]
        heaviest = nearest = torch.zeros(len(some), 0, dtype=torch.float64)
        whose = where = torch.zeros(len(some), 0, dtype=torch.int64)
        sums = torch.zeros(len(some), 2, dtype=torch.float64)
        for part in pieces(0, len(machine.centres), EXPLAINING_AT_ONCE):
            centres = machine.centres[part].double() if exact else machine.centres[part]
            K = machine.kernel.block(some, centres).to("cpu").double()  # (b, t)
            alpha = machine.alpha[part].to("cpu").double()[:, places[rows]].T  # (b, t)
            terms = K * alpha * scale[rows, None]  # (b, t)
            sums += torch.stack([terms.sum(1), terms.abs().sum(1)], 1)
            here = torch.arange(part.start, part.start + K.shape[1]).expand(len(K), -1)
            # The best of those so far and of these.
            heaviest, whose = _best(heaviest, whose, terms, here, k, by_size=True)
            nearest, where = _best(nearest, where, K, here, k, by_size=False)
        found.append((heaviest, whose, nearest, where, sums))
    heaviest, whose, nearest, where, sums = (torch.cat(parts) for parts in zip(*found, strict=True))
    offset = machine.units.offset[places]  # (m,)
    return Explanation(
        numbers[whose.numpy()],
        to_numpy(heaviest),
        to_numpy(heaviest.abs() / sums[:, 1:].clamp(min=torch.finfo(torch.float64).tiny)),
        numbers[where.numpy()],
        to_numpy(nearest),
        to_numpy(offset),
        to_numpy(offset + sums[:, 0]),
    )


def _best(
    values: Tensor, places: Tensor, more: Tensor, here: Tensor, k: int, by_size: bool
) -> tuple[Tensor, Tensor]:
    """The k largest values of a row, or the largest in size, and where they are."""
    values, places = torch.cat([values, more], 1), torch.cat([places, here], 1)
    order = (values.abs() if by_size else values).topk(min(k, values.shape[1]), dim=1).indices
    return values.gather(1, order), places.gather(1, order)
