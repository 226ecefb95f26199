"""How many epochs a run is expected to take, from the spectrum and the targets.

An epoch multiplies the residual along an eigenfunction of eigenvalue lambda by about

    exp(-gamma (n lambda + r)),        gamma = 2 eta / m,

with the levelled eigenvalues, so the top q are done within the first.  How much of the targets lies
beyond them is known from the subsample.  The eigenvalues there are continued by a power law whose sum
is beta, and the targets are taken to be spread over them like the square roots of the eigenvalues.

On seven datasets of 4,000 rows this was between 0.7 and 1.2 times the epochs taken with a ridge, and 0.8
to 2.3 times with a Laplacian without one.  The eigenvalues of Gaussian kernels fall faster than a power:
without a ridge, it was a half on images, and as little as an eighth on tables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mercer.method.preconditioner import LevelledKernel
from mercer.planning.plan import Plan

# Eigenvalues by which those beyond the computed ones are represented.
TAIL_POINTS = 512
# Share of the residual along an eigenfunction, as a power of its eigenvalue.
TARGET_POWER = 0.5
# Epochs after which the held-out loss usually stops falling by a hundredth: with a patience of three,
# nine runs on five datasets of 3,000 rows ended after 4 to 6, five of them after 5.
USUAL_BEST_EPOCH = 2
# Halvings of the interval that holds the answer.
BISECTIONS = 40


@dataclass(frozen=True)
class Goal:
    """What is trained towards, and when training stops."""

    y: Tensor  # (n, l)  centred targets, in the order of training
    tolerance: float  # residual, relative to that of predicting nothing
    max_epochs: int
    patience: int | None = None  # epochs without an improvement on held-out data; None: there is none

    @property
    def most(self) -> int:
        """With held-out data, training ends `patience` epochs after the last that was of use."""
        if self.patience is None:
            return self.max_epochs
        return min(self.max_epochs, USUAL_BEST_EPOCH + self.patience)


@dataclass(frozen=True)
class Spectrum:
    """What the number of epochs depends on, for q levelled eigenvalues."""

    n: int
    q: int
    eigenvalues: Tensor  # (w,)  those known of K / n, before levelling, in float64
    beta: float  # of the levelled kernel, with the ridge
    ridge: float
    gamma: float  # step per point


def expected_epochs(plan: Plan, levelled: LevelledKernel, goal: Goal) -> int:
    """Epochs until the residual is below the tolerance, as training counts them."""
    known = torch.tensor(plan.eigenvalues, dtype=torch.float64)  # (w,)
    q, gamma = plan.preconditioner_rank, plan.step.gamma
    spectrum = Spectrum(plan.n, q, known, plan.beta, plan.ridge, gamma)
    # A loss is measured before its steps, so an epoch more shows it.
    return max(1, min(goal.most, math.ceil(epochs_until(spectrum, levelled, goal)) + 1))


def epochs_until(spectrum: Spectrum, levelled: LevelledKernel, goal: Goal) -> float:
    """Epochs, perhaps part of one, until the residual is below the tolerance; at most `goal.most`."""
    rates, shares = _tail(spectrum, levelled, goal.y)

    def left_after(epochs: float) -> float:
        return float((shares * (-2 * epochs * rates).exp()).sum())

    few, many = 0.0, float(goal.most)
    for _ in range(BISECTIONS):
        middle = (few + many) / 2
        few, many = (few, middle) if left_after(middle) <= goal.tolerance else (middle, many)
    return many


def _tail(spectrum: Spectrum, levelled: LevelledKernel, y: Tensor) -> tuple[Tensor, Tensor]:
    """Beyond the levelled eigenvalues: rates of decay per epoch, and shares of the targets, (t,)."""
    n, q, known, ridge = spectrum.n, spectrum.q, spectrum.eigenvalues, spectrum.ridge
    w, half, s = len(known), max(1, len(known) // 2), len(levelled.V)
    power = float((known[half - 1] / known[-1]).log()) / math.log(w / half) if w > half else 1.0
    index = torch.logspace(math.log10(w + 1), math.log10(max(n, w + 1)), TAIL_POINTS).double()
    counts = torch.gradient(index)[0] if n > w + 1 else torch.zeros_like(index)
    beyond = known[-1] * (index / w) ** -power
    trace = spectrum.beta - ridge - float(known.clamp(max=float(known[q - 1])).sum())
    if float(counts.sum()) > 0:
        beyond = beyond * (max(0.0, trace) / float((counts * beyond).sum()))
    values = torch.cat([known[q:], beyond])
    weights = torch.cat([torch.ones(w - q).double(), counts]) * values**TARGET_POWER
    inside = (levelled.V.T @ y[:s]).square().sum() / y[:s].square().sum().clamp(min=1e-300)
    outside = min(1.0, max(0.0, 1.0 - float(inside)))
    shares = weights * (outside / max(float(weights.sum()), 1e-300))
    return spectrum.gamma * (n * values + ridge), shares
