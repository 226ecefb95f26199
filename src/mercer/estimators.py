"""KernelClassifier and KernelRegressor: the scikit-learn face of the method."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor
from typing_extensions import Self

from mercer.adaptive import LevelledKernel, Requests, adapt
from mercer.eightbit import Grid, recognise
from mercer.kernels import Kernel, Points, as_kernel, byte_points, in_units
from mercer.machine import KernelMachine, data_shift
from mercer.plan import Plan
from mercer.products import HeldOutProducts, TrainingProducts
from mercer.progress import ConsoleProgress
from mercer.resource import Resource, find_device, measure_resource, with_memory
from mercer.selection import MEDIAN_POINTS, median_bandwidth
from mercer.training import DivergenceError, Limits, Validation, train

# Fewer points than this are all needed for training; more held-out points than the second number say
# nothing more about when to stop.
FEWEST_FOR_HOLDOUT = 500
MOST_HELD_OUT = 3_000
# With fewer features the product is too small a part of the work for bytes to pay.
FEWEST_INTEGER_FEATURES = 64
# Logit scale where no held-out part can fit one: a point that is interpolated (1 against 0) then gets
# odds of e^4 over each other class.
DEFAULT_LOGIT_SCALE = 4.0

KernelLike = str | Kernel | Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class _Prepared:
    """Training data ready for the kernel, and what was done to it."""

    given: Kernel  # as the user knows it
    kernel: Kernel  # in the units of `points`
    points: Points
    shift: Tensor  # (d,)  what was subtracted
    grid: Grid | None  # where the points are bytes


class _KernelEstimator(BaseEstimator):  # type: ignore[misc]
    """Parameters, validation and fitting shared by the classifier and the regressor."""

    machine_: KernelMachine
    plan_: Plan
    converged_: bool
    classes_: Any

    def __init__(
        self,
        kernel: KernelLike = "laplacian",
        *,
        bandwidth: float | Literal["auto"] = "auto",
        ridge: float = 0.0,
        subsample_size: int | Literal["auto"] = "auto",
        n_components: int | Literal["auto"] = "auto",
        batch_size: int | Literal["auto"] = "auto",
        step_size: float | Literal["auto"] = "auto",
        max_epochs: int = 100,
        tol: float = 1e-4,
        early_stopping: bool | Literal["auto"] = "auto",
        validation_fraction: float = 0.1,
        patience: int = 3,
        min_improvement: float = 0.01,
        precision: Literal["float32", "float64"] = "float32",
        device: str = "auto",
        resource: Resource | None = None,
        memory: float | Literal["auto"] = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.ridge = ridge
        self.subsample_size = subsample_size
        self.n_components = n_components
        self.batch_size = batch_size
        self.step_size = step_size
        self.max_epochs = max_epochs
        self.tol = tol
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.min_improvement = min_improvement
        self.precision = precision
        self.device = device
        self.resource = resource
        self.memory = memory
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

    def _fit(self, X: Any, y: Any, X_val: Any, y_val: Any) -> None:
        self._check_parameters()
        if (X_val is None) != (y_val is None):
            raise ValueError("`X_val` and `y_val` must be given together. Got only one of them.")
        Y = self._encode(y)  # (n, l)
        rng = check_random_state(self.random_state)
        rows = np.arange(len(X))
        if X_val is None and self._holds_out(len(X)):
            rows, held_out = self._split(y, rng)
            X_val, y_val = X[held_out], y[held_out]
        Y_val = None if y_val is None else self._encode(y_val)

        device = find_device(self.device)
        dtype = torch.float64 if self.precision == "float64" else torch.float32
        seed = int(rng.randint(2**31 - 1))
        data = (X, Y, rows, X_val, y_val, Y_val)
        try:
            self._train(*data, device, dtype, seed)
        except DivergenceError:
            if dtype == torch.float64 or device.type == "mps" or self.step_size != "auto":
                raise
            self._train(*data, device, torch.float64, seed)
            note = "training diverged in float32 and was run again in float64"
            self.plan_ = replace(self.plan_, notes=(*self.plan_.notes, note))
        if not self.converged_:
            warnings.warn(
                f"Training stopped at `max_epochs`={self.max_epochs} before it converged. Raise "
                "`max_epochs`, or raise `tol` if the training loss in `history_` is low enough.",
                ConvergenceWarning,
                stacklevel=3,
            )
        for note in self.plan_.notes:
            warnings.warn(f"A fallback was used: {note}.", UserWarning, stacklevel=3)

    def _train(
        self,
        X: NDArray[Any],
        Y: NDArray[Any],
        rows: NDArray[Any],
        X_val: Any,
        y_val: Any,
        Y_val: Any,
        device: torch.device,
        dtype: torch.dtype,
        seed: int,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(rows), generator=generator).numpy()
        rows = rows[order]  # training order: random, the subsample being its first s points
        resource = with_memory(self.resource or measure_resource(device, dtype), _chosen(self.memory))
        data = self._prepare(X[rows], device, dtype, resource, generator)
        kernel, points = data.kernel, data.points
        targets = _to_device(Y[rows], device, dtype)  # (n, l)
        offset = targets.mean(0)  # (l,)
        targets -= offset

        n_held_out = 0 if X_val is None else len(X_val)
        plan, levelled = self._adapt(data, targets.shape[1], resource, n_held_out)
        if self.verbose > 1:
            print(plan)
        machine = KernelMachine(kernel, data.shift, points, targets, offset, data.grid)
        validation = None
        budget = plan.kept_memory
        if X_val is not None and Y_val is not None:
            held_out = HeldOutProducts(kernel, machine.points(torch.from_numpy(X_val)), points, budget)
            budget -= held_out.kept_bytes
            validation = Validation(
                held_out,
                _to_device(Y_val, device, dtype) - offset,
                lambda f: self._held_out_score(y_val, _to_numpy(f + offset)),
            )
        progress = ConsoleProgress(self.max_epochs) if self.verbose else None
        outcome = train(
            TrainingProducts(kernel, points, levelled.V, plan.batch_size, targets.shape[1], budget),
            levelled,
            plan,
            targets,
            Limits(self.max_epochs, self.tol, self.patience, self.min_improvement),
            validation,
            on_batch=progress.on_batch if progress else None,
            on_epoch=progress.on_epoch if progress else None,
        )
        self.machine_ = replace(machine, alpha=outcome.alpha)
        self.plan_ = plan
        self.history_ = outcome.history
        self.converged_ = outcome.converged
        self.stop_reason_ = outcome.reason
        self.n_iter_ = len(outcome.history)
        self.bandwidth_ = getattr(data.given, "bandwidth", None)
        dual_coef = np.zeros(Y.shape, dtype=plan.precision)  # (n, l)  zero on held-out rows
        dual_coef[rows] = _to_numpy(outcome.alpha)
        self.dual_coef_ = dual_coef
        self._learn_from_held_out(y_val, outcome.validation_predictions, offset)

    def _learn_from_held_out(self, y_val: Any, f: Tensor | None, offset: Tensor) -> None:
        """A place for what is fitted on held-out predictions."""

    def plan(self, X: Any, y: Any) -> Plan:
        """The plan that `fit` would follow for this data, without training.

        No part is held out here, so `n` counts every row.
        """
        self._check_parameters()
        X, y = self._validate(X, y)
        device = find_device(self.device)
        dtype = torch.float64 if self.precision == "float64" else torch.float32
        rng = check_random_state(self.random_state)
        generator = torch.Generator().manual_seed(int(rng.randint(2**31 - 1)))
        order = torch.randperm(len(X), generator=generator).numpy()
        resource = with_memory(self.resource or measure_resource(device, dtype), _chosen(self.memory))
        data = self._prepare(X[order], device, dtype, resource, generator)
        return self._adapt(data, self._encode(y).shape[1], resource)[0]

    def _prepare(
        self,
        X: NDArray[Any],
        device: torch.device,
        dtype: torch.dtype,
        resource: Resource,
        generator: torch.Generator,
    ) -> _Prepared:
        """The kernel, the points it is evaluated on, and what was subtracted or rounded to get them."""
        if not X.shape[1] * float(np.abs(X).max()) ** 2 < torch.finfo(dtype).max:
            raise ValueError(
                f"Squared lengths of rows must be finite in {self.precision}. Got an overflow: the "
                'features are too large, so rescale them, or use precision="float64".'
            )
        kernel = self._kernel(_to_device(X[:MEDIAN_POINTS], device, dtype), generator)
        worthwhile = resource.integer_gain > 1 and X.shape[1] >= FEWEST_INTEGER_FEATURES
        if worthwhile and dtype == torch.float32 and kernel.translation_invariant:
            recognised = recognise(X)
            if recognised is not None:
                grid, codes = recognised
                points = byte_points(torch.from_numpy(codes).to(device), dtype)
                shift = torch.full((X.shape[1],), grid.origin, dtype=dtype).to(device)
                return _Prepared(kernel, in_units(kernel, grid.scale), points, shift, grid)
        x = _to_device(X, device, dtype)  # (n, d)
        shift = data_shift(kernel, x)
        return _Prepared(kernel, kernel, kernel.points(x.sub_(shift)), shift, None)

    def _validate(self, X: Any, y: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        raise NotImplementedError

    def _validate_val(self, X_val: Any, y_val: Any) -> tuple[Any, Any]:
        if X_val is not None:
            X_val = validate_data(self, _as_numpy(X_val), reset=False, **_NUMBERS)
        return X_val, None if y_val is None else np.asarray(_as_numpy(y_val))

    def _kernel(self, x: Tensor, generator: torch.Generator) -> Kernel:
        named = isinstance(self.kernel, str)
        if named and self.bandwidth == "auto":
            return as_kernel(self.kernel, median_bandwidth(x, generator))
        return as_kernel(self.kernel, 1.0 if self.bandwidth == "auto" else self.bandwidth)

    def _adapt(
        self, data: _Prepared, n_outputs: int, resource: Resource, n_held_out: int = 0
    ) -> tuple[Plan, LevelledKernel]:
        batch_size = _chosen(self.batch_size)
        requests = Requests(
            subsample_size=_chosen(self.subsample_size),
            n_components=_chosen(self.n_components),
            batch_size=None if batch_size is None else min(batch_size, len(data.points)),
            step_size=_chosen(self.step_size),
        )
        plan, levelled = adapt(
            data.kernel, data.points, n_outputs, resource, self.ridge, requests, n_held_out
        )
        return replace(plan, kernel=str(data.given)), levelled

    def _holds_out(self, n: int) -> bool:
        if self.early_stopping == "auto":
            return n >= FEWEST_FOR_HOLDOUT
        return bool(self.early_stopping) and n > 1

    def _split(self, y: NDArray[Any], rng: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        size = min(MOST_HELD_OUT, max(1, round(self.validation_fraction * len(y))))
        rows = np.arange(len(y))
        split = train_test_split(rows, test_size=size, random_state=rng, stratify=self._stratify(y))
        return split[0], split[1]

    def _check_parameters(self) -> None:
        def require(name: str, holds: bool, must: str) -> None:
            if not holds:
                raise ValueError(f"`{name}` must be {must}. Got {getattr(self, name)!r} instead.")

        def auto_or(name: str, kind: type, minimum: float, strict: bool, must: str) -> None:
            value: Any = getattr(self, name)
            if isinstance(value, str):
                require(name, value == "auto", f'"auto" or {must}')
                return
            number = isinstance(value, kind) and not isinstance(value, bool)
            require(
                name, number and minimum <= value < math.inf and not (strict and value == minimum), must
            )

        for name in ("subsample_size", "n_components", "batch_size"):
            auto_or(name, Integral, 1, False, "a whole number, at least 1")
        for name in ("bandwidth", "step_size", "memory"):
            auto_or(name, Real, 0, True, "a positive, finite number")
        for name, minimum in (("max_epochs", 1), ("patience", 1)):
            value: Any = getattr(self, name)
            whole = isinstance(value, Integral) and not isinstance(value, bool)
            require(name, whole and value >= minimum, f"a whole number, at least {minimum}")
        for name in ("ridge", "tol", "min_improvement"):
            number: Any = getattr(self, name)
            holds = isinstance(number, Real) and 0 <= float(number) < math.inf
            require(name, holds, "a number, at least 0")
        fraction: Any = self.validation_fraction
        require(
            "validation_fraction",
            isinstance(fraction, Real) and 0 < float(fraction) < 1,
            "between 0 and 1",
        )
        require("precision", self.precision in ("float32", "float64"), '"float32" or "float64"')

    def _decision(self, X: Any) -> NDArray[Any]:
        check_is_fitted(self, "machine_")
        X = validate_data(self, _as_numpy(X), reset=False, **_NUMBERS)
        decision = self.machine_.predict(torch.from_numpy(np.ascontiguousarray(X)))  # (m, l)
        return _to_numpy(decision).astype(X.dtype, copy=False)

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
    kernel : str, Kernel or callable, default="laplacian"
        A name ("gaussian", "laplacian", "cauchy", "matern32", "matern52", "exponential_power",
        "neural_tangent"), a kernel with its own parameters such as ``mercer.Gaussian(5.0)``, or a
        function of two tensors, (m, d) and (t, d) to (m, t).
    bandwidth : float or "auto", default="auto"
        The distance over which a named kernel varies; "auto" is the median distance between points.
    ridge : float, default=0.0
        r in (K + r I) alpha = y.  0 interpolates, as in the paper.
    subsample_size, n_components, batch_size, step_size : number or "auto", default="auto"
        s, q, m and eta of the paper, chosen analytically unless given.
    max_epochs : int, default=100
    tol : float, default=1e-4
        Training loss, as a share of the loss of predicting the mean, that counts as interpolation.
    early_stopping : bool or "auto", default="auto"
        Hold a part out and stop when its loss stops falling; "auto" does from 500 points on.
    validation_fraction : float, default=0.1
        The part held out, at most 3,000 points.
    patience : int, default=3
        Epochs without an improvement of `min_improvement` before training stops.
    min_improvement : float, default=0.01
        Relative fall of the held-out loss that counts as improvement.
    precision : "float32" or "float64", default="float32"
    device : str, default="auto"
        "auto", "cpu", "cuda", "cuda:1", "mps".
    resource : Resource or None, default=None
        A device written down by hand, to plan for; None measures the real one.
    memory : float or "auto", default="auto"
        Bytes that training may use.
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
    converged_ : bool
    stop_reason_ : str
    bandwidth_ : float

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from mercer import KernelClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = KernelClassifier(random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.95)
    True
    """

    def fit(self, X: Any, y: Any, X_val: Any = None, y_val: Any = None) -> Self:
        """Train on X, (n, d), and labels y, (n,), or an (n, l) indicator of several labels.

        `X_val` and `y_val` replace the part that would be held out.
        """
        X, y = self._validate(X, y)
        X_val, y_val = self._validate_val(X_val, y_val)
        self._fit(X, y, X_val, y_val)
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

    Parameters and attributes are those of :class:`KernelClassifier`, without classes; targets may
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

    def fit(self, X: Any, y: Any, X_val: Any = None, y_val: Any = None) -> Self:
        """Train on X, (n, d), and targets y, (n,) or (n, l).

        `X_val` and `y_val` replace the part that would be held out.
        """
        X, y = self._validate(X, y)
        X_val, y_val = self._validate_val(X_val, y_val)
        self._fit(X, y, X_val, y_val)
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


def _to_device(values: NDArray[Any], device: torch.device, dtype: torch.dtype) -> Tensor:
    # A copy always: training shifts the data in place.
    return torch.tensor(np.ascontiguousarray(values)).to(device, dtype)


def _to_numpy(values: Tensor) -> NDArray[Any]:
    return np.asarray(values.cpu().numpy())


def _sigmoid(logits: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * logits)))
