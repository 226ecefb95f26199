"""The median distance between two rows, as the kernel sees them: the unit of the page's bandwidth."""

from __future__ import annotations

import numpy as np
import torch
from scipy.spatial.distance import pdist

from mercer.explorer.dataset import Dataset
from mercer.explorer.settings import SCALE_NAMES, Settings
from mercer.kernels import KERNELS, is_translation_invariant
from mercer.selection.setting import SettingRequest, choose_setting

# Rows whose pairs are compared, and settings whose median is remembered.
MEDIAN_ROWS = 400
MOST_REMEMBERED = 64


class Distances:
    """Median distances for the ways that columns are chosen and prepared."""

    def __init__(self, data: Dataset) -> None:
        self.data = data
        self._known: dict[tuple[object, ...], float] = {}

    def median(self, settings: Settings) -> float:
        kernel = KERNELS[settings.kernel]
        invariant = is_translation_invariant(settings.kernel)
        scale = "standard" if settings.scale == "rank" and not invariant else settings.scale
        absolute = bool(kernel.absolute)
        key = (settings.columns, settings.categories, scale, absolute, invariant)
        if key not in self._known:
            if len(self._known) >= MOST_REMEMBERED:
                self._known.clear()
            self._known[key] = self._measured(settings, scale, absolute)
        return self._known[key]

    def _measured(self, settings: Settings, scale: str, absolute: bool) -> float:
        data = self.data
        used = data.features_of(settings.columns)
        fields = data.about.fields
        codes = [i for i in settings.columns if fields[i].levels or i in settings.categories]
        places = [used.index(fields[i].places[0]) for i in codes if len(fields[i].places) == 1]
        rows = np.sort(data.train[:MEDIAN_ROWS])
        X = np.array(data.X[rows][:, used])
        if X.dtype.kind != "f":
            X = X.astype(np.float32)
        request = SettingRequest(settings.kernel, 1.0, 1.0, SCALE_NAMES[scale], places or None, False)
        every = np.arange(len(X))
        chosen = choose_setting(
            X, np.zeros((len(X), 1)), every, request, dtype=torch.float64, usable=1e9, bytes_pay=False
        )
        Z = chosen.inputs.floats(torch.from_numpy(X))[0].numpy()  # (m, w)
        distances = pdist(Z, "cityblock" if absolute else "euclidean")
        median = float(np.median(distances)) if len(distances) else 1.0
        return median if median > 0 else 1.0
