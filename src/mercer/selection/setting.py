"""Choosing how the kernel sees the data: inputs, kernel, bandwidth and ridge."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from mercer.data.inputs import Inputs, fit_inputs, projected
from mercer.data.rows import Array, Matrix
from mercer.data.table_map import find_categories
from mercer.kernels import Kernel, KernelLike, as_kernel, canonical_name, is_translation_invariant
from mercer.operators.workers import Workers, small_operations, workers_for
from mercer.planning.memory import return_freed_memory, scale_points, search_points
from mercer.selection.at_scale import CENTRES, CHUNK, SCALE_POINTS
from mercer.selection.candidates import Selection
from mercer.selection.sample import Sample, row_weights
from mercer.selection.search import CANDIDATES, NO_BETTER, Found, select
from mercer.selection.trials import FINE_POINTS, MANY_POINTS
from mercer.selection.variants import Variant, with_table

CPU = torch.device("cpu")
# Standard deviations of features within this factor of one another are on one scale.
ONE_SCALE = 2.0
# Data with more features is not a table.
MOST_TABLE_FEATURES = 256
# One-hot features of columns that were not declared as categories.
MOST_INDICATORS = 1_024
# Points that show that nothing is better than the mean.
FEWEST_TO_SAY = 200

AS_GIVEN = "as given"
BY_RANK = "by rank"

Scale = bool | Literal["rank", "auto"]


@dataclass(frozen=True)
class SettingRequest:
    """What the user fixed; None and "auto" where it is to be chosen."""

    kernel: KernelLike = "auto"
    bandwidth: float | None = None
    ridge: float | None = None
    scale: Scale = "auto"
    categorical_features: Sequence[int] | Literal["auto"] | None = "auto"
    metric: bool = True  # learn one where it helps
    n_pca_components: int | Literal["auto"] | None = None
    inputs: Inputs | None = None  # those of an earlier fit, which its weights belong to
    searched: bool = False  # the search of an earlier fit has chosen the ridge


@dataclass(frozen=True)
class LeftOut:
    """Predictions for some rows, each from a model that was not trained on it."""

    rows: Array  # (s,)
    decisions: Array  # (s, l)
    weights: Array  # (s,)  their sum is the number of different rows


@dataclass(frozen=True)
class Chosen:
    """How the kernel sees the data."""

    inputs: Inputs
    kernel: Kernel  # in the units of the data
    ridge: float
    selection: Selection | None = None  # what was tried, where anything was
    left_out: LeftOut | None = None
    note: str | None = None


def choose_setting(
    x: Matrix,
    Y: Array,
    rows: Array,
    request: SettingRequest,
    *,
    dtype: torch.dtype,
    usable: float,
    bytes_pay: bool,
    solves: bool = False,
    n_terms: int | None = None,
    at_scale: bool = False,
    strata: Array | None = None,
    sample_weight: Array | None = None,
    on_tried: Callable[[int], None] = lambda count: None,
) -> Chosen:
    """Fit the inputs on the training rows, and search for what the user left open.

    `usable` is the memory that the search may use, in bytes.  `bytes_pay` says that products of bytes
    are faster than those of floats.  `solves`: unless the data is stored as bytes, the equations will be
    solved in float64, whatever `dtype` is.  `n_terms` are those of a prediction, one for each row by
    default.  `at_scale`: training stops early or has few centres.  `strata` are the classes of all rows,
    if there are any.
    """
    named = isinstance(request.kernel, str)
    fixed = None if named else as_kernel(request.kernel, 1.0)
    _check_axes(request, fixed)
    variants = _variants(x, rows, sample_weight, request, dtype, bytes_pay)
    plain = next(iter(variants.values()))
    if not (
        request.ridge is None or (named and (request.bandwidth is None or request.kernel == "auto"))
    ):
        kernel = as_kernel(request.kernel, request.bandwidth or 1.0)
        return Chosen(_prepared(plain, kernel, x, rows, request), kernel, request.ridge)

    widest = max(v.width for v in variants.values())
    count, n_workers = search_points(usable, widest, FINE_POINTS, workers_for(CPU).count)
    if count == FINE_POINTS:  # memory has room for more, which judge what these have learned
        count = MANY_POINTS
        if at_scale or (_may_learn(request) and request.bandwidth is None and plain.grid is None):
            most = scale_points(usable, widest, len(variants), n_workers, CENTRES, CHUNK)
            count = max(count, min(most, SCALE_POINTS))
    carried = torch.float64 if solves and plain.grid is None else dtype
    sample = Sample.draw(x, Y, rows, count, strata, sample_weight)
    with small_operations(CPU):  # the same numbers for any number of threads
        found = select(
            {label: Variant(label, v, v.floats(sample.x)[0].to("cpu")) for label, v in variants.items()},
            sample.y,
            _makers(request, fixed),
            request.bandwidth if named else 1.0,
            request.ridge,
            weights=sample.weights,
            metric=_may_learn(request),
            rounding=torch.finfo(carried).eps * math.sqrt(n_terms or len(rows)),
            at_scale=at_scale,
            on_progress=on_tried,
            workers=Workers(1) if n_workers == 1 else workers_for(CPU),
        )
    if n_workers == 1:  # memory is short
        return_freed_memory()
    best = found.selection.best
    kernel = fixed or as_kernel(best.kernel, best.bandwidth)
    inputs = _prepared(variants[best.features], kernel, x, rows, request, found)
    left_out = None
    if bool(torch.isfinite(found.decisions).all()):
        judged = (sample.groups < len(found.decisions)).numpy()
        weights = row_weights(sample.rows[judged], rows, strata, sample_weight).numpy()
        weights = weights * (len(found.decisions) / weights.sum())
        decisions = found.decisions[sample.groups[judged]].numpy()
        left_out = LeftOut(sample.rows[judged], decisions, weights)
    note = None
    if best.loss > NO_BETTER and best.n_points >= FEWEST_TO_SAY:
        note = (
            f"no kernel, bandwidth and ridge predicted better than the mean of the targets on the "
            f"{best.n_points:,} rows tried (squared error {best.loss:.3f} times that of the mean): the "
            "targets may not depend on the features"
        )
    return Chosen(inputs, kernel, best.ridge, found.selection, left_out, note)


def _may_learn(request: SettingRequest) -> bool:
    """Whether a metric may be learned: not for features that the user wants as given."""
    fixed = request.scale is False or request.n_pca_components is not None or request.inputs is not None
    return request.metric and isinstance(request.kernel, str) and not fixed


def _check_axes(request: SettingRequest, fixed: Kernel | None) -> None:
    kernel = fixed or (as_kernel(request.kernel, 1.0) if request.kernel != "auto" else None)
    if kernel is not None and kernel.absolute and request.n_pca_components is not None:
        raise ValueError(
            f"`n_pca_components` must be None with the kernel {kernel.name}, which depends on the axes. "
            f"Got {request.n_pca_components!r} instead."
        )


def _variants(
    x: Matrix,
    rows: Array,
    weight: Array | None,
    request: SettingRequest,
    dtype: torch.dtype,
    bytes_pay: bool,
) -> dict[str, Inputs]:
    """The ways to prepare the features that are tried, the plainest first."""
    if request.inputs is not None:
        return {"as before": request.inputs}
    kernel = request.kernel
    invariant = is_translation_invariant(kernel)
    declared = _declared(request)
    as_bytes = (
        bytes_pay
        and dtype == torch.float32
        and request.scale in (False, "auto")
        and request.n_pca_components is None
        and not declared
        and (kernel == "auto" or not as_kernel(kernel, 1.0).absolute)
    )
    plain, deviations = fit_inputs(x, rows, weight, translation_invariant=invariant, as_bytes=as_bytes)
    if deviations is None:
        return {AS_GIVEN: plain}
    scaled = replace(plain, scale=torch.where(deviations > 0, deviations, 1.0), standardised=True)
    found: dict[str, Inputs] = {}
    # A bandwidth given by the user is in the units of the data.
    open_ = isinstance(kernel, str) and request.bandwidth is None and invariant
    automatic = request.scale == "auto" and open_
    positive = deviations[deviations > 0]
    one_scale = not len(positive) or bool(positive.max() <= ONE_SCALE * positive.min())
    is_table = plain.width <= MOST_TABLE_FEATURES
    if request.scale is False or request.scale == "auto":
        found[AS_GIVEN] = plain
    if request.scale is True or (automatic and not one_scale):
        found["standardised"] = scaled
    if not invariant:
        if request.scale == "rank":
            raise ValueError(
                '`scale` must be True, False or "auto" with a kernel that depends on the origin. Got '
                '"rank" instead.'
            )
        return found
    features = torch.arange(plain.n_features) if plain.columns is None else plain.columns
    if request.scale == "rank" or (automatic and is_table):
        found[BY_RANK] = with_table(plain, x, rows, {}, weight, ranked=True)
    if declared:
        places = torch.tensor([i for i, j in enumerate(features.tolist()) if j in declared])
        coded = find_categories(x, rows, features, places)
        return {k: with_table(v, x, rows, coded, weight, ranked=k == BY_RANK) for k, v in found.items()}
    if request.categorical_features == "auto" and open_ and is_table:
        coded = find_categories(x, rows, features)
        if coded and sum(len(v) for v in coded.values()) <= MOST_INDICATORS:
            # Beside numbers in units of their own, a category would count for nothing or for everything.
            comparable = [k for k in found if k != AS_GIVEN or one_scale or len(found) == 1]
            for k, v in [(k, found[k]) for k in comparable]:
                found[f"{k}, categories"] = with_table(v, x, rows, coded, weight, ranked=k == BY_RANK)
    return found


def _declared(request: SettingRequest) -> set[int]:
    given = request.categorical_features
    return set() if given is None or isinstance(given, str) else {int(i) for i in given}


def _prepared(
    inputs: Inputs,
    kernel: Kernel,
    x: Matrix,
    rows: Array,
    request: SettingRequest,
    found: Found | None = None,
) -> Inputs:
    """The inputs for the chosen kernel, with the metric and the projection if there are any."""
    weights = None if found is None else found.weights
    variant = Variant("", inputs, torch.zeros(0, len(inputs.shift)))
    inputs = variant.prepared(kernel, weights)
    if request.n_pca_components is None or request.inputs is not None:
        return inputs
    with small_operations(CPU):
        return projected(inputs, x, rows, request.n_pca_components)


def _makers(request: SettingRequest, fixed: Kernel | None) -> dict[str, Callable[[float], Kernel]]:
    """What makes each kernel that is tried from a bandwidth."""
    if fixed is not None:
        return {fixed.name: lambda bandwidth: fixed}
    names: tuple[str, ...] = (
        CANDIDATES if request.kernel == "auto" else (canonical_name(str(request.kernel)),)
    )
    if request.kernel == "auto" and request.n_pca_components is not None:
        names = tuple(name for name in names if not as_kernel(name, 1.0).absolute)
    return {name: lambda bandwidth, name=name: as_kernel(name, bandwidth) for name in names}  # type: ignore[misc]
