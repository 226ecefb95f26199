"""What a model's parameters ask of the method, and what decides the result of a fit."""

from __future__ import annotations

from typing import Any

import torch

from mercer.data.rows import Array, Matrix
from mercer.engine import Limits, Origin, Requests, Resource, SettingRequest, Settings
from mercer.estimators.parameters import DECISIVE
from mercer.estimators.preparation import category_places
from mercer.estimators.targets import Targets
from mercer.estimators.validation import own_centers
from mercer.planning.memory import parse_memory
from mercer.planning.resource import find_device


def settings_of(model: Any, resource: Resource | None = None) -> Settings:
    named = isinstance(model.kernel, str)
    return Settings(
        setting=SettingRequest(
            kernel=model.kernel,
            bandwidth=_number(model.bandwidth) if named else None,
            ridge=_number(model.ridge),
            scale=model.scale,
            categorical_features=category_places(model),
            metric=model.metric == "auto",
            n_pca_components=model.n_pca_components,
        ),
        requests=Requests(
            subsample_size=_number(model.subsample_size),
            preconditioner_rank=_number(model.preconditioner_rank),
            batch_size=_number(model.batch_size),
            step_size=_number(model.step_size),
        ),
        limits=Limits(model.max_iter, model.interpolation_tol, model.n_iter_no_change, model.tol),
        dtype=torch.float64 if model.precision == "float64" else torch.float32,
        device=find_device(model.device),
        resource=resource,
        memory=parse_memory(model.memory_limit),
        n_centers=model.n_centers,
    )


def origin_of(
    model: Any,
    X: Matrix,
    y: Array,
    targets: Targets,
    weight: Array | None,
    X_val: Matrix | None,
    y_val: Array | None,
    old: Array | None,
    centers: Any = None,
) -> Origin:
    """What decides the result of this fit, by the names that the user knows."""
    parameters = {name: getattr(model, name) for name in DECISIVE}
    return Origin(
        parameters,
        lambda: {
            "X": X,
            "y": targets.encode(y),
            "sample_weight": weight,
            "X_val": X_val,
            "y_val": None if y_val is None else targets.encode(y_val),
            "warm_start": old,
            "centers": None if centers is None else own_centers(model, centers)[0],
        },
    )


def _number(value: Any) -> Any:
    """The number given, None for "auto"."""
    return None if isinstance(value, str) else value
