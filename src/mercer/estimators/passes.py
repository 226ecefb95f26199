"""Fits that read their rows in passes: `fit(rows)` on a stream, and `partial_fit`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from mercer.data.rows import Array
from mercer.engine import Data, Events, Plan, Resource, Saved, pass_over, prepare
from mercer.estimators.holdout import holds_out
from mercer.estimators.parameters import check_parameters
from mercer.estimators.ranks import facts, saved_run
from mercer.estimators.settings import settings_of
from mercer.estimators.shares import whole
from mercer.estimators.streams import FirstPass, StreamData, stream_origin, streamed_data
from mercer.estimators.targets import Targets
from mercer.estimators.training import run, set_dual_coef, set_importances
from mercer.estimators.validation import held_out_data, more_rows, more_targets, own_centers
from mercer.operators.workers import threads
from mercer.processes.group import Group
from mercer.processes.sameness import check_same

# Centres that `partial_fit` takes from the rows of its first call, unless told how many.
MOST_FIRST_CENTRES = 4_000


def train_on_stream(
    model: Any,
    known: FirstPass,
    X_val: Any,
    y_val: Any,
    resume: Any,
    centers: Any,
    events: Events,
    group: Group | None = None,
) -> list[str]:
    """Fit on a stream of which only a sample fits into memory."""
    X_val, y_val = held_out_data(model, *whole(X_val, y_val, group))
    found, targets, y, weight = _stream_data(model, known, X_val is None)
    data, rows = found.data, None
    if X_val is not None and y_val is not None:
        data = replace(data, X_val=X_val, Y_val=targets.encode(y_val))
    elif len(found.held_out):
        y_val = y[found.held_out]
    if centers is not None:
        rows, numbers = own_centers(model, centers)
        data = replace(data, centers=rows, numbers=numbers)
    y_given = None if X_val is None else y_val
    origin = stream_origin(model, known, targets, y, weight, X_val, y_given, rows)
    if group is None:
        saved = None if resume is None else Saved.read(resume, origin)
    else:
        check_same(group, facts(model, origin))
        saved = saved_run(resume, model.callbacks, origin, group)
    options = {"resume": saved, "held_out": found.held_out, "origin": origin, "group": group}
    return run(model, data, targets, settings_of(model), y[found.sampled], y_val, events, **options)


def plan_for_stream(
    model: Any, known: FirstPass, resource: Resource | None, group: Group | None = None
) -> Plan:
    """The plan that a fit on the stream would follow."""
    found, *_ = _stream_data(model, known, True)
    return prepare(found.data, settings_of(model, resource), group=group).plan


def _stream_data(
    model: Any, known: FirstPass, hold_out: bool
) -> tuple[StreamData, Targets, Array, Array | None]:
    targets, y = model._read_targets(known.y)
    weight = model._row_weights(known.sample_weight, y)
    hold_out = hold_out and holds_out(model.early_stopping, len(y), model.ridge == "auto")
    fraction = model.validation_fraction if hold_out else 0.0
    return streamed_data(known, targets, y, weight, fraction), targets, y, weight


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
        x, y = more_rows(model, X), more_targets(model, y)
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
    set_importances(model, None)
    model.plan_ = replace(model.plan_, n=seen, n_centers=len(machine.alpha))
    set_dual_coef(model, model._training_rows, seen)


def first_centers(n_centers: Any, n: int) -> int | None:
    """The number of centres for a first call of `partial_fit` with n rows; None for all of them."""
    if n_centers is None or n_centers == "auto":
        n_centers = min(n, MOST_FIRST_CENTRES)
    return None if n_centers >= n else int(n_centers)
