"""Choosing how the kernel sees the data: inputs, kernel, bandwidth and ridge."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch

from mercer.data.inputs import Inputs, fit_inputs, projected
from mercer.data.rows import Array, Matrix, take
from mercer.kernels import Kernel, KernelLike, as_kernel, canonical_name, is_translation_invariant
from mercer.operators.workers import Workers, small_operations, workers_for
from mercer.planning.memory import search_points
from mercer.selection.search import CANDIDATES, FINE_POINTS, Selection, select

CPU = torch.device("cpu")
# Standard deviations of features within this factor of one another are on one scale.
ONE_SCALE = 2.0


@dataclass(frozen=True)
class SettingRequest:
    """What the user fixed; None and "auto" where it is to be chosen."""

    kernel: KernelLike = "auto"
    bandwidth: float | None = None
    ridge: float | None = None
    scale: bool | Literal["auto"] = "auto"
    n_pca_components: int | Literal["auto"] | None = None


@dataclass(frozen=True)
class Chosen:
    """How the kernel sees the data."""

    inputs: Inputs
    kernel: Kernel  # in the units of the data
    ridge: float
    selection: Selection | None  # what was tried, where anything was


def choose_setting(
    x: Matrix,
    Y: Array,
    rows: Array,
    request: SettingRequest,
    *,
    dtype: torch.dtype,
    usable: float,
    bytes_pay: bool,
    on_tried: Callable[[int], None] = lambda count: None,
) -> Chosen:
    """Fit the inputs on the training rows, and search for what the user left open.

    `usable` is the memory that the search may use, in bytes.  `bytes_pay` says that products of bytes
    are faster than those of floats.
    """
    named = isinstance(request.kernel, str)
    fixed = None if named else as_kernel(request.kernel, 1.0)
    invariant = is_translation_invariant(request.kernel)
    plain, scaled, mixed = _variants(x, rows, request, dtype, invariant, bytes_pay)
    variants = {True: scaled} if request.scale is True else {False: plain}
    # A bandwidth given by the user is in the units of the data.
    if request.scale == "auto" and named and request.bandwidth is None and invariant and mixed:
        variants = {False: plain, True: scaled}

    selection = None
    if request.ridge is None or (named and (request.bandwidth is None or request.kernel == "auto")):
        count, n_workers = search_points(usable, plain.width, FINE_POINTS, workers_for(CPU).count)
        sample = rows[:count]
        features = {key: v.floats(take(x, sample))[0].to("cpu") for key, v in variants.items()}
        with small_operations(CPU):  # the same numbers for any number of threads
            selection = select(
                features,
                torch.from_numpy(Y[sample]),
                _makers(request.kernel, fixed),
                request.bandwidth if named else 1.0,
                request.ridge,
                torch.finfo(dtype).eps * math.sqrt(len(rows)),
                on_tried,
                Workers(1) if n_workers == 1 else workers_for(CPU),
            )
    inputs = variants[selection.best.scaled if selection else request.scale is True]
    if request.n_pca_components is not None:
        with small_operations(CPU):
            inputs = projected(inputs, x, rows, request.n_pca_components)
    ridge = request.ridge
    if ridge is None:
        ridge = selection.best.ridge if selection else 0.0
    if fixed is not None:
        return Chosen(inputs, fixed, ridge, selection)
    if selection is not None:
        best = selection.best
        return Chosen(inputs, as_kernel(best.kernel, best.bandwidth), ridge, selection)
    assert request.bandwidth is not None
    return Chosen(inputs, as_kernel(request.kernel, request.bandwidth), ridge, None)


def _variants(
    x: Matrix,
    rows: Array,
    request: SettingRequest,
    dtype: torch.dtype,
    invariant: bool,
    bytes_pay: bool,
) -> tuple[Inputs, Inputs, bool]:
    """Inputs as given and standardised, and whether the features are on different scales."""
    as_bytes = (
        bytes_pay
        and dtype == torch.float32
        and request.scale is not True
        and request.n_pca_components is None
    )
    plain, deviations = fit_inputs(x, rows, translation_invariant=invariant, as_bytes=as_bytes)
    if deviations is None:
        return plain, plain, False
    scaled = replace(plain, scale=torch.where(deviations > 0, deviations, 1.0))
    positive = deviations[deviations > 0]
    mixed = len(positive) > 0 and bool(positive.max() > ONE_SCALE * positive.min())
    return plain, scaled, mixed


def _makers(kernel: KernelLike, fixed: Kernel | None) -> dict[str, Callable[[float], Kernel]]:
    """What makes each kernel that is tried from a bandwidth."""
    if fixed is not None:
        return {fixed.name: lambda bandwidth: fixed}
    names = CANDIDATES if kernel == "auto" else (canonical_name(str(kernel)),)
    return {name: lambda bandwidth, name=name: as_kernel(name, bandwidth) for name in names}  # type: ignore[misc]
