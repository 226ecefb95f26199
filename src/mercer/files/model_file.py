"""A trained machine as tensors and plain data, and back."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mercer.data.bytes import Grid
from mercer.data.dealt_points import PassingRows
from mercer.data.inputs import Inputs
from mercer.data.points import Points, byte_points
from mercer.data.table_map import TableMap
from mercer.data.targets import TargetUnits
from mercer.files.checks import (
    FLOATS,
    check_indices,
    check_numbers,
    expect,
    stored_tensor,
    stored_tensor_if_any,
)
from mercer.files.records import from_data, to_data
from mercer.kernels import Custom, Kernel, kernel_from_dict
from mercer.model.machine import KernelMachine

# Tensors of `Inputs` are stored under names of their own.
PREFIX = "inputs."
# Centres are stored as they are in memory, so that a file larger than memory is written without a copy.
BYTE_CENTRES = "centres"
FLOAT_CENTRES = "extended_centres"
# Predictions may not come near the largest float64.
LARGEST_PREDICTION = 1e300


@dataclass(frozen=True)
class MachineData:
    """What a file has of a machine beside its tensors."""

    kernel: dict[str, Any]
    n_features: int
    lossless: bool = False
    grid: Grid | None = None
    absolute: bool = False
    standardised: bool = False
    target_scale: float | tuple[float, ...] = 1.0  # one for all outputs, or one for each
    in_double: bool = False


def machine_parts(
    machine: KernelMachine,
) -> tuple[dict[str, Tensor | PassingRows], dict[str, Any]]:
    """A machine as tensors and plain data; `machine_from` is the inverse."""
    inputs, centres = machine.inputs, machine.centres
    tensors: dict[str, Tensor | PassingRows] = {
        BYTE_CENTRES if centres.is_bytes else FLOAT_CENTRES: centres.rows,
        "alpha": machine.alpha,
        "offset": machine.units.offset,
    }
    tensors |= {PREFIX + name: tensor for name, tensor in inputs.tensors().items()}
    scales = tuple(machine.units.scale.tolist())
    data = MachineData(
        kernel_data(machine.kernel),
        inputs.n_features,
        inputs.lossless,
        inputs.grid,
        inputs.absolute,
        inputs.standardised,
        scales[0] if len(set(scales)) == 1 else scales,
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


def centres_on_disk(data: Any) -> Collection[str]:
    """The tensors that stay on disk, given the unchecked data of a model file."""
    plan = data.get("plan") if isinstance(data, dict) else None
    on_disk = isinstance(plan, dict) and plan.get("data_on_disk") is True
    return (BYTE_CENTRES, FLOAT_CENTRES) if on_disk else ()


def machine_from(tensors: dict[str, Tensor], data: Any) -> KernelMachine:
    """The machine, whose parts must fit together."""
    kernel, inputs = kernel_and_inputs(tensors, data)
    alpha = stored_tensor(tensors, "alpha", (None, None), *FLOATS)
    kernel.check(alpha.dtype)
    expect(alpha.numel() > 0, "`alpha` must have a weight for each centre and output. Got none")
    units = target_units(tensors, data, alpha.shape[1])
    centres = _centres(tensors, inputs, alpha)
    # |f| at the centres is at most sum_i |alpha_i| max_j k(x_j, x_j), and then in the targets' units.
    weight, largest = alpha.abs().sum(0, dtype=torch.float64).max(), kernel.diagonal(centres).max()
    most = float(weight * largest)
    fits = most < torch.finfo(alpha.dtype).max and most * float(units.scale.max()) < LARGEST_PREDICTION
    expect(fits, "its function must be finite. Got larger weights")
    in_double = from_data(MachineData, data, "The file").in_double
    return KernelMachine(kernel, inputs, centres, alpha, units, in_double)


def target_units(tensors: dict[str, Tensor], data: Any, n_outputs: int) -> TargetUnits:
    """The units of the targets."""
    offset = stored_tensor(tensors, "offset", (n_outputs,), *FLOATS).double()
    found = from_data(MachineData, data, "The file").target_scale
    scales = found if isinstance(found, tuple) else (found,) * n_outputs
    expect(
        len(scales) == n_outputs and all(0 < scale < math.inf for scale in scales),
        "`target_scale` must be a positive number, or one for each output",
    )
    return TargetUnits(offset, torch.tensor(scales, dtype=torch.float64))


def kernel_and_inputs(tensors: dict[str, Tensor], data: Any) -> tuple[Kernel, Inputs]:
    """What a machine does to its inputs, without its centres."""
    found = from_data(MachineData, data, "The machine")
    check_numbers(found, "machine")
    d, float64 = found.n_features, torch.float64
    columns = stored_tensor_if_any(tensors, f"{PREFIX}columns", (None,), torch.int64)
    if columns is not None:
        check_indices("columns", columns, d)
    varying = d if columns is None else len(columns)
    expect(varying >= 1, "the machine must have at least one feature")
    table = _table(tensors, varying)
    width = varying if table is None else table.width
    inputs = Inputs(
        n_features=d,
        columns=columns,
        constants=stored_tensor(tensors, f"{PREFIX}constants", (d - varying,), float64),
        shift=stored_tensor(tensors, f"{PREFIX}shift", (width,), float64),
        scale=stored_tensor_if_any(tensors, f"{PREFIX}scale", (width,), float64),
        projection=stored_tensor_if_any(tensors, f"{PREFIX}projection", (width, None), float64),
        lossless=found.lossless,
        grid=found.grid,
        table=table,
        absolute=found.absolute,
        standardised=found.standardised,
        importances=stored_tensor_if_any(tensors, f"{PREFIX}importances", (d,), float64),
        means=stored_tensor_if_any(tensors, f"{PREFIX}means", (d,), float64),
    )
    expect(
        inputs.scale is None or bool((inputs.scale > 0).all()),
        "the scales of features must be positive",
    )
    expect(1 <= inputs.width <= width, "the projection must have between one direction and all")
    grid = inputs.grid
    if grid is not None:
        sensible = math.isfinite(grid.offset) and 0 < grid.scale < math.inf
        plain = inputs.scale is None and inputs.projection is None and table is None
        expect(
            sensible and plain and not inputs.absolute,
            "data stored as bytes must have a finite grid, and no other scale",
        )
    kernel = kernel_from_dict(found.kernel)
    agree = kernel.absolute == inputs.absolute and not (
        inputs.absolute and inputs.projection is not None
    )
    expect(agree, "its features must be prepared for its kernel")
    return kernel, inputs


def _table(tensors: dict[str, Tensor], n_features: int) -> TableMap | None:
    """The map of the columns of a table, if there is one."""
    prefix, float64 = f"{PREFIX}table_", torch.float64
    numbers = stored_tensor_if_any(tensors, f"{prefix}numbers", (None,), torch.int64)
    if numbers is None:
        return None
    check_indices("numbers", numbers, n_features)
    owners = stored_tensor(tensors, f"{prefix}owners", (None,), torch.int64)
    inside = not len(owners) or bool((owners.min() >= 0) & (owners.max() < n_features))
    expect(inside, "the owners of indicators must be features")
    knots = stored_tensor_if_any(tensors, f"{prefix}knots", (len(numbers), None), float64)
    scores = None
    if knots is not None:
        scores = stored_tensor(tensors, f"{prefix}scores", tuple(knots.shape), float64)
        ascending = knots.shape[1] >= 1 and bool((knots.diff(dim=1) >= 0).all())
        expect(ascending, "the quantiles of each number must ascend")
    levels = stored_tensor(tensors, f"{prefix}levels", (len(owners),), float64)
    table = TableMap(numbers, owners, levels, knots, scores)
    expect(table.width >= 1, "a table must have at least one column")
    return table


def _centres(tensors: dict[str, Tensor], inputs: Inputs, alpha: Tensor) -> Points:
    n, width = len(alpha), inputs.width
    if inputs.grid is not None:
        return byte_points(stored_tensor(tensors, BYTE_CENTRES, (n, width), torch.int8), alpha.dtype)
    extended = stored_tensor(tensors, FLOAT_CENTRES, (n, width + 2), alpha.dtype)
    centres = Points.of_extended(extended, None, inputs.n_absolute)  # their norms are computed again
    largest = centres.bound + 4 * centres.absolute_bound
    expect(math.isfinite(largest), "the squared lengths of centres must be finite")
    return centres
