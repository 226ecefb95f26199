"""KernelClassifier."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sklearn.base import ClassifierMixin
from sklearn.utils import compute_sample_weight
from typing_extensions import Self

from mercer.data.rows import Array
from mercer.estimators.base import KernelEstimator
from mercer.estimators.targets import DEFAULT_LOGIT_SCALE, Labels, Targets
from mercer.estimators.validation import like
from mercer.kernels import KernelLike
from mercer.training.events.callbacks import Callback


class KernelClassifier(ClassifierMixin, KernelEstimator):  # type: ignore[misc]
    """Kernel classifier trained by EigenPro 2.0, with batch size and step adapted to the device.

    Classes are encoded as columns of targets and fitted by least squares.  Training moves towards the
    kernel interpolant and stops early on a held-out part.

    Parameters
    ----------
    kernel : str, Kernel or callable, default="auto"
        "auto" chooses between the Laplacian and the Gaussian by leave-one-out error on a subsample.
        Otherwise a name ("gaussian" or "rbf", "laplacian", "cauchy", "matern32", "matern52",
        "exponential_power", "neural_tangent"), a kernel with its own parameters such as
        ``mercer.Gaussian(5.0)``, or a function of two tensors, (m, d) and (t, d) to (m, t).
    bandwidth : float or "auto", default="auto"
        Length scale of a named kernel, in the units of the data.  "auto" takes the value with the lowest
        leave-one-out error.
    ridge : float or "auto", default="auto"
        r in (K + r I) alpha = y, the noise level of a target.  0 interpolates, as in the paper.  "auto"
        takes the value with the lowest leave-one-out error.
    scale : bool or "auto", default="auto"
        Whether to standardise the features.  "auto" standardises if their scales differ and that lowers
        the leave-one-out error, but not 8-bit data, and not if `bandwidth` is given.
    n_pca_components : int, "auto" or None, default=None
        Number of principal components to project the features on.  "auto" keeps all that have variance;
        None does not project.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, multiplied with `sample_weight`.
    subsample_size : int or "auto", default="auto"
        s of the paper: points for the estimate of the kernel's spectrum.
    preconditioner_rank : int or "auto", default="auto"
        q of the paper: leading eigenvalues of the kernel that are levelled.
    batch_size : int or "auto", default="auto"
        m of the paper: points per step.
    step_size : float or "auto", default="auto"
        eta of the paper.
    max_iter : int, default=100
        Maximum number of epochs.
    tol : float, default=0.01
        Relative decrease of the held-out loss that counts as an improvement.
    interpolation_tol : float, default=1e-4
        Training loss at which training stops, relative to the loss of predicting the mean.
    early_stopping : bool or "auto", default="auto"
        Whether to hold out part of the data and stop when its loss no longer improves.  "auto" does so
        for 500 rows or more.
    validation_fraction : float, default=0.1
        Share of the rows to hold out, at most 3,000 rows.
    n_iter_no_change : int, default=3
        Epochs without an improvement after which training stops.
    warm_start : bool, default=False
        Whether `fit` starts from the weights of the previous fit.  X must then begin with the rows of
        that fit.
    precision : {"float32", "float64"}, default="float32"
        Floating point type of the computation.
    device : str, default="auto"
        "cpu", "cuda", "cuda:1" or "mps".  "auto" takes a GPU if there is one.
    memory_limit : float, str or "auto", default="auto"
        Memory that training may use: bytes, or a text such as "4GB".  "auto" takes what is free.
    n_jobs : int or None, default=None
        Number of worker threads on a CPU.  None uses as many threads as PyTorch, -1 all cores.
    callbacks : sequence of Callback, default=()
        Objects that receive the events of training, for example ``mercer.Checkpoint(path)``.
    random_state : int, RandomState or None, default=None
        Seed of the held-out part and of the order of the rows.
    verbose : int, default=0
        1 shows progress, 2 also prints the plan.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the features, if X had any.
    plan_ : Plan
        Every number that was chosen.
    history_ : History
        Loss, score, seconds and step size of each epoch.
    dual_coef_ : ndarray of shape (n_samples, n_outputs)
        alpha, in the order of the rows given to `fit`; zero for held-out rows.
    n_iter_ : int
        Number of epochs.
    best_epoch_ : float
        Epoch in which the weights of the model were reached; below 1 within the first epoch.
    best_loss_ : float or None
        Held-out loss of these weights, if rows were held out.
    converged_ : bool
        Whether training stopped before `max_iter` because a stopping criterion was met.
    stop_reason_ : str
        Why training stopped.
    kernel_, bandwidth_, ridge_
        Values that were given or chosen.
    selection_ : Selection or None
        Settings that were tried, with their leave-one-out errors.
    eigenvalues_ : ndarray
        Leading eigenvalues of the kernel operator K / n, as estimated.
    logit_scale_ : float
        Factor between decisions and logits in `predict_proba`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from mercer import KernelClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = KernelClassifier(random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.95)
    True
    """

    _targets: Labels
    logit_scale_: float

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
            tol=tol,
            interpolation_tol=interpolation_tol,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
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
        return self._fit(X, y, sample_weight, X_val, y_val, resume)

    def _read_targets(self, y: Array) -> tuple[Targets, Array]:
        return Labels.of(y)

    def _commit_targets(self, targets: Targets, y_val: Array | None, decision: Array | None) -> None:
        assert isinstance(targets, Labels)
        self._targets = targets
        self.classes_ = targets.classes
        self.logit_scale_ = DEFAULT_LOGIT_SCALE
        if decision is not None and y_val is not None:
            self.logit_scale_ = targets.fit_logit_scale(y_val, decision)

    def _row_weights(self, sample_weight: Any, y: Array) -> Array | None:
        weight = super()._row_weights(sample_weight, y)
        if self.class_weight is None:
            return weight
        by_class = compute_sample_weight(self.class_weight, y)
        return super()._row_weights(by_class if weight is None else weight * by_class, y)

    def decision_function(self, X: Any) -> Any:
        """f(x): (m,) for two classes, larger for ``classes_[1]``; else one column a class or label."""
        decision = self._decision(X)
        return like(decision[:, 0] if self._targets.is_binary else decision, X)

    def predict(self, X: Any) -> Any:
        """The class of each row, or for several labels a 0/1 indicator matrix."""
        return super().predict(X)

    def predict_proba(self, X: Any) -> Any:
        """Probabilities, (m, n_classes), whose largest is `predict`; for several labels one each."""
        decision = self._decision(X)
        return like(self._targets.probabilities(decision, self.logit_scale_), X)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy of `predict` on X."""
        return KernelEstimator.score(self, X, y, sample_weight)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags
