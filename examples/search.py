"""Mercer in scikit-learn's pipelines and searches, with a score and groups of your own.

python examples/search.py
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PowerTransformer

from mercer import KernelClassifier


def main() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    groups = np.arange(len(X)) // 4  # rows of one group are never split

    pipeline = make_pipeline(
        PowerTransformer(),
        KernelClassifier("laplacian", bandwidth=30.0, early_stopping=False, max_iter=5, random_state=0),
    )
    grid = {"kernelclassifier__ridge": [0.01, 0.1]}
    search = GridSearchCV(pipeline, grid, scoring="roc_auc", cv=GroupKFold(3))
    search.fit(X, y, groups=groups)
    print(search.best_params_)
    print(f"area under the ROC curve: {search.best_score_:.3f}")


if __name__ == "__main__":
    main()
