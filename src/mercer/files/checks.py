"""Checks of what was read from a file, before it is used.

A file may come from anywhere.  Its checksum only shows that nothing changed by accident, so whatever
would raise, crash, hang or exhaust memory later is refused here.
"""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from mercer.planning.plan import Plan

# Whole numbers beyond this do not fit where PyTorch and NumPy count.
MOST_COUNT = 1 << 56
FLOATS = (torch.float32, torch.float64)


def expect(condition: bool, text: str) -> None:
    """Raise with this text unless the condition holds."""
    if not condition:
        raise ValueError(text)


def check_plan(plan: Plan) -> None:
    """A plan divides by these numbers when it is shown."""
    rule = plan.paper_rule
    numbers = (plan.beta_plain, plan.lambda_1_plain, plan.beta, plan.lambda_1, rule.beta, rule.lambda_1)
    expect(
        all(0 < number < math.inf for number in numbers),
        "beta and lambda_1 of the plan must be positive",
    )


def stored_tensor(
    tensors: dict[str, Tensor],
    name: str,
    shape: tuple[int | None, ...],
    *dtypes: torch.dtype,
    finite: bool = True,
) -> Tensor:
    """The tensor of this name, which must be of this shape, None being any length, and be finite."""
    found = stored_tensor_if_any(tensors, name, shape, *dtypes, finite=finite)
    if found is None:
        raise ValueError(f"`{name}` is missing")
    return found


def stored_tensor_if_any(
    tensors: dict[str, Tensor],
    name: str,
    shape: tuple[int | None, ...],
    *dtypes: torch.dtype,
    finite: bool = True,
) -> Tensor | None:
    """The same where the file may lack it."""
    tensor = tensors.get(name)
    if tensor is None:
        return None
    fits = tensor.ndim == len(shape) and all(
        wanted in (None, length) for wanted, length in zip(shape, tensor.shape, strict=True)
    )
    if not fits or tensor.dtype not in dtypes:
        sizes = " × ".join("any" if wanted is None else str(wanted) for wanted in shape)
        types = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise ValueError(
            f"`{name}` must be {sizes} numbers in {types}. Got {tuple(tensor.shape)} in "
            f"{str(tensor.dtype).removeprefix('torch.')}"
        )
    if finite and tensor.is_floating_point() and tensor.numel():
        low, high = torch.aminmax(tensor)  # without a copy, since it may be larger than memory
        expect(
            math.isfinite(low) and math.isfinite(high), f"`{name}` must be finite. Got NaN or infinity"
        )
    return tensor


def check_indices(name: str, indices: Tensor, count: float) -> None:
    """Refuse indices that repeat, or that are not below `count`."""
    if not len(indices):
        return
    low, high = torch.aminmax(indices)
    expect(
        int(low) >= 0 and int(high) < count and len(torch.unique(indices)) == len(indices),
        f"`{name}` must be different rows or columns of the data",
    )


def check_numbers(record: Any, name: str, excepted: tuple[str, ...] = ()) -> None:
    """Refuse NaN, and whole numbers that are too large, anywhere in a record but in some fields."""
    if is_dataclass(record):
        for field in fields(record):
            inner = f"{name}.{field.name}" if name else field.name
            if field.name not in excepted:
                check_numbers(getattr(record, field.name), inner, excepted)
    elif isinstance(record, (list, tuple)):
        for value in record:
            check_numbers(value, name, excepted)
    elif isinstance(record, float):
        expect(not math.isnan(record), f"`{name}` must be a number. Got NaN")
    elif isinstance(record, int):
        expect(abs(record) <= MOST_COUNT, f"`{name}` must be a number of a sensible size")
