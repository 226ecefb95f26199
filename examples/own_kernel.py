"""A kernel of your own, next to Mercer's kernels: days of the year, where the last is near the first.

python examples/own_kernel.py
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from mercer import KernelRegressor

DAYS = 365.25


def around_the_year(x: Tensor, z: Tensor) -> Tensor:
    """exp(-d² / 2) of the distance d on a circle: (m, 1) and (t, 1) to (m, t)."""
    angle = math.pi * (x - z.T) / DAYS  # (m, t)
    return torch.exp(-2 * torch.sin(angle) ** 2)


def main() -> None:
    rng = np.random.default_rng(0)
    day = rng.uniform(20, 345, size=(400, 1))  # no rows around the new year
    warmth = 10 - 12 * np.cos(2 * np.pi * day[:, 0] / DAYS) + rng.normal(size=400)

    print("true mean around the new year: -2.0°")
    new_year = np.array([[1.0], [DAYS]])
    for name, kernel in (("Gaussian", "gaussian"), ("around the year", around_the_year)):
        model = KernelRegressor(kernel, random_state=0).fit(day, warmth)
        first, last = model.predict(new_year)
        print(f"{name}: 1 January {first:.1f}°, a year later {last:.1f}°")


if __name__ == "__main__":
    main()
