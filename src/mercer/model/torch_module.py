"""A trained machine as a torch.nn.Module, to be part of a larger model."""

from __future__ import annotations

import torch
from torch import Tensor

from mercer.data.points import Points
from mercer.data.targets import TargetUnits
from mercer.model.machine import KernelMachine
from mercer.model.plain_function import PlainFunction, has_plain_form


class MachineModule(torch.nn.Module):
    """f(x) for inputs (m, d) to (m, l); its centres and weights are buffers, which move with the module.

    Gradients pass to its inputs if those ask for them, and `torch.export` takes it; the kernel matrix of
    the rows is then held whole.  Its output is in the precision of its buffers, which may be too coarse
    for targets with a large mean: `module.double()` has more digits.
    """

    rows: Tensor
    alpha: Tensor
    offset: Tensor

    def __init__(self, machine: KernelMachine) -> None:
        super().__init__()
        # Bytes as floats: a module is fed floats, and moves between devices that may not multiply bytes.
        centres = machine.centres.as_floats()
        self.bound, self.absolute_bound = centres.bound, centres.absolute_bound
        self.register_buffer("rows", centres.rows)
        self.register_buffer("alpha", machine.alpha)
        self.register_buffer("offset", machine.units.offset.to(machine.alpha))
        self._scale, self._in_double = machine.units.scale, machine.in_double
        self._kernel = machine.kernel
        self._inputs = machine.inputs
        for name, value in machine.inputs.tensors().items():
            floats = value.is_floating_point()
            self.register_buffer(name, value.to(machine.alpha) if floats else value)
        self._plain = PlainFunction(machine) if has_plain_form(machine.kernel) else None

    def machine(self) -> KernelMachine:
        """The machine, with its tensors where the module has them."""
        names = self._inputs.tensors()
        inputs = self._inputs.with_tensors({k: v for k, v in self.named_buffers() if k in names})
        absolute = (inputs.n_absolute, self.absolute_bound)
        points = Points(self.rows[:, :-2], self.rows[:, -1], self.bound, self.rows, None, *absolute)
        units = TargetUnits(self.offset, self._scale)
        return KernelMachine(self._kernel, inputs, points, self.alpha, units, self._in_double)

    def forward(self, x: Tensor) -> Tensor:
        """(m, d) to (m, l)."""
        if torch.compiler.is_compiling() or (x.requires_grad and torch.is_grad_enabled()):
            if self._plain is None:
                raise ValueError(
                    "Gradients and exports need one of Mercer's own kernels. Got a function of your own."
                )
            found: Tensor = self._plain(x).to(self.alpha.dtype)
            return found
        return self._tiled(x)

    @torch.no_grad()
    def _tiled(self, x: Tensor) -> Tensor:
        machine = self.machine()
        points = machine.inputs.points(x.to(self.alpha), None, self.alpha, as_floats=True)
        return machine.at(points).to(self.alpha.dtype)
