"""KernelClassifier."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils import compute_sample_weight
from typing_extensions import Self

from mercer.data.rows import Array
from mercer.estimators.base import KernelEstimator
from mercer.estimators.conformal import check_share, mass_above
from mercer.estimators.passes import partial_fit
from mercer.estimators.targets import DEFAULT_LOGIT_SCALE, Labels, Targets, Unseen
from mercer.estimators.validation import like
from mercer.kernels import KernelLike
from mercer.training.events.callbacks import Callback


class KernelClassifier(ClassifierMixin, KernelEstimator):  # type: ignore[misc]
    """Kernel classifier trained by EigenPro 2.0, with batch size and step adapted to the device.

    Classes are encoded as columns of targets and fitted by least squares.  Training moves towards the
    kernel interpolant, or with a ridge to the solution of its equations, and may stop early on a
    held-out part.

    Parameters
    ----------
    kernel : str, Kernel or callable, default="auto"
        "auto" chooses between the Laplacian, the Gaussian and the L1 Laplacian by leave-one-out error on
        a subsample.  Otherwise a name ("gaussian" or "rbf", "laplacian", "l1_laplacian", "cauchy",
        "matern32", "matern52", "exponential_power", "neural_tangent"), a kernel with its own parameters
        such as ``mercer.Gaussian(5.0)``, or a function of two tensors, (m, d) and (t, d) to (m, t).
    bandwidth : float or "auto", default="auto"
        Length scale of a named kernel, in the units of the data.  "auto" takes the value with the lowest
        leave-one-out error.
    ridge : float or "auto", default="auto"
        r in (K + r I) alpha = y, the noise level of a target.  0 interpolates, as in the paper.  "auto"
        takes the value with the lowest leave-one-out error.
    scale : bool, "rank" or "auto", default="auto"
        How to scale the features.  True standardises them, "rank" maps the ranks of their values to a
        normal distribution, False leaves them as they are.  "auto" takes what has the lowest
        leave-one-out error; it leaves 8-bit data as it is, and all data if `bandwidth` is given or the
        kernel is not a name.  Ranks are tried for at most 256 features.
    categorical_features : list of int, str or bool, "auto" or None, default="auto"
        Features that are categories: the numbers of their columns, their names, or True and False for
        all columns.  A category with at most 1,000 values is one-hot encoded, with one weight in the
        metric; a value that was not in the training data is as far from all others as they are from one
        another.  "auto" tries whole numbers with at most 64 different values as categories.  None takes
        all features as numbers.  Text and categories of a frame need not be declared.
    metric : False or "auto", default="auto"
        Whether to learn how much each feature counts, by gradient descent on the leave-one-out error.
        "auto" takes a metric that is clearly better than none on points that it was not learned on.
        None is learned on fewer than 200 points, for 8-bit data, with `scale=False`, if `bandwidth` or
        `n_pca_components` is given, or if the kernel is not a name.
    n_pca_components : int, "auto" or None, default=None
        Number of principal components to project the features on.  "auto" keeps all that have variance;
        None does not project.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, multiplied with `sample_weight`.
    n_centers : int, "auto" or None, default="auto"
        Number of centres of the model.  None makes every row a centre, which takes time proportional to
        the square of the rows.  With fewer, they are a random sample of the rows, and all rows are
        trained on in time proportional to rows × centres.  "auto" takes every row if that is predicted
        to take at most two minutes, and otherwise as many centres as do.
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
        for 20,000 rows or more, and if `ridge` is given for 500 or more: a ridge chosen by leave-one-out
        error says how closely to fit.  Rows that "auto" holds out are trained on in the end where there
        is a ridge and it costs little.
    validation_fraction : float, default=0.1
        Share of the rows to hold out, at most 3,000 rows.
    n_iter_no_change : int, default=3
        Epochs without an improvement after which training stops.
    warm_start : bool, default=False
        Whether `fit` starts from the weights of the previous fit.  X must then begin with the rows of
        that fit.
    precision : {"float32", "float64"}, default="float32"
        Floating point type of the computation; small fits are solved in float64.
    device : str, default="auto"
        "cpu", "cuda", "cuda:1" or "mps".  "auto" takes a GPU if there is one; under `torchrun`, the
        one with the number in LOCAL_RANK.
    memory_limit : float, str or "auto", default="auto"
        Memory that training may use: bytes, or a text such as "4GB".  "auto" takes half of
        what is free, on a GPU nearly all.
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
    columns_ : Columns or None
        How the columns of X become features, if X was a frame with other columns than numbers, or had
        missing values.
    plan_ : Plan
        Every number that was chosen.
    history_ : History
        Loss, score, seconds and step size of each epoch; those with `closing` trained on all rows, once
        the held-out rows had said when to stop.
    dual_coef_ : ndarray of shape (n_samples, n_outputs)
        alpha, in the order of the rows given to `fit`; zero for rows that stayed held out.
    n_iter_ : int
        Number of epochs.
    best_epoch_ : float
        Epoch in which the weights of the model were reached; below 1 within the first epoch.  With
        closing epochs, those that they went on from.
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
    left_out_score_ : float or None
        Accuracy, or R² of a regressor, of the leave-one-out predictions with the chosen setting on the
        rows of the search, at most 2,000.  None if nothing was searched.  A metric was learned on the
        same rows, so with one the score is a little too good: the error by up to 5 % in trials.
    feature_importances_ : ndarray of shape (n_features_in_,)
        Shares of the columns, which sum to 1: in the learned metric or, where none was better than
        none, in the mean squared change of the decisions if the values of a column are shuffled.  There
        is no such attribute if shuffling so many columns would take long beside training.
    eigenvalues_ : ndarray
        Leading eigenvalues of the kernel operator K / n, as estimated.
    logit_scale_ : float
        Factor between decisions and logits in `predict_proba`, fitted on held-out rows or else on the
        leave-one-out predictions.

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
        scale: bool | Literal["rank", "auto"] = "auto",
        categorical_features: Sequence[Any] | Literal["auto"] | None = "auto",
        metric: Literal[False, "auto"] = "auto",
        n_pca_components: int | Literal["auto"] | None = None,
        class_weight: Mapping[Any, float] | Literal["balanced"] | None = None,
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
        super().__init__(
            kernel,
            bandwidth=bandwidth,
            ridge=ridge,
            scale=scale,
            categorical_features=categorical_features,
            metric=metric,
            n_pca_components=n_pca_components,
            n_centers=n_centers,
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
        y: Any = None,
        sample_weight: Any = None,
        *,
        X_val: Any = None,
        y_val: Any = None,
        resume: str | os.PathLike[str] | None = None,
        centers: Any = None,
    ) -> Self:
        """Train on X, (n, d), and labels y, (n,), or an (n, l) indicator of several labels.

        X is an array, a tensor or a sparse matrix, or a frame of pandas, Polars or Arrow, whose columns
        may hold text, categories, booleans, dates and times.  Values may be missing.

        `X_val` and `y_val` replace the part that would be held out.  `resume` is a checkpoint of an
        interrupted fit on the same data.  `centers`, (p, d), are used as centres instead of rows of X.

        Without y, X is a stream of chunks (X, y) or (X, y, sample_weight): a list of them, an object
        whose iteration starts again, or a function that returns an iterator.  It is read once before
        training and once in each epoch, and only a sample of its rows is ever in memory.  Every pass
        must have the same rows.  Chunks may be frames, whose columns are found by name, and have missing
        values; it is then read once more.
        """
        return self._fit(X, y, sample_weight, X_val, y_val, resume, centers)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train further on more rows, in one pass over them.

        The first call fits a model to its rows, with `n_centers` of them as centres ("auto": at most
        4,000), and chooses kernel, ridge and the scale of features and targets.  Every further call
        keeps all of that and takes one pass of descent over its rows.  After a stream of rows in random
        order, the model is near the one that `fit` would find with the same centres, but not the
        solution of its equations; where the rows change with time, it follows them.  A call that fails
        leaves the model as it was.

        `classes` must name all of them in the first call, unless its rows have them all.
        """

        def first(model: Self) -> None:
            model._all_classes = None if classes is None else np.unique(classes)

        partial_fit(self, X, y, sample_weight, first)
        return self

    def _read_targets(self, y: Array) -> tuple[Targets, Array]:
        return Labels.of(y, self.__dict__.pop("_all_classes", None))

    def _commit_targets(self, targets: Targets, unseen: Unseen | None) -> None:
        assert isinstance(targets, Labels)
        self._targets = targets
        self.classes_ = targets.classes
        self.logit_scale_ = DEFAULT_LOGIT_SCALE
        if unseen is not None:
            self.logit_scale_ = targets.fit_logit_scale(unseen)

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

    def predict_set(self, X: Any, coverage: float = 0.9, *, per_class: bool = False) -> Any:
        """Which classes are in the prediction set of each row, (m, n_classes), as booleans.

        Of new rows like those of the training data, at least this share has its class in the set.  A set
        holds the most probable class and more where the probabilities are close.  With `per_class`, the
        coverage holds for the rows of each class instead of all rows together; a class with too few rows
        to tell is then in every set.  The guarantee holds for rows given to `calibrate`, as for
        `KernelRegressor.predict_interval`; with held-out rows and leave-one-out predictions the coverage
        is approximate.

        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> model = KernelClassifier(random_state=0).fit(X, y)
        >>> sets = model.predict_set(X, coverage=0.95)
        >>> bool(sets[range(150), y].mean() >= 0.95)
        True
        """
        coverage = check_share(coverage, "coverage")
        most = self._calibrated().largest_mass(coverage, len(self.classes_), per_class)
        return like(self._sets(self._decision(X), most), X)

    def _sets(self, decision: Array, most: Array) -> Array:
        probabilities = self._targets.probabilities(decision, self.logit_scale_)
        return np.asarray(mass_above(probabilities) <= most)  # (m, n_classes)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy of `predict` on X."""
        return KernelEstimator.score(self, X, y, sample_weight)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags
