"""Which values each parameter of an estimator may have: one row a parameter."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import numpy as np

from mercer.planning.memory import parse_memory

Rule = Callable[[Any], bool]


def whole(minimum: int) -> Rule:
    """A whole number of at least `minimum`."""
    return lambda value: _is(value, Integral) and value >= minimum


def number(minimum: float = 0.0, *, above: bool = False) -> Rule:
    """A finite number of at least `minimum`, or above it."""
    return lambda value: (
        _is(value, Real) and minimum <= value < math.inf and not (above and value == minimum)
    )


def one_of(*values: Any) -> Rule:
    return lambda value: np.ndim(value) == 0 and value in values


def either(*rules: Rule) -> Rule:
    return lambda value: any(rule(value) for rule in rules)


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _size(value: Any) -> bool:
    if not (isinstance(value, str) or _is(value, Real)):
        return False
    memory = parse_memory(value)
    return memory is None or 0 < memory < math.inf


# Parameters that decide what is computed: a checkpoint is resumed with the same values only.  Class
# weights are part of the weights of rows, which are compared as well.
DECISIVE = (
    "kernel",
    "bandwidth",
    "ridge",
    "scale",
    "categorical_features",
    "metric",
    "n_pca_components",
    "n_centers",
    "subsample_size",
    "preconditioner_rank",
    "batch_size",
    "step_size",
    "early_stopping",
    "validation_fraction",
    "precision",
)
# Parameters that decide when training ends: a checkpoint may be resumed with others.
WHEN_TO_STOP = ("max_iter", "tol", "interpolation_tol", "n_iter_no_change")
# Parameters that a model file keeps.  No other is read from one: a file must not choose a path, a
# device, memory or threads, nor what is run or printed.
STORED = (
    *DECISIVE,
    "class_weight",
    *WHEN_TO_STOP,
    "warm_start",
    "random_state",
)


def columns(value: Any) -> bool:
    """A list of column numbers, of their names, or of True and False."""
    if isinstance(value, str) or np.ndim(value) != 1:
        return False
    return all(isinstance(item, (str, Integral, np.bool_)) for item in value)


AUTO = one_of("auto")
RULES: dict[str, tuple[Rule, str]] = {
    "bandwidth": (either(AUTO, number(above=True)), 'a positive, finite number, or "auto"'),
    "ridge": (either(AUTO, number()), 'a finite number, at least 0, or "auto"'),
    "scale": (one_of(True, False, "rank", "auto"), 'True, False, "rank" or "auto"'),
    "categorical_features": (
        either(one_of(None, "auto"), columns),
        'a list of column numbers or names, a list of True and False for all columns, "auto" or None',
    ),
    "metric": (one_of(False, "auto"), 'False or "auto"'),
    "n_pca_components": (
        either(one_of(None, "auto"), whole(1)),
        'a whole number, at least 1, "auto" or None',
    ),
    "n_centers": (
        either(one_of(None, "auto"), whole(1)),
        'a whole number, at least 1, "auto", or None for all rows',
    ),
    "subsample_size": (either(AUTO, whole(1)), 'a whole number, at least 1, or "auto"'),
    "preconditioner_rank": (either(AUTO, whole(1)), 'a whole number, at least 1, or "auto"'),
    "batch_size": (either(AUTO, whole(1)), 'a whole number, at least 1, or "auto"'),
    "step_size": (either(AUTO, number(above=True)), 'a positive, finite number, or "auto"'),
    "max_iter": (whole(1), "a whole number of epochs, at least 1"),
    "tol": (number(), "a finite number, at least 0"),
    "interpolation_tol": (number(), "a finite number, at least 0"),
    "early_stopping": (one_of(True, False, "auto"), 'True, False or "auto"'),
    "validation_fraction": (
        lambda value: _is(value, Real) and 0 < value < 1,
        "a number between 0 and 1",
    ),
    "n_iter_no_change": (whole(1), "a whole number of epochs, at least 1"),
    "precision": (one_of("float32", "float64"), '"float32" or "float64"'),
    "memory_limit": (_size, 'a positive number of bytes, a text such as "4GB", or "auto"'),
    "n_jobs": (either(one_of(None, -1), whole(1)), "a whole number of threads, at least 1, -1 or None"),
}


def check_parameters(estimator: Any) -> None:
    """Raise for the first invalid parameter."""
    for name, (allowed, must_be) in RULES.items():
        value = getattr(estimator, name)
        if not allowed(value):
            raise ValueError(f"`{name}` must be {must_be}. Got {value!r} instead.")
