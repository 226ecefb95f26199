"""What the classifier and the regressor share: parameters, validation, fitting, prediction."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from typing_extensions import Self

from mercer.data.rows import Array, Matrix, take
from mercer.engine import (
    Data,
    Events,
    Fitted,
    Limits,
    Origin,
    Requests,
    Resource,
    Saved,
    SettingRequest,
    Settings,
    fit,
    prepare,
)
from mercer.estimators.answers import Answers, fitted_calibration
from mercer.estimators.fit_warnings import warn_after_fit
from mercer.estimators.holdout import arrange, holds_out
from mercer.estimators.parameters import DECISIVE, check_parameters
from mercer.estimators.ranks import cores_for, facts, own_decision, saved_run, shared_decision
from mercer.estimators.row_share import RowShare, rows_of
from mercer.estimators.saved_model import save
from mercer.estimators.shares import has_shares, joined, own_rows, shared_training_data, whole
from mercer.estimators.targets import Targets, Unseen
from mercer.estimators.validation import (
    as_numpy,
    category_columns,
    finite_predictions,
    held_out_data,
    like,
    more_rows,
    row_weights,
    to_numpy,
    training_data,
)
from mercer.kernels import KernelLike
from mercer.model.machine import KernelMachine
from mercer.model.torch_module import MachineModule
from mercer.operators.pool import release_memory
from mercer.operators.workers import threads
from mercer.planning.memory import parse_memory
from mercer.planning.plan import Plan
from mercer.planning.resource import find_device
from mercer.processes.group import Group
from mercer.processes.joining import ranks
from mercer.processes.sameness import check_same
from mercer.training.events.callbacks import Callback
from mercer.training.history import History


class KernelEstimator(Answers, BaseEstimator):  # type: ignore[misc]
    """Parameters, validation and fitting shared by the classifier and the regressor."""

    machine_: KernelMachine
    plan_: Plan
    history_: History
    converged_: bool
    dual_coef_: Array
    _targets: Targets

    def __init__(
        self,
        kernel: KernelLike = "auto",
        *,
        bandwidth: float | Literal["auto"] = "auto",
        ridge: float | Literal["auto"] = "auto",
        scale: bool | Literal["rank", "auto"] = "auto",
        categorical_features: Sequence[Any] | Literal["auto"] | None = "auto",
        metric: Literal[False, "auto"] = "auto",
        n_pca_components: int | Literal["auto"] | None = None,
        subsample_size: int | Literal["auto"] = "auto",
        preconditioner_rank: int | Literal["auto"] = "auto",
        batch_size: int | Literal["auto"] = "auto",
        step_size: float | Literal["auto"] = "auto",
        max_iter: int = 100,
        tol: float = 0.01,
        interpolation_tol: float = 1e-4,
        early_stopping: bool | Literal["auto"] = "auto",
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 3,
        warm_start: bool = False,
        precision: Literal["float32", "float64"] = "float32",
        device: str = "auto",
        memory_limit: float | str = "auto",
        n_jobs: int | None = None,
        callbacks: Sequence[Callback] = (),
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.ridge = ridge
        self.scale = scale
        self.categorical_features = categorical_features
        self.metric = metric
        self.n_pca_components = n_pca_components
        self.subsample_size = subsample_size
        self.preconditioner_rank = preconditioner_rank
        self.batch_size = batch_size
        self.step_size = step_size
        self.max_iter = max_iter
        self.tol = tol
        self.interpolation_tol = interpolation_tol
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.precision = precision
        self.device = device
        self.memory_limit = memory_limit
        self.n_jobs = n_jobs
        self.callbacks = callbacks
        self.random_state = random_state
        self.verbose = verbose

    # Each subclass reads its targets, and may learn from the held-out part.

    def _read_targets(self, y: Array) -> tuple[Targets, Array]:
        """How these targets become columns, and the targets as they are used from here on."""
        raise NotImplementedError

    def _commit_targets(self, targets: Targets, unseen: Unseen | None) -> None:
        """Set the attributes that depend on targets, given decisions on rows not trained on, if any."""
        self._targets = targets

    def _fit(self, X: Any, y: Any, sample_weight: Any, X_val: Any, y_val: Any, resume: Any) -> Self:
        """Fit a twin and take over its state at the end: a fit that fails changes nothing."""
        check_parameters(self)
        with ranks(find_device(self.device)) as group:
            speaks = group is None or group.is_first
            events = Events(self.callbacks, self.verbose) if speaks else Events()
            twin = self._twin()
            with threads(self.n_jobs, cores_for(group)):
                notes = twin._train(X, y, sample_weight, X_val, y_val, resume, events, group)
            if self.memory_limit != "auto":
                release_memory()  # whoever sets a limit does not want it held for the next fit
            self.__dict__ = twin.__dict__
            (group or Group()).decided(lambda: events.on_end(self.plan_, self.history_, self))
        if speaks:
            warn_after_fit(
                self.stop_reason_,
                self.n_iter_,
                [*self.plan_.notes, *notes],
                converged=self.converged_,
                max_iter=self.max_iter,
                interpolation_tol=self.interpolation_tol,
            )
        return self

    def _twin(self) -> Self:
        """An estimator with the same parameters and fitted state."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def _train(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        X_val: Any,
        y_val: Any,
        resume: Any,
        events: Events,
        group: Group | None,
    ) -> list[str]:
        """Fit and set the fitted attributes; what the user should know of the result."""
        X, y, sample_weight, targets = self._validate(X, y, sample_weight, group)
        X_val, y_val = held_out_data(self, *whole(X_val, y_val, group))
        weight = self._row_weights(sample_weight, y)
        settings, old = self._settings(), None
        if self.warm_start and hasattr(self, "dual_coef_"):
            old = self._weights_to_start_from(X, targets.encode(y))
            # Weights belong to the kernel they were trained with, and to the features it saw.
            inputs = self.machine_.inputs
            setting = replace(
                settings.setting,
                kernel=self.kernel_,
                ridge=self.ridge_,
                scale=False,
                inputs=None if inputs.scale is None else inputs,
            )
            settings = replace(settings, setting=setting)
        origin = self._origin(X, y, targets, weight, X_val, y_val, old)
        saved = None
        if group is None:
            saved = None if resume is None else Saved.read(resume, origin)
        else:
            check_same(group, facts(self, origin))
            saved = saved_run(resume, self.callbacks, origin, group)
        data, held_out = self._arranged(X, y, targets, weight, X_val, y_val, saved, group)
        if len(held_out):
            y_val = y[held_out]

        def snapshot(fitted: Fitted) -> KernelEstimator:
            model = copy.copy(self)
            model._commit(fitted, data, targets, y, y_val)
            return model

        fitted = fit(
            data,
            settings,
            score=lambda decision: targets.score(y_val, to_numpy(decision)),
            start_from=old,
            events=events,
            snapshot=snapshot,
            resume=saved,
            held_out=held_out,
            origin=origin,
            group=group,
        )
        notes, unseen = self._commit(fitted, data, targets, y, y_val)
        self._calibration = fitted_calibration(fitted, data, targets, self._logit_scale, unseen)
        return notes

    def _commit(
        self, fitted: Fitted, data: Data, targets: Targets, y: Array, y_val: Array | None
    ) -> tuple[list[str], Unseen | None]:
        """Set the fitted attributes; what the user should know of them, and decisions on other rows."""
        problem, outcome = fitted.problem, fitted.outcome
        self.machine_ = fitted.machine
        self.plan_ = problem.plan
        self.eigenvalues_ = np.array(problem.plan.eigenvalues)
        self.history_ = outcome.history
        self.selection_ = problem.selection
        self.converged_ = outcome.converged
        self.stop_reason_ = outcome.reason
        self.n_iter_ = len(outcome.history)
        self.best_epoch_, self.best_loss_ = outcome.best_epoch, outcome.best_loss
        self.kernel_ = problem.kernel
        self.bandwidth_ = getattr(problem.kernel, "bandwidth", None)
        self.ridge_ = problem.ridge
        self.metadata_: dict[str, Any] = {}  # that of a loaded file belongs to the model in it
        self._set_dual_coef(data.rows, len(data.X))
        importances = problem.machine.inputs.importances
        if importances is not None:
            self.feature_importances_ = to_numpy(importances)
        elif hasattr(self, "feature_importances_"):
            del self.feature_importances_
        f, left_out = outcome.validation_predictions, problem.left_out
        unseen = None
        if f is not None and y_val is not None:
            unseen = Unseen(y_val, to_numpy(problem.machine.units.decode(f)))
        elif left_out is not None:
            unseen = Unseen(y[left_out.rows], left_out.decisions, left_out.weights)
        self.left_out_score_ = None
        if left_out is not None:
            parts = (y[left_out.rows], left_out.decisions, left_out.weights)
            self.left_out_score_ = targets.score(*parts)
        self._commit_targets(targets, unseen)
        self._calibration = None  # a snapshot has none
        return [] if unseen is None else targets.doubts(unseen), unseen

    def _set_dual_coef(self, rows: Array, n_rows: int) -> None:
        alpha = to_numpy(self.machine_.alpha)
        self._training_rows = rows
        self.dual_coef_ = np.zeros((n_rows, alpha.shape[1]))  # zero on held-out rows
        self.dual_coef_[rows] = to_numpy(self.machine_.units.scale) * alpha.astype(np.float64)

    def _settings(self, resource: Resource | None = None) -> Settings:
        named = isinstance(self.kernel, str)
        return Settings(
            setting=SettingRequest(
                kernel=self.kernel,
                bandwidth=_number(self.bandwidth) if named else None,
                ridge=_number(self.ridge),
                scale=self.scale,
                categorical_features=category_columns(self),
                metric=self.metric == "auto",
                n_pca_components=self.n_pca_components,
            ),
            requests=Requests(
                subsample_size=_number(self.subsample_size),
                preconditioner_rank=_number(self.preconditioner_rank),
                batch_size=_number(self.batch_size),
                step_size=_number(self.step_size),
            ),
            limits=Limits(self.max_iter, self.interpolation_tol, self.n_iter_no_change, self.tol),
            dtype=torch.float64 if self.precision == "float64" else torch.float32,
            device=find_device(self.device),
            resource=resource,
            memory=parse_memory(self.memory_limit),
        )

    def _arranged(
        self,
        X: Matrix,
        y: Array,
        targets: Targets,
        weight: Array | None,
        X_val: Matrix | None,
        y_val: Array | None,
        saved: Saved | None = None,
        group: Group | None = None,
    ) -> tuple[Data, Array]:
        """The data with its training rows and held-out part, and the numbers of the rows held out."""
        rows = np.arange(len(X)) if weight is None else np.flatnonzero(weight > 0)
        if saved is not None:
            rows, held_out = saved.rows, saved.held_out
        else:
            chosen = self.ridge == "auto"
            hold_out = X_val is None and holds_out(self.early_stopping, len(rows), chosen)
            fraction, seed = self.validation_fraction, self.random_state
            if group is not None:  # without a seed, that of rank 0
                seed = group.from_first(check_random_state(seed))
            rows, held_out = arrange(rows, y, targets, fraction, hold_out, seed)
        if len(held_out):
            X_val, y_val = take(X, held_out), y[held_out]
        Y_val = None if y_val is None else targets.encode(y_val)
        return (
            Data(
                X,
                targets.encode(y),
                rows,
                X_val,
                Y_val,
                weight,
                targets.strata(y),
                targets.classify,
            ),
            held_out,
        )

    def _origin(
        self,
        X: Matrix,
        y: Array,
        targets: Targets,
        weight: Array | None,
        X_val: Matrix | None,
        y_val: Array | None,
        old: Array | None,
    ) -> Origin:
        """What decides the result of this fit, by the names that the user knows."""
        parameters = {name: getattr(self, name) for name in DECISIVE}
        return Origin(
            parameters,
            lambda: {
                "X": X,
                "y": targets.encode(y),
                "sample_weight": weight,
                "X_val": X_val,
                "y_val": None if y_val is None else targets.encode(y_val),
                "warm_start": old,
            },
        )

    def plan(self, X: Any, y: Any, *, resource: Resource | None = None) -> Plan:
        """The plan that `fit` would follow for this data, without training.

        `n` counts the rows to train on, without those that would be held out.  `resource` is a
        user-specified device to plan for; by default this machine's device is measured.
        """
        check_parameters(self)
        model = self._twin()  # validation sets attributes
        model.random_state = copy.deepcopy(self.random_state)  # drawing from a generator changes it
        with ranks(find_device(self.device)) as group, threads(self.n_jobs, cores_for(group)):
            X, y, _, targets = model._validate(X, y, None, group)
            data, _ = model._arranged(X, y, targets, None, None, None, None, group)
            return prepare(data, model._settings(resource), group=group).plan

    def _validate(
        self, X: Any, y: Any, sample_weight: Any, group: Group | None
    ) -> tuple[Matrix, Array, Any, Targets]:
        """Rows, targets and weights of all ranks, and how the targets become columns."""
        if group is not None and has_shares(X, group):
            given = (X, y, sample_weight)
            X, y, sample_weight = shared_training_data(self, *given, group, y_numeric=self._y_numeric)
        else:
            X, y = training_data(self, rows_of(X), y, y_numeric=self._y_numeric)
        targets, y = self._read_targets(y)
        return X, y, sample_weight, targets

    _y_numeric = False

    def _row_weights(self, sample_weight: Any, y: Array) -> Array | None:
        return row_weights(sample_weight, y)

    def _weights_to_start_from(self, X: Matrix, Y: Array) -> Array:
        """The weights of the last fit for the first rows, which must be the rows it saw."""
        old = self.dual_coef_
        if len(X) < len(old) or Y.shape[1] != old.shape[1]:
            raise ValueError(
                f"With `warm_start`, X must begin with the {len(old)} rows of the last fit, and y have "
                f"its {old.shape[1]} outputs. Got {len(X)} rows and {Y.shape[1]} outputs: fit a new "
                "model instead."
            )
        weights = np.zeros((len(X), old.shape[1]))
        weights[: len(old)] = old
        return weights

    def _decision(self, X: Any) -> Array:
        """f(x) for each row, (m, l)."""
        check_is_fitted(self, "machine_")
        with ranks(self.machine_.device) as group, threads(self.n_jobs, cores_for(group)):
            machine = self.machine_.among(group)
            if group is not None and has_shares(X, group):
                x = own_rows(self, X)
                decision = own_decision(machine, x, group, self.verbose)  # (m, l)
            elif group is not None:
                x = more_rows(self, rows_of(X))
                decision = shared_decision(machine, x, group, self.verbose)
            else:
                progress = Events(verbose=self.verbose).on_rows
                decision = to_numpy(machine.predict(more_rows(self, rows_of(X)), progress))
            return finite_predictions(decision)

    def predict(self, X: Any) -> Any:
        """The prediction for each row."""
        decision = self._decision(X)
        return like(self._targets.decode(decision), X)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Score of `predict` on X, larger being better."""
        decision, y = self._decision(X), np.asarray(as_numpy(y))
        if isinstance(X, RowShare):
            with ranks(self.machine_.device) as group:
                decision, y = joined(decision, group), joined(y, group)
                if sample_weight is not None:
                    sample_weight = joined(np.asarray(as_numpy(sample_weight)), group)
        return self._targets.score(y, decision, sample_weight)

    def to_torch(self) -> torch.nn.Module:
        """The trained machine as a `torch.nn.Module`: inputs (m, d) to decisions (m, l).

        >>> import torch
        >>> from mercer import KernelRegressor
        >>> X = torch.linspace(0, 6, 100)[:, None]
        >>> model = KernelRegressor("gaussian", bandwidth=1.0, random_state=0).fit(X, X[:, 0].sin())
        >>> bool(torch.allclose(model.to_torch()(X)[:, 0].double(), model.predict(X), atol=1e-5))
        True
        """
        check_is_fitted(self, "machine_")
        return MachineModule(self.machine_)

    def save(self, path: str | os.PathLike[str], metadata: Mapping[str, Any] | None = None) -> None:
        """Write the fitted model to one file, which `mercer.load` reads.

        The file holds the centres and weights, but not the targets or held-out rows.  `metadata` is
        stored as JSON; a loaded model has it as `metadata_`, and keeps it when saved again.
        """
        check_is_fitted(self, "machine_")
        with ranks(self.machine_.device) as group:
            model = self._twin()
            model.machine_ = self.machine_.among(group)
            (group or Group()).decided(lambda: save(model, path, metadata))

    def __getstate__(self) -> Any:
        state = super().__getstate__()
        return {**state, "callbacks": ()} if self.__dict__.get("callbacks") else state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = False
        return tags


def _number(value: Any) -> Any:
    """The number given, None for "auto"."""
    return None if isinstance(value, str) else value
