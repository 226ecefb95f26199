"""Memory that runs out at every allocation of a fit, one at a time.

A fit is run once to count the tensors it allocates, then again with one of the allocations failing, as
PyTorch fails when there is no memory.  The fit must end in that error and leave the model as it was, and
the next one must give the same weights, bit for bit, as if nothing had happened.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.torture.record import Count, Size
from mercer import KernelRegressor

# Allocations of a full run that are made to fail, in each of the fits.
CASES = 300
NEW_MEMORY = ("empty", "zeros", "ones", "full", "new_", "clone", "_to_copy", "cat", "arange", "randperm")
FITS: dict[str, dict[str, Any]] = {
    "values kept": {"kernel": "laplacian", "ridge": 0.01, "max_iter": 3},
    "nothing kept, float64": {"kernel": "gaussian", "max_iter": 1, "precision": "float64"},
    "everything chosen": {"max_iter": 2},
}


class OutOfMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that allocate, and makes one of them fail."""

    def __init__(self, at: int = -1) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.at = at
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(text in function.__name__ for text in NEW_MEMORY):
            self.count += 1
            if self.count - 1 == self.at:
                raise torch.OutOfMemoryError("DefaultCPUAllocator: can't allocate memory")
        return function(*args, **(kwargs or {}))


@contextmanager
def quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def broken(model: KernelRegressor, X: Any, y: Any, expected: Any, at: int) -> str | None:
    """What is wrong after the allocation of this number failed, if anything is."""
    before = copy.copy(vars(model))
    try:
        with quietly(), OutOfMemory(at):
            model.fit(X, y)
    except torch.OutOfMemoryError:
        if vars(model) != before:
            return "the model has changed"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    else:
        return "no error"
    with quietly():
        again = KernelRegressor(**model.get_params()).fit(X, y)
    return None if np.array_equal(again.dual_coef_, expected) else "the next fit has other weights"


def run(size: Size) -> list[Count]:
    rng = np.random.default_rng(size.seed)
    X = rng.normal(size=(700, 3))
    y = np.sin(X[:, 0]) + X[:, 1]
    counts = []
    for name, parameters in FITS.items():
        model = KernelRegressor(**parameters, n_jobs=1, random_state=0)
        with quietly():
            expected = model.fit(X, y).dual_coef_  # measures the device, if that was not done before
            with OutOfMemory() as counted:
                model.fit(X, y)
        wanted = min(counted.count, max(1, round(CASES * size.scale)))
        failures = []
        for at in sorted(rng.choice(counted.count, wanted, replace=False).tolist()):
            how = broken(model, X, y, expected, at)
            if how is not None:
                failures.append(f"allocation {at} of {counted.count}: {how}")
        what = f"a fit ({name}) that runs out of memory leaves the model whole"
        counts.append(Count(what, wanted, tuple(failures), f"{counted.count} allocations in a fit"))
    return counts
