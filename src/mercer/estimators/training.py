"""Train on data that was validated, and set the attributes of a fitted model."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from torch import Tensor

from mercer.data.rows import Array
from mercer.engine import Data, Events, Fitted, Settings, fit
from mercer.estimators.answers import fitted_calibration
from mercer.estimators.permutation import shares_of_changes
from mercer.estimators.preparation import by_column
from mercer.estimators.targets import Targets, Unseen
from mercer.estimators.validation import to_numpy


def run(
    model: Any,
    data: Data,
    targets: Targets,
    settings: Settings,
    y: Array,
    y_val: Array | None,
    events: Events,
    **options: Any,
) -> list[str]:
    """Train, and set the fitted attributes; what the user should know of them."""

    def snapshot(fitted: Fitted) -> Any:
        found = copy.copy(model)
        commit(found, fitted, data, targets, y, y_val)
        return found

    def score(decision: Tensor) -> float:
        assert y_val is not None
        return targets.score(y_val, to_numpy(decision))

    fitted = fit(data, settings, score=score, events=events, snapshot=snapshot, **options)
    notes, unseen = commit(model, fitted, data, targets, y, y_val)
    model._calibration = fitted_calibration(fitted, data, targets, model._logit_scale, unseen)
    if fitted.machine.inputs.importances is None:
        machine = fitted.machine.among(options.get("group"))
        set_importances(model, shares_of_changes(machine, data.X, data.rows))
    return notes


def commit(
    model: Any, fitted: Fitted, data: Data, targets: Targets, y: Array, y_val: Array | None
) -> tuple[list[str], Unseen | None]:
    """Set the fitted attributes; what the user should know of them, and decisions on other rows."""
    problem, outcome = fitted.problem, fitted.outcome
    model.machine_ = fitted.machine
    model.plan_ = problem.plan
    model.eigenvalues_ = np.array(problem.plan.eigenvalues)
    model.history_ = outcome.history
    model.selection_ = problem.selection
    model.converged_ = outcome.converged
    model.stop_reason_ = outcome.reason
    model.n_iter_ = len(outcome.history)
    model.best_epoch_, model.best_loss_ = outcome.best_epoch, outcome.best_loss
    model.kernel_ = problem.kernel
    model.bandwidth_ = getattr(problem.kernel, "bandwidth", None)
    model.ridge_ = problem.ridge
    model.metadata_ = {}  # that of a loaded file belongs to the model in it
    p = problem.plan.n_centers
    numbers = data.all_rows(problem.plan.n_closing) if data.numbers is None else data.numbers
    set_dual_coef(model, numbers[:p], len(data.X))
    set_importances(model, None)
    f, left_out = outcome.validation_predictions, problem.left_out
    unseen = None
    if f is not None and y_val is not None:
        unseen = Unseen(y_val, to_numpy(problem.machine.units.decode(f)))
    elif left_out is not None:
        unseen = Unseen(y[left_out.rows], left_out.decisions, left_out.weights)
    model.left_out_score_ = None
    if left_out is not None:
        parts = (y[left_out.rows], left_out.decisions, left_out.weights)
        model.left_out_score_ = targets.score(*parts)
    model._commit_targets(targets, unseen)
    model._calibration = None  # a snapshot has none
    return [] if unseen is None else targets.doubts(unseen), unseen


def set_importances(model: Any, permuted: Tensor | None) -> None:
    """Set the importance of each column: its share in the metric or, without one, in `permuted`."""
    learned = model.machine_.inputs.importances
    model._permuted = permuted if learned is None else None
    shares = permuted if learned is None else learned
    if shares is not None:
        model.feature_importances_ = by_column(model, to_numpy(shares))
    elif hasattr(model, "feature_importances_"):
        del model.feature_importances_


def set_dual_coef(model: Any, rows: Array, n_rows: int) -> None:
    """Weights in the units of the targets: of the centres, or of all rows if each is a centre."""
    weights = to_numpy(model.machine_.units.scale) * to_numpy(model.machine_.alpha).astype(np.float64)
    model._training_rows = rows
    model.dual_coef_ = weights
    if model.plan_.n_centers is None:
        model.dual_coef_ = np.zeros((n_rows, weights.shape[1]))  # zero on rows that stayed held out
        model.dual_coef_[rows] = weights
