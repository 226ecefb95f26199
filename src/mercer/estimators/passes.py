"""Fits that read their rows in passes: `fit(rows)` on a stream, and `partial_fit`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from mercer.engine import Data, Events, pass_over
from mercer.estimators.holdout import holds_out
from mercer.estimators.parameters import check_parameters
from mercer.estimators.settings import settings_of
from mercer.estimators.streams import FirstPass, first_centers, streamed_data
from mercer.estimators.training import run, set_dual_coef
from mercer.estimators.validation import as_numpy, more_rows
from mercer.operators.workers import threads


def train_on_stream(model: Any, rows: Any, known: FirstPass, seed: int, events: Events) -> list[str]:
    """Fit on a stream of which only a sample fits into memory."""
    targets, y = model._read_targets(known.y)
    known = replace(known, y=y)
    weight = model._row_weights(known.sample_weight, y)
    hold_out = holds_out(model.early_stopping, len(y), model.ridge == "auto")
    fraction = model.validation_fraction
    parts = streamed_data(model, rows, known, targets, weight, fraction, hold_out, seed)
    data, sampled, held_out = parts
    y_val = y[held_out] if len(held_out) else None
    return run(model, data, targets, settings_of(model), y[sampled], y_val, events)


def partial_fit(
    model: Any, X: Any, y: Any, sample_weight: Any, first: Callable[[Any], None] = lambda model: None
) -> None:
    """One pass over the rows; the first call fits a model to them, which `first` prepares."""
    check_parameters(model)
    if not hasattr(model, "machine_"):
        begun = model._twin()
        begun.n_centers = first_centers(model.n_centers, len(X))
        first(begun)
        begun._fit(X, y, sample_weight, None, None, None)
        begun.n_centers = model.n_centers
        begun.n_samples_seen_ = len(X)
        model.__dict__ = begun.__dict__
        return
    with threads(model.n_jobs):
        x, y = more_rows(model, X), np.asarray(as_numpy(y))
        if len(x) != len(y):
            raise ValueError(f"`X` and `y` must have as many rows. Got {len(x)} and {len(y)}.")
        weight = model._row_weights(sample_weight, y)
        Y = model._targets.encode(y)
        data = Data(x, Y, np.arange(len(y)), None, None, weight, None, model._targets.classify)
        seen = getattr(model, "n_samples_seen_", len(model.machine_.alpha)) + len(y)
        settings = replace(settings_of(model), device=model.machine_.device)
        known = model.__dict__.get("_levelled")
        machine, model._levelled = pass_over(model.machine_, data, settings, model.ridge_, seen, known)
    model.machine_, model.n_samples_seen_ = machine, seen
    model._calibration = None  # it was that of other weights
    model.plan_ = replace(model.plan_, n=seen, n_centers=len(machine.alpha))
    set_dual_coef(model, model._training_rows, seen)
