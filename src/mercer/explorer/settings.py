"""What the page asks for in one run, checked, and as parameters of an estimator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mercer.estimators import KernelClassifier, KernelRegressor
from mercer.estimators.features import CATEGORY, features_of
from mercer.explorer.dataset import About, Dataset
from mercer.files.records import from_data
from mercer.kernels import KERNELS, is_translation_invariant

Model = KernelClassifier | KernelRegressor
Parameters = dict[str, Any]

# Rows of the first run: they train in about a second, so that a slider shows what it does.
FIRST_ROWS = 2_000
# Points that the spectrum is estimated on, up to MOST_QUICK_ROWS rows: with more points, the plan alone
# would take longer than training does.  It changes the steps, not the solution.
QUICK_SUBSAMPLE = 500
MOST_QUICK_ROWS = 10_000
MOST_EPOCHS = 200
# What the estimator calls the choices of the page.
SCALE_NAMES: dict[str, Any] = {"none": False, "standard": True, "rank": "rank"}
SEED = 0


@dataclass(frozen=True)
class Settings:
    """One run.  `ratio` is the bandwidth in units of the median distance between two rows."""

    columns: tuple[int, ...]  # places in the list of columns
    rows: int
    kernel: str = "laplacian"
    ratio: float = 1.0
    ridge: float = 0.01
    scale: str = "rank"
    categories: tuple[int, ...] = ()  # columns of numbers that are codes
    epochs: int = 30
    auto: bool = False  # kernel, bandwidth, ridge and scale by leave-one-out error
    metric: bool = False  # with auto: learn how much each column counts


def first_settings(about: About) -> Settings:
    """Where the page begins."""
    columns = tuple(range(len(about.fields)))
    return Settings(columns, min(FIRST_ROWS, about.n_rows), scale="none" if about.side else "rank")


def kernels_for(about: About) -> list[str]:
    """The kernels that the data allows: text needs one of distances."""
    text = any(field.levels for field in about.fields)
    return [name for name in sorted(KERNELS) if not text or is_translation_invariant(name)]


def parse_settings(data: Any, about: About) -> Settings:
    """The settings of a request; raises a ValueError that says what is wrong."""
    given = from_data(Settings, data, "The settings")
    allowed = range(len(about.fields))
    _check(bool(given.columns), "Choose at least one column.")
    for name in ("columns", "categories"):
        places = getattr(given, name)
        _check(all(i in allowed for i in places), f"`{name}` must be numbers of columns.")
        _check(len(set(places)) == len(places), f"`{name}` must name each column once.")
    codes = all(about.fields[i].may_be_category for i in given.categories)
    _check(codes, "Only whole numbers with few values can be categories.")
    _check(given.kernel in kernels_for(about), f"`kernel` must be one of {', '.join(KERNELS)}.")
    _check(given.scale in SCALE_NAMES, f"`scale` must be one of {', '.join(SCALE_NAMES)}.")
    _check(1e-6 <= given.ratio <= 1e6, "`ratio` must be between 1e-6 and 1e6.")
    _check(0 <= given.ridge < math.inf, "`ridge` must be at least 0.")
    _check(4 <= given.rows <= about.n_rows, f"`rows` must be between 4 and {about.n_rows}.")
    _check(1 <= given.epochs <= MOST_EPOCHS, f"`epochs` must be between 1 and {MOST_EPOCHS}.")
    return given


def rows_of(data: Dataset, settings: Settings) -> Any:
    """The rows to train on: the first of one random order, so that more rows contain fewer; of classes,
    at least one row each where there is room for it."""
    rows = data.train[: settings.rows]
    if data.about.task == "regression" or settings.rows == len(data.train):
        return rows
    _, first = np.unique(data.y[data.train], return_index=True)
    late = first[first >= settings.rows]
    if not len(late) or 2 * len(late) >= settings.rows:
        return rows
    return np.concatenate([rows[: settings.rows - len(late)], data.train[late]])


def parameters(settings: Settings, bandwidth: float, categories: Sequence[int]) -> Parameters:
    """Parameters of the estimator; `categories` are places of features."""
    given: Parameters = {"max_iter": settings.epochs, "random_state": SEED}
    if categories:
        given["categorical_features"] = list(categories)
    if settings.auto:
        return {**given, "metric": "auto" if settings.metric else False}
    scale = settings.scale
    if scale == "rank" and not is_translation_invariant(settings.kernel):
        scale = "standard"
    return {
        "kernel": settings.kernel,
        "bandwidth": bandwidth,
        "ridge": settings.ridge,
        "scale": SCALE_NAMES[scale],
        "metric": False,
        **given,
    }


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def found_settings(asked: Settings, model: Model, data: Dataset, used: Sequence[int]) -> Settings:
    """What the search chose, as settings of the page, up to the bandwidth."""
    features = features_of(model, [str(i) for i in range(len(used))])
    categories = {used[i] for i, feature in enumerate(features) if feature.treatment == CATEGORY}
    fields = data.about.fields
    coded = tuple(
        i for i in asked.columns if not fields[i].levels and set(fields[i].places) & categories
    )
    inputs = model.machine_.inputs
    scale = "standard" if inputs.standardised else "none"
    if inputs.table is not None and inputs.table.knots is not None:
        scale = "rank"
    return replace(
        asked,
        kernel=str(model.kernel_.name),
        ridge=float(model.ridge_),
        scale=scale,
        categories=coded,
    )
