"""What a model file holds of an estimator.

A file written by one version loads in all later ones: fields that a version does not know are ignored,
and fields that a file does not have take their defaults.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from mercer.data.rows import Array
from mercer.estimators.targets import DEFAULT_LOGIT_SCALE, Labels, Numbers
from mercer.files.container import write_file
from mercer.files.model_file import kernel_data, machine_parts
from mercer.files.records import to_data
from mercer.planning.plan import Plan
from mercer.selection.search import Selection
from mercer.training.history import Epoch


@dataclass(frozen=True)
class Values:
    """An array as plain data."""

    values: list[Any]
    dtype: str

    @classmethod
    def of(cls, array: Array) -> Values:
        return cls(array.tolist(), "object" if array.dtype.kind == "O" else array.dtype.str)

    def array(self) -> Array:
        return np.array(self.values, dtype=self.dtype)


@dataclass(frozen=True)
class SavedModel:
    """What a model file holds beside its tensors."""

    estimator: str
    machine: dict[str, Any]
    kernel: dict[str, Any]  # in the units of the user's data
    plan: Plan
    history: tuple[Epoch, ...]
    n_rows: int  # of the data given to `fit`
    n_features_in: int
    ridge: float
    parameters: dict[str, Any] = field(default_factory=dict)
    selection: Selection | None = None
    converged: bool = False
    stop_reason: str = ""
    best_epoch: float = 0.0
    best_loss: float | None = None
    classes: Values | None = None
    multilabel: bool = False
    logit_scale: float = DEFAULT_LOGIT_SCALE
    single: bool = True  # the targets of a regressor were one-dimensional
    feature_names: tuple[str, ...] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


def save(model: Any, path: str | os.PathLike[str], metadata: Mapping[str, Any] | None = None) -> None:
    """Write a fitted estimator."""
    tensors, machine = machine_parts(model.machine_)
    tensors["training_rows"] = torch.from_numpy(np.asarray(model._training_rows))
    names = getattr(model, "feature_names_in_", None)
    targets = model._targets
    labels = targets if isinstance(targets, Labels) else None
    saved = SavedModel(
        estimator=type(model).__name__,
        machine=machine,
        kernel=kernel_data(model.kernel_),
        plan=model.plan_,
        history=model.history_.epochs,
        n_rows=len(model.dual_coef_),
        n_features_in=model.n_features_in_,
        ridge=model.ridge_,
        parameters={k: v for k, v in model.get_params(deep=False).items() if _is_plain(v)},
        selection=model.selection_,
        converged=model.converged_,
        stop_reason=model.stop_reason_,
        best_epoch=model.best_epoch_,
        best_loss=model.best_loss_,
        classes=None if labels is None else Values.of(labels.classes),
        multilabel=labels is not None and labels.multilabel,
        logit_scale=getattr(model, "logit_scale_", DEFAULT_LOGIT_SCALE),
        single=isinstance(targets, Numbers) and targets.single,
        feature_names=None if names is None else tuple(str(name) for name in names),
        metadata=model.metadata_ if metadata is None else dict(metadata),
    )
    write_file(path, "model", tensors, to_data(saved))


def _is_plain(value: Any) -> bool:
    """Parameters that a file can hold; others belong to the fit and are not needed any more."""
    return value is None or isinstance(value, (bool, int, float, str))
