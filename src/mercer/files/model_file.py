"""A trained machine as tensors and plain data, and back."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from mercer.data.bytes import Grid
from mercer.data.inputs import Inputs
from mercer.data.points import Points, byte_points
from mercer.data.targets import TargetUnits
from mercer.files.records import from_data, to_data
from mercer.kernels import Custom, Kernel, kernel_from_dict
from mercer.model.machine import KernelMachine

# Tensors of `Inputs` are stored under names of their own.
PREFIX = "inputs."


@dataclass(frozen=True)
class MachineData:
    """What a file has of a machine beside its tensors."""

    kernel: dict[str, Any]
    n_features: int
    lossless: bool = False
    grid: Grid | None = None
    target_scale: float = 1.0
    in_double: bool = False


def machine_parts(machine: KernelMachine) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A machine as tensors and plain data; `machine_from` is the inverse."""
    inputs = machine.inputs
    tensors = {
        PREFIX + field.name: getattr(inputs, field.name)
        for field in fields(inputs)
        if isinstance(getattr(inputs, field.name), Tensor)
    }
    # As they are in memory, so that a file larger than memory is written and read without a copy.
    centres = machine.centres
    tensors["centres" if centres.extended is None else "extended_centres"] = centres.rows
    tensors |= {"alpha": machine.alpha, "offset": machine.units.offset}
    data = MachineData(
        kernel_data(machine.kernel),
        inputs.n_features,
        inputs.lossless,
        inputs.grid,
        machine.units.scale,
        machine.in_double,
    )
    return tensors, to_data(data)


def kernel_data(kernel: Kernel) -> dict[str, Any]:
    """The kernel as plain data; refuses one that a file cannot hold."""
    if isinstance(kernel, Custom):
        raise ValueError(
            "The kernel of a model to be saved must be one of Mercer's. Got a function of your own, "
            "which a file without code cannot hold: use pickle, or save `dual_coef_` and the data."
        )
    return kernel.to_dict()


def machine_from(tensors: dict[str, Tensor], data: Any, *, in_place: bool = False) -> KernelMachine:
    """The machine; with `in_place` its centres stay in the file and are read as they are needed."""
    if not in_place:  # a product may round by where in memory its matrices begin
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    kernel, inputs = kernel_and_inputs(tensors, data)
    alpha = tensors["alpha"]
    if "extended_centres" in tensors:
        centres = Points.of_whole(tensors["extended_centres"])
    else:
        x = tensors["centres"]
        centres = byte_points(x, alpha.dtype) if x.dtype == torch.int8 else kernel.points(x)
    found = from_data(MachineData, data, "The file")
    units = TargetUnits(tensors["offset"].double(), found.target_scale)
    return KernelMachine(kernel, inputs, centres, alpha, units, found.in_double)


def kernel_and_inputs(tensors: dict[str, Tensor], data: Any) -> tuple[Kernel, Inputs]:
    """What a machine does to its inputs, without its centres."""
    found = from_data(MachineData, data, "The file")
    known = {field.name for field in fields(Inputs)}
    arrays: dict[str, Any] = {
        name.removeprefix(PREFIX): tensor
        for name, tensor in tensors.items()
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) in known
    }
    inputs = Inputs(
        n_features=found.n_features,
        lossless=found.lossless,
        grid=found.grid,
        **{"columns": None, **arrays},
    )
    return kernel_from_dict(found.kernel), inputs
