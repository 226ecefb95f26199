"""What a model file holds of an estimator.

A file written by one version loads in all later ones: fields that a version does not know are ignored,
and fields that a file does not have take their defaults.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from mercer.data.rows import Array
from mercer.estimators.calibration import calibration_tensors
from mercer.estimators.parameters import STORED
from mercer.estimators.targets import DEFAULT_LOGIT_SCALE, Labels, Numbers
from mercer.files.container import write_file
from mercer.files.model_file import kernel_data, machine_parts
from mercer.files.records import to_data
from mercer.planning.plan import Plan
from mercer.selection.candidates import Selection
from mercer.tables.columns import Columns
from mercer.tables.notation import Notation
from mercer.training.history import Epoch

# Types of labels by the letters of their dtype.
LABELS: dict[str, tuple[type, ...]] = {
    "b": (bool,),
    "i": (int,),
    "u": (int,),
    "f": (int, float),
    "U": (str,),
    "object": (bool, int, float, str),
}

# The tensor of the importances of features by permutation.
PERMUTED = "permuted"
# An array of texts takes room for the longest in each place.
MOST_CLASS_CHARACTERS = 1 << 28


@dataclass(frozen=True)
class Values:
    """Class labels as plain data: numbers, or text."""

    values: list[Any]
    dtype: str

    @classmethod
    def of(cls, array: Array) -> Values:
        values = [value.item() if isinstance(value, np.generic) else value for value in array.tolist()]
        found = cls(values, "object" if array.dtype.kind == "O" else array.dtype.str)
        found.array()  # raises for labels that could not be read again
        return found

    def array(self) -> Array:
        kind = LABELS.get(re.sub("[0-9]+$", "", self.dtype.lstrip("<>=|")))
        if kind is None or not all(type(value) in kind for value in self.values):
            raise ValueError(f"Labels must be numbers, texts or booleans. Got others in {self.dtype!r}")
        if len(set(self.values)) != len(self.values):
            raise ValueError("Labels must be different from one another. Got some twice")
        dtype = self.dtype
        if kind == LABELS["U"]:  # as long as the texts are, whatever the file says
            dtype, longest = "U", max((len(value) for value in self.values), default=0)
            if len(self.values) * longest > MOST_CLASS_CHARACTERS:
                raise ValueError("Labels must be texts of a sensible length. Got longer ones")
        try:
            return np.array(self.values, dtype=dtype)
        except (OverflowError, TypeError) as error:
            raise ValueError(f"Labels must fit into {self.dtype!r}. Got others") from error


@dataclass(frozen=True)
class SavedModel:
    """What a model file holds beside its tensors."""

    estimator: str
    machine: dict[str, Any]
    kernel: dict[str, Any]  # in the units of the user's data
    plan: Plan
    history: tuple[Epoch, ...]
    n_rows: int  # of the data given to `fit`
    n_features_in: int  # of the machine
    ridge: float
    parameters: dict[str, Any] = field(default_factory=dict)
    selection: Selection | None = None
    converged: bool = False
    stop_reason: str = ""
    best_epoch: float = 0.0
    best_loss: float | None = None
    left_out_score: float | None = None
    classes: Values | None = None
    multilabel: bool = False
    logit_scale: float = DEFAULT_LOGIT_SCALE
    single: bool = True  # the targets of a regressor were one-dimensional
    target_notations: tuple[Notation, ...] = ()  # of each column, if its targets were text
    feature_names: tuple[str, ...] | None = None
    columns: Columns | None = None  # how those of a table become the features
    n_columns: int | None = None  # of the table, used or not
    calibration: str | None = None  # where the rows come from, if there are any
    metadata: dict[str, Any] = field(default_factory=dict)


def save(model: Any, path: str | os.PathLike[str], metadata: Mapping[str, Any] | None = None) -> None:
    """Write a fitted estimator."""
    tensors, machine = machine_parts(model.machine_)
    tensors["training_rows"] = torch.from_numpy(np.asarray(model._training_rows))
    if model._calibration is not None:
        tensors |= calibration_tensors(model._calibration)
    if model._permuted is not None:
        tensors[PERMUTED] = model._permuted
    names = getattr(model, "feature_names_in_", None)
    targets = model._targets
    labels = targets if isinstance(targets, Labels) else None
    given = model.get_params(deep=False)
    parameters = {name: given[name] for name in STORED if name in given}
    saved = SavedModel(
        estimator=type(model).__name__,
        machine=machine,
        kernel=kernel_data(model.kernel_),
        plan=model.plan_,
        history=model.history_.epochs,
        n_rows=len(model.dual_coef_),
        n_features_in=model.machine_.inputs.n_features,
        ridge=model.ridge_,
        parameters={name: value for name, value in parameters.items() if is_plain(name, value)},
        selection=model.selection_,
        converged=model.converged_,
        stop_reason=model.stop_reason_,
        best_epoch=model.best_epoch_,
        best_loss=model.best_loss_,
        left_out_score=model.left_out_score_,
        classes=None if labels is None else Values.of(labels.classes),
        multilabel=labels is not None and labels.multilabel,
        logit_scale=getattr(model, "logit_scale_", DEFAULT_LOGIT_SCALE),
        single=isinstance(targets, Numbers) and targets.single,
        target_notations=model._target_notations,
        feature_names=None if names is None else tuple(str(name) for name in names),
        columns=model.columns_,
        n_columns=None if model.columns_ is None else model.n_features_in_,
        calibration=None if model._calibration is None else model._calibration.source,
        metadata=model.metadata_ if metadata is None else dict(metadata),
    )
    # Metadata is the user's own, and stored as it is.
    write_file(path, "model", tensors, {**to_data(saved), "metadata": saved.metadata})


def is_plain(name: str, value: Any) -> bool:
    """Parameters that a file can hold; others belong to the fit and are not needed any more."""
    if name == "categorical_features" and isinstance(value, (list, tuple)):
        return all(isinstance(item, (bool, int, str)) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))
