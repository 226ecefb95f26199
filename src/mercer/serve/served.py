"""A model that is served: read from its file once, with all that an answer needs beside it."""

from __future__ import annotations

import copy
import hashlib
import os
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from mercer.estimators import KernelClassifier, KernelRegressor, load
from mercer.estimators.preparation import column_names, of_features
from mercer.files.container import check_is_file
from mercer.tables.columns import Columns
from mercer.tables.plain_columns import PlainColumns

Model: TypeAlias = KernelClassifier | KernelRegressor
# Bytes of a file that are copied at a time.
TWIN_BYTES = 1 << 20
# Characters of the checksum that names a version.
VERSION_CHARACTERS = 12
# Steps in which the largest coverage is found.
COVERAGE_STEPS = 1_000


@dataclass(frozen=True, eq=False)
class Served:
    """One version of one model.  Requests that have begun with it end with it."""

    name: str
    path: str
    version: str  # the first digits of the SHA-256 checksum of its file
    model: Model  # takes features
    columns: Columns | PlainColumns
    named: bool  # whether the model knows the names of its columns
    importances: dict[str, float] | None
    largest_coverage: float | None  # of intervals and sets; None if the model has none
    loaded: float = field(default_factory=time.time)

    @property
    def is_classifier(self) -> bool:
        return isinstance(self.model, KernelClassifier)

    @property
    def single(self) -> bool:
        """Whether there is one prediction for each row."""
        targets = self.model._targets
        return not getattr(targets, "multilabel", False) and getattr(targets, "single", True)


def read(name: str, path: str, n_jobs: int | None) -> Served:
    """The model in a file.

    It is read from a copy, so that it is the version whose checksum it has, and so that centres that
    stay on disk are not changed by someone who writes over the file.
    """
    check_is_file(path, "model")
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory(prefix="mercer-") as folder:
        twin = os.path.join(folder, "model.mercer")
        with open(path, "rb") as source, open(twin, "wb") as target:
            while block := source.read(TWIN_BYTES):
                digest.update(block)
                target.write(block)
        try:
            loaded = load(twin)
        except ValueError as error:
            raise ValueError(str(error).replace(repr(twin), repr(path))) from error
    model: Model = copy.copy(of_features(loaded))
    model.n_jobs = n_jobs
    if hasattr(model, "feature_names_in_"):  # rows are found by name before, and come without names
        del model.feature_names_in_
    with suppress(ValueError):  # what is computed once for all rows is computed now
        model.predict(np.zeros((1, loaded.machine_.inputs.n_features)))
    names = tuple(column_names(loaded))
    shares = getattr(loaded, "feature_importances_", None)
    return Served(
        name,
        path,
        digest.hexdigest()[:VERSION_CHARACTERS],
        model,
        PlainColumns(names, "y") if loaded.columns_ is None else loaded.columns_,
        hasattr(loaded, "feature_names_in_"),
        None if shares is None else dict(zip(names, map(float, shares), strict=True)),
        _largest_coverage(loaded),
    )


def _largest_coverage(model: Model) -> float | None:
    """The largest coverage, in thousandths, that the model has rows enough for."""
    steps = range(COVERAGE_STEPS - 1, 0, -1)
    return next((i / COVERAGE_STEPS for i in steps if model.can_cover(i / COVERAGE_STEPS)), None)
