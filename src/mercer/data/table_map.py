"""Columns of a table as a kernel needs them: numbers by their ranks, categories as indicators.

Ranks are mapped to a normal distribution, piecewise linearly between quantiles, so that a heavy tail or
another unit changes nothing.  A category becomes one indicator for each of its values.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mercer.data.rows import Array, Matrix, chunks, take, widest

# Rows that quantiles are taken from, and quantiles of a column: more would not be seen in a distance.
QUANTILE_ROWS = 20_000
MOST_KNOTS = 256
# Whole numbers with more different values than this are not taken for categories unless declared.
MOST_CODES = 64
# Rows that show of most numbers that they are no categories.
REVEALING_ROWS = 1_024
# One-hot features take memory and time, declared or not.
MOST_DECLARED_LEVELS = 1_000


@dataclass(frozen=True)
class TableMap:
    """From features, (m, d), to numbers and then indicators, (m, a + b).

    Tensors are on the CPU and are converted to the type and device of the data they meet.
    """

    numbers: Tensor  # (a,)  the features that are numbers
    owners: Tensor  # (b,)  the feature of each indicator, ascending
    levels: Tensor  # (b,)  and the value it stands for
    knots: Tensor | None = None  # (a, k)  quantiles of the numbers, ascending; None: as they are
    scores: Tensor | None = None  # (a, k)  what they are mapped to

    @property
    def width(self) -> int:
        return len(self.numbers) + len(self.owners)

    @property
    def sources(self) -> Tensor:
        """The feature that each result comes from, (a + b,)."""
        return torch.cat([self.numbers, self.owners])

    def apply(self, x: Tensor) -> Tensor:
        """(m, d) to (m, a + b), in the most precise type of the device."""
        numbers = x[:, self.numbers.to(x.device)].to(widest(x.device))  # (m, a)
        if self.knots is not None and self.scores is not None:
            numbers = _interpolate(numbers, self.knots.to(numbers), self.scores.to(numbers))
        if not len(self.owners):
            return numbers
        return torch.cat([numbers, self.indicators(x).to(numbers)], 1)

    def unknown(self, x: Tensor) -> Tensor:
        """For each indicator, 1 / b_c where its category, of b_c values, has none of them, (m, b)."""
        category, counts = torch.unique(
            self.owners.to(x.device), return_inverse=True, return_counts=True
        )[1:]  # (b,), (c,)
        hits = self.indicators(x).to(widest(x.device))  # (m, b)
        known = hits.new_zeros(len(x), len(counts)).index_add_(1, category, hits)  # (m, c)
        missing: Tensor = (1 - known) / counts
        return missing[:, category]

    def indicators(self, x: Tensor) -> Tensor:
        """Compared in single precision where that tells values apart: a module may be given no more."""
        short = self.levels.float()
        alike = (short[1:] == short[:-1]) & (self.owners[1:] == self.owners[:-1])  # (b - 1,)
        dtype = widest(x.device) if bool(alike.any()) else torch.float32
        return x[:, self.owners.to(x.device)].to(dtype) == self.levels.to(x.device, dtype)  # (m, b)

    def describe(self) -> list[str]:
        """What is done, in words."""
        numbers, categories = len(self.numbers), len(torch.unique(self.owners))
        done = []
        if self.knots is not None:
            done.append(f"{numbers} number{'s' * (numbers != 1)} by rank")
        if categories:
            kinds = "1 category" if categories == 1 else f"{categories} categories"
            done.append(f"{kinds} with {len(self.owners)} values")
        return done

    @classmethod
    def fit(
        cls,
        x: Matrix,
        rows: Array,
        features: Tensor,
        coded: dict[int, Tensor],
        weights: Tensor,
        *,
        ranked: bool,
    ) -> TableMap:
        """For `features`, columns of x, of which those in `coded` are categories with these values.

        `weights` are those of the rows, (n,).
        """
        numbers = torch.tensor([i for i in range(len(features)) if i not in coded], dtype=torch.int64)
        levels = [coded[i] for i in sorted(coded)]
        owners = [torch.full(v.shape, i) for i, v in sorted(coded.items())]
        knots = scores = None
        if ranked and len(numbers):
            columns = features[numbers]
            sample = take(x, rows[:QUANTILE_ROWS]).to("cpu")[:, columns].double()  # (m, a)
            pairs = [_normal_scores(column, weights[:QUANTILE_ROWS]) for column in sample.T]
            longest = max(len(k) for k, _ in pairs)
            knots = torch.stack([_padded(k, longest) for k, _ in pairs])  # (a, k)
            scores = torch.stack([_padded(s, longest) for _, s in pairs])  # (a, k)
        return cls(
            numbers,
            torch.cat([*owners, torch.zeros(0, dtype=torch.int64)]),
            torch.cat([*levels, torch.zeros(0, dtype=torch.float64)]),
            knots,
            scores,
        )


def find_categories(
    x: Matrix, rows: Array, features: Tensor, declared: Tensor | None = None
) -> dict[int, Tensor]:
    """Values of those `features`, columns of x, that are or may be categories, by their place.

    Those declared are.  Where nothing is declared, whole numbers with few different values may be.
    """
    open_ = list(range(len(features))) if declared is None else declared.tolist()
    most = MOST_CODES if declared is None else MOST_DECLARED_LEVELS
    found = dict.fromkeys(open_, torch.zeros(0, dtype=torch.float64))
    # Most numbers are dropped by the first part, and are not looked at again.
    parts = (
        part for _, chunk in chunks(x, rows) for part in (chunk[:REVEALING_ROWS], chunk[REVEALING_ROWS:])
    )
    for part in parts:
        for i in list(found):
            column = part[:, int(features[i])]
            new = column[~torch.isin(column, found[i].to(column))]
            values = torch.unique(new).to("cpu").double()
            found[i] = torch.unique(torch.cat([found[i], values]))
            if len(found[i]) > most or not bool(
                (values == values.round()).all() | (declared is not None)
            ):
                if declared is not None:
                    raise ValueError(
                        f"A categorical feature must have at most {most:,} different values. Got "
                        f"more in column {int(features[i])}: do not declare it."
                    )
                del found[i]
        if not found:
            break
    # Two values are at one distance from each other, as numbers or as categories.
    return {i: v for i, v in found.items() if len(v) > 2 or declared is not None}


def _normal_scores(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Quantiles of the values and their normal scores, by the middle rank of equal values."""
    distinct, group = torch.unique(values, return_inverse=True)
    counts = torch.zeros_like(distinct).index_add_(0, group, weights)  # (v,)
    middle = (counts.cumsum(0) - counts / 2) / counts.sum()  # (v,)
    if len(distinct) > MOST_KNOTS:
        # Half of the knots at even ranks, and half at even scores, which are dense in the tails.
        ranks = torch.linspace(0, 1, MOST_KNOTS // 2, dtype=torch.float64)
        ends = float(torch.special.ndtri(middle[-1]))
        scores = torch.linspace(-ends, ends, MOST_KNOTS // 2, dtype=torch.float64)
        wanted = torch.cat([ranks, torch.special.ndtr(scores)])
        chosen = torch.unique(torch.searchsorted(middle, wanted).clamp_(max=len(distinct) - 1))
        distinct, middle = distinct[chosen], middle[chosen]
    return distinct, torch.special.ndtri(middle)


def _padded(values: Tensor, length: int) -> Tensor:
    return torch.cat([values, values[-1:].expand(length - len(values))])


def _interpolate(x: Tensor, knots: Tensor, scores: Tensor) -> Tensor:
    """The scores at x, (m, a), linearly between knots, (a, k), and constant beyond them."""
    if knots.shape[1] == 1:
        return scores.T.expand(len(x), -1)
    x = x.T.contiguous()  # (a, m)
    upper = torch.searchsorted(knots, x).clamp_(1, knots.shape[1] - 1)
    low, high = knots.gather(1, upper - 1), knots.gather(1, upper)  # (a, m)
    share = ((x - low) / (high - low)).nan_to_num_(nan=0.0).clamp_(0, 1)
    return torch.lerp(scores.gather(1, upper - 1), scores.gather(1, upper), share).T
