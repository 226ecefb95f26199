"""Mercer: kernel machines that adapt themselves to the hardware they run on."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mercer.displays import (
        BatchSizeDisplay,
        FeatureImportancesDisplay,
        LearningCurveDisplay,
        SpectrumDisplay,
    )
    from mercer.estimators import KernelClassifier, KernelRegressor, load
    from mercer.estimators.exporting import to_onnx, to_torch
    from mercer.estimators.row_share import RowShare
    from mercer.explorer import explore
    from mercer.kernels import (
        Cauchy,
        Custom,
        ExponentialPower,
        Gaussian,
        Kernel,
        L1Laplacian,
        Laplacian,
        Matern32,
        Matern52,
        NeuralTangent,
    )
    from mercer.operators.pool import release_memory
    from mercer.planning.calibration import measure_resource
    from mercer.planning.plan import Plan
    from mercer.planning.resource import Resource
    from mercer.processes.group import RankError
    from mercer.processes.joining import alone
    from mercer.selection.candidates import Selection
    from mercer.training.events.callbacks import (
        Callback,
        Checkpoint,
        CSVLog,
        Run,
        TensorBoardLog,
        TimeLimit,
    )
    from mercer.training.guard import DivergenceError
    from mercer.training.history import Epoch, History

__version__ = "0.1.0"

# Where each public name lives.  It is imported when first asked for: PyTorch takes seconds to load, and
# `mercer --help` must not wait for it.
_HOMES = {
    "BatchSizeDisplay": "displays",
    "CSVLog": "training.events.callbacks",
    "Callback": "training.events.callbacks",
    "Cauchy": "kernels",
    "Checkpoint": "training.events.callbacks",
    "Custom": "kernels",
    "DivergenceError": "training.guard",
    "Epoch": "training.history",
    "ExponentialPower": "kernels",
    "FeatureImportancesDisplay": "displays",
    "Gaussian": "kernels",
    "History": "training.history",
    "Kernel": "kernels",
    "KernelClassifier": "estimators",
    "KernelRegressor": "estimators",
    "L1Laplacian": "kernels",
    "Laplacian": "kernels",
    "LearningCurveDisplay": "displays",
    "Matern32": "kernels",
    "Matern52": "kernels",
    "NeuralTangent": "kernels",
    "Plan": "planning.plan",
    "RankError": "processes.group",
    "Resource": "planning.resource",
    "RowShare": "estimators.row_share",
    "Run": "training.events.callbacks",
    "Selection": "selection.candidates",
    "SpectrumDisplay": "displays",
    "TensorBoardLog": "training.events.callbacks",
    "TimeLimit": "training.events.callbacks",
    "alone": "processes.joining",
    "explore": "explorer",
    "load": "estimators",
    "measure_resource": "planning.calibration",
    "release_memory": "operators.pool",
    "to_onnx": "estimators.exporting",
    "to_torch": "estimators.exporting",
}

__all__ = [
    "BatchSizeDisplay",
    "CSVLog",
    "Callback",
    "Cauchy",
    "Checkpoint",
    "Custom",
    "DivergenceError",
    "Epoch",
    "ExponentialPower",
    "FeatureImportancesDisplay",
    "Gaussian",
    "History",
    "Kernel",
    "KernelClassifier",
    "KernelRegressor",
    "L1Laplacian",
    "Laplacian",
    "LearningCurveDisplay",
    "Matern32",
    "Matern52",
    "NeuralTangent",
    "Plan",
    "RankError",
    "Resource",
    "RowShare",
    "Run",
    "Selection",
    "SpectrumDisplay",
    "TensorBoardLog",
    "TimeLimit",
    "alone",
    "explore",
    "load",
    "measure_resource",
    "release_memory",
    "to_onnx",
    "to_torch",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        globals()[name] = getattr(import_module(f"mercer.{_HOMES[name]}"), name)
        return globals()[name]
    raise AttributeError(f"module 'mercer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
