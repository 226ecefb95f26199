"""A short benchmark: the speed of the device, and how close training comes to it.

Training is compared with the arithmetic that it cannot avoid: one full float32 product of the data with
itself, 2 n² d operations at the rate of the fastest matrix product.  The benchmark takes seconds;
benchmarks/engine.py is the thorough one.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass

import torch

from mercer.engine import Limits, choose, measure_resource, train
from mercer.kernels import Gaussian
from mercer.planning.resource import find_device
from mercer.stopwatch import fastest

# Enough rows for arithmetic to dominate an epoch, few enough for it to take about a second.
ROWS, FEATURES, OUTPUTS = 10_000, 256, 10
EPOCHS = 4
RUNS = 3
# Repeats of a large product, and of an operation that takes microseconds.
PRODUCT_REPEATS, TILE_REPEATS = 5, 50
GIGA = 1e9


@dataclass(frozen=True)
class Figure:
    """One measured number."""

    name: str
    value: float
    unit: str
    meaning: str


def engine_figures(
    device: str = "auto", on_stage: Callable[[str], None] = lambda text: None
) -> list[Figure]:
    """Measure the device and a training run on random points."""
    where = find_device(device)
    on_stage("measuring the device")
    resource = measure_resource(where)
    a, b = (torch.randn(rows, FEATURES, device=where) for rows in (2048, 8192))
    product = torch.empty(len(a), len(b), device=where)
    # Reading a value waits for the device.
    product_seconds = fastest(lambda: float(torch.mm(a, b.T, out=product)[0, 0]), PRODUCT_REPEATS)
    flops = 2 * len(a) * len(b) * FEATURES / product_seconds
    tile = -torch.rand(512, 512, device=where)  # stays in cache
    out = torch.empty_like(tile)
    exponentials = tile.numel() / fastest(lambda: float(torch.exp(tile, out=out)[0, 0]), TILE_REPEATS)
    figures = [
        Figure("matrix product", flops / GIGA, "Gflop/s", "float32; epochs are compared with it"),
        Figure(
            "8-bit product",
            resource.integer_gain,
            "×",
            "speed relative to float32, for 8-bit data such as images",
        ),
        Figure("exponentials", exponentials / GIGA, "G/s", "for values in cache"),
    ]
    if resource.rates is not None:
        rates = resource.rates
        figures += [
            Figure(
                "memory, first touch", 1 / rates.write / GIGA, "GB/s", "when kernel values are stored"
            ),
            Figure("memory, read", 1 / rates.read / GIGA, "GB/s", "when they are reused"),
        ]
    figures += [
        Figure("C_G", resource.capacity, "", "parallel operations that saturate the device"),
        Figure(
            "full-rate rows",
            resource.full_rate_rows,
            "",
            "rows that a product needs to run at full speed",
        ),
    ]
    on_stage("training on random points")
    first, later = _epoch_seconds(where)
    full = 2 * ROWS**2 * FEATURES / flops
    shape = f"{ROWS:,} × {FEATURES}, {OUTPUTS} outputs"
    return [
        *figures,
        Figure("first epoch", first, "s", f"{shape}; {first / full:.2f} × one full product"),
        Figure(
            "later epoch",
            later,
            "s",
            f"with stored kernel values; {later / full:.2f} × one full product",
        ),
    ]


def machine() -> str:
    """The machine that the figures were measured on."""
    threads = f"{torch.get_num_threads()} threads of {os.cpu_count()} cores"
    return f"{platform.system()} {platform.machine()}, {threads}, PyTorch {torch.__version__}"


def _epoch_seconds(device: torch.device) -> tuple[float, float]:
    """Seconds of the fastest first epoch and the fastest later epoch, without setting up."""
    generator = torch.Generator().manual_seed(0)
    kernel = Gaussian(bandwidth=float(FEATURES) ** 0.5)
    points = kernel.points(torch.randn(ROWS, FEATURES, generator=generator).to(device))
    y = torch.randn(ROWS, OUTPUTS, generator=generator).to(device)
    plan, preconditioner = choose(kernel, points, OUTPUTS, measure_resource(device))
    first, later = [], []
    for _ in range(RUNS):
        outcome = train(
            kernel,
            points,
            y,
            plan.step,
            preconditioner,
            Limits(EPOCHS, 0.0, EPOCHS, 0.0),
            kept_memory=plan.kept_memory,
            kept_as=plan.kept_as,
        )
        seconds = [epoch.seconds for epoch in outcome.history.epochs]
        first.append(seconds[0])
        later.extend(seconds[1:])
    return min(first), min(later)
