"""A scikit-learn pipeline around a model as one torch module or ONNX file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from mercer.estimators.base import KernelEstimator
from mercer.estimators.onnx_file import NumericColumns, check_exportable, write_onnx
from mercer.estimators.pipeline_steps import CannotExport, in_order
from mercer.estimators.step_modules import Widest


def to_torch(model: Any) -> torch.nn.Module:
    """A fitted pipeline that ends in a Mercer estimator as a `torch.nn.Module`.

    It maps the columns of the pipeline, (m, p) numbers with NaN for missing values, to decisions (m, l).
    Gradients pass to its inputs, and `torch.export` takes it.

    >>> import torch
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from mercer import KernelClassifier, to_torch
    >>> X, y = load_iris(return_X_y=True)
    >>> pipeline = make_pipeline(StandardScaler(), KernelClassifier(ridge=0.1, random_state=0)).fit(X, y)
    >>> decisions = to_torch(pipeline)(torch.from_numpy(X))
    >>> bool((decisions.argmax(1).numpy() == pipeline.predict(X)).all())
    True
    """
    steps, last, _ = _taken_apart(model)
    check_exportable(last)
    return torch.nn.Sequential(steps, NumericColumns(last), last.to_torch())


def to_onnx(model: Any, path: str | os.PathLike[str]) -> None:
    """Write a fitted pipeline that ends in a Mercer estimator as an ONNX file (extra `onnx`).

    Its input X, (m, p) in float64, has the columns that the pipeline was fitted on; its outputs are
    those of `KernelClassifier.to_onnx` and `KernelRegressor.to_onnx`.  Scalers, imputers, PCA, selection
    of features and columns, and encoders of numbers can be exported; an error names a step that cannot.
    """
    steps, last, names = _taken_apart(model)
    write_onnx(last, path, steps, names)


def _taken_apart(model: Any) -> tuple[torch.nn.Module, Any, Sequence[str]]:
    """The steps before the estimator, the estimator, and the names of the first columns."""
    given, steps = model, []
    while not isinstance(model, KernelEstimator):
        if hasattr(model, "best_estimator_"):  # of a search
            model = model.best_estimator_
        elif isinstance(model, Pipeline):
            steps += model.steps[:-1]
            model = model.steps[-1][1]
        else:
            raise ValueError(
                "Only a Mercer estimator, or a pipeline that ends in one, can be exported. Got "
                f"{type(model).__name__}."
            )
    check_is_fitted(model, "machine_")
    try:
        module = torch.nn.Sequential(Widest(), in_order(steps)) if steps else Widest()
    except CannotExport as error:
        raise ValueError(
            f"The step {error.step} cannot be exported: {error}. Apply it before the exported model."
        ) from error
    names = getattr(given, "feature_names_in_", None)
    d = given.n_features_in_
    return module, model, [f"x{i}" for i in range(d)] if names is None else list(map(str, names))
