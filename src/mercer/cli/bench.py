"""A short benchmark of the engine on this machine: what the device can do, and how close training comes.

The yardstick is arithmetic that cannot be avoided: one full float32 product of the data with itself,
2 n² d operations at the best rate seen here.  Of several runs the best counts, since others may share
the machine.  All of it takes seconds; benchmarks/engine.py is the thorough one.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from mercer.kernels import Gaussian
from mercer.operators.tiled import TrainingProducts
from mercer.planning.choose import adapt
from mercer.planning.resource import find_device, measure_resource
from mercer.training.loop import Limits, train

# Enough rows that an epoch is arithmetic rather than overhead, few enough for a second.
ROWS, FEATURES, OUTPUTS = 10_000, 256, 10
EPOCHS = 4
RUNS = 3
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
    flops = 2 * len(a) * len(b) * FEATURES / _best(lambda: torch.mm(a, b.T, out=product)[0, 0])
    tile = -torch.rand(512, 512, device=where)  # of the size that stays in cache
    out = torch.empty_like(tile)
    exponentials = tile.numel() / _best(lambda: torch.exp(tile, out=out)[0, 0], 50)
    figures = [
        Figure("matrix product", flops / GIGA, "Gflop/s", "float32, the yardstick below"),
        Figure(
            "8-bit product",
            resource.integer_gain,
            "×",
            "that of float32, for images and such",
        ),
        Figure("exponentials", exponentials / GIGA, "G/s", "of values in cache"),
    ]
    if resource.rates is not None:
        rates = resource.rates
        figures += [
            Figure("memory, first touch", 1 / rates.write / GIGA, "GB/s", "when kernel values are kept"),
            Figure("memory, read", 1 / rates.read / GIGA, "GB/s", "when they are used again"),
        ]
    figures += [
        Figure("C_G", resource.capacity, "", "operations in flight that saturate the device"),
        Figure("full-rate rows", resource.full_rate_rows, "", "fewest rows of a product at full rate"),
    ]
    on_stage("training on random points")
    first, later = _epoch_seconds(where)
    full = 2 * ROWS**2 * FEATURES / flops
    shape = f"{ROWS:,} × {FEATURES}, {OUTPUTS} outputs"
    return [
        *figures,
        Figure("first epoch", first, "s", f"{shape}; {first / full:.2f} of a full product"),
        Figure(
            "later epoch", later, "s", f"from kept kernel values; {later / full:.2f} of a full product"
        ),
    ]


def machine() -> str:
    """What the figures belong to."""
    threads = f"{torch.get_num_threads()} threads of {os.cpu_count()} cores"
    return f"{platform.system()} {platform.machine()}, {threads}, PyTorch {torch.__version__}"


def _epoch_seconds(device: torch.device) -> tuple[float, float]:
    """Best seconds of the first epoch and of the later ones, set-up not included."""
    generator = torch.Generator().manual_seed(0)
    kernel = Gaussian(bandwidth=float(FEATURES) ** 0.5)
    points = kernel.points(torch.randn(ROWS, FEATURES, generator=generator).to(device))
    y = torch.randn(ROWS, OUTPUTS, generator=generator).to(device)
    plan, levelled = adapt(kernel, points, OUTPUTS, measure_resource(device))
    first, later = [], []
    for _ in range(RUNS):
        products = TrainingProducts(
            kernel, points, levelled.V, plan.batch_size, OUTPUTS, plan.kept_memory
        )
        outcome = train(products, levelled, plan, y, Limits(EPOCHS, 0.0, EPOCHS, 0.0))
        seconds = [epoch.seconds for epoch in outcome.history.epochs]
        first.append(seconds[0])
        later.extend(seconds[1:])
    return min(first), min(later)


def _best(result: Callable[[], torch.Tensor], runs: int = 5) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        float(result())  # waits for the device
        times.append(time.perf_counter() - start)
    return min(times)
