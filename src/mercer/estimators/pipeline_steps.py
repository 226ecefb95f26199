"""Fitted transformers of scikit-learn as torch modules, or the reason why one cannot be a module."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA, IncrementalPCA, TruncatedSVD
from sklearn.feature_selection import SelectorMixin
from sklearn.impute import SimpleImputer
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    PolynomialFeatures,
    RobustScaler,
    StandardScaler,
)

from mercer.estimators.step_modules import (
    Affine,
    Beside,
    Bins,
    Chosen,
    Filled,
    Indicators,
    Normalised,
    Powers,
    Product,
)

Array = NDArray[Any]


class CannotExport(ValueError):
    """Why a transformer has no module, and which step it is."""

    step: str | None = None


def as_module(step: Any) -> torch.nn.Module:
    """A fitted transformer as a module.

    >>> import numpy as np
    >>> from sklearn.preprocessing import StandardScaler
    >>> X = np.array([[1.0, 2.0], [3.0, 8.0]])
    >>> as_module(StandardScaler().fit(X))(torch.from_numpy(X)).tolist()
    [[-1.0, -1.0], [1.0, 1.0]]
    """
    if step is None or _is(step, "passthrough"):
        return torch.nn.Identity()
    kind = type(step)
    if kind in MODULES:
        return MODULES[kind](step)
    if isinstance(step, SelectorMixin):
        return Chosen(step.get_support(indices=True))
    raise CannotExport("it is none of the transformers that can be exported")


def _min_max(step: MinMaxScaler) -> torch.nn.Module:
    return Affine(-step.min_ / step.scale_, 1 / step.scale_, step.feature_range if step.clip else None)


def _pca(step: Any) -> torch.nn.Module:
    A = step.components_.T  # (p, k)
    if step.whiten:
        deviations = np.sqrt(step.explained_variance_)
        A = A / np.maximum(deviations, np.finfo(deviations.dtype).eps)
    return Product(step.mean_, A)


def _imputer(step: SimpleImputer) -> torch.nn.Module:
    if step.statistics_.dtype.kind not in "biuf":
        raise CannotExport("it fills columns of text, and only columns of numbers can be exported")
    missing = step.missing_values
    values = step.statistics_.astype(np.float64)
    if step.keep_empty_features:
        values = np.nan_to_num(values, nan=0.0)
    marked = step.indicator_.features_ if step.add_indicator else ()
    return Filled(math.nan if missing is None else float(missing), values, marked)


def _bins(step: KBinsDiscretizer) -> torch.nn.Module:
    most = max(len(edges) for edges in step.bin_edges_) - 2
    inner = np.full((len(step.bin_edges_), max(1, most)), np.inf)
    for row, edges in zip(inner, step.bin_edges_, strict=True):
        row[: len(edges) - 2] = edges[1:-1]
    if step.encode == "ordinal":
        return Bins(inner)
    owners = np.repeat(np.arange(len(step.n_bins_)), step.n_bins_).tolist()
    numbers = np.concatenate([np.arange(count) for count in step.n_bins_]).tolist()
    return torch.nn.Sequential(Bins(inner), Indicators(owners, numbers))


def _one_hot(step: OneHotEncoder) -> torch.nn.Module:
    if any(values.dtype.kind not in "biuf" for values in step.categories_):
        raise CannotExport("it encodes columns of text, and only columns of numbers can be exported")
    if step.handle_unknown != "ignore":
        raise CannotExport("it raises for categories it has not seen. Use handle_unknown='ignore'")
    if any(rare is not None for rare in getattr(step, "infrequent_categories_", None) or ()):
        raise CannotExport("it joins rare categories")
    dropped = step.drop_idx_ if step.drop_idx_ is not None else [None] * len(step.categories_)
    pairs = [
        (owner, float(value))
        for owner, (values, drop) in enumerate(zip(step.categories_, dropped, strict=True))
        for i, value in enumerate(values)
        if i != drop
    ]
    return Indicators([owner for owner, _ in pairs], [value for _, value in pairs])


def _function(step: FunctionTransformer) -> torch.nn.Module:
    if step.func is not None:
        raise CannotExport("it calls a Python function")
    return torch.nn.Identity()


def in_order(steps: Sequence[tuple[str, Any]]) -> torch.nn.Module:
    """Transformers one after the other."""
    return torch.nn.Sequential(*(_named(name, step) for name, step in steps))


def _named(name: str, step: Any) -> torch.nn.Module:
    """The module of a step; an error names the innermost step that is at fault."""
    try:
        return as_module(step)
    except CannotExport as error:
        if error.step is None:
            error.step = f"{name!r} ({type(step).__name__})"
        raise


def _union(step: FeatureUnion) -> torch.nn.Module:
    weights = step.transformer_weights or {}
    parts = [
        _weighted(_named(name, one), weights.get(name))
        for name, one in step.transformer_list
        if not _is(one, "drop")
    ]
    return Beside(parts)


def _column_transformer(step: ColumnTransformer) -> torch.nn.Module:
    given = getattr(step, "feature_names_in_", None)
    known = [] if given is None else [str(name) for name in given]
    weights = step.transformer_weights or {}
    parts = []
    for name, one, columns in step.transformers_:
        places = _places(columns, known, step.n_features_in_)
        if _is(one, "drop") or not len(places):
            continue
        module = torch.nn.Sequential(Chosen(places), _named(name, one))
        parts.append(_weighted(module, weights.get(name)))
    return Beside(parts)


def _places(columns: Any, names: Sequence[str], d: int) -> Array:
    """The places that a ColumnTransformer means: numbers, names, a slice of either, or a mask."""

    def place(item: Any) -> Any:
        return names.index(item) if isinstance(item, str) else item

    if isinstance(columns, slice):
        last = columns.stop
        stop = names.index(last) + 1 if isinstance(last, str) else last  # names include the last
        return np.arange(d)[place(columns.start) : stop : columns.step]
    given = np.atleast_1d(np.asarray(columns, dtype=object))
    if len(given) == d and all(isinstance(item, (bool, np.bool_)) for item in given):
        return np.flatnonzero(given.astype(bool))
    return np.arange(d)[np.array([place(item) for item in given], dtype=np.int64)]


def _weighted(module: torch.nn.Module, weight: float | None) -> torch.nn.Module:
    return module if weight is None else torch.nn.Sequential(module, Affine(None, 1 / weight))


def _is(step: Any, word: str) -> bool:
    return isinstance(step, str) and step == word


# Subclasses may compute something else, so that a type stands for itself only.
MODULES: dict[type, Callable[[Any], torch.nn.Module]] = {
    StandardScaler: lambda step: Affine(step.mean_ if step.with_mean else None, step.scale_),
    RobustScaler: lambda step: Affine(
        step.center_ if step.with_centering else None, step.scale_ if step.with_scaling else None
    ),
    MaxAbsScaler: lambda step: Affine(None, step.scale_),
    MinMaxScaler: _min_max,
    Normalizer: lambda step: Normalised(step.norm),
    PCA: _pca,
    IncrementalPCA: _pca,
    TruncatedSVD: lambda step: Product(None, step.components_.T),
    SimpleImputer: _imputer,
    PolynomialFeatures: lambda step: Powers(step.powers_),
    KBinsDiscretizer: _bins,
    OneHotEncoder: _one_hot,
    FunctionTransformer: _function,
    Pipeline: lambda step: in_order(step.steps),
    FeatureUnion: _union,
    ColumnTransformer: _column_transformer,
}
