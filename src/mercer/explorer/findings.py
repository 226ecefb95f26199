"""What the page shows of a model, as plain data: scores, mistakes, spectrum, plan, importances."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import confusion_matrix

from mercer.estimators import KernelClassifier
from mercer.explorer.dataset import Dataset
from mercer.explorer.settings import Model, Settings
from mercer.metrics import measure
from mercer.planning.plan import Plan

Array = NDArray[Any]

# Classes of a confusion matrix; of more, those with the most mistakes are shown.
MOST_MATRIX_CLASSES = 20
MOST_POINTS_DRAWN = 600
RESIDUAL_BINS = 31
MOST_EIGENVALUES_SENT = 160
# Columns whose importance is measured; each takes a prediction of some held-out rows.
MOST_RANKED = 48
RANKED_ROWS = 400
# Pixels on the side of a patch of an image, whose pixels are shuffled together.
PATCHES = 7


def of_plan(plan: Plan) -> dict[str, Any]:
    """The plan in words, and the spectrum before and after levelling."""
    values = np.array(plan.eigenvalues, dtype=float)
    q = plan.preconditioner_rank
    chosen = np.arange(len(values))
    if len(values) > MOST_EIGENVALUES_SENT:  # evenly spaced on the logarithmic axis
        chosen = np.unique(np.geomspace(1, len(values), MOST_EIGENVALUES_SENT).round().astype(int) - 1)
        chosen = np.union1d(chosen, [max(0, q - 1)])
    levelled = np.minimum(values, values[q - 1]) if q else values
    m_star = plan.critical_batch_size
    return {
        "rows": [list(row) for row in plan.rows()],
        "index": (chosen + 1).tolist(),
        "before": values[chosen].tolist(),
        "after": levelled[chosen].tolist() if q else [],
        "q": q,
        "m": plan.batch_size,
        "m_star": m_star if math.isfinite(m_star) else None,
        "m_star_plain": plan.critical_batch_size_plain,
        "subsample": plan.subsample_size,
    }


def of_held_out(model: Model, data: Dataset, X: Array) -> dict[str, Any]:
    """Score on the held-out rows, whose features are X, and where the mistakes are."""
    y = data.y[data.held_out]
    predicted = np.asarray(model.predict(X))
    if isinstance(model, KernelClassifier):
        measures = measure("classification", y, predicted)
        return {
            "score": _numbers(measures.to_dict()),
            "confusion": _confusion(model.classes_, y, predicted),
        }
    measures = measure("regression", y, predicted)
    return {"score": _numbers(measures.to_dict()), "residuals": _residuals(y.astype(float), predicted)}


def _numbers(found: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, (int, float)) and math.isfinite(value)
    }


def _confusion(classes: Array, y: Array, predicted: Array) -> dict[str, Any]:
    """Rows are true classes, columns predicted ones."""
    counts = confusion_matrix(y, predicted, labels=classes)  # (c, c)
    shown = np.arange(len(classes))
    if len(classes) > MOST_MATRIX_CLASSES:
        wrong = counts.sum(0) + counts.sum(1) - 2 * counts.diagonal()
        shown = np.sort(np.argsort(-wrong, kind="stable")[:MOST_MATRIX_CLASSES])
    return {
        "labels": [str(classes[i]) for i in shown],
        "counts": counts[np.ix_(shown, shown)].tolist(),
        "all": len(classes),
    }


def _residuals(y: Array, predicted: Array) -> dict[str, Any]:
    off = y - predicted
    edge = float(np.quantile(np.abs(off), 0.99)) or 1.0
    counts, edges = np.histogram(np.clip(off, -edge, edge), bins=RESIDUAL_BINS, range=(-edge, edge))
    drawn = slice(0, MOST_POINTS_DRAWN)
    return {
        "true": y[drawn].tolist(),
        "predicted": predicted[drawn].tolist(),
        "counts": counts.tolist(),
        "edges": edges.tolist(),
    }


def importances(
    model: Model, data: Dataset, settings: Settings, check: Callable[[], None]
) -> dict[str, Any]:
    """The rise of the held-out error if a column, or a patch of an image, is shuffled among the rows.

    `check` is called between predictions, and may raise.
    """
    used = data.features_of(settings.columns)
    place = {feature: i for i, feature in enumerate(used)}
    rows = data.held_out[:RANKED_ROWS]
    X, y = np.asarray(data.X[rows][:, used]), data.y[rows]
    rng = np.random.default_rng(0)
    order = rng.permutation(len(rows))
    base = _error(model, X, y)
    found: list[tuple[int, float]] = []
    groups = list(_groups(data, settings, X, place))
    for key, features in groups:
        check()
        shuffled = X.copy()
        shuffled[:, features] = X[order][:, features]
        found.append((key, _error(model, shuffled, y) - base))
    images = bool(data.about.side) and len(settings.columns) == len(data.about.fields)
    result: dict[str, Any] = {"base": base, "images": images, "left_out": 0}
    if images:
        side = math.ceil(data.about.side / math.ceil(data.about.side / PATCHES))
        ranked = sorted(found, key=lambda pair: -pair[1])
        spread = np.asarray(X, dtype=float).std(0)  # (d,)
        pixels = [max(groups[patch][1], key=spread.__getitem__) for patch, _ in ranked]
        # Of each patch, the most important first, the pixel that varies the most.
        result |= {"side": side, "rises": [rise for _, rise in found], "columns": pixels}
        return result
    found.sort(key=lambda pair: -pair[1])
    result |= {"columns": [i for i, _ in found], "rises": [rise for _, rise in found]}
    result["left_out"] = len(settings.columns) - len(found)
    if model.machine_.inputs.importances is not None:  # of a learned metric
        shares = model.feature_importances_
        fields = data.about.fields
        result["shares"] = [float(sum(shares[place[p]] for p in fields[i].places)) for i, _ in found]
    return result


def _groups(
    data: Dataset, settings: Settings, X: Array, place: dict[int, int]
) -> Iterator[tuple[int, list[int]]]:
    """Features that are shuffled together: those of a column, or of a patch of an image."""
    fields, side = data.about.fields, data.about.side
    if side and len(settings.columns) == len(fields):
        step = math.ceil(side / PATCHES)
        starts = range(0, side, step)
        for number, (top, left) in enumerate((top, left) for top in starts for left in starts):
            inside = [
                i * side + j
                for i in range(top, min(side, top + step))
                for j in range(left, min(side, left + step))
            ]
            yield number, inside
        return
    columns = list(settings.columns)
    if len(columns) > MOST_RANKED:  # those that vary the most, in units of their range
        A = np.asarray(X, dtype=float)
        spread = np.ptp(A, axis=0)
        vary = A.std(0) / np.where(spread > 0, spread, 1.0)  # (d,)
        columns.sort(key=lambda i: -max(vary[place[p]] for p in fields[i].places))
        columns = columns[:MOST_RANKED]
    for i in columns:
        yield i, [place[p] for p in fields[i].places]


def _error(model: Model, X: Array, y: Array) -> float:
    """Share of wrong classes, or 1 - R²."""
    predicted = np.asarray(model.predict(X))
    if isinstance(model, KernelClassifier):
        return float((predicted != y).mean())
    total = float(((y - y.mean()) ** 2).sum())
    return float(((y - predicted) ** 2).sum() / total) if total else 0.0
