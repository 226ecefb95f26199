"""What a fitted model does to each feature, and how much the feature counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mercer.data.inputs import Inputs
from mercer.selection.setting import AS_GIVEN

CONSTANT = "constant, dropped"
CATEGORY = "category"
RANKED = "by rank"
STANDARDISED = "standardised"


@dataclass(frozen=True)
class Feature:
    """One feature of the data given to `fit`."""

    name: str
    treatment: str  # one of the above
    importance: float | None = None  # share in the learned metric, or else by permutation
    values: tuple[str, ...] = ()  # of a category

    def __str__(self) -> str:
        """
        >>> print(Feature("colour", CATEGORY, 0.25, ("blue", "red")))
        colour, category of 2 values
        """
        count = f" of {len(self.values):,} {'value' if len(self.values) == 1 else 'values'}"
        return f"{self.name}, {self.treatment}{count if self.values else ''}"


def features_of(
    model: Any, names: Sequence[str] | None = None, values: Mapping[str, Sequence[str]] | None = None
) -> list[Feature]:
    """All features of a fitted estimator, in the order of the columns.

    `names` are those of the features; by default those of the columns seen in `fit`, or x0, x1, … as in
    scikit-learn.  `values` are the names of the codes 0, 1, … of features that are categories.
    """
    inputs: Inputs = model.machine_.inputs
    d = inputs.n_features
    if names is None and model.columns_ is not None:
        names, values = model.columns_.feature_names, model.columns_.categories
    if names is None:
        names = getattr(model, "feature_names_in_", [f"x{i}" for i in range(d)])
    shares: list[float | None] = [None] * d
    found = model._permuted if inputs.importances is None else inputs.importances
    if found is not None:
        shares = found.tolist()
    treatments, codes = _treatments(inputs), _codes(inputs)
    given = values or {}

    def labels(i: int) -> tuple[str, ...]:
        known = given.get(names[i], ())
        return tuple(
            known[int(code)] if 0 <= code < len(known) else f"{code:g}" for code in codes.get(i, ())
        )

    return [
        Feature(
            str(names[i]),
            treatments[i],
            shares[i],
            labels(i),
        )
        for i in range(d)
    ]


def by_importance(features: Sequence[Feature]) -> list[Feature]:
    """Those that are used, the most important first."""
    used = [feature for feature in features if feature.treatment != CONSTANT]
    return sorted(used, key=lambda feature: -(feature.importance or 0.0))


def _varying(inputs: Inputs) -> list[int]:
    columns = torch.arange(inputs.n_features) if inputs.columns is None else inputs.columns
    return [int(i) for i in columns]


def _codes(inputs: Inputs) -> dict[int, list[float]]:
    """The values of each category, by the feature's column."""
    found: dict[int, list[float]] = {}
    if inputs.table is not None:
        varying = _varying(inputs)
        pairs = zip(inputs.table.owners.tolist(), inputs.table.levels.tolist(), strict=True)
        for owner, level in pairs:
            found.setdefault(varying[owner], []).append(level)
    return found


def _treatments(inputs: Inputs) -> list[str]:
    found = [CONSTANT] * inputs.n_features
    for i in _varying(inputs):
        found[i] = _of_numbers(inputs)
    for i in _codes(inputs):
        found[i] = CATEGORY
    return found


def _of_numbers(inputs: Inputs) -> str:
    if inputs.table is not None and inputs.table.knots is not None:
        return RANKED
    return STANDARDISED if inputs.standardised else AS_GIVEN
