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


def beyond_range(inputs: Inputs, x: Matrix) -> Tensor:
    """How far each row lies outside the training range of a number mapped by rank, in ranges, (m,).

    Such numbers are mapped to the last rank, so the kernel does not see how far out they are.
    """
    found = torch.zeros(len(x), dtype=torch.float64)
    if inputs.table is None or inputs.table.knots is None:
        return found
    numbers, knots = inputs.table.numbers, inputs.table.knots  # (a,), (a, k)
    low, high = knots[:, 0], knots[:, -1]
    for rows, chunk in chunks(x, None):
        values = inputs.varying(chunk)[0].to("cpu")[:, numbers].double()  # (b, a)
        excess = torch.maximum(low - values, values - high) / (high - low)  # (b, a)
        found[rows] = excess.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).amax(1).clamp(min=0)
    return found
