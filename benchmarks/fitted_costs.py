"""The costs of the cost model, measured on this machine with small problems.

The code that trains is timed, on one rank and in processor time of its thread, so that others who use
the machine matter little.  Panels with few and with many columns give the seconds of a kernel value and
those of a panel whatever its columns; two numbers of features give those of a multiplication; steps of
small batches give those of an operation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from mercer.data.points import Points, byte_points
from mercer.kernels import Gaussian
from mercer.kernels.base import Kernel
from mercer.method.preconditioner import LevelledKernel
from mercer.method.schedule import Panel, Visit
from mercer.method.step import Step, descend
from mercer.model.expansion import Expansion
from mercer.operators.base import PanelProducts
from mercer.operators.deal import CPU_BLOCK_COLUMNS, Deal
from mercer.operators.sharded import ShardedSquare
from mercer.operators.tiled import CPU_PANEL_ROWS
from mercer.operators.workers import torch_threads
from mercer.planning.cost_model import STEP_OPERATIONS, DeviceCosts
from mercer.planning.memory import FLOAT32_BYTES
from mercer.processes.group import Group
from mercer.stopwatch import fastest

N_PANELS = 8
N_POINTS = N_PANELS * CPU_PANEL_ROWS
# Features of the two problems that are compared.
FEW_FEATURES, MANY_FEATURES = 100, 700
# Rows of a small batch, whose steps take little but the time of their operations.
SMALL_BATCH = 16
# Levelled eigenvalues.
LEVELLED = 16
# Each is timed so often, and the fastest counts.
REPEATS = 5
# A multiplication takes longer than this; noise may hide it.
LEAST_SECONDS = 1e-14


@dataclass(frozen=True)
class Fitted:
    """Costs on this machine, and how long a feature takes: as long as so many of float32."""

    costs: DeviceCosts
    feature: float


def fitted_costs(as_bytes: bool, n_outputs: int) -> Fitted:
    """For a Gaussian kernel of floats or of bytes, on one core."""
    with torch_threads(1):  # the clock is that of the thread
        own = {d: _evaluation(as_bytes, d, n_outputs) for d in (FEW_FEATURES, MANY_FEATURES)}
        floats = {d: _evaluation(False, d, n_outputs) for d in own} if as_bytes else own
        reading, step = _reading(n_outputs), _step(n_outputs)
    multiply_add, own_feature = _feature(floats), _feature(own)
    value, panel = own[FEW_FEATURES]
    products = FEW_FEATURES * own_feature + n_outputs * multiply_add
    costs = DeviceCosts(
        multiply_add,
        max(0.0, value - products),
        max(0.0, reading - n_outputs * multiply_add) / FLOAT32_BYTES,
        step / STEP_OPERATIONS,
        panel,
        CPU_PANEL_ROWS,
        CPU_BLOCK_COLUMNS,
    )
    return Fitted(costs, own_feature / multiply_add)


def _panels() -> list[slice]:
    return [slice(i, i + CPU_PANEL_ROWS) for i in range(0, N_POINTS, CPU_PANEL_ROWS)]


def _points(as_bytes: bool, d: int) -> tuple[Kernel, Points]:
    draws = torch.Generator().manual_seed(0)
    if as_bytes:
        x = torch.randint(-128, 128, (N_POINTS, d), generator=draws, dtype=torch.int8)
        return Gaussian(100 * math.sqrt(d)), byte_points(x, torch.float32)
    kernel = Gaussian(math.sqrt(d))
    return kernel, kernel.points(torch.randn(N_POINTS, d, generator=draws))


def _operator(as_bytes: bool, d: int, n_outputs: int, budget: float) -> ShardedSquare:
    kernel, points = _points(as_bytes, d)
    deal = Deal(_panels(), 0, Group(), points.device)
    return ShardedSquare(kernel, points, n_outputs, deal, torch.zeros(0, 0), budget)


def _evaluation(as_bytes: bool, d: int, n_outputs: int) -> tuple[float, float]:
    """Seconds of a kernel value with its product, and of a panel whatever its columns."""
    operator, weights = _operator(as_bytes, d, n_outputs, 0.0), torch.ones(N_POINTS, n_outputs)
    first, last = _panels()[0], _panels()[-1]
    own = _seconds(lambda: operator.panel(first, weights, first.stop))
    all_columns = _seconds(lambda: operator.panel(last, weights, last.stop))
    value = (all_columns - own) / (CPU_PANEL_ROWS * last.start)
    return value, max(0.0, own - CPU_PANEL_ROWS**2 * value)


def _reading(n_outputs: int) -> float:
    """Seconds of a kept value with its product; half of them are read transposed."""
    operator, weights = _operator(False, 1, n_outputs, math.inf), torch.ones(N_POINTS, n_outputs)

    def epoch() -> None:
        for panel in _panels():
            operator.panel(panel, weights, N_POINTS)

    epoch()  # which evaluates and keeps them
    return _seconds(epoch) / N_POINTS**2


def _step(n_outputs: int) -> float:
    """Seconds of a step with a small batch."""
    R, m = CPU_PANEL_ROWS, SMALL_BATCH
    batches = tuple(slice(i, i + m) for i in range(0, R, m))
    visit = Visit(0, Panel(0, R, batches), batches)
    levelled = LevelledKernel(torch.zeros(R, LEVELLED), torch.ones(LEVELLED))
    y, safe = torch.ones(R, n_outputs), torch.ones(R, 1)
    own, Z = torch.eye(R), torch.zeros(R, LEVELLED)

    def steps() -> None:
        products = PanelProducts(torch.zeros(R, n_outputs), own, Z)
        model = Expansion(torch.zeros(R, n_outputs))
        step = Step(eta=0.0, m=m, beta=1.0)
        for _, losses in descend(visit, products, levelled, model, step, y, safe):
            torch.stack([losses.error, losses.residual]).tolist()  # as the loop does

    return _seconds(steps) / len(batches)


def _feature(evaluations: dict[int, tuple[float, float]]) -> float:
    """Seconds that one feature adds to a kernel value."""
    added = evaluations[MANY_FEATURES][0] - evaluations[FEW_FEATURES][0]
    return max(LEAST_SECONDS, added / (MANY_FEATURES - FEW_FEATURES))


def _seconds(action: Callable[[], object]) -> float:
    return fastest(action, REPEATS, time.thread_time)
