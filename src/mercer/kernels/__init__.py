"""Kernels k(x, z), and how one is found by name, by data or by function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from torch import Tensor

from mercer.files.records import from_data
from mercer.kernels.base import Kernel
from mercer.kernels.custom import Custom
from mercer.kernels.neural_tangent import NeuralTangent
from mercer.kernels.radial import (
    Cauchy,
    ExponentialPower,
    Gaussian,
    L1Laplacian,
    Laplacian,
    Matern32,
    Matern52,
    Radial,
)

__all__ = [
    "KERNELS",
    "Cauchy",
    "Custom",
    "ExponentialPower",
    "Gaussian",
    "Kernel",
    "KernelLike",
    "L1Laplacian",
    "Laplacian",
    "Matern32",
    "Matern52",
    "NeuralTangent",
    "as_kernel",
    "canonical_name",
    "in_units",
    "is_translation_invariant",
    "kernel_from_dict",
]

#: A name, a kernel, or a function of two tensors.
KernelLike: TypeAlias = str | Kernel | Callable[[Tensor, Tensor], Tensor]

KERNELS: dict[str, type[Radial]] = {
    cls.name: cls
    for cls in (
        Gaussian,
        Laplacian,
        L1Laplacian,
        Cauchy,
        Matern32,
        Matern52,
        ExponentialPower,
        NeuralTangent,
    )
}


# Other names of the same kernels, as scikit-learn has them.
ALIASES = {"rbf": "gaussian"}


def canonical_name(name: str) -> str:
    """Mercer's own name of a kernel.

    >>> canonical_name("rbf")
    'gaussian'
    """
    return ALIASES.get(name, name)


def as_kernel(kernel: KernelLike, bandwidth: float) -> Kernel:
    """A kernel from a name (which takes `bandwidth`), a `Kernel` (which has its own) or a function."""
    if isinstance(kernel, Kernel):
        return kernel
    if isinstance(kernel, str) and canonical_name(kernel) in KERNELS:
        return KERNELS[canonical_name(kernel)](bandwidth=bandwidth)
    if callable(kernel):
        return Custom(kernel)
    raise ValueError(
        f"`kernel` must be one of {', '.join(sorted(KERNELS))}, a mercer kernel or a function of "
        f"two tensors. Got {kernel!r} instead."
    )


def in_units(kernel: Kernel, unit: float) -> Kernel:
    """The same kernel for data divided by `unit`; the kernel must have a bandwidth."""
    if not isinstance(kernel, Radial):
        raise ValueError(f"Only a kernel with a bandwidth can change units. Got {kernel} instead.")
    return replace(kernel, bandwidth=kernel.bandwidth / unit)


def kernel_from_dict(data: dict[str, Any]) -> Kernel:
    """The kernel that `Kernel.to_dict` described; fields of newer versions are ignored."""
    name = data.get("name")
    if not isinstance(name, str) or name not in KERNELS:
        raise ValueError(
            f"A stored kernel must be one of {', '.join(sorted(KERNELS))}. Got {name!r} instead: "
            "a kernel function of your own cannot be read back from data, so pass it again."
        )
    return from_data(KERNELS[name], data, "A stored kernel")


def is_translation_invariant(kernel: KernelLike) -> bool:
    """Whether data may be centred for this kernel; "auto" chooses only among kernels where it may."""
    if isinstance(kernel, str):
        name = canonical_name(kernel)
        return name not in KERNELS or KERNELS[name].translation_invariant
    return as_kernel(kernel, 1.0).translation_invariant
