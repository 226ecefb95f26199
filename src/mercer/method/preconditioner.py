"""The levelled kernel k_q.

From the subsample's eigenpairs (sigma_i, v_i),

    k_q(x, z) = k(x, z) - phi(x)^T V D V^T phi(z),    D_i = (1 - sigma_q / sigma_i) / sigma_i

has its top q eigenvalues all about lambda_q, and the same interpolant.  A step with k_q is a step with k
and a correction of the weights on the subsample, the fixed coordinate block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from mercer.method.spectrum import NystromSpectrum
from mercer.model.expansion import Expansion


class Preconditioner(Protocol):
    """What a step corrects, and from which points."""

    @property
    def V(self) -> Tensor:
        """(s, q)"""

    @property
    def D(self) -> Tensor:
        """(q,)"""

    def diagonal(self, k_diag: Tensor, Z: Tensor) -> Tensor:
        """k_q(x, x), (m,), from k(x, x) and Z = Phi V, (m, q)."""

    def removed(self, Zp: Tensor) -> Tensor:
        """p^T (K - K_q) p for each output, (l,), from Z^T p, (q, l)."""

    def correct(self, model: Expansion, c: Tensor) -> None:
        """Add the correction with coefficients c, (q, l), to the model's weights."""


@dataclass(frozen=True)
class LevelledKernel:
    """What turns k into k_q, on the fixed block x_r: the first s training points."""

    V: Tensor  # (s, q)
    D: Tensor  # (q,)

    def diagonal(self, k_diag: Tensor, Z: Tensor) -> Tensor:
        return (k_diag - Z.square() @ self.D).clamp_(min=0)  # (m,)

    def removed(self, Zp: Tensor) -> Tensor:
        return self.D @ Zp.square()  # (l,)

    def correct(self, model: Expansion, c: Tensor) -> None:
        model.fixed_block(len(self.V)).addmm_(self.V, c)  # (s, l)


def level(spectrum: NystromSpectrum, q: int, rho: float = 0.0) -> LevelledKernel:
    """The levelled kernel k_q for 1 <= q <= the spectrum's rank.

    With a ridge r the operator is K + r I, and the eigenvalues to be levelled are sigma_i + rho,
    rho = r s / n.  Levelling sigma_i alone would make the leading directions the slowest of all.
    """
    sigma = spectrum.sigma[:q]  # (q,)
    V = spectrum.V[:, :q].contiguous()  # (s, q)
    return LevelledKernel(V, (1 - (sigma[-1] + rho) / (sigma + rho)) / sigma)


def nothing_levelled(like: Tensor) -> LevelledKernel:
    """The preconditioner of plain SGD: no fixed block, no correction."""
    return LevelledKernel(V=like.new_zeros(0, 0), D=like.new_zeros(0))
