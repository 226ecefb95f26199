"""KernelClassifier and KernelRegressor: the scikit-learn face of the method."""

from __future__ import annotations

import copy
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state, column_or_1d, compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor
from typing_extensions import Self

from mercer.engine import Data, KernelLike, Problem, Settings, parse_memory, pose, training
from mercer.estimators.parameters import check_parameters
from mercer.files.checkpoint import Saved, fingerprint, write_checkpoint
from mercer.files.container import machine_from, machine_parts, read_file, write_file
from mercer.kernels import kernel_from_dict
from mercer.model.machine import KernelMachine
from mercer.model.torch_module import MachineModule
from mercer.operators.workers import threads
from mercer.planning.choose import Requests
from mercer.planning.plan import Plan
from mercer.planning.resource import Resource, find_device
from mercer.selection.search import Selection
from mercer.training.events.callbacks import Callback, Run
from mercer.training.events.console import ConsoleProgress
from mercer.training.events.dispatch import INTERRUPTED, Watch
from mercer.training.events.interrupts import interrupts
from mercer.training.loop import DivergenceError, Epoch, History, Limits, Outcome, Training

# Fewer points than this are all needed for training; more held-out points than the second number say
# nothing more about when to stop.
FEWEST_FOR_HOLDOUT = 500
MOST_HELD_OUT = 3_000
# Logit scale where no held-out part can fit one: a point that is interpolated (1 against 0) then gets
# odds of e^4 over each other class.
DEFAULT_LOGIT_SCALE = 4.0


