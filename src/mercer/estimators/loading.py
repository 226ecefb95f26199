"""From a model file to the estimator that wrote it."""

from __future__ import annotations

import inspect
import os

import numpy as np

from mercer.estimators.classifier import KernelClassifier
from mercer.estimators.regressor import KernelRegressor
from mercer.estimators.saved_model import SavedModel
from mercer.estimators.targets import Labels, Numbers
from mercer.files.container import read_file
from mercer.files.model_file import machine_from
from mercer.files.records import from_data
from mercer.kernels import kernel_from_dict
from mercer.training.history import History

KINDS: dict[str, type[KernelClassifier] | type[KernelRegressor]] = {
    "KernelClassifier": KernelClassifier,
    "KernelRegressor": KernelRegressor,
}


def load(path: str | os.PathLike[str]) -> KernelClassifier | KernelRegressor:
    """The model that `save` wrote, on the CPU; nothing in the file is run.

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
    tensors, data = read_file(path, "model")
    saved = from_data(SavedModel, data, repr(os.fspath(path)))
    if saved.estimator not in KINDS:
        raise ValueError(
            f"{os.fspath(path)!r} must hold one of {', '.join(KINDS)}. Got {saved.estimator!r} instead."
        )
    kind = KINDS[saved.estimator]
    known = inspect.signature(kind).parameters
    model = kind(**{k: v for k, v in saved.parameters.items() if k in known})
    if "kernel" not in saved.parameters:  # it was a kernel object
        model.kernel = kernel_from_dict(saved.kernel)
    model.plan_ = saved.plan
    model.machine_ = machine_from(tensors, saved.machine, in_place=saved.plan.data_on_disk)
    model.kernel_ = kernel_from_dict(saved.kernel)
    model.bandwidth_ = getattr(model.kernel_, "bandwidth", None)
    model.ridge_ = saved.ridge
    model.eigenvalues_ = np.array(saved.plan.eigenvalues)
    model.history_ = History(saved.history)
    model.selection_ = saved.selection
    model.converged_, model.stop_reason_ = saved.converged, saved.stop_reason
    model.n_iter_ = len(saved.history)
    model.best_epoch_, model.best_loss_ = saved.best_epoch, saved.best_loss
    model.n_features_in_ = saved.n_features_in
    if saved.feature_names is not None:
        model.feature_names_in_ = np.array(saved.feature_names, dtype=object)
    model.metadata_ = saved.metadata
    model._set_dual_coef(tensors["training_rows"].numpy(), saved.n_rows)
    if saved.classes is None:
        model._targets = Numbers(saved.single)
    else:
        model._targets = Labels(saved.classes.array(), saved.multilabel)
        model.classes_, model.logit_scale_ = model._targets.classes, saved.logit_scale
    return model
