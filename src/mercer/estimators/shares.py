"""From the shares of the ranks to one data set: checked, with all targets on every rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mercer.data.rows import Array, SharedRows
from mercer.estimators.row_share import RowShare, rows_of
from mercer.estimators.validation import as_numpy, more_rows, training_data
from mercer.planning.resource import find_device
from mercer.processes.group import Group
from mercer.processes.sameness import check_same


@dataclass(frozen=True)
class Kind:
    """What the shares of all ranks must have in common."""

    n_features: int
    dtype: Any
    names: tuple[str, ...] | None
    y_kind: str  # a letter, as in NumPy
    y_shape: tuple[int, ...]  # of one row
    weighted: bool

    def facts(self) -> dict[str, str]:
        return {
            "number of columns of X": str(self.n_features),
            "type of X": str(self.dtype).removeprefix("torch."),
            "names of columns of X": str(self.names),
            "type of y": f"{self.y_kind!r}, as NumPy calls it",
            "shape of a row of y": str(self.y_shape),
            "use of `sample_weight`": "weights" if self.weighted else "none",
        }


def has_shares(X: Any, group: Group | None) -> bool:
    """Whether each rank has rows of its own; all must have them, or all the same rows."""
    if group is None:
        return False
    given = isinstance(X, RowShare)
    check_same(group, {"kind of X": "a RowShare" if given else "one for all ranks"})
    return given and group.size > 1


def all_have_streams(group: Group | None) -> None:
    """Raise if this rank has a stream and another one has not: each reads all rows itself."""
    if group is not None:
        check_same(group, {"kind of X": "a stream"})


def shared_training_data(
    estimator: Any, X: Any, y: Any, sample_weight: Any, group: Group, *, y_numeric: bool
) -> tuple[SharedRows, Array, Array | None]:
    """The rows of all ranks, of which this one has some, and all targets and weights.

    Sets the estimator's `n_features_in_` and `feature_names_in_`.
    """
    rows, mine = rows_of(X), None
    y, weight = _of_rows("y", y, rows, group), None
    if sample_weight is not None:
        weight = _of_rows("sample_weight", sample_weight, rows, group)
    if len(rows):
        rows, y = training_data(estimator, rows, y, y_numeric=y_numeric)
        if estimator.columns_ is not None:
            raise ValueError(
                "A share of the rows must hold numbers without missing values. Input X contains NaN or "
                f"other values on rank {group.rank}: prepare them before, or give all ranks all rows."
            )
        if estimator._target_notations:
            raise ValueError(
                "The targets of a share of the rows must be numbers. Got text on rank "
                f"{group.rank}: convert it before, or give all ranks all rows."
            )
        names = getattr(estimator, "feature_names_in_", None)
        mine = Kind(
            rows.shape[1],
            rows.dtype,
            None if names is None else tuple(str(name) for name in names),
            y.dtype.kind,
            y.shape[1:],
            weight is not None,
        )
    kinds = [kind for kind in group.gathered(mine) if kind is not None]
    if not kinds:
        raise ValueError(f"The ranks must have rows. Got an empty share on all {group.size} of them.")
    kind = kinds[0]
    check_same(group, (mine or kind).facts())
    if mine is None:
        rows = _no_rows(kind, find_device(estimator.device))
        estimator.n_features_in_, estimator.columns_ = kind.n_features, None
        if kind.names is not None:
            estimator.feature_names_in_ = np.array(kind.names, dtype=object)
        elif hasattr(estimator, "feature_names_in_"):
            del estimator.feature_names_in_  # of an earlier fit
    weights = joined(np.zeros(0) if weight is None else weight, group) if kind.weighted else None
    return SharedRows(rows, group), joined(y, group), weights


def whole(X: Any, y: Any, group: Group | None) -> tuple[Any, Any]:
    """All rows of held-out data, which every rank needs, from the shares of the ranks."""
    if not isinstance(X, RowShare) or group is None or group.size == 1:
        return rows_of(X), y
    rows = np.asarray(as_numpy(X.X))
    return joined(rows, group), joined(_of_rows("y_val", y, rows, group), group)


def own_rows(estimator: Any, X: Any) -> Any:
    """The rows of this rank to be predicted, perhaps none."""
    rows = rows_of(X)
    return (
        more_rows(estimator, rows) if len(rows) else np.zeros((0, estimator.machine_.inputs.n_features))
    )


def joined(values: Array, group: Group | None) -> Array:
    """The values of all rows, from those of each rank's own."""
    found = [values] if group is None else group.gathered(values)
    return np.concatenate([part for part in found if len(part)] or found)


def _of_rows(name: str, values: Any, rows: Any, group: Group) -> Array:
    found = np.asarray(as_numpy(values))
    if found.shape[:1] != (len(rows),):
        count = f"{len(found):,}" if found.ndim else "one"
        raise ValueError(
            f"`{name}` must have a value for each row of this rank's share. Got {count} for "
            f"{len(rows):,} rows on rank {group.rank}."
        )
    return found


def _no_rows(kind: Kind, device: torch.device) -> Any:
    if isinstance(kind.dtype, torch.dtype):
        return torch.zeros(0, kind.n_features, dtype=kind.dtype, device=device)
    return np.zeros((0, kind.n_features), dtype=kind.dtype)
