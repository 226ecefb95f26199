"""Squared and absolute distances of all pairs of points.

Squared distances come from ||x||² + ||z||² - 2 x·z, one matrix product.  That subtracts large numbers to
get small ones, so three things guard it: callers centre the data when the kernel is translation
invariant, a point's distance to itself is set to 0, and pairs so close that rounding would show are
computed again from x - z.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mercer.data.points import EXACT_FEATURES, Points

# A squared distance below this many units of rounding of ||x||² + ||z||² has lost more than about
# one part in a hundred to cancellation and is computed again.
CANCELLATION_UNITS = 100
# Beyond this share of close pairs in a block, one pass over all pairs is cheaper than a gather.
GATHER_SHARE = 1 / 16
# Elements of the (pairs, d) difference matrix held at once while close pairs are recomputed.
GATHER_ELEMENTS = 1 << 22
# Elements of a block for which absolute differences are added up at a time on a CPU.  With as many of
# scratch memory, they stay near a core's cache; with half as many, the cores wait for the interpreter's
# lock between operations, and two of them take half as long again.
ABSOLUTE_ELEMENTS = 1 << 17


def squared_distances(
    a: Points,
    b: Points,
    same: bool,
    out: Tensor | None = None,
    factor: float = 1.0,
    tolerance: float = 0.0,
) -> Tensor:
    """`factor` times the squared Euclidean distances of all pairs, (m, t).

    `same` says that a and b are one set.  Close pairs keep their relative accuracy, being computed from
    differences, unless the rounding error of all results is below `tolerance` as it is.
    """
    shape = (len(a), len(b))
    d2 = torch.empty(shape, dtype=a.dtype, device=a.x.device) if out is None else out
    if d2.numel() == 0:
        return d2
    rounding = 2 * torch.finfo(a.dtype).eps * (a.bound + b.bound)
    exact = not abs(factor) * rounding <= tolerance
    if a.is_bytes and b.is_bytes:
        # Sums of products of bytes are exact.  They are written to the memory of the result if it can
        # hold them, since fresh memory is slow.
        fits = d2.is_contiguous() and d2.element_size() == 4
        d2.copy_(torch._int_mm(a.x, b.x.T, out=d2.view(torch.int32) if fits else None))  # (m, t)
        scale = 1.0 if exact else factor  # keep integers exact until they are all added
        torch.add(scale * a.squared_norms[:, None], d2, alpha=-2 * scale, out=d2)
        d2.add_(scale * b.squared_norms[None, :])
        if exact and a.x.shape[1] > EXACT_FEATURES:
            d2.clamp_(min=0)
        if exact:
            return d2.mul_(factor)
        return d2.fill_diagonal_(0) if same else d2
    a, b = a.as_floats(), b.as_floats()
    if a.extended is not None and b.extended is not None:
        torch.mm(a.extended[:, a.n_absolute :], b.partner(factor).T, out=d2)  # (m, t)
    else:
        torch.add(a.squared_norms[:, None], b.squared_norms[None, :], out=d2)  # (m, t)
        d2.addmm_(a.x, b.x.T, beta=factor, alpha=-2 * factor)  # (m, t)
    if same:
        d2.fill_diagonal_(math.copysign(math.inf, factor))
    if exact:
        recompute_close_pairs(a, b, d2, factor)
    if same:
        d2.fill_diagonal_(0)
    return d2


def recompute_close_pairs(a: Points, b: Points, d2: Tensor, factor: float) -> None:
    """Compute `factor` times the squared distances of pairs that are very close again, in place."""
    threshold = CANCELLATION_UNITS * torch.finfo(d2.dtype).eps
    largest = a.bound + b.bound
    closest = (d2.amin() if factor > 0 else d2.amax()) / factor
    if bool(closest >= threshold * largest):  # the usual case, decided by one cheap pass
        return
    limit = factor * threshold * (a.squared_norms[:, None] + b.squared_norms[None, :])  # (m, t)
    close = d2 < limit if factor > 0 else d2 > limit  # (m, t)
    rows, columns = close.nonzero(as_tuple=True)
    if len(rows) > GATHER_SHARE * d2.numel():
        # Euclidean distance by differences, never by a matrix product.
        exact = torch.cdist(
            a.by_squares, b.by_squares, compute_mode="donot_use_mm_for_euclid_dist"
        ).square_()
        if a.beyond is not None:
            exact += a.beyond[:, None]
        if b.beyond is not None:
            exact += b.beyond[None, :]
        d2.copy_(torch.where(torch.isinf(d2), d2, exact.mul_(factor)))
        return
    step = max(1, GATHER_ELEMENTS // max(1, a.x.shape[1]))
    for first in range(0, len(rows), step):
        i, j = rows[first : first + step], columns[first : first + step]
        exact = (a.by_squares[i] - b.by_squares[j]).square().sum(1)
        if a.beyond is not None:
            exact += a.beyond[i]
        if b.beyond is not None:
            exact += b.beyond[j]
        d2[i, j] = factor * exact


def add_absolute_differences_(
    d1: Tensor, a: Points, b: Points, same: bool, factor: float, tolerance: float
) -> Tensor:
    """Add `factor` times the sum of |x_j - z_j| over the features compared that way, for all pairs.

    With |x - z| = 2 max(x, z) - x - z a feature takes two passes over memory in cache, a third less
    time than `torch.cdist` on a CPU.  Used where the rounding error of these sums is below `tolerance`.
    `same` says that a and b are one set: what is above the diagonal is then copied below it.
    """
    if not a.n_absolute or not d1.numel():
        return d1
    rounding = torch.finfo(d1.dtype).eps * (a.absolute_bound + b.absolute_bound)
    on_cpu = d1.device.type == "cpu"
    coarse = on_cpu and abs(factor) * rounding <= tolerance
    x, z = a.by_feature, b.by_feature  # (p, m), (p, t)
    x_sums, z_sums = factor * x.sum(0)[:, None], factor * z.sum(0)[None, :]  # (m, 1), (1, t)
    step = max(1, ABSOLUTE_ELEMENTS // len(b)) if on_cpu else len(a)
    larger = d1.new_empty(min(step, len(a)), len(b)) if coarse else None
    for first in range(0, len(a), step):
        rows = slice(first, min(first + step, len(a)))
        columns = slice(first if same else 0, len(b))
        part = d1[rows, columns]
        if larger is None:
            x_rows, z_rows = a.x[rows, : a.n_absolute], b.x[columns, : b.n_absolute]
            part.add_(torch.cdist(x_rows, z_rows, p=1), alpha=factor)
        else:
            scratch = larger[: len(part), columns]
            part.sub_(x_sums[rows]).sub_(z_sums[:, columns])
            for x_j, z_j in zip(x, z, strict=True):
                torch.maximum(x_j[rows, None], z_j[None, columns], out=scratch)
                part.add_(scratch, alpha=2 * factor)
        if same:
            d1[rows.stop :, rows] = d1[rows, rows.stop :].T
    return d1
