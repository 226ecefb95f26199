"""What is trained on, and what was decided about it before training begins."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mercer.data.rows import Array, Matrix
from mercer.kernels.base import Kernel
from mercer.method.preconditioner import LevelledKernel
from mercer.model.machine import KernelMachine
from mercer.planning.plan import Plan
from mercer.selection.search import Selection


@dataclass(frozen=True)
class Data:
    """The user's rows in their order; `rows` are those to train on, in training order."""

    X: Matrix  # (N, d)
    Y: Array  # (N, l)  targets as columns
    rows: Array  # (n,)
    X_val: Matrix | None = None
    Y_val: Array | None = None
    sample_weight: Array | None = None  # (N,)

    @property
    def n_held_out(self) -> int:
        return 0 if self.X_val is None else len(self.X_val)


@dataclass(frozen=True)
class Problem:
    """All that training needs, ready on the device."""

    kernel: Kernel  # in the units of the user's data
    ridge: float  # as the user knows it; the plan has it in units of the largest sample weight
    machine: KernelMachine  # untrained
    preconditioner: LevelledKernel
    plan: Plan
    y: Tensor  # (n, l)  centred
    selection: Selection | None
