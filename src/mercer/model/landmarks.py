"""Kernel values between any rows and the first centres of a machine.

Centres are in random order, so the first of them are a random sample, small enough to be compared with
every row whatever the size of the model.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mercer.data.inputs import Inputs
from mercer.data.points import Points
from mercer.data.rows import Matrix, chunks, widest
from mercer.kernels import Custom, is_translation_invariant
from mercer.kernels.base import Kernel
from mercer.kernels.radial import Radial
from mercer.model.machine import KernelMachine
from mercer.operators.summation import pieces

# Centres that rows are compared with to tell how near they are to the training data.
MOST_LANDMARKS = 2_000
# Rows that are compared with them at a time.
ROWS_COMPARED_AT_ONCE = 1_024
# Landmarks that rows are compared with first, to find those that have a near one, and by how much their
# number grows for the rows that are left.
FIRST_LANDMARKS = 32
LANDMARK_GROWTH = 4
# A kernel value rounds differently by the other rows in its block, by much less than this share.
BLOCK_ROUNDING = 1e-9


def landmarks(machine: KernelMachine, count: int = MOST_LANDMARKS) -> Points:
    """The first centres; of centres that are dealt to ranks, for all ranks at once."""
    return machine.centres[: min(count, len(machine.centres))]


def kernel_blocks(kernel: Kernel, points: Points, marks: Points) -> Iterator[tuple[slice, Tensor]]:
    """Some rows at a time and their kernel values with the landmarks, (b, p), as precise as can be."""
    # A function of the user's own may work in one precision only.
    exact = widest(points.device) == torch.float64 and not isinstance(kernel, Custom)
    marks = marks.double() if exact else marks
    for rows in pieces(0, len(points), ROWS_COMPARED_AT_ONCE):
        some = points[rows].double() if exact else points[rows]
        yield rows, kernel.block(some, marks)


def kernel_matrix(kernel: Kernel, points: Points, marks: Points) -> Tensor:
    """All kernel values of rows with the landmarks, (m, p), in float64, on a device that has that."""
    device = points.device if widest(points.device) == torch.float64 else torch.device("cpu")
    blocks = [block.to(device).double() for _, block in kernel_blocks(kernel, points, marks)]
    return torch.cat(blocks) if blocks else torch.zeros(0, len(marks)).to(device).double()


def nearness(kernel: Kernel, points: Points, marks: Points, own: Tensor | None = None) -> Tensor:
    """How near each row is to its nearest landmark in the Hilbert space of the kernel, (m,).

    ||k(x, .) - k(z, .)||² = k(x, x) - 2 k(x, z) + k(z, z), negated.  For a radial kernel, the largest
    k(x, z) says the same without cancellation.  `own` is the place of each row among the landmarks, -1
    for those that are none of them: a row is not its own neighbour.
    """
    found = torch.zeros(len(points), dtype=torch.float64)
    radial = isinstance(kernel, Radial) and is_translation_invariant(kernel)
    for rows, K in kernel_blocks(kernel, points, marks):
        if not radial:
            k_xx, k_zz = kernel.diagonal(points[rows]), kernel.diagonal(marks)  # (b,), (p,)
            K = 2 * K - k_xx.to(K)[:, None] - k_zz.to(K)  # (b, p)
        if own is not None:
            itself = (own[rows] >= 0).nonzero()[:, 0]
            K[itself.to(K.device), own[rows][itself].to(K.device)] = -torch.inf
        found[rows] = K.amax(1).to("cpu").double()
    return found


def nearness_below(kernel: Kernel, points: Points, marks: Points, enough: float) -> Tensor:
    """`nearness` of the rows for which it is below `enough`, (m,), and infinity for most others.

    One landmark that is near enough settles a row, and nearly all rows have one among the first few.
    """
    found = torch.full((len(points),), torch.inf, dtype=torch.float64)
    settled = enough + BLOCK_ROUNDING * abs(enough)
    left, count = torch.arange(len(points)), min(FIRST_LANDMARKS, len(marks))
    while count < len(marks) and len(left):
        some = points[left.to(points.device)]
        left = left[nearness(kernel, some, marks[:count]) < settled]
        count *= LANDMARK_GROWTH
    if len(left):
        found[left] = nearness(kernel, points[left.to(points.device)], marks)
    return found


def beyond_range(inputs: Inputs, x: Matrix, ranges: float) -> Tensor:
    """Which rows lie outside the training range of a number mapped by rank by so many ranges, (m,).

    Such numbers are mapped to the last rank, so the kernel does not see how far out they are.
    """
    found = torch.zeros(len(x), dtype=torch.bool)
    if inputs.table is None or inputs.table.knots is None:
        return found
    features, knots = inputs.table.numbers, inputs.table.knots  # (a,), (a, k)
    if inputs.columns is not None:
        features = inputs.columns[features]
    low, high = knots[:, 0], knots[:, -1]
    for rows, chunk in chunks(x, None):
        values = chunk[:, features.to(chunk.device)]  # (b, a)
        ends = torch.stack([values.amin(0), values.amax(0)])  # (2, a)
        if _are_beyond(ends, low, high, ranges).any():  # seldom; one pass is enough to see that
            found[rows] = _are_beyond(values, low, high, ranges)
    return found


def _are_beyond(values: Tensor, low: Tensor, high: Tensor, ranges: float) -> Tensor:
    """Whether any value of each row, (b, a), is that many ranges below `low` or above `high`."""
    values = values.to("cpu").double()
    excess = torch.maximum(low - values, values - high) / (high - low)  # (b, a)
    beyond: Tensor = (excess > ranges) & excess.isfinite()  # a column of one value has no range
    return beyond.any(1)
