"""Dense blocks of K and products with them, by all cores.

A matrix library splits one product over the threads it has, and the result rounds by where it was split.
Here rows are cut into pieces of a fixed size, and a core takes whole pieces, so the result is the same
for any number of cores.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mercer.data.points import Points
from mercer.kernels.base import Kernel
from mercer.operators.summation import pieces
from mercer.operators.workers import workers_for

# Rows of a piece on a CPU: enough for products at full rate, few enough to share out.
PIECE_ROWS = 256


def dense_block(kernel: Kernel, a: Points, b: Points, *, same: bool = False) -> Tensor:
    """k(a_i, b_j), (m, t).  `same`: a and b are the same points."""
    if a.x.device.type != "cpu":
        return kernel.block(a, b, same=same)
    out = torch.empty(len(a), len(b), dtype=a.dtype)
    _by_pieces(lambda rows: kernel.block(a[rows], b, out=out[rows]), len(a), out)
    if same:
        out.diagonal().copy_(kernel.diagonal(a))
    return out


def dense_product(A: Tensor, B: Tensor) -> Tensor:
    """A @ B, (m, t)."""
    if A.device.type != "cpu":
        return A @ B
    out = A.new_empty(len(A), B.shape[1])
    _by_pieces(lambda rows: torch.mm(A[rows], B, out=out[rows]), len(A), out)
    return out


def _by_pieces(compute: Callable[[slice], Tensor], n_rows: int, out: Tensor) -> None:
    parts = pieces(0, n_rows, PIECE_ROWS)

    def work(i: int, worker: int) -> None:
        compute(parts[i])

    workers_for(out.device).run(work, len(parts))
