"""Mercer: kernel machines that adapt themselves to the hardware they run on."""

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
