"""f at a single row, with all that does not depend on the row computed once.

The numbers are those of `reproducible_product`, to the last bit: both matrix products have the shapes
they have there, a group of rows that are copies of the one.  Between the products every element is
computed for itself, and only those of the row are.  They lie in memory padded to whole vectors, since
the leftover of a vector may round differently.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from mercer.data.points import Points
from mercer.kernels.base import Kernel
from mercer.kernels.distances import CANCELLATION_UNITS, recompute_close_pairs
from mercer.kernels.radial import L1Laplacian, Radial
from mercer.operators.summation import by_output

Memory = tuple[Tensor, Tensor, Tensor, Tensor, tuple[Tensor, ...]]
# Numbers of the centres up to which they are worth holding once more, in float64 or by feature.
MOST_CENTRE_NUMBERS = 1 << 20
# PyTorch's loops take two of the processor's longest vectors at a time.
VECTOR_BYTES = 128


class OneRow:
    """K(row, centres) @ weights for one row after the other.

    Parameters
    ----------
    group : rows that a matrix product has, all of them copies of the row
    """

    def __init__(self, kernel: Radial, centres: Points, weights: Tensor, group: int) -> None:
        n, self._n_outputs = len(centres), weights.shape[1]
        self._kernel, self._centres, self._group = kernel, centres, group
        self._factor = kernel._factor
        if self._n_outputs == 1:
            weights = torch.nn.functional.pad(weights, (0, 1))
        self._weights_t = by_output(weights).T  # (l, n)
        assert centres.extended is not None
        self._extended = centres.extended[:, centres.n_absolute :]  # (n, d - p + 2)
        self._rounding = torch.finfo(centres.dtype).eps
        self._one = weights.new_full((1, 1), self._factor)
        at_once = VECTOR_BYTES // centres.dtype.itemsize
        self._length = -(-n // at_once) * at_once
        if centres.n_absolute:
            by_feature, more = centres.by_feature, (0, self._length - n)
            self._by_feature = torch.nn.functional.pad(by_feature, more)  # (p, n')
            self._sums = torch.nn.functional.pad(self._factor * by_feature.sum(0), more)  # (n',)
        self._here = threading.local()  # threads may predict at once

    @staticmethod
    def suits(kernel: Kernel, centres: object, dtype: torch.dtype, group: int) -> bool:
        """Whether there is a fast way for this kernel and few centres, in this precision.

        There is none where a group of rows leaves part of a vector over, which rounds in its own way.
        """
        return (
            type(kernel).block in (Radial.block, L1Laplacian.block)
            and isinstance(centres, Points)
            and centres.extended is not None
            and centres.device.type == "cpu"
            and centres.extended.numel() <= MOST_CENTRE_NUMBERS
            and len(centres) * group * dtype.itemsize % VECTOR_BYTES == 0
        )

    def at(self, x: Tensor, beyond: Tensor) -> Tensor | None:
        """f at a prepared row, (1, d), and its squared distance from the space of the others, (1,).

        None where only the general way will do.
        """
        kernel, factor, centres = self._kernel, self._factor, self._centres
        n, p = len(centres), centres.n_absolute
        x, beyond = x.to(centres.dtype), beyond.to(centres.dtype)
        if p:
            bound = centres.absolute_bound + float(x[:, :p].abs().sum())
            if not abs(factor) * self._rounding * bound <= kernel.tolerance:
                return None
        squares = x[:, p:]
        norm = squares.square().sum(1).add_(beyond)  # (1,)
        products, values, K, larger, features = self._memory()
        partner = torch.cat([squares.mul(-2 * factor), (factor * norm)[:, None], self._one], 1)
        partner = partner.expand(self._group, -1).contiguous()  # (16, d - p + 2)
        torch.mm(self._extended, partner.T, out=products)  # (n, 16)
        values[:n] = products[:, 0]
        largest = centres.bound + float(norm)
        if not abs(factor) * 2 * self._rounding * largest <= kernel.tolerance:
            found = values[:n]
            closest = float(found.amin() if factor > 0 else found.amax()) / factor
            if not closest >= CANCELLATION_UNITS * self._rounding * largest:
                row = Points(x, norm, float(norm), beyond=beyond, n_absolute=p)
                recompute_close_pairs(centres, row, found[:, None], factor)
        if p:
            z = x[:, :p].expand(self._group, -1).T.contiguous()  # (p, 16)
            values.sub_(self._sums).sub_(factor * z.sum(0)[0])
            torch.maximum(self._by_feature, z[:, :1], out=larger)  # (p, n')
            for feature in features:  # (n',), p of them
                values.add_(feature, alpha=2 * factor)
        if kernel.absolute:
            values.clamp_(max=0)
        kernel._profile_(values)
        K.copy_(values[:n, None].expand(-1, self._group))  # (n, 16)
        f = K.new_zeros(len(self._weights_t), self._group).addmm_(self._weights_t, K)  # (l, 16)
        return f[: self._n_outputs, :1].T

    def _memory(self) -> Memory:
        """Room for the products, (n, 16), the values of the row, (n',), and its copies, (n, 16).

        Also for the larger values by feature, (p, n'), as a whole and one by one.
        """
        found: Memory | None = getattr(self._here, "memory", None)
        if found is None:
            like, shape = self._weights_t, (len(self._centres), self._group)
            larger = like.new_empty(self._centres.n_absolute, self._length)
            room = (like.new_empty(shape), like.new_zeros(self._length), like.new_empty(shape))
            found = (*room, larger, larger.unbind())
            self._here.memory = found
        return found
