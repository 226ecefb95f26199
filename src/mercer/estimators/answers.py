"""How sure a model is of a row: whether the row is like the training data, and on what rows it knows.

Intervals and sets are methods of the regressor and the classifier.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from sklearn.utils.validation import check_consistent_length, check_is_fitted
from typing_extensions import Self

from mercer.data.rows import Array, Matrix, take
from mercer.engine import Data, Fitted
from mercer.estimators.calibration import GIVEN, HELD_OUT, LEFT_OUT, Calibration, calibrate, far_shares
from mercer.estimators.conformal import check_share, fewest_rows
from mercer.estimators.explanation import Explanation, explain
from mercer.estimators.ranks import cores_for
from mercer.estimators.row_share import rows_of
from mercer.estimators.targets import DEFAULT_LOGIT_SCALE, Labels, Targets, Unseen
from mercer.estimators.validation import like, more_rows, more_targets
from mercer.model.machine import KernelMachine
from mercer.operators.workers import threads
from mercer.processes.joining import ranks


class Answers:
    """Methods on how far predictions can be trusted, for a fitted estimator."""

    machine_: KernelMachine
    n_jobs: int | None
    _targets: Targets
    _calibration: Calibration | None
    _training_rows: Array

    def calibrate(self, X: Any, y: Any) -> Self:
        """Take the coverage of intervals and sets from these rows, which must not have been trained on.

        It also fits `logit_scale_` and what `is_far` compares with.  Call it with fresh rows where the
        coverage has to be guaranteed: rows that stopped training or chose the kernel have seen the
        model, if only a little.
        """
        check_is_fitted(self, "machine_")
        y = more_targets(self, y)
        check_consistent_length(X, y)
        targets = self._targets
        if isinstance(targets, Labels) and not targets.multilabel:
            unknown = np.setdiff1d(y, targets.classes)
            if len(unknown):
                raise ValueError(
                    f"`y` must hold only classes that the model knows. Got {unknown[0]!r}: leave its "
                    "rows out."
                )
        unseen = Unseen(y, self._decision(X))  # type: ignore[attr-defined]
        self._commit_targets(targets, unseen)  # type: ignore[attr-defined]
        with self._prepared(X) as (machine, x):
            self._calibration = calibrate(machine, targets, self._logit_scale, GIVEN, unseen, x)
        return self

    def is_far(self, X: Any, false_alarm_rate: float = 0.01) -> Any:
        """Which rows are far from everything that the model was trained on, (m,), as booleans.

        A row is far if at most this share of rows like those of the training data is as far from its
        nearest training row, in the distance that the kernel defines.  Of numbers that the model sees by
        rank, one that lies outside the training range by the length of that range is far too.  The
        prediction for a far row is an extrapolation, and for many kernels close to the mean.
        """
        rate = check_share(false_alarm_rate, "false_alarm_rate")
        calibration = self._calibrated()
        if calibration.least_far_share > rate:
            raise ValueError(
                f"`false_alarm_rate`={rate:g} needs {1 / rate - 1:,.0f} rows that were not trained on. "
                f"Got {calibration.near_weights.sum():,.0f}: ask for a higher rate, or give more rows "
                "to `calibrate`."
            )
        return like(self._far_shares(X, rate) <= rate, X)

    def explain(self, X: Any, n_rows: int = 5) -> Explanation:
        """The training rows that weigh most in the prediction of each row, and the nearest ones.

        A prediction is the mean of the targets plus a contribution of each training row: its weight
        times its kernel value.  `n_rows` are listed for each row of X, with their shares of all
        contributions.  For several classes or outputs, it is the decision of the class predicted, or
        the first output.

        >>> import numpy as np
        >>> from mercer import KernelRegressor
        >>> X = np.linspace(0, 6, 50)[:, None]
        >>> model = KernelRegressor(random_state=0).fit(X, np.sin(X[:, 0]))
        >>> model.explain(X[10:11], n_rows=3).nearest[0, 0]
        np.int64(10)
        """
        check_is_fitted(self, "machine_")
        if isinstance(n_rows, bool) or not isinstance(n_rows, (int, np.integer)) or n_rows < 1:
            raise ValueError(f"`n_rows` must be a whole number of at least 1. Got {n_rows!r}.")
        decision = self._decision(X)  # type: ignore[attr-defined]
        several = isinstance(self._targets, Labels) and not self._targets.multilabel
        outputs = decision.argmax(1) if several else np.zeros(len(decision), dtype=np.int64)
        with self._prepared(X) as (machine, x):
            return explain(machine, x, outputs, self._training_rows, n_rows)

    @property
    def is_calibrated(self) -> bool:
        """Whether intervals, sets and far rows can be asked for."""
        return self._calibration is not None

    def can_cover(self, coverage: float) -> bool:
        """Whether there are enough rows for intervals or sets of this coverage."""
        sides = 1 if isinstance(self._targets, Labels) else 2
        found = self._calibration
        return found is not None and found.weights.sum() >= fewest_rows(coverage, sides)

    @property
    def least_far_share(self) -> float:
        """The lowest false-alarm rate that `is_far` can keep; 1 if it cannot tell at all."""
        return 1.0 if self._calibration is None else self._calibration.least_far_share

    def _far_shares(self, X: Any, rate: float) -> Array:
        """The share of ordinary rows that are as far out as each row, (m,), exact up to the rate."""
        with self._prepared(X) as (machine, x):
            return far_shares(machine, self._calibrated(), x, rate)

    @contextmanager
    def _prepared(self, X: Any) -> Iterator[tuple[KernelMachine, Matrix]]:
        """The machine and validated rows, within the threads and ranks of a call."""
        with ranks(self.machine_.device) as group, threads(self.n_jobs, cores_for(group)):
            yield self.machine_.among(group), more_rows(self, rows_of(X))

    @property
    def _logit_scale(self) -> float:
        return getattr(self, "logit_scale_", DEFAULT_LOGIT_SCALE)

    def _calibrated(self) -> Calibration:
        check_is_fitted(self, "machine_")
        found = self._calibration
        if found is None and isinstance(self._targets, Labels) and self._targets.multilabel:
            raise ValueError(
                "Sets and far rows need a classifier of one label for each row. Got one of several "
                "labels: fit one classifier for each of them."
            )
        if found is None:
            raise ValueError(
                "There are no rows to take the coverage from: none were held out, and nothing was "
                'searched. Leave `ridge` or `bandwidth` at "auto", use `early_stopping=True`, or give '
                "rows that were not trained on to `calibrate(X, y)`."
            )
        return found


def fitted_calibration(
    fitted: Fitted, data: Data, targets: Targets, logit_scale: float, unseen: Unseen | None
) -> Calibration | None:
    """The calibration that a fit leaves behind; in a group, all ranks ask for it at once."""
    if unseen is None:
        return None
    problem, machine = fitted.problem, fitted.machine
    if fitted.outcome.validation_predictions is not None and data.X_val is not None:
        # Closing epochs made them centres, but their predictions are from before.
        n, n_closing = problem.plan.n, problem.plan.n_closing
        own = np.arange(n, n + n_closing) if n_closing and problem.plan.n_centers is None else None
        return calibrate(machine, targets, logit_scale, HELD_OUT, unseen, data.X_val, own)
    assert problem.left_out is not None
    rows = problem.left_out.rows
    place = np.full(len(data.X), -1)
    place[data.rows] = np.arange(len(data.rows))
    return calibrate(machine, targets, logit_scale, LEFT_OUT, unseen, take(data.X, rows), place[rows])
