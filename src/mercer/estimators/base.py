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
from sklearn.utils.validation import check_is_fitted
from typing_extensions import Self

from mercer.data.rows import Array, Matrix
from mercer.engine import (
    Events,
    Resource,
    Saved,
    prepare,
)
from mercer.estimators.answers import Answers
from mercer.estimators.chunks import is_stream
from mercer.estimators.fit_warnings import warn_after_fit
from mercer.estimators.holdout import arranged
from mercer.estimators.parameters import check_parameters
from mercer.estimators.passes import plan_for_stream, train_on_stream
from mercer.estimators.ranks import cores_for, facts, own_decision, saved_run, shared_decision
from mercer.estimators.row_share import RowShare, rows_of
from mercer.estimators.saved_model import save
from mercer.estimators.settings import origin_of, settings_of
from mercer.estimators.shares import (
    all_have_streams,
    has_shares,
    joined,
    own_rows,
    shared_training_data,
    whole,
)
from mercer.estimators.streams import first_pass, refuse_with_stream
from mercer.estimators.targets import Targets, Unseen
from mercer.estimators.training import run
from mercer.estimators.validation import (
    as_numpy,
    finite_predictions,
    held_out_data,
    like,
    more_rows,
    more_targets,
    own_centers,
    row_weights,
    to_numpy,
    training_data,
)
from mercer.estimators.warm_start import as_last_time, weights_to_start_from
from mercer.kernels import KernelLike
from mercer.model.machine import KernelMachine
from mercer.model.torch_module import MachineModule
from mercer.operators.pool import release_memory
from mercer.operators.workers import threads
from mercer.planning.plan import Plan
from mercer.planning.resource import find_device
from mercer.processes.group import Group
from mercer.processes.joining import ranks
from mercer.processes.sameness import check_same
from mercer.tables.columns import Columns
from mercer.tables.notation import Notation
from mercer.training.events.callbacks import Callback
from mercer.training.history import History


