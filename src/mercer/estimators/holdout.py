"""Which rows train, in which order, and which are held out to stop training."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state

from mercer.data.rows import Array, Matrix, take
from mercer.engine import Data, Saved
from mercer.estimators.targets import Targets
from mercer.processes.group import Group

# Below this many rows, all are needed for training.
FEWEST_FOR_HOLDOUT = 500
# Below this many, training to the end costs little, and a ridge chosen by leave-one-out error says how
# closely to fit.
FEWEST_WITH_RIDGE = 20_000
# More held-out rows than this do not make early stopping any better.
MOST_HELD_OUT = 3_000


def holds_out(early_stopping: bool | Literal["auto"], n: int, ridge_is_chosen: bool) -> bool:
    """Whether a part of n rows is held out."""
    if early_stopping == "auto":
        return n >= (FEWEST_WITH_RIDGE if ridge_is_chosen else FEWEST_FOR_HOLDOUT)
    return bool(early_stopping) and n > 1


def arrange(
    rows: Array, y: Array, targets: Targets, fraction: float, hold_out: bool, random_state: Any
) -> tuple[Array, Array]:
    """Rows to train on, in training order, and those held out.

    `y` has a target for every row of the data.  The only row of a class always trains.
    """
    rng = check_random_state(random_state)
    held_out = np.zeros(0, dtype=int)
    if hold_out:
        rare = targets.rare_rows(y[rows])
        candidates = rows[~rare]
        size = min(MOST_HELD_OUT, max(1, round(fraction * len(rows))))
        if size < len(candidates):
            labels = _strata(targets.strata(y[candidates]), size)
            kept, held_out = train_test_split(
                candidates, test_size=size, random_state=rng, stratify=labels
            )
            rows = np.concatenate([rows[rare], kept])
    generator = torch.Generator().manual_seed(int(rng.randint(2**31 - 1)))
    # A random order, the subsample being its first s rows.
    return rows[torch.randperm(len(rows), generator=generator).numpy()], held_out


def arranged(
    model: Any,
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
        chosen = model.ridge == "auto"
        hold_out = X_val is None and holds_out(model.early_stopping, len(rows), chosen)
        fraction, seed = model.validation_fraction, model.random_state
        if group is not None:  # without a seed, that of rank 0
            seed = group.from_first(check_random_state(seed))
        rows, held_out = arrange(rows, y, targets, fraction, hold_out, seed)
    if len(held_out):
        X_val, y_val = take(X, held_out), y[held_out]
    Y_val = None if y_val is None else targets.encode(y_val)
    closes = _closes(model) if saved is None else saved.contents.plan.n_closing > 0
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
            closing_rows=held_out if closes and len(held_out) else None,
        ),
        held_out,
    )


def _closes(model: Any) -> bool:
    """Whether rows that Mercer chose to hold out may be trained on once they have said when to stop.

    Not if a later fit may start from the weights: to those, the rows would no longer be unknown.
    """
    return model.early_stopping == "auto" and (model._is_last_fit or not model.warm_start)


def _strata(labels: Array | None, size: int) -> Array | None:
    """The labels to stratify by, where both parts have room for one row of each."""
    if labels is None:
        return None
    n_classes = len(np.unique(labels))
    return labels if min(size, len(labels) - size) >= n_classes else None
