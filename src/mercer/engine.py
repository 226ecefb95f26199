"""From arrays to a run that is ready to begin: preparation, selection, plan, training, in this order."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mercer.data.inputs import Preparation, fit_preparation, projected
from mercer.kernels import KERNELS, Kernel, as_kernel, canonical_name, in_units
from mercer.model.machine import KernelMachine
from mercer.operators.tiled import HeldOutProducts, TrainingProducts
from mercer.operators.workers import Workers, workers_for
from mercer.planning.choose import LevelledKernel, Requests, adapt
from mercer.planning.plan import Plan
from mercer.planning.rehearsal import with_predicted_seconds
from mercer.planning.resource import Resource, affordable_points, measure_resource, with_memory
from mercer.selection.search import CANDIDATES, FINE_POINTS, MATRICES, Selection, select
from mercer.training.loop import Limits, Training, Validation

Array = NDArray[Any]
KernelLike = str | Kernel | Callable[[Tensor, Tensor], Tensor]
# Data that takes more than this share of the memory lies in a file: work and kept values need some too.
DATA_SHARE = 0.5
# Standard deviations of features within this factor of one another are on one scale.
ONE_SCALE = 2.0
UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}


@dataclass(frozen=True)
class Settings:
    """What the user asked for; None and "auto" where the method chooses."""

    kernel: KernelLike
    bandwidth: float | None
    ridge: float | None
    scale: bool | Literal["auto"]
    n_pca_components: int | Literal["auto"] | None
    requests: Requests
    limits: Limits
    dtype: torch.dtype
    device: torch.device
    resource: Resource | None
    memory: float | None  # bytes


@dataclass(frozen=True)
class Data:
    """Arrays in the order of the user's rows; `rows` are those to train on, in training order."""

    X: Array  # (N, d)
    Y: Array  # (N, l)  encoded targets
    rows: Array  # (n,)
    X_val: Array | None = None
    Y_val: Array | None = None
    sample_weight: Array | None = None  # (N,)


@dataclass(frozen=True)
class Problem:
    """All that training needs, ready on the device."""

    kernel: Kernel  # as the user knows it
    ridge: float  # likewise; the plan has it in units of the largest sample weight
    machine: KernelMachine  # untrained
    levelled: LevelledKernel
    plan: Plan
    y: Tensor  # (n, l)  centred
    selection: Selection | None


def pose(data: Data, settings: Settings, on_stage: Callable[[str], None] = lambda text: None) -> Problem:
    """Prepare the data, choose what is to be chosen, and make the plan."""
    measured = settings.resource or measure_resource(settings.device, settings.dtype)
    resource = with_memory(measured, settings.memory)
    like = torch.zeros((), dtype=settings.dtype, device=settings.device)

    def on_tried(count: int) -> None:
        on_stage(f"choosing kernel, bandwidth and ridge, {count} settings tried")

    preparation, given, ridge, selection = _choose(data, settings, resource, on_tried)
    on_stage("preparing the data")
    most = data_memory(settings.device, resource)
    points = preparation.points(data.X, data.rows, like, True, most)
    if preparation.grid is not None and not points.is_bytes:  # only the first rows looked 8-bit
        without = replace(resource, integer_gain=0.0)
        preparation, given, ridge, selection = _choose(data, settings, without, on_tried)
        points = preparation.points(data.X, data.rows, like, True, most)
    kernel = given if preparation.grid is None else in_units(given, preparation.grid.scale)
    y = torch.from_numpy(data.Y[data.rows]).to(like)  # (n, l)
    offset, scaled_ridge = y.mean(0), ridge  # (l,)
    if data.sample_weight is not None:
        w = torch.from_numpy(data.sample_weight[data.rows]).to(like)[:, None]  # (n, 1)
        offset = (w * y).sum(0) / w.sum()
        scaled_ridge /= float(w.max())  # in units of the largest weight, as training takes them
    y -= offset
    on_stage("estimating the spectrum")
    n_held_out = 0 if data.X_val is None else len(data.X_val)
    requests = settings.requests
    if requests.batch_size is not None:
        requests = replace(requests, batch_size=min(requests.batch_size, len(points)))
    plan, levelled = adapt(
        kernel,
        points,
        y.shape[1],
        resource,
        scaled_ridge,
        requests,
        n_held_out,
        data_on_disk=points.rows.nbytes > most,
        keeps=settings.limits.max_iter > 1,
    )
    if resource.rates is not None:
        plan = with_predicted_seconds(plan, resource.rates, kernel, points, levelled, y, n_held_out)
    plan = replace(plan, kernel=str(given), preparation=preparation.describe())
    machine = KernelMachine(kernel, preparation, points, torch.zeros_like(y), offset)
    return Problem(given, ridge, machine, levelled, plan, y, selection)


def data_memory(device: torch.device, resource: Resource) -> float:
    """Bytes that the data may take in memory; a device of its own has no file to read from."""
    return DATA_SHARE * (resource.memory - resource.reserved) if device.type == "cpu" else math.inf


