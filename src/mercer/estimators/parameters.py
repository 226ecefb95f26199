"""Which values the parameters of an estimator may have."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from mercer.engine import parse_memory


def check_parameters(estimator: Any) -> None:
    """Refuse what no fit could use; the first that is wrong is told."""

    def require(name: str, holds: bool, must: str) -> None:
        if not holds:
            raise ValueError(f"`{name}` must be {must}. Got {getattr(estimator, name)!r} instead.")

    def auto_or(name: str, kind: type, minimum: float, strict: bool, must: str) -> None:
        value: Any = getattr(estimator, name)
        if isinstance(value, str):
            require(name, value == "auto", f'"auto" or {must}')
            return
        number = isinstance(value, kind) and not isinstance(value, bool)
        require(name, number and minimum <= value < math.inf and not (strict and value == minimum), must)

    for name in ("subsample_size", "preconditioner_rank", "batch_size"):
        auto_or(name, Integral, 1, False, "a whole number, at least 1")
    for name in ("bandwidth", "step_size"):
        auto_or(name, Real, 0, True, "a positive, finite number")
    auto_or("ridge", Real, 0, False, "a number, at least 0")
    if not isinstance(estimator.memory_limit, (str, Real)) or isinstance(estimator.memory_limit, bool):
        require("memory_limit", False, 'bytes, a text such as "4GB", or "auto"')
    memory = parse_memory(estimator.memory_limit)
    in_range = memory is None or 0 < memory < math.inf
    require("memory_limit", in_range, 'a positive number of bytes, a text such as "4GB", or "auto"')
    require("scale", estimator.scale in (True, False, "auto"), 'True, False or "auto"')
    if estimator.n_pca_components is not None:
        auto_or("n_pca_components", Integral, 1, False, "a whole number, at least 1, or None")
    jobs: Any = estimator.n_jobs
    whole = isinstance(jobs, Integral) and not isinstance(jobs, bool)
    require(
        "n_jobs",
        jobs is None or (whole and (jobs >= 1 or jobs == -1)),
        "a whole number, at least 1, -1 or None",
    )
    for name, minimum in (("max_iter", 1), ("n_iter_no_change", 1)):
        value: Any = getattr(estimator, name)
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        require(name, whole and value >= minimum, f"a whole number, at least {minimum}")
    for name in ("interpolation_tol", "tol"):
        number: Any = getattr(estimator, name)
        holds = isinstance(number, Real) and 0 <= float(number) < math.inf
        require(name, holds, "a number, at least 0")
    fraction: Any = estimator.validation_fraction
    require(
        "validation_fraction",
        isinstance(fraction, Real) and 0 < float(fraction) < 1,
        "between 0 and 1",
    )
    require("precision", estimator.precision in ("float32", "float64"), '"float32" or "float64"')
