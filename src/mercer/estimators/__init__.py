"""The scikit-learn face of the method."""

from mercer.estimators.classifier import KernelClassifier
from mercer.estimators.loading import load
from mercer.estimators.regressor import KernelRegressor

__all__ = ["KernelClassifier", "KernelRegressor", "load"]
