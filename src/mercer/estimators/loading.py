"""From a model file to the estimator that wrote it."""

from __future__ import annotations

import inspect
import math
import os

import numpy as np
import torch
from torch import Tensor

from mercer.estimators.calibration import calibration_from
from mercer.estimators.classifier import KernelClassifier
from mercer.estimators.parameters import STORED, check_parameters
from mercer.estimators.preparation import column_names
from mercer.estimators.regressor import KernelRegressor
from mercer.estimators.saved_model import PERMUTED, SavedModel, is_plain
from mercer.estimators.targets import Labels, Numbers
from mercer.estimators.training import set_dual_coef, set_importances
from mercer.files.checkpoint import MAY_BE_NAN
from mercer.files.checks import (
    check_indices,
    check_numbers,
    check_plan,
    expect,
    stored_tensor,
    stored_tensor_if_any,
)
from mercer.files.container import contents_of, read_file
from mercer.files.model_file import centres_on_disk, machine_from
from mercer.files.records import from_data
from mercer.kernels import kernel_from_dict
from mercer.planning.memory import free_memory
from mercer.tables.columns import CYCLES, Columns
from mercer.training.history import History

Estimator = KernelClassifier | KernelRegressor

KINDS: dict[str, type[KernelClassifier] | type[KernelRegressor]] = {
    "KernelClassifier": KernelClassifier,
    "KernelRegressor": KernelRegressor,
}


def load(path: str | os.PathLike[str]) -> KernelClassifier | KernelRegressor:
    """The model that `save` wrote, on the CPU; nothing in the file is run.

    A file that is damaged, or whose contents make no sense, raises `ValueError`; a folder, a pipe or a
    device raises `OSError`.  `device`, `memory_limit`, `n_jobs`, `callbacks` and `verbose` have their
    defaults again.

    >>> import tempfile
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = KernelClassifier(random_state=0).fit(X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(f"{folder}/iris.mercer")
    ...     again = load(f"{folder}/iris.mercer")
    >>> bool((again.predict_proba(X) == model.predict_proba(X)).all())
    True
    """
    tensors, data = read_file(path, "model", centres_on_disk)
    saved = from_data(SavedModel, data, repr(os.fspath(path)))
    with contents_of(path):
        check_numbers(saved, "", (*MAY_BE_NAN, "classes"))  # labels may be any numbers
        model = _with_parameters(saved)
        _set_machine(model, saved, tensors)
        _set_targets(model, saved)
        _set_calibration(model, saved, tensors)
        return model


def _with_parameters(saved: SavedModel) -> Estimator:
    """An estimator with the parameters of the file, as far as a file may choose them."""
    expect(saved.estimator in KINDS, f"it must hold one of {', '.join(KINDS)}. Got {saved.estimator!r}")
    kind = KINDS[saved.estimator]
    known = set(STORED) & set(inspect.signature(kind).parameters)
    given = {name: value for name, value in saved.parameters.items() if name in known}
    expect(all(is_plain(*item) for item in given.items()), "parameters must be numbers or texts")
    model = kind(**given)
    if "kernel" not in given:  # it was a kernel object
        model.kernel = kernel_from_dict(saved.kernel)
    check_parameters(model)
    return model


