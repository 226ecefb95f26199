"""Mercer: kernel machines that adapt themselves to the hardware they run on."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mercer.callbacks import Callback, CSVLog, TensorBoardLog, TimeLimit
    from mercer.displays import BatchSizeDisplay, LearningCurveDisplay, SpectrumDisplay
    from mercer.estimators import KernelClassifier, KernelRegressor, load
    from mercer.kernels import (
        Cauchy,
        Custom,
        ExponentialPower,
        Gaussian,
        Laplacian,
        Matern32,
        Matern52,
        NeuralTangent,
    )
    from mercer.plan import Plan
    from mercer.resource import Resource
    from mercer.training import DivergenceError, History

__version__ = "0.1.0"

__all__ = [
    "BatchSizeDisplay",
    "CSVLog",
    "Callback",
    "Cauchy",
    "Custom",
    "DivergenceError",
    "ExponentialPower",
    "Gaussian",
    "History",
    "KernelClassifier",
    "KernelRegressor",
    "Laplacian",
    "LearningCurveDisplay",
    "Matern32",
    "Matern52",
    "NeuralTangent",
    "Plan",
    "Resource",
    "SpectrumDisplay",
    "TensorBoardLog",
    "TimeLimit",
    "load",
]

# Where the public names live.  They are imported when first asked for, since PyTorch takes seconds to
# load and `mercer --help` must not wait for it.
_HOMES = ("callbacks", "displays", "estimators", "kernels", "plan", "resource", "training")


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return import_module(f"mercer.{name}")
    if name in __all__:
        for home in map(import_module, (f"mercer.{module}" for module in _HOMES)):
            if hasattr(home, name):
                globals()[name] = getattr(home, name)
                return globals()[name]
    raise AttributeError(f"module 'mercer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
