"""The scikit-learn face of the method."""

from mercer.estimators.base import KernelClassifier, KernelRegressor, load

__all__ = ["KernelClassifier", "KernelRegressor", "load"]
