"""KernelRegressor."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin
from typing_extensions import Self

from mercer.data.rows import Array
from mercer.estimators.base import KernelEstimator
from mercer.estimators.calibration import error_sizes
from mercer.estimators.conformal import check_share
from mercer.estimators.passes import partial_fit
from mercer.estimators.targets import Numbers, Targets
from mercer.estimators.validation import like


class KernelRegressor(RegressorMixin, MultiOutputMixin, KernelEstimator):  # type: ignore[misc]
    """Kernel regressor trained by EigenPro 2.0, with batch size and step adapted to the device.

    Parameters and attributes are those of `KernelClassifier`, except those that concern classes.
    Targets may have several columns.  Losses are then means of each column's squared error as a share of
    its variance, so that the unit of a column does not matter.

    Examples
    --------
    >>> import numpy as np
    >>> from mercer import KernelRegressor
    >>> X = np.linspace(0, 6, 200)[:, None]
    >>> model = KernelRegressor("gaussian", bandwidth=0.5, random_state=0).fit(X, np.sin(X[:, 0]))
    >>> bool(abs(model.predict([[1.0]])[0] - np.sin(1.0)) < 0.01)
    True
    """

    _targets: Numbers
    _y_numeric = True

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
        """Train on X, (n, d), and targets y, (n,) or (n, l).

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

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train further on more rows, in one pass over them.

        The first call fits a model to its rows, with `n_centers` of them as centres ("auto": at most
        4,000), and chooses kernel, ridge and the scale of features and targets.  Every further call
        keeps all of that and takes one pass of descent over its rows.  After a stream of rows in random
        order, the model is near the one that `fit` would find with the same centres, but not the
        solution of its equations; where the rows change with time, it follows them.  A call that fails
        leaves the model as it was.
        """
        partial_fit(self, X, y, sample_weight)
        return self

    def _read_targets(self, y: Array) -> tuple[Targets, Array]:
        return Numbers(single=y.ndim == 1), y

    def predict(self, X: Any) -> Any:
        """f(x), (m,) or (m, l) as the targets were."""
        return super().predict(X)

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Any:
        """The ends of an interval for the target of each row, (m, 2), or (m, l, 2) for l targets.

        Of new rows like those of the training data, at least this share has its target in the interval
        (each target in its own, if there are several).  The share is one of all rows together and not of
        each kind of them; where the size of errors can be predicted, intervals are wider for difficult
        rows.  The guarantee holds for rows given to `calibrate`.  Rows held out for early stopping also
        decided when to stop, and leave-one-out predictions come from the search: with these, the
        coverage is approximate.

        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(500, 2))
        >>> y = X[:, 0] + 0.1 * rng.normal(size=500)
        >>> model = KernelRegressor(random_state=0).fit(X[:300], y[:300])
        >>> low, high = model.predict_interval(X[300:], coverage=0.9).T
        >>> bool(np.mean((low <= y[300:]) & (y[300:] <= high)) > 0.8)
        True
        """
        coverage = check_share(coverage, "coverage")
        lower, upper = self._calibrated().intervals(coverage)  # (l,) each
        return like(self._intervals(self._decision(X), X, lower, upper), X)

    def _intervals(self, decision: Array, X: Any, lower: Array, upper: Array) -> Array:
        with self._prepared(X) as (machine, x):
            sizes = error_sizes(machine, self._calibrated(), x)  # (m, l)
        ends = np.stack([decision + lower * sizes, decision + upper * sizes], axis=-1)  # (m, l, 2)
        return np.asarray(ends[:, 0] if self._targets.single else ends)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R² of `predict` on X."""
        return KernelEstimator.score(self, X, y, sample_weight)
