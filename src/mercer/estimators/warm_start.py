"""Start a fit from the weights of the last one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from mercer.data.rows import Array, Matrix
from mercer.engine import Settings


def weights_to_start_from(model: Any, X: Matrix, Y: Array) -> Array:
    """The weights of the last fit for the first rows, which must be the rows it saw."""
    old = model.dual_coef_
    if model.plan_.n_centers is not None:
        raise ValueError(
            "`warm_start` needs a model in which every row is a centre. Got one of "
            f"{model.plan_.n_centers:,} centres: fit with n_centers=None, or use `partial_fit`."
        )
    if len(X) < len(old) or Y.shape[1] != old.shape[1]:
        raise ValueError(
            f"With `warm_start`, X must begin with the {len(old)} rows of the last fit, and y have "
            f"its {old.shape[1]} outputs. Got {len(X)} rows and {Y.shape[1]} outputs: fit a new "
            "model instead."
        )
    weights = np.zeros((len(X), old.shape[1]))
    weights[: len(old)] = old
    return weights


def as_last_time(model: Any, settings: Settings) -> Settings:
    """Weights belong to the kernel they were trained with, and to the features it saw."""
    inputs = model.machine_.inputs
    setting = replace(
        settings.setting,
        kernel=model.kernel_,
        ridge=model.ridge_,
        scale=False,
        inputs=None if inputs.scale is None else inputs,
        searched=model.ridge == "auto",
    )
    return replace(settings, setting=setting)
