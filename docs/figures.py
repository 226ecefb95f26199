"""Draw the figures of guide/plots.md into docs/img: python docs/figures.py"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.metrics import ConfusionMatrixDisplay

from mercer import (
    BatchSizeDisplay,
    FeatureImportancesDisplay,
    KernelClassifier,
    LearningCurveDisplay,
    SpectrumDisplay,
)

FOLDER = Path(__file__).parent / "img"
DOTS_PER_INCH = 120


def main() -> None:
    X, y = load_digits(return_X_y=True)
    model = KernelClassifier("gaussian", bandwidth=24.0, ridge=0.003, random_state=0)
    model.fit(X[:1200], y[:1200])
    frame, diagnosis = load_breast_cancer(return_X_y=True, as_frame=True)
    table_model = KernelClassifier(random_state=0).fit(frame, diagnosis)
    displays = {
        "learning_curve": LearningCurveDisplay.from_estimator(model),
        "spectrum": SpectrumDisplay.from_estimator(model),
        "batch_size": BatchSizeDisplay.from_estimator(model, batch_sizes=[1, 4, 16, 64, 256, 1024]),
        "feature_importances": FeatureImportancesDisplay.from_estimator(table_model),
        "confusion_matrix": ConfusionMatrixDisplay.from_estimator(model, X[1200:], y[1200:]),
    }
    FOLDER.mkdir(exist_ok=True)
    for name, display in displays.items():
        display.figure_.savefig(FOLDER / f"{name}.png", dpi=DOTS_PER_INCH)


if __name__ == "__main__":
    main()
