"""Whether a precision can tell kernel values apart.

Targets are centred, so what kernel values have in common explains nothing of them: only H K H does, with
H = I - 1 1^T / n.  Where rows are close together compared with their distance from the origin, or with
the bandwidth, K is a constant up to a small remainder, and rounding may leave nothing of that.  Training
then finds no weights to speak of, so their rounding error does not show it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mercer.data.rows import widest
from mercer.kernels import Custom
from mercer.model.machine import MEASURED_ROWS, KernelMachine
from mercer.training.problem import Data


def kernel_rounding(machine: KernelMachine, data: Data) -> float:
    """Rounding error of H K H as a share of it, from a few training rows; 0 if none is known."""
    dtype = widest(machine.device)
    # A function of the user's own may work in one precision only.
    if machine.centres.dtype == dtype or isinstance(machine.kernel, Custom):
        return 0.0
    rows = machine.centres[:MEASURED_ROWS]
    like = torch.zeros((), dtype=dtype, device=machine.device)
    given, few = (data.X, data.rows) if data.centers is None else (data.centers, np.arange(len(rows)))
    exact = machine.inputs.points(given, few[: len(rows)], like, True)
    K = machine.kernel.block(exact, exact, same=True)  # (R, R)
    error = machine.kernel.block(rows, rows, same=True).to(dtype) - K  # (R, R)
    size = float(_centred(K).norm())
    return float(_centred(error).norm()) / size if size > 0 else 0.0


def _centred(K: Tensor) -> Tensor:
    """H K H of a symmetric matrix."""
    means = K.mean(0)  # (R,)
    return K - means - means[:, None] + means.mean()
