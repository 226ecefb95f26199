"""Data of a program, arrays or frames, as a data set to explore."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from mercer.estimators import KernelClassifier, KernelRegressor
from mercer.estimators.preparation import column_names
from mercer.estimators.validation import as_numpy, more_rows, training_data
from mercer.explorer.dataset import About, Dataset, Field, Task, split
from mercer.tables.frames import as_polars, is_frame
from mercer.tables.target import TargetSurvey


def from_arrays(X: Any, y: Any, *, task: Task | None = None, title: str = "data") -> Dataset:
    """X and y as `fit` takes them; columns of a frame are prepared in the same way."""
    name = getattr(y, "name", None)
    target = name if isinstance(name, str) and name else "y"
    y = np.asarray(as_numpy(y))
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise ValueError(f"`y` must have one target a row to be explored. Got the shape {y.shape}.")
    if y.dtype.kind == "O":
        y = y.astype(str)
    survey = TargetSurvey(target)
    survey.add(pl.Series(target, y))
    decided, _ = survey.task(task)
    X = as_polars(X) if is_frame(X) else as_numpy(X)
    if len(X) != len(y):
        raise ValueError(f"`X` and `y` must have as many rows. Got {len(X)} and {len(y)}.")
    model: Any = KernelClassifier() if decided == "classification" else KernelRegressor()
    rows = np.sort(split(y, decided)[0])
    training_data(model, X[rows], y[rows], y_numeric=decided == "regression")
    features = np.asarray(more_rows(model, X))
    about = About(title, decided, target)
    if model.columns_ is not None:
        return Dataset.of_columns(model.columns_, features, y, about)
    names = column_names(model)
    fields = tuple(Field(str(one), (i,)) for i, one in enumerate(names))
    return Dataset.of_fields(fields, features, y, about)