class _KernelEstimator(BaseEstimator):  # type: ignore[misc]
    """Parameters, validation and fitting shared by the classifier and the regressor."""

    machine_: KernelMachine
    plan_: Plan
    history_: History
    converged_: bool
    classes_: Any

    def __init__(
        self,
        kernel: KernelLike = "auto",
        *,
        bandwidth: float | Literal["auto"] = "auto",
        ridge: float | Literal["auto"] = "auto",
        scale: bool | Literal["auto"] = "auto",
        n_pca_components: int | Literal["auto"] | None = None,
        subsample_size: int | Literal["auto"] = "auto",
        preconditioner_rank: int | Literal["auto"] = "auto",
        batch_size: int | Literal["auto"] = "auto",
        step_size: float | Literal["auto"] = "auto",
        max_iter: int = 100,
        interpolation_tol: float = 1e-4,
        early_stopping: bool | Literal["auto"] = "auto",
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 3,
        tol: float = 0.01,
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
        self.n_pca_components = n_pca_components
        self.subsample_size = subsample_size
        self.preconditioner_rank = preconditioner_rank
        self.batch_size = batch_size
        self.step_size = step_size
        self.max_iter = max_iter
        self.interpolation_tol = interpolation_tol
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.warm_start = warm_start
        self.precision = precision
        self.device = device
        self.memory_limit = memory_limit
        self.n_jobs = n_jobs
        self.callbacks = callbacks
        self.random_state = random_state
        self.verbose = verbose

    # Each subclass turns its targets into columns and back.

    def _encode(self, y: NDArray[Any]) -> NDArray[np.float64]:
        """Targets as columns, (n, l)."""
        raise NotImplementedError

    def _held_out_score(self, y: NDArray[Any], decision: NDArray[Any]) -> float:
        raise NotImplementedError

    def _stratify(self, y: NDArray[Any]) -> NDArray[Any] | None:
        return None

    def _learn_from_held_out(self, y_val: Any, f: Tensor | None, offset: Tensor) -> None:
        """A place for what is fitted on held-out predictions."""

    def _validate(self, X: Any, y: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        raise NotImplementedError

    def _fit(
        self, X: Any, y: Any, X_val: Any, y_val: Any, sample_weight: NDArray[Any] | None, resume: Any
    ) -> None:
        check_parameters(self)
        if (X_val is None) != (y_val is None):
            raise ValueError("`X_val` and `y_val` must be given together. Got only one of them.")
        settings = self._settings()
        if not X.shape[1] * max(-float(X.min()), float(X.max())) ** 2 < torch.finfo(settings.dtype).max:
            raise ValueError(
                f"Squared lengths of rows must be finite in {self.precision}. Got an overflow: the "
                'features are too large, so rescale them, or use precision="float64".'
            )
        old = self._weights_to_start_from(X, self._encode(y)) if self.warm_start else None
        if old is not None:
            # Weights belong to the kernel they were trained with, and to the features it saw.
            scaled = self.machine_.preparation.scale is not None
            settings = replace(settings, kernel=self.kernel_, ridge=self.ridge_, scale=scaled)
        saved = None if resume is None else Saved.read(resume, fingerprint(X, y))
        rows = np.arange(len(X))
        if sample_weight is not None:
            rows = rows[sample_weight > 0]
        if saved is not None:
            rows, held_out = saved.rows, saved.held_out
        else:
            rows, held_out = self._arranged(rows, y, hold_out=X_val is None)
        if len(held_out):
            X_val, y_val = X[held_out], y[held_out]
        Y_val = None if y_val is None else self._encode(y_val)
        data = Data(X, self._encode(y), rows, X_val, Y_val, sample_weight)
        try:
            with threads(self.n_jobs):
                self._train(data, settings, y, y_val, held_out, old, saved)
        except DivergenceError:
            double = settings.dtype == torch.float64 or settings.device.type == "mps"
            if double or self.step_size != "auto" or saved is not None:
                raise
            settings = replace(settings, dtype=torch.float64)
            with threads(self.n_jobs):
                self._train(data, settings, y, y_val, held_out, old, saved)
            note = "training diverged in float32 and was run again in float64"
            self.plan_ = replace(self.plan_, notes=(*self.plan_.notes, note))
        self._warn()

    def _warn(self) -> None:
        if self.stop_reason_ == INTERRUPTED:
            kept = "the best weights so far" if self.history_.epochs else "the weights as they were"
            warnings.warn(
                f"Training was {INTERRUPTED} after {self.n_iter_} whole epochs; the model has {kept}.",
                ConvergenceWarning,
                stacklevel=4,
            )
        elif not self.converged_ and self.n_iter_ >= self.max_iter:
            warnings.warn(
                f"Training stopped at `max_iter`={self.max_iter} before it converged. Raise "
                "`max_iter`, or raise `interpolation_tol` if the training loss in `history_` is low "
                "enough.",
                ConvergenceWarning,
                stacklevel=4,
            )
        for note in self.plan_.notes:
            warnings.warn(f"A fallback was used: {note}.", UserWarning, stacklevel=4)

    def _train(
        self,
        data: Data,
        settings: Settings,
        y: NDArray[Any],
        y_val: Any,
        held_out: NDArray[Any],
        old: NDArray[Any] | None,
        saved: Saved | None,
    ) -> None:
        console = ConsoleProgress() if self.verbose else None
        problem = (
            pose(data, settings, console.on_stage if console else lambda text: None)
            if saved is None
            else saved.problem(data, settings)
        )
        if console is not None:
            console.clear()
        if self.verbose > 1:
            print(problem.plan)
        start_from = None if old is None else torch.from_numpy(old[data.rows]).to(problem.y)
        run = training(
            problem,
            data,
            settings,
            lambda f: self._held_out_score(y_val, _to_numpy(f)),
            start_from,
        )
        if saved is not None:
            saved.restore(run)
        for callback in self.callbacks:
            callback.on_fit_begin(problem.plan)

        def finished(alpha: Tensor, history: History) -> Any:
            model = copy.copy(self)
            model._keep(problem, data, Outcome(alpha, history, False, "", None), y_val)
            return model

        def write(path: str | os.PathLike[str], run: Training) -> None:
            write_checkpoint(path, run, problem, data, held_out, fingerprint(data.X, y))

        with interrupts() as interrupted:
            outcome = run.run(Watch(self.callbacks, console, problem.plan, finished, write, interrupted))
        self._keep(problem, data, outcome, y_val)
        ended = Run(problem.plan, outcome.history, lambda: self)
        for callback in self.callbacks:
            callback.on_fit_end(ended)

    def _keep(self, problem: Problem, data: Data, outcome: Outcome, y_val: Any) -> None:
        """Fill in the fitted attributes."""
        self.machine_ = replace(problem.machine, alpha=outcome.alpha.contiguous())
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
        self.metadata_: dict[str, Any] = {}  # that of a file belongs to what was in it
        self._set_dual_coef(data.rows, len(data.X))
        self._learn_from_held_out(y_val, outcome.validation_predictions, problem.machine.offset)

    def _set_dual_coef(self, rows: NDArray[Any], n_rows: int) -> None:
        alpha = _to_numpy(self.machine_.alpha)
        self._training_rows = rows
        self.dual_coef_ = np.zeros((n_rows, alpha.shape[1]), dtype=alpha.dtype)  # zero on held-out rows
        self.dual_coef_[rows] = alpha

    def _weights_to_start_from(self, X: NDArray[Any], Y: NDArray[Any]) -> NDArray[Any] | None:
        """The weights of the last fit for the first rows, which must be the rows it saw."""
        old = getattr(self, "dual_coef_", None)
        if old is None:
            return None
        if len(X) < len(old) or Y.shape[1] != old.shape[1]:
            raise ValueError(
                f"With `warm_start`, X must begin with the {len(old)} rows of the last fit, and y have "
                f"its {old.shape[1]} outputs. Got {len(X)} rows and {Y.shape[1]} outputs: fit a new "
                "model instead."
            )
        weights = np.zeros((len(X), old.shape[1]))
        weights[: len(old)] = old
        return weights

    def _settings(self, resource: Resource | None = None) -> Settings:
        named = isinstance(self.kernel, str)
        return Settings(
            kernel=self.kernel,
            bandwidth=_chosen(self.bandwidth) if named else None,
            ridge=_chosen(self.ridge),
            scale=self.scale,
            n_pca_components=self.n_pca_components,
            requests=Requests(
                subsample_size=_chosen(self.subsample_size),
                preconditioner_rank=_chosen(self.preconditioner_rank),
                batch_size=_chosen(self.batch_size),
                step_size=_chosen(self.step_size),
            ),
            limits=Limits(self.max_iter, self.interpolation_tol, self.n_iter_no_change, self.tol),
            dtype=torch.float64 if self.precision == "float64" else torch.float32,
            device=find_device(self.device),
            resource=resource,
            memory=parse_memory(self.memory_limit),
        )

    def plan(self, X: Any, y: Any, *, resource: Resource | None = None) -> Plan:
        """The plan that `fit` would follow for this data, without training.

        `n` counts the rows to train on, without those that would be held out.  `resource` is a
        user-specified device to plan for; by default this machine's device is measured.
        """
        check_parameters(self)
        X, y = self._validate(X, y)
        rows, held_out = self._arranged(np.arange(len(X)), y)
        Y = self._encode(y)
        X_val, Y_val = (X[held_out], Y[held_out]) if len(held_out) else (None, None)
        with threads(self.n_jobs):
            return pose(Data(X, Y, rows, X_val, Y_val), self._settings(resource)).plan

    def _validate_val(self, X_val: Any, y_val: Any) -> tuple[Any, Any]:
        if X_val is not None:
            X_val = validate_data(self, _as_numpy(X_val), reset=False, **_NUMBERS)
        return X_val, None if y_val is None else np.asarray(_as_numpy(y_val))

    def _validate_weight(self, sample_weight: Any, X: NDArray[Any]) -> NDArray[Any] | None:
        """Weights that are numbers of at least 0; zero leaves a point out."""
        if sample_weight is None:
            return None
        weight = _check_sample_weight(_as_numpy(sample_weight), X, dtype=np.float64)
        if weight.min() < 0 or not weight.max() > 0:
            raise ValueError(
                "`sample_weight` must be at least 0 and not 0 everywhere. Got values from "
                f"{weight.min():.3g} to {weight.max():.3g}."
            )
        return np.asarray(weight)

    def _holds_out(self, n: int) -> bool:
        if self.early_stopping == "auto":
            return n >= FEWEST_FOR_HOLDOUT
        return bool(self.early_stopping) and n > 1

    def _arranged(
        self, rows: NDArray[Any], y: NDArray[Any], hold_out: bool = True
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Rows to train on, in training order, and those held out."""
        rng = check_random_state(self.random_state)
        held_out = np.zeros(0, dtype=int)
        if hold_out and self._holds_out(len(rows)):
            rows, held_out = self._split(rows, y, rng)
        generator = torch.Generator().manual_seed(int(rng.randint(2**31 - 1)))
        # A random order, the subsample being its first s points.
        return rows[torch.randperm(len(rows), generator=generator).numpy()], held_out

    def _split(self, rows: NDArray[Any], y: NDArray[Any], rng: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        size = min(MOST_HELD_OUT, max(1, round(self.validation_fraction * len(rows))))
        stratify = self._stratify(y[rows])
        split = train_test_split(rows, test_size=size, random_state=rng, stratify=stratify)
        return split[0], split[1]

    def _decision(self, X: Any) -> NDArray[Any]:
        check_is_fitted(self, "machine_")
        X = validate_data(self, _as_numpy(X), reset=False, **_NUMBERS)
        console = ConsoleProgress() if self.verbose else None
        with threads(self.n_jobs):
            decision = self.machine_.predict(X, console.on_rows if console else None)  # (m, l)
        return _to_numpy(decision).astype(X.dtype, copy=False)

    def to_torch(self) -> torch.nn.Module:
        """The trained machine as a `torch.nn.Module`: inputs (m, d) to decisions (m, l).

        >>> import torch
        >>> from mercer import KernelRegressor
        >>> X = torch.linspace(0, 6, 100)[:, None]
        >>> model = KernelRegressor("gaussian", bandwidth=1.0, random_state=0).fit(X, X[:, 0].sin())
        >>> bool(torch.allclose(model.to_torch()(X)[:, 0], model.predict(X), atol=1e-5))
        True
        """
        check_is_fitted(self, "machine_")
        return MachineModule(self.machine_)

    def save(self, path: str | os.PathLike[str], metadata: Mapping[str, Any] | None = None) -> None:
        """Write the fitted model to one file, which `mercer.load` reads; no training data beside it.

        `metadata` is kept with it as JSON; a model that was loaded has it as `metadata_`, and keeps it.
        """
        check_is_fitted(self, "machine_")
        tensors, machine = machine_parts(self.machine_)
        tensors["training_rows"] = torch.from_numpy(np.asarray(self._training_rows))
        names = getattr(self, "feature_names_in_", None)
        parameters = self.get_params(deep=False)
        data = {
            "estimator": type(self).__name__,
            "parameters": {name: value for name, value in parameters.items() if _is_plain(value)},
            "machine": machine,
            "kernel": self.kernel_.to_dict(),
            "plan": self.plan_.to_json(indent=None),
            "history": self.history_.to_dicts(),
            "selection": None if self.selection_ is None else asdict(self.selection_),
            "n_rows": len(self.dual_coef_),
            "fitted": {name: getattr(self, name) for name in self._saved_attributes},
            "feature_names": None if names is None else [str(name) for name in names],
            "classes": _array_data(getattr(self, "classes_", None)),
            "metadata": getattr(self, "metadata_", {}) if metadata is None else dict(metadata),
        }
        write_file(path, "model", tensors, data)

    _saved_attributes: tuple[str, ...] = (
        "converged_",
        "stop_reason_",
        "n_iter_",
        "best_epoch_",
        "best_loss_",
        "bandwidth_",
        "ridge_",
        "n_features_in_",
    )

    def _fill_in(self, tensors: dict[str, Tensor], data: dict[str, Any]) -> Self:
        """The fitted attributes from a file."""
        self.plan_ = Plan.from_json(data["plan"])
        self.machine_ = machine_from(tensors, data["machine"], in_place=self.plan_.data_on_disk)
        self.kernel_ = kernel_from_dict(data["kernel"])
        self.eigenvalues_ = np.array(self.plan_.eigenvalues)
        self.history_ = History(tuple(Epoch(**epoch) for epoch in data["history"]))
        self.selection_ = Selection.from_dict(data["selection"])
        for name in self._saved_attributes:
            setattr(self, name, data["fitted"].get(name))  # older files have fewer
        if data["feature_names"] is not None:
            self.feature_names_in_ = np.array(data["feature_names"], dtype=object)
        if data["classes"] is not None:
            self.classes_ = np.array(data["classes"]["values"], dtype=data["classes"]["dtype"])
        self.metadata_ = data.get("metadata", {})
        self._set_dual_coef(tensors["training_rows"].numpy(), data["n_rows"])
        return self

    def __getstate__(self) -> Any:
        state = super().__getstate__()
        return {**state, "callbacks": ()} if self.__dict__.get("callbacks") else state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = False
        return tags


class KernelClassifier(ClassifierMixin, _KernelEstimator):  # type: ignore[misc]
    """Kernel classifier trained by EigenPro 2.0 on as much of the device as it can use.

    Classes become columns of targets, fitted by least squares to the kernel interpolant and stopped
    early on a held-out part.

    Parameters
    ----------
    kernel : str, Kernel or callable, default="auto"
        "auto" takes the Laplacian or the Gaussian, whichever has the lower leave-one-out error on a
        subsample.  Else a name ("gaussian", "laplacian", "cauchy", "matern32", "matern52",
        "exponential_power", "neural_tangent"), a kernel with its own parameters such as
        ``mercer.Gaussian(5.0)``, or a function of two tensors, (m, d) and (t, d) to (m, t).
    bandwidth : float or "auto", default="auto"
        The distance over which a named kernel varies, in the units of the data; "auto" takes the one
        with the lowest leave-one-out error.
    ridge : float or "auto", default="auto"
        r in (K + r I) alpha = y, the noise of a target.  0 interpolates, as in the paper; "auto" is as
        for the bandwidth.
    scale : bool or "auto", default="auto"
        Standardise the features.  "auto" does where their scales differ and leave-one-out error is lower
        for it; not for 8-bit data, nor where `bandwidth` is given, which is in the data's units.
    n_pca_components : int, "auto" or None, default=None
        Project on so many principal directions; "auto" on as many as carry all of the data.
    class_weight : dict, "balanced" or None, default=None
        Weights of classes, beside `sample_weight`.
    subsample_size, preconditioner_rank, batch_size, step_size : number or "auto", default="auto"
        s, q, m and eta of the paper, chosen analytically unless given.
    max_iter : int, default=100
    interpolation_tol : float, default=1e-4
        Training loss, as a share of the loss of predicting the mean, that counts as interpolation.
    early_stopping : bool or "auto", default="auto"
        Hold a part out and stop when its loss stops falling; "auto" does from 500 points on.
    validation_fraction : float, default=0.1
        The part held out, at most 3,000 points.
    n_iter_no_change : int, default=3
        Epochs without an improvement of `tol` before training stops.
    tol : float, default=0.01
        Relative fall of the held-out loss that counts as improvement.
    warm_start : bool, default=False
        Begin `fit` from the weights of the last one; X must begin with the rows that one saw.
    precision : "float32" or "float64", default="float32"
    device : str, default="auto"
        "auto", "cpu", "cuda", "cuda:1", "mps".
    memory_limit : float, str or "auto", default="auto"
        Memory that training may use: bytes, or a text such as "4GB".
    n_jobs : int or None, default=None
        Worker threads on a CPU.  None uses as many as PyTorch is set to use, -1 all cores.
    callbacks : sequence of mercer.Callback, default=()
    random_state : int, RandomState or None, default=None
    verbose : int, default=0
        1 shows progress, 2 also prints the plan.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_
    plan_ : Plan
        Every number that was chosen.
    history_ : History
        Loss, score, seconds and step of each epoch.
    dual_coef_ : ndarray of shape (n_samples, n_outputs)
        alpha, in the order of the rows given to `fit`; zero on held-out rows.
    n_iter_ : int
        Epochs done.
    best_epoch_ : float
        Epochs after which the weights kept were reached; a part of one within the first.
    best_loss_ : float or None
        Their held-out loss, where a part was held out.
    converged_ : bool
    stop_reason_ : str
    kernel_, bandwidth_, ridge_
        What was given or chosen.
    selection_ : Selection or None
        What was tried to choose it, as a table of leave-one-out errors.
    eigenvalues_ : ndarray
        Of the kernel on the data, as far as they were estimated.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from mercer import KernelClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = KernelClassifier(random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.95)
    True
    """

    _saved_attributes = (*_KernelEstimator._saved_attributes, "logit_scale_", "_multilabel")

    def __init__(
        self,
        kernel: KernelLike = "auto",
        *,
        bandwidth: float | Literal["auto"] = "auto",
        ridge: float | Literal["auto"] = "auto",
        scale: bool | Literal["auto"] = "auto",
        n_pca_components: int | Literal["auto"] | None = None,
        class_weight: Mapping[Any, float] | Literal["balanced"] | None = None,
        subsample_size: int | Literal["auto"] = "auto",
        preconditioner_rank: int | Literal["auto"] = "auto",
        batch_size: int | Literal["auto"] = "auto",
        step_size: float | Literal["auto"] = "auto",
        max_iter: int = 100,
        interpolation_tol: float = 1e-4,
        early_stopping: bool | Literal["auto"] = "auto",
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 3,
        tol: float = 0.01,
        warm_start: bool = False,
        precision: Literal["float32", "float64"] = "float32",
        device: str = "auto",
        memory_limit: float | str = "auto",
        n_jobs: int | None = None,
        callbacks: Sequence[Callback] = (),
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            kernel,
            bandwidth=bandwidth,
            ridge=ridge,
            scale=scale,
            n_pca_components=n_pca_components,
            subsample_size=subsample_size,
            preconditioner_rank=preconditioner_rank,
            batch_size=batch_size,
            step_size=step_size,
            max_iter=max_iter,
            interpolation_tol=interpolation_tol,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            tol=tol,
            warm_start=warm_start,
            precision=precision,
            device=device,
            memory_limit=memory_limit,
            n_jobs=n_jobs,
            callbacks=callbacks,
            random_state=random_state,
            verbose=verbose,
        )
        self.class_weight = class_weight

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        X_val: Any = None,
        y_val: Any = None,
        resume: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Train on X, (n, d), and labels y, (n,), or an (n, l) indicator of several labels.

        `X_val` and `y_val` replace the part that would be held out.  `resume` is a checkpoint of an
        interrupted fit on the same data.
        """
        X, y = self._validate(X, y)
        X_val, y_val = self._validate_val(X_val, y_val)
        weight = self._validate_weight(sample_weight, X)
        if self.class_weight is not None:
            by_class = compute_sample_weight(self.class_weight, y)
            weight = by_class if weight is None else weight * by_class
            weight = self._validate_weight(weight, X)
        self._fit(X, y, X_val, y_val, weight, resume)
        return self

    def _validate(self, X: Any, y: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        X, y = validate_data(self, _as_numpy(X), _as_numpy(y), multi_output=True, **_NUMBERS)
        check_classification_targets(y)
        self._multilabel = type_of_target(y) == "multilabel-indicator"
        if self._multilabel:
            self.classes_ = np.arange(y.shape[1])
            return X, y
        if y.ndim == 2 and y.shape[1] > 1:
            raise ValueError(
                "`y` must be one column of labels, or a 0/1 indicator matrix of several labels. Got "
                f"{y.shape[1]} columns with other values: fit one classifier for each column."
            )
        y = column_or_1d(y, warn=True)
        self.classes_ = np.unique(y)
        if len(self.classes_) < 2:
            raise ValueError(
                "`y` must contain at least 2 classes. Got 1 class instead: "
                f"{self.classes_[0]!r} for every row."
            )
        return X, y

    def _encode(self, y: NDArray[Any]) -> NDArray[np.float64]:
        if self._multilabel:
            return np.where(y > 0, 1.0, -1.0)  # (n, l)
        if not np.isin(y, self.classes_).all():
            raise ValueError("`y_val` must hold only classes that occur in `y`. Got others as well.")
        index = np.searchsorted(self.classes_, y)
        if len(self.classes_) == 2:
            return np.where(index == 1, 1.0, -1.0)[:, None]  # (n, 1)
        return np.eye(len(self.classes_))[index]  # (n, l)

    def _labels(self, decision: NDArray[Any]) -> NDArray[Any]:
        if self._multilabel:
            return (decision > 0).astype(int)
        if len(self.classes_) == 2:
            return np.asarray(self.classes_[(decision[:, 0] > 0).astype(int)])
        return np.asarray(self.classes_[decision.argmax(1)])

    def _held_out_score(self, y: NDArray[Any], decision: NDArray[Any]) -> float:
        return float(accuracy_score(y, self._labels(decision)))

    def _stratify(self, y: NDArray[Any]) -> NDArray[Any] | None:
        if self._multilabel:
            return None
        counts = np.unique(y, return_counts=True)[1]
        held_out = min(MOST_HELD_OUT, round(self.validation_fraction * len(y)))
        enough = counts.min() >= 2 and min(held_out, len(y) - held_out) >= len(counts)
        return y if enough else None

    def _logits(self, decision: NDArray[Any]) -> NDArray[Any]:
        """Columns whose softmax (or, for one column or several labels, sigmoid) is a probability."""
        return self.logit_scale_ * decision.astype(np.float64)

    def _learn_from_held_out(self, y_val: Any, f: Tensor | None, offset: Tensor) -> None:
        self.logit_scale_ = 1.0
        if f is None:
            self.logit_scale_ = DEFAULT_LOGIT_SCALE
            return
        decision = _to_numpy(f + offset).astype(np.float64)
        targets = self._encode(y_val)

        def negative_log_likelihood(log_scale: float) -> float:
            logits = math.exp(log_scale) * decision
            if self._multilabel or decision.shape[1] == 1:
                return float(np.logaddexp(0, -logits * targets).mean())
            normaliser = np.logaddexp.reduce(logits, axis=1)
            return float((normaliser - (logits * targets).sum(1)).mean())

        fitted = minimize_scalar(negative_log_likelihood, bounds=(-3, 5), method="bounded")
        self.logit_scale_ = math.exp(float(fitted.x))

    def decision_function(self, X: Any) -> Any:
        """f(x): (m,) for two classes, larger for ``classes_[1]``; else one column a class or label."""
        decision = self._decision(X)
        single = not self._multilabel and len(self.classes_) == 2
        return _like(decision[:, 0] if single else decision, X)

    def predict(self, X: Any) -> Any:
        """The class of each row, or for several labels a 0/1 indicator matrix."""
        return _like(self._labels(self._decision(X)), X)

    def predict_proba(self, X: Any) -> Any:
        """Probabilities, (m, n_classes), whose largest is `predict`; for several labels one each."""
        logits = self._logits(self._decision(X))
        if self._multilabel:
            return _like(_sigmoid(logits), X)
        if len(self.classes_) == 2:
            positive = _sigmoid(logits[:, 0])
            return _like(np.column_stack([1 - positive, positive]), X)
        shifted = np.exp(logits - logits.max(1, keepdims=True))
        return _like(shifted / shifted.sum(1, keepdims=True), X)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy of `predict` on X."""
        labels = self._labels(self._decision(X))
        return float(accuracy_score(_as_numpy(y), labels, sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


class KernelRegressor(RegressorMixin, MultiOutputMixin, _KernelEstimator):  # type: ignore[misc]
    """Kernel regressor trained by EigenPro 2.0 on as much of the device as it can use.

    Parameters and attributes are those of `KernelClassifier`, without classes; targets may
    have several columns.

    Examples
    --------
    >>> import numpy as np
    >>> from mercer import KernelRegressor
    >>> X = np.linspace(0, 6, 200)[:, None]
    >>> model = KernelRegressor("gaussian", bandwidth=0.5, random_state=0).fit(X, np.sin(X[:, 0]))
    >>> bool(abs(model.predict([[1.0]])[0] - np.sin(1.0)) < 0.01)
    True
    """

    _saved_attributes = (*_KernelEstimator._saved_attributes, "_single")

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        X_val: Any = None,
        y_val: Any = None,
        resume: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Train on X, (n, d), and targets y, (n,) or (n, l).

        `X_val` and `y_val` replace the part that would be held out.  `resume` is a checkpoint of an
        interrupted fit on the same data.
        """
        X, y = self._validate(X, y)
        X_val, y_val = self._validate_val(X_val, y_val)
        self._fit(X, y, X_val, y_val, self._validate_weight(sample_weight, X), resume)
        return self

    def _validate(self, X: Any, y: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        X, y = validate_data(
            self, _as_numpy(X), _as_numpy(y), multi_output=True, y_numeric=True, **_NUMBERS
        )
        self._single = y.ndim == 1
        return X, y

    def _encode(self, y: NDArray[Any]) -> NDArray[np.float64]:
        return np.asarray(y, dtype=np.float64).reshape(len(y), -1)

    def _held_out_score(self, y: NDArray[Any], decision: NDArray[Any]) -> float:
        return float(r2_score(self._encode(y), decision)) if len(y) > 1 else math.nan

    def predict(self, X: Any) -> Any:
        """f(x), (m,) or (m, l) as the targets were."""
        values = self._decision(X)
        return _like(values[:, 0] if self._single else values, X)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R² of `predict` on X."""
        values = self._decision(X)
        return float(r2_score(self._encode(_as_numpy(y)), values, sample_weight=sample_weight))


# What scikit-learn's validation is asked for: numbers, finite, in rows and columns.
_NUMBERS: dict[str, Any] = {"dtype": [np.float32, np.float64]}


def _chosen(value: Any) -> Any:
    return None if isinstance(value, str) else value


def _as_numpy(values: Any) -> Any:
    """Tensors as arrays, anything else unchanged for scikit-learn to judge."""
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values


def _like(values: NDArray[Any], X: Any) -> Any:
    """Tensors to those who gave tensors, arrays to all others; labels that are text stay arrays."""
    if isinstance(X, Tensor) and values.dtype.kind in "biuf":
        return torch.from_numpy(np.ascontiguousarray(values)).to(X.device)
    return values


def _to_numpy(values: Tensor) -> NDArray[Any]:
    return np.asarray(values.cpu().numpy())


def _sigmoid(logits: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * logits)))


def _is_plain(value: Any) -> bool:
    """Parameters that a file can hold; others are those of the fit and not needed any more."""
    return value is None or isinstance(value, (bool, int, float, str))


def _array_data(values: NDArray[Any] | None) -> dict[str, Any] | None:
    if values is None:
        return None
    dtype = "object" if values.dtype.kind == "O" else values.dtype.str
    return {"values": values.tolist(), "dtype": dtype}


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
    kinds: dict[str, type[KernelClassifier] | type[KernelRegressor]] = {
        "KernelClassifier": KernelClassifier,
        "KernelRegressor": KernelRegressor,
    }
    estimator = kinds[data["estimator"]](**data["parameters"])
    if not isinstance(estimator.kernel, str):
        estimator.kernel = kernel_from_dict(data["kernel"])
    return estimator._fill_in(tensors, data)
