"""Answers as JSON or CSV."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from mercer.estimators import KernelClassifier
from mercer.estimators.all_answers import AllAnswers, far_rate
from mercer.estimators.answer_table import FAR, LABEL_SET, LOWER, PREDICTION, UPPER, answer_table
from mercer.serve.served import Served
from mercer.serve.wishes import Wishes
from mercer.tables.formulas import guarded


def as_json(served: Served, wishes: Wishes, answers: AllAnswers, notes: list[str]) -> bytes:
    """An object with an entry for each row; numbers have all their digits, infinite ones are null."""
    found: dict[str, list[Any]] = {PREDICTION: answers.predicted.tolist()}
    if answers.intervals is not None:
        low, high = np.moveaxis(answers.intervals, -1, 0)
        found[LOWER], found[UPPER] = low.tolist(), high.tolist()
    if isinstance(served.model, KernelClassifier):
        labels: list[Any] = served.model.classes_.tolist()
        keys = [str(label) for label in labels]
        if answers.probabilities is not None:
            rows = answers.probabilities.tolist()
            found["probabilities"] = [dict(zip(keys, row, strict=True)) for row in rows]
        if answers.sets is not None:
            chosen = answers.sets.tolist()
            found[LABEL_SET] = [
                [label for label, inside in zip(labels, row, strict=True) if inside] for row in chosen
            ]
    if answers.far_shares is not None:
        found[FAR] = (answers.far_shares <= far_rate(served.model)).tolist()
    names = list(found)
    content: dict[str, Any] = {
        "model": served.name,
        "version": served.version,
        "rows": [dict(zip(names, row, strict=True)) for row in zip(*found.values(), strict=True)],
    }
    if wishes.importances:
        content["importances"] = served.importances
    if notes:
        content["notes"] = notes
    return msgspec.json.encode(content)


def as_csv(served: Served, answers: AllAnswers) -> bytes:
    """The columns that `mercer predict` writes."""
    table = answer_table(served.model, answers, [], answers.far_shares is not None)
    return guarded(table).write_csv().encode()