def training(
    problem: Problem,
    data: Data,
    settings: Settings,
    score: Callable[[Tensor], float],
    start_from: Tensor | None = None,
) -> Training:
    """A run on the problem, not yet begun; `score` is that of held-out decisions, (n_val, l)."""
    machine, plan, y = problem.machine, problem.plan, problem.y
    budget = plan.kept_memory
    validation = None
    if data.X_val is not None and data.Y_val is not None:
        held_out = machine.points(data.X_val)
        products = HeldOutProducts(machine.kernel, held_out, machine.centres, y.shape[1], budget)
        budget -= products.kept_bytes
        targets = torch.from_numpy(data.Y_val).to(y) - machine.offset
        validation = Validation(products, targets, lambda f: score(f + machine.offset))
    weight = None
    if data.sample_weight is not None:
        weight = torch.from_numpy(data.sample_weight[data.rows]).to(y)[:, None]  # (n, 1)
        weight /= weight.max()  # at most one, so that no step is too large
    V = problem.levelled.V
    return Training(
        TrainingProducts(machine.kernel, machine.centres, V, plan.batch_size, y.shape[1], budget),
        problem.levelled,
        plan,
        y,
        settings.limits,
        validation,
        sample_weight=weight,
        start_from=start_from,
    )


def _choose(
    data: Data, settings: Settings, resource: Resource, on_tried: Callable[[int], None]
) -> tuple[Preparation, Kernel, float, Selection | None]:
    """The preparation, the kernel and the ridge."""
    by_name = isinstance(settings.kernel, str)
    fixed = None if by_name else as_kernel(settings.kernel, 1.0)
    invariant = fixed.translation_invariant if fixed is not None else _invariant(str(settings.kernel))
    # A bandwidth given by hand is in the units of the data.
    may_scale = by_name and settings.bandwidth is None and invariant
    standardise = settings.scale is True
    float32 = settings.dtype == torch.float32
    plain, deviations = fit_preparation(
        data.X,
        data.rows,
        translation_invariant=invariant,
        as_bytes=float32
        and resource.integer_gain > 1
        and not standardise
        and settings.n_pca_components is None,
    )
    scaled = (
        plain if deviations is None else replace(plain, scale=np.where(deviations > 0, deviations, 1))
    )
    mixed = deviations is not None and deviations.max() > ONE_SCALE * deviations[deviations > 0].min(
        initial=np.inf
    )
    variants = {standardise: scaled if standardise else plain}
    if settings.scale == "auto" and may_scale and mixed:
        variants = {False: plain, True: scaled}

    chooses_kernel = by_name and (settings.bandwidth is None or settings.kernel == "auto")
    needs_search = settings.ridge is None or chooses_kernel
    selection = None
    if needs_search:
        # Each worker holds so many matrices of float64 over the sample, and some copies of it.  Threads
        # also keep what they have freed, so where memory is short one setting is tried at a time.
        usable = resource.memory - resource.reserved
        copies = 4 * plain.width
        workers = workers_for(torch.device("cpu"))
        if affordable_points(usable, 2 * MATRICES * workers.count, copies, 8) < FINE_POINTS:
            workers = Workers(1)
        affordable = affordable_points(usable, MATRICES * max(2, workers.count), copies, 8)
        sample = data.rows[: max(2, min(FINE_POINTS, affordable))]
        features = {key: torch.from_numpy(v.floats(data.X[sample])[0]) for key, v in variants.items()}
        names = CANDIDATES if settings.kernel == "auto" else (canonical_name(str(settings.kernel)),)
        makers: dict[str, Callable[[float], Kernel]] = (
            {fixed.name: lambda width: fixed}
            if fixed is not None
            else {name: lambda width, name=name: as_kernel(name, width) for name in names}  # type: ignore[misc]
        )
        width = settings.bandwidth if by_name else 1.0
        Y = torch.from_numpy(data.Y[sample])
        rounding = torch.finfo(settings.dtype).eps * math.sqrt(len(data.rows))
        selection = select(features, Y, makers, width, settings.ridge, rounding, on_tried, workers)
    chosen = variants[selection.best.scaled if selection else standardise]
    if settings.n_pca_components is not None:
        chosen = projected(chosen, data.X, data.rows, settings.n_pca_components)
    if fixed is not None:
        kernel = fixed
    elif selection is not None:
        kernel = as_kernel(selection.best.kernel, selection.best.bandwidth)
    else:
        assert settings.bandwidth is not None
        kernel = as_kernel(settings.kernel, settings.bandwidth)
    ridge = settings.ridge if settings.ridge is not None else selection.best.ridge if selection else 0.0
    return chosen, kernel, ridge, selection


def _invariant(name: str) -> bool:
    name = canonical_name(name)
    return name not in KERNELS or KERNELS[name].translation_invariant


def parse_memory(memory: float | str) -> float | None:
    """Bytes from a number or a text such as "4GB"; None for "auto".

    >>> parse_memory("1.5 GB") == 1.5 * 1024**3
    True
    """
    if memory == "auto":
        return None
    if isinstance(memory, str):
        found = re.fullmatch(r"\s*([0-9.]+)\s*([KMGT]?)i?B?\s*", memory, re.IGNORECASE)
        try:
            return float(found[1]) * UNITS[found[2].upper()] if found else float("nan")
        except ValueError:
            return float("nan")
    return float(memory)
