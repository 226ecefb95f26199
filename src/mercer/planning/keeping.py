"""What is kept of K for later epochs, and how.

Later epochs read what the first has evaluated, as long as memory lasts.  Two bytes a value hold twice as
many rows as four and are read faster, at an error that training corrects for where it matters (see
`operators/refined.py`).  So they are used where the error is small and there is much to keep.

Keeping takes time as well: the first write to fresh memory can be slower than evaluating a kernel value
once more.  So much is kept only if the epochs that are expected gain more than that.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mercer.data.dealt_points import AnyPoints
from mercer.kernels.base import Kernel
from mercer.method.schedule import first_epoch_values
from mercer.operators.fixed_point import FixedPoint
from mercer.operators.storage import value_bytes
from mercer.operators.tiled import panel_rows

# Largest error of a kept value as a share of the mean of k(x, x): that of kernels between 0 and 1, times
# eight.  A kernel without bounds may have a few values so large that the others would get no digits.
CODE_ERROR_SHARE = 2.0**-14
# Rows that show the mean of k(x, x).
DIAGONAL_SAMPLE = 1_024
# Up to this many bytes, values are kept as they are: an epoch reads them in hundredths of a second.
SMALL_BYTES = 1 << 28
# Values are kept up to so many times the seconds that they are expected to save: memory may come faster
# than it did when it was tried, there may be more epochs, and decisions must not depend on noise.
KEEPING_MARGIN = 2.0


@dataclass(frozen=True)
class Keeping:
    """Bytes that keeping everything takes, and the code of kept values; None keeps them as they are."""

    wanted: float
    code: FixedPoint | None


def keeping(
    kernel: Kernel,
    points: AnyPoints,
    s: int,
    q: int,
    m: int,
    n_held_out: int,
    element_size: int,
    *,
    coded: bool = True,
    n_closing: int = 0,
) -> Keeping:
    """How the values of the first epoch, Z, and all of K for the held-out points would be kept.

    Without `coded` they are kept as they are.  `n_closing` of the held-out points are trained on in the
    end, when their values take the place of those of the held-out part.
    """
    n, rows = len(points), max(m, panel_rows(points.device))
    values = first_epoch_values(n, s, rows)
    large = element_size * values > SMALL_BYTES
    code = _code(kernel, points) if coded and large else None
    wanted = wanted_bytes(n, values, q + n_held_out, element_size, code)
    if n_closing:
        n += n_closing
        in_the_end = wanted_bytes(n, first_epoch_values(n, s, rows), q, element_size, code)
        wanted = max(wanted + element_size * n_closing * q, in_the_end)
    return Keeping(wanted, code)


def wanted_bytes(
    n: int, values: float, others: int, element_size: int, code: FixedPoint | None
) -> float:
    """Bytes of the values of a first epoch, and of `others` more for each point, kept as they are."""
    return value_bytes(code, element_size) * values + element_size * n * others


def pays(
    size: float, write: float, saved: float, later_epochs: float, margin: float = KEEPING_MARGIN
) -> bool:
    """Whether keeping `size` bytes saves time: each takes `write` seconds and saves some every epoch.

    >>> pays(1e9, write=2e-9, saved=1e-9, later_epochs=1), pays(1e9, 3e-9, 1e-9, 1)
    (True, False)
    """
    return size <= SMALL_BYTES or write <= margin * later_epochs * saved


def _code(kernel: Kernel, points: AnyPoints) -> FixedPoint | None:
    """16 bits for kernel values on these points, if that is close enough to float32."""
    few = points[:DIAGONAL_SAMPLE]
    bounds = kernel.bounds(few)  # on all points, as far as they depend on them
    if points.dtype != torch.float32 or bounds is None:
        return None
    code = FixedPoint(*bounds)
    typical = float(kernel.diagonal(few).mean())
    return code if code.error <= CODE_ERROR_SHARE * typical else None