class KernelEstimator(Answers, BaseEstimator):  # type: ignore[misc]
    """Parameters, validation and fitting shared by the classifier and the regressor."""

    machine_: KernelMachine
    plan_: Plan
    history_: History
    converged_: bool
    dual_coef_: Array
    n_samples_seen_: int  # by `partial_fit`
    columns_: Columns | None
    _targets: Targets
    _target_notations: tuple[Notation, ...] = ()  # of each column, if the numbers of `fit` were text
    _permuted: torch.Tensor | None = None  # (d,)  importances without a metric
    _is_last_fit = False  # none that follows will start from its weights, whatever `warm_start` says

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
        n_centers: int | Literal["auto"] | None = "auto",
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
        self.n_centers = n_centers
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

    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        X_val: Any,
        y_val: Any,
        resume: Any,
        centers: Any = None,
    ) -> Self:
        """Fit a twin and take over its state at the end: a fit that fails changes nothing."""
        with ranks(find_device(self.device)) as group:
            check_parameters(self)  # in the block, so that all ranks learn of an error on one
            speaks = group is None or group.is_first
            events = Events(self.callbacks, self.verbose) if speaks else Events()
            twin = self._twin()
            with threads(self.n_jobs, cores_for(group)):
                notes = twin._train(X, y, sample_weight, X_val, y_val, resume, centers, events, group)
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
        centers: Any,
        events: Events,
        group: Group | None,
    ) -> list[str]:
        """Fit and set the fitted attributes; what the user should know of the result."""
        if is_stream(X, y):
            refuse_with_stream(sample_weight=sample_weight)
            all_have_streams(group)
            known = first_pass(self, X, resume, group)
            if not known.is_whole:
                notes = train_on_stream(self, known, X_val, y_val, resume, centers, events, group)
                return [*notes, *([] if self.columns_ is None else self.columns_.losses)]
            X, y, sample_weight = known.whole()
            targets, y = self._read_targets(y)
        else:
            X, y, sample_weight, targets = self._validate(X, y, sample_weight, group)
        X_val, y_val = held_out_data(self, *whole(X_val, y_val, group))
        weight = self._row_weights(sample_weight, y)
        settings, old = settings_of(self), None
        if self.warm_start and hasattr(self, "dual_coef_"):
            old, settings = (
                weights_to_start_from(self, X, targets.encode(y)),
                as_last_time(self, settings),
            )
        origin = origin_of(self, X, y, targets, weight, X_val, y_val, old, centers)
        saved = None
        if group is None:
            saved = None if resume is None else Saved.read(resume, origin)
        else:
            check_same(group, facts(self, origin))
            saved = saved_run(resume, self.callbacks, origin, group)
        data, held_out = arranged(self, X, y, targets, weight, X_val, y_val, saved, group)
        if centers is not None:
            rows, numbers = own_centers(self, centers)
            data = replace(data, centers=rows, numbers=numbers)
        if len(held_out):
            y_val = y[held_out]

        options = {"start_from": old, "resume": saved, "held_out": held_out, "origin": origin}
        notes = run(self, data, targets, settings, y, y_val, events, group=group, **options)
        losses = [] if self.columns_ is None else self.columns_.losses
        return [*notes, *losses]

    def plan(
        self, X: Any, y: Any = None, *, sample_weight: Any = None, resource: Resource | None = None
    ) -> Plan:
        """The plan that `fit` would follow for this data, without training.

        `n` counts the rows to train on, without those that would be held out or have a weight of zero.
        `resource` is a user-specified device to plan for; by default this machine's device is measured.
        """
        check_parameters(self)
        model = self._twin()  # validation sets attributes
        model.random_state = copy.deepcopy(self.random_state)  # drawing from a generator changes it
        with ranks(find_device(self.device)) as group, threads(self.n_jobs, cores_for(group)):
            if is_stream(X, y):
                refuse_with_stream(sample_weight=sample_weight)
                all_have_streams(group)
                known = first_pass(model, X, None, group)
                if not known.is_whole:
                    return plan_for_stream(model, known, resource, group)
                X, y, sample_weight = known.whole()
                targets, y = model._read_targets(y)
            else:
                X, y, sample_weight, targets = model._validate(X, y, sample_weight, group)
            weight = model._row_weights(sample_weight, y)
            data, _ = arranged(model, X, y, targets, weight, None, None, None, group)
            return prepare(data, settings_of(model, resource), group=group).plan

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

    def _decision(self, X: Any) -> Array:
        """f(x) for each row, (m, l)."""
        if "machine_" not in self.__dict__:
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
        decision, y = self._decision(X), more_targets(self, y)
        if isinstance(X, RowShare):
            with ranks(self.machine_.device) as group:
                decision, y = joined(decision, group), joined(y, group)
                if sample_weight is not None:
                    sample_weight = joined(np.asarray(as_numpy(sample_weight)), group)
        return self._targets.score(y, decision, sample_weight)

    def to_torch(self) -> torch.nn.Module:
        """The trained machine as a `torch.nn.Module`: inputs (m, d) to decisions (m, l).

        Of a model with `columns_`, the inputs are the features that its columns become.

        >>> import torch
        >>> from mercer import KernelRegressor
        >>> X = torch.linspace(0, 6, 100)[:, None]
        >>> model = KernelRegressor("gaussian", bandwidth=1.0, random_state=0).fit(X, X[:, 0].sin())
        >>> bool(torch.allclose(model.to_torch()(X)[:, 0].double(), model.predict(X), atol=1e-5))
        True
        """
        check_is_fitted(self, "machine_")
        return MachineModule(self.machine_)

    def to_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the model as an ONNX file, which other programs run without Python (extra `onnx`).

        Its input X, (m, n_features_in_) in float64, has the columns of training, with NaN for missing
        values.  Its output is `prediction`, or for a classifier `label` and `probabilities`; of several
        labels, `indicator` in place of `label`.  Columns must hold numbers, and the kernel must be
        one of Mercer's own.
        """
        from mercer.estimators.onnx_file import write_onnx

        check_is_fitted(self, "machine_")
        write_onnx(self, path)

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
        state = {name: value for name, value in super().__getstate__().items() if name != "_levelled"}
        return {**state, "callbacks": ()} if self.__dict__.get("callbacks") else state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = False
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.input_tags.categorical = True
        return tags