def _set_machine(model: Estimator, saved: SavedModel, tensors: dict[str, Tensor]) -> None:
    """Set all fitted attributes but those of the targets."""
    machine, plan = machine_from(tensors, saved.machine), saved.plan
    (n, n_outputs), dtype = machine.alpha.shape, str(machine.alpha.dtype).removeprefix("torch.")
    expect(
        (plan.n_weighted, plan.n_outputs, plan.precision) == (n, n_outputs, dtype),
        f"the plan must be for {n} centres and {n_outputs} outputs in {dtype}, as the weights are",
    )
    check_plan(plan)
    expect(0 <= saved.ridge < math.inf, "the ridge must be a finite number, at least 0")
    d, names = machine.inputs.n_features, saved.feature_names
    expect(saved.n_features_in == d, f"it must be for {d} features, as its inputs are")
    columns, n_columns = saved.columns, saved.n_columns
    if columns is None:  # the command line keeps them with its own data
        columns = _columns_of_file(saved, d)
        if columns is not None:
            names, n_columns = columns.names, len(columns.names)
    width = d if n_columns is None else n_columns
    expect(names is None or len(names) == width, f"it must name all of its {width} features, or none")
    model.machine_ = machine
    model.plan_ = plan
    model.kernel_ = kernel_from_dict(saved.kernel)
    model.bandwidth_ = getattr(model.kernel_, "bandwidth", None)
    model.ridge_ = saved.ridge
    model.eigenvalues_ = np.array(plan.eigenvalues)
    model.history_ = History(saved.history)
    model.selection_ = saved.selection
    model.converged_, model.stop_reason_ = saved.converged, saved.stop_reason
    model.n_iter_ = len(saved.history)
    model.best_epoch_, model.best_loss_ = saved.best_epoch, saved.best_loss
    model.left_out_score_ = saved.left_out_score
    model.n_features_in_ = width
    if names is not None:
        model.feature_names_in_ = np.array(names, dtype=object)
    model.columns_ = None if columns is None else _checked(columns, model, d)
    permuted = stored_tensor_if_any(tensors, PERMUTED, (d,), torch.float64)
    expect(permuted is None or bool((permuted >= 0).all()), "importances must not be negative")
    set_importances(model, permuted)
    model.metadata_ = saved.metadata
    rows = stored_tensor(tensors, "training_rows", (n,), torch.int64)
    check_indices("training_rows", rows, saved.n_rows if plan.n_centers is None else math.inf)
    too_many = f"the weights of {saved.n_rows} rows must fit into the memory of this machine"
    expect(saved.n_rows * n_outputs * machine.alpha.element_size() <= free_memory(), too_many)
    try:
        set_dual_coef(model, rows.numpy(), saved.n_rows)
    except MemoryError as error:  # a process may have less than there is
        raise ValueError(too_many) from error


def _columns_of_file(saved: SavedModel, n_features: int) -> Columns | None:
    """The columns of the table that the command line trained on.

    Metadata is free: what is no description of columns, or of others, is the user's own.
    """
    try:
        found = Columns.from_dict(saved.metadata["columns"])
    except (KeyError, ValueError):
        return None
    return found if len(found.feature_names) == n_features else None


def _checked(columns: Columns, model: Estimator, n_features: int) -> Columns:
    """The description of columns, which must belong to this model."""
    names = column_names(model)
    known = set(columns.names) <= set(names) and len(set(columns.names)) == len(columns.columns)
    expect(known, "it must describe columns that the model has, and each once")
    fits = len(columns.feature_names) == n_features
    expect(fits, f"its columns must become {n_features} features. Got {len(columns.feature_names)}")
    known = all(cycle in CYCLES for column in columns.columns for cycle in column.cycles)
    expect(known, f"the cycles of dates must be among {', '.join(CYCLES)}")
    return columns


def _set_targets(model: Estimator, saved: SavedModel) -> None:
    """Set how outputs become predictions; there must be as many as the weights have."""
    n_outputs = model.machine_.alpha.shape[1]
    if isinstance(model, KernelRegressor):
        expect(saved.classes is None, "a regressor has no classes")
        expect(n_outputs == 1 or not saved.single, f"it must predict {n_outputs} numbers, not one")
        written = saved.target_notations
        expect(len(written) in (0, n_outputs), f"it must say how {n_outputs} targets are written")
        model._targets, model._target_notations = Numbers(saved.single), written
        return
    if saved.classes is None:
        raise ValueError("a classifier must have classes")
    targets = Labels(saved.classes.array(), saved.multilabel)
    count = len(targets.classes)
    expect(saved.multilabel or count >= 2, "a classifier must have two classes or more")
    wanted = 1 if targets.is_binary else count
    expect(wanted == n_outputs, f"{count} classes must have {wanted} outputs. Got {n_outputs}")
    expect(0 < saved.logit_scale < math.inf, "`logit_scale` must be positive")
    model._targets, model.classes_, model.logit_scale_ = targets, targets.classes, saved.logit_scale


def _set_calibration(model: Estimator, saved: SavedModel, tensors: dict[str, Tensor]) -> None:
    """Set what intervals, sets and the flag of far rows come from."""
    model._calibration = None
    if saved.calibration is not None:
        n_classes = None if isinstance(model, KernelRegressor) else len(model.classes_)
        model._calibration = calibration_from(tensors, saved.calibration, model.machine_, n_classes)
