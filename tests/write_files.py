"""Write the files of this release that later ones must read: python tests/write_files.py

Run once for each release, and commit tests/files/<version>; never again for the same version.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

import mercer
from mercer import Checkpoint, KernelClassifier, KernelRegressor


def main() -> None:
    folder = Path(__file__).parent / "files" / mercer.__version__
    folder.mkdir(parents=True)
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 4)) * [1, 10, 0.1, 0]
    y = np.sin(X[:, 0]) + X[:, 1] / 10
    labels = np.array(["low", "middle", "high"])[np.digitize(y, [-0.5, 0.5])]
    classifier = KernelClassifier(random_state=0, early_stopping=True).fit(X, labels)
    classifier.save(folder / "classifier.mercer", {"made for": "the tests"})
    regressor = KernelRegressor(random_state=0).fit(X, y)
    regressor.save(folder / "regressor.mercer")
    path = folder / "regressor.checkpoint"
    settings = {"random_state": 0, "early_stopping": True, "interpolation_tol": 0.0, "tol": 0.0}
    KernelRegressor(**settings, max_iter=3, callbacks=[Checkpoint(path, minutes=0)]).fit(X, y)
    resumed = KernelRegressor(**settings, max_iter=6).fit(X, y, resume=path)
    np.savez(
        folder / "expected.npz",
        X=X,
        y=y,
        classifier=classifier.predict_proba(X),
        regressor=regressor.predict(X),
        resumed=resumed.predict(X),
    )


if __name__ == "__main__":
    main()
