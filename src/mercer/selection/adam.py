"""Steps of Adam (Kingma and Ba, 2015) on the logarithms of a metric's weights and of a ridge."""

from __future__ import annotations

import torch
from torch import Tensor

# Of the running means of gradients and of their squares.
FIRST_MOMENT = 0.8
SECOND_MOMENT = 0.95


class Adam:
    """Weights of blocks and a ridge that descend together."""

    def __init__(self, weights: Tensor, ridge: float) -> None:
        self._logs = torch.cat([weights, weights.new_tensor([ridge])]).log()  # (blocks + 1,)
        self._first, self._second = torch.zeros_like(self._logs), torch.zeros_like(self._logs)
        self._steps = 0

    @property
    def weights(self) -> Tensor:
        """(blocks,)"""
        return self._logs[:-1].exp()

    @property
    def ridge(self) -> float:
        return float(self._logs[-1].exp())

    @ridge.setter
    def ridge(self, ridge: float) -> None:
        self._logs[-1] = self._logs.new_tensor(ridge).log()

    def step(self, gradient: Tensor, rate: float) -> bool:
        """One step down the gradient in the logarithms, (blocks + 1,), unless that is no number.

        The rate is the largest change of a logarithm, about.
        """
        if not bool(torch.isfinite(gradient).all()):
            return False
        self._steps += 1
        self._first = FIRST_MOMENT * self._first + (1 - FIRST_MOMENT) * gradient
        self._second = SECOND_MOMENT * self._second + (1 - SECOND_MOMENT) * gradient.square()
        size = (self._second / (1 - SECOND_MOMENT**self._steps)).sqrt()  # (blocks + 1,)
        size = size.clamp_(min=torch.finfo(size.dtype).tiny)
        self._logs = self._logs - rate * self._first / (1 - FIRST_MOMENT**self._steps) / size
        return True
