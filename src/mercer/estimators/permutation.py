"""How much predictions depend on each feature, where no metric says so.

The values of one feature are shuffled among a few training rows.  The mean squared change of the
function, as a share of the sum for all features, is the importance of the feature: 0 for one that the
function does not use.  No targets are needed, so it says what the model uses, and not what a better one
would.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mercer.data.rows import Matrix, take
from mercer.model.machine import KernelMachine
from mercer.operators.summation import pieces

# Kernel values to evaluate: this many, or this share of those of one epoch.
MOST_SHUFFLED_VALUES = 1e7
SHARE_OF_AN_EPOCH = 0.05
# With fewer rows the changes say little; more than the most say hardly more.
FEWEST_SHUFFLED, MOST_SHUFFLED = 32, 256
# Rows, with one feature shuffled, that are predicted at a time.
SHUFFLED_AT_ONCE = 4_096


def shares_of_changes(machine: KernelMachine, X: Matrix, rows: np.ndarray) -> Tensor | None:
    """The importance of each feature, (d,), from the first of these rows, which are in random order.

    None if that would take long beside training, or if no feature changes anything.
    """
    n, d = len(machine.centres), X.shape[1]
    budget = max(MOST_SHUFFLED_VALUES, SHARE_OF_AN_EPOCH * n**2)
    m = min(MOST_SHUFFLED, len(rows), int(budget / (n * d)))
    if m < min(FEWEST_SHUFFLED, len(rows)) or m < 2:
        return None
    x = take(X, rows[:m])  # (m, d)
    # Every row gets the value of another one.
    others = torch.arange(m, device=x.device).roll(m // 2)
    f = machine.predict(x)  # (m, l)
    scale = machine.units.scale.double().cpu()  # (l,)
    changes = torch.zeros(d, dtype=torch.float64)
    for columns in pieces(0, d, max(1, SHUFFLED_AT_ONCE // m)):
        several = x.repeat(columns.stop - columns.start, 1, 1)  # (c, m, d)
        for i, j in enumerate(range(columns.start, columns.stop)):
            several[i, :, j] = x[others, j]
        g = machine.predict(several.flatten(0, 1))  # (c m, l)
        squares = (g.view(len(several), m, -1) - f).square().mean(1)  # (c, l)
        changes[columns] = (squares.double().cpu() / scale.square()).sum(1)
    total = float(changes.sum())
    return changes / total if 0 < total < float("inf") else None
