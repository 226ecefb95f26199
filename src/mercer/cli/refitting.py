"""Training on all rows of a table, once the model has been measured on those that were held out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mercer.cli.choices import Model
from mercer.cli.reading import Input, SomeRows
from mercer.estimators import KernelClassifier
from mercer.estimators.calibration import HELD_OUT, calibrate
from mercer.estimators.targets import Unseen

Array = NDArray[Any]


def refit(model: Model, read: Input, X: Array) -> None:
    """Train on all rows with the kernel, ridge and metric of the model, from its weights.

    X, (m, d), are the rows that were held out.  Intervals and probabilities stay those that the model
    before, which had not seen these rows, has earned on them.  With fewer centres than rows, the kernel
    is chosen again.
    """
    rows = read.rows
    assert isinstance(rows, SomeRows)
    unseen = Unseen(rows.y[read.held_out], model._decision(X))
    selection, score, scale = model.selection_, model.left_out_score_, model._logit_scale
    model.warm_start = model.plan_.n_centers is None
    share, y, weights = rows.given(np.zeros(0, dtype=int))
    model._is_last_fit = True  # so that rows held out to stop it are trained on in the end as well
    model.fit(share, y, sample_weight=weights)
    model.warm_start = False
    del model._is_last_fit
    model.selection_, model.left_out_score_ = selection, score
    if isinstance(model, KernelClassifier):
        model.logit_scale_ = scale
    place = {int(row): i for i, row in enumerate(model._training_rows.tolist())}
    own = np.array([place.get(int(row), -1) for row in read.held_out])
    with model._prepared(X) as (machine, x):
        model._calibration = calibrate(machine, model._targets, scale, HELD_OUT, unseen, x, own)
