"""Seconds and memory of training on devices that are not here, from their rates.

With P devices, panels of R rows in B blocks, s points in the fixed block and q levelled eigenvalues,

    first epoch     (T - n s) v / P + n s (v + q a) / P' + (1 - 1/P) n R v + steps
    later epochs    c T r (1/P + 1/P') + (1 - c) (n² v / P + (1 - 1/P) n R v) + steps

where v = (d + l) a + e are the seconds of a kernel value and its product with the weights: a for one
multiplication and addition, e for the passes over the value.  T is the triangle of the first epoch, c
the share of it that is kept, and r the seconds of a kept value, read as it is and transposed.  The fixed
block, and what is read transposed, is the work of the devices that have blocks of the panel, P' = min(P,
B).  The own block of a panel, R × R, and its steps are the same work on all devices.

With p centres and w temporary ones, every epoch takes

    n ((p + w / 2) v / P + R v + s q a / P + 2 p r / P) + steps + exchanges + n / w passes

and a pass over the centres takes p² r / P, or p² v / P where K over them is not kept, and their steps.

An exchange adds up the sums of a panel in a ring: each device sends 2 (P - 1) messages of 1/P of them.
Meanwhile the next panel is multiplied with all columns but the fixed block, so exchanges take time only
where they take longer than that.  With fewer centres than rows they count in full, although the own
block is evaluated meanwhile.  Points that are dealt to the devices are sent in the same way, a panel
ahead, so they take time only where all messages take longer than all work.

`NAMED_DEVICES` and `NAMED_LINKS` have published figures, peaks; `PEAK_SHARE` of them is assumed to be
reached.  Nothing here was measured on a GPU.  `benchmarks/fitted_costs.py` measures these costs on the
machine it runs on, and `benchmarks/scaling.py` compares the model with runs there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from mercer.method.schedule import first_epoch_values
from mercer.operators.deal import DEVICE_BLOCK_COLUMNS
from mercer.operators.tiled import DEVICE_PANEL_ROWS
from mercer.operators.to_centres import FEWEST_AT_ONCE
from mercer.planning.keeping import wanted_bytes
from mercer.planning.memory import (
    DEVICE_RESERVED_SHARE,
    FLOAT32_BYTES,
    GIB,
    centres_bytes,
    centres_data_bytes,
    data_bytes,
    in_words,
    kept_bytes,
    passing_bytes,
    repeated_bytes,
    work_bytes,
)
from mercer.planning.plan import Plan
from mercer.planning.together import beside

# Share of a published peak that is assumed to be reached.
PEAK_SHARE = 0.7
# Bytes of memory traffic for a kernel value, if no operations are fused and nothing stays in a cache:
# the product writes it, four passes of a Laplacian read and write it, the product with weights reads it.
PASS_BYTES = FLOAT32_BYTES * (1 + 4 * 2 + 1)
# Operations of one step (see `method/step.py`) and of one tile: a product, four passes, and the product
# with weights.  On a GPU, each is assumed to take at least so many seconds.
STEP_OPERATIONS = 30
TILE_OPERATIONS = 6
LAUNCH_SECONDS = 5e-6
# Bytes of a sum of f, in float64.
SUM_BYTES = 8


@dataclass(frozen=True)
class DeviceCosts:
    """Seconds that work takes on one device."""

    multiply_add: float  # of a matrix product
    value: float  # for the passes over one kernel value
    read: float  # a byte from memory
    operation: float = 0.0  # the shortest one
    panel: float = 0.0  # whatever the number of columns
    rows: int = DEVICE_PANEL_ROWS  # R, evaluated together
    block: int = DEVICE_BLOCK_COLUMNS  # columns of a tile

    @classmethod
    def published(cls, flops: float, traffic: float) -> DeviceCosts:
        """Of peak rates: operations and bytes a second."""
        read = 1 / (PEAK_SHARE * traffic)
        return cls(2 / (PEAK_SHARE * flops), PASS_BYTES * read, read, LAUNCH_SECONDS)

    def evaluated(self, d: float, l: int) -> float:
        """Of a kernel value and its product with the weights, in tiles of full size."""
        computing = (d + l) * self.multiply_add + self.value
        # Operations are queued, so that only those which are shorter than a launch wait for it.
        return max(computing, TILE_OPERATIONS * self.operation / (self.rows * self.block))

    def kept(self, l: int) -> float:
        """Of a kernel value that is read from memory, and its product with the weights."""
        return FLOAT32_BYTES * self.read + l * self.multiply_add


@dataclass(frozen=True)
class LinkCosts:
    """What a message between two devices takes."""

    rate: float  # bytes a second, each way
    latency: float  # seconds

    @classmethod
    def published(cls, rate: float, latency: float) -> LinkCosts:
        """Of a peak rate."""
        return cls(PEAK_SHARE * rate, latency)


# Operations a second in float32 and bytes of memory traffic a second, from the data sheets "NVIDIA A100
# Tensor Core GPU" (A100 80GB SXM) and "NVIDIA H100 Tensor Core GPU" (H100 SXM).  Both have 80 GB.
A100_FLOPS, A100_TRAFFIC = 19.5e12, 2.039e12
NAMED_DEVICES: Mapping[str, DeviceCosts] = MappingProxyType(
    {
        "A100": DeviceCosts.published(A100_FLOPS, A100_TRAFFIC),
        "H100": DeviceCosts.published(67e12, 3.35e12),
    }
)
NAMED_DEVICE_MEMORY = 80 * GIB
# Bytes a second in one direction: half of the 600 GB/s of NVLink in the data sheet of the A100, the
# 400 Gbit/s of an InfiniBand NDR port, the 100 Gbit/s of Ethernet.  Latencies are assumed.
NDR_RATE, NDR_LATENCY = 50e9, 1e-5
NAMED_LINKS: Mapping[str, LinkCosts] = MappingProxyType(
    {
        "NVLink": LinkCosts.published(300e9, 1e-5),
        "InfiniBand NDR": LinkCosts.published(NDR_RATE, NDR_LATENCY),
        "100 Gbit Ethernet": LinkCosts.published(12.5e9, 5e-5),
    }
)


@dataclass(frozen=True)
class Shape:
    """What is trained, in the paper's symbols; float32."""

    n: int
    d: float  # counted as floats: bytes take less time
    l: int
    s: int
    q: int
    m: int


@dataclass(frozen=True)
class Estimate:
    """Of training on several devices."""

    first_epoch_seconds: float
    later_epoch_seconds: float
    needed: float  # bytes on each device, without kept kernel values
    kept: float  # bytes of kept kernel values, of all devices
    kept_share: float  # of those that a later epoch could use
    fits: bool


def estimate(
    shape: Shape,
    device: DeviceCosts,
    memory: float,
    ranks: int,
    link: LinkCosts | None = None,
    *,
    dealt: bool = False,
) -> Estimate:
    """Seconds and bytes; `memory` is what may be used of each device.

    If the points are `dealt` to the devices, each holds its share of them.  Otherwise it holds all.

    >>> shape = Shape(n=1_000_000, d=100, l=10, s=12_000, q=500, m=1_000)
    >>> one = estimate(shape, NAMED_DEVICES["A100"], 76 * GIB, 1)
    >>> eight = estimate(shape, NAMED_DEVICES["A100"], 76 * GIB, 8, NAMED_LINKS["NVLink"])
    >>> 6 < one.first_epoch_seconds / eight.first_epoch_seconds < 8
    True
    """
    if ranks > 1 and link is None:
        raise ValueError(f"{ranks} devices need a link between them. Got none.")
    dealt = dealt and ranks > 1
    n, d, l, s, q = shape.n, shape.d, shape.l, min(shape.s, shape.n), shape.q
    R = min(device.rows, n)
    triangle = first_epoch_values(n, s, R)
    needed = _needed_bytes(shape, R, ranks, dealt)
    whole = wanted_bytes(n, triangle, q, FLOAT32_BYTES, None)
    kept = _kept_bytes(memory, needed, n, R + q, ranks, whole)
    c = kept / whole
    v, r = device.evaluated(d, l), device.kept(l)
    # Of the rows of a panel, the values in the fixed block are the work of those that have these rows.
    at_work = min(ranks, math.ceil(R / device.block))
    own, fixed = n * R, s * (n - min(R, s))
    Z = n * s * q * device.multiply_add / at_work
    every_panel = math.ceil(n / R) * device.panel

    def evaluating_ahead(values: float) -> float:
        return (values - fixed - own) / ranks * v  # while sums are sent

    def sent(row_bytes: float) -> float:
        return _exchange_seconds(shape, R, ranks, link, row_bytes)

    sums = sent(SUM_BYTES * l)
    sums_and_Z = sent(SUM_BYTES * l + FLOAT32_BYTES * q)
    points = sent(FLOAT32_BYTES * (d + 2)) if dealt else 0.0
    in_turn = (fixed / at_work + own) * v + Z
    first = in_turn + every_panel + _step_seconds(shape, device, R, shuffled=False)
    first += beside(evaluating_ahead(triangle), sums_and_Z, growing=True)
    first = max(first, sums_and_Z + points)
    # Kept values are read as they are and transposed.  Z is kept before anything else.
    reading = (1 / ranks + 1 / at_work) * r
    Z_is_kept = kept >= FLOAT32_BYTES * n * q
    later = c * fixed * reading + (1 - c) * (in_turn - Z) + (0.0 if Z_is_kept else Z)
    later += every_panel + _step_seconds(shape, device, R, shuffled=True)
    ahead = c * (triangle - own - fixed) * reading + (1 - c) * evaluating_ahead(n * n)
    sums = sums if Z_is_kept else sums_and_Z
    later = max(later + beside(ahead, sums), sums + (points if c < 1 else 0.0))
    return Estimate(first, later, needed, kept, c, needed <= memory)


def estimate_with_centres(
    shape: Shape,
    p: int,
    temporary: int,
    device: DeviceCosts,
    memory: float,
    ranks: int,
    link: LinkCosts | None = None,
) -> Estimate:
    """The same with p centres and some temporary ones; several devices have the points dealt to them."""
    n, d, l, s, q = shape.n, shape.d, shape.l, min(shape.s, p), shape.q
    R = min(device.rows, max(p, FEWEST_AT_ONCE), n)
    dealt = ranks > 1
    needed = centres_bytes(n, p, temporary, R, l, s, FLOAT32_BYTES, ranks)
    needed += centres_data_bytes(n, p, d, ranks, FLOAT32_BYTES, dealt)
    needed = needed / ranks + (passing_bytes(R, d, FLOAT32_BYTES) if dealt else 0.0)
    whole = wanted_bytes(p, first_epoch_values(p, s, R), q, FLOAT32_BYTES, None)
    kept = _kept_bytes(memory, needed, p, R + q, ranks, whole)
    c = kept / whole

    def at_work(columns: float) -> int:
        return min(ranks, math.ceil(columns / device.block))

    columns, v = p + temporary / 2, device.evaluated(d, l)
    epoch = n * (columns * v / at_work(columns) + R * v)
    epoch += n * s * q * device.multiply_add / at_work(s) + n * p * device.kept(2 * l) / at_work(p)
    epoch += math.ceil(n / R) * device.panel + _step_seconds(shape, device, R, shuffled=True)
    points = _exchange_seconds(shape, R, ranks, link, FLOAT32_BYTES * (d + 2)) if dealt else 0.0
    epoch = max(epoch, points) + _exchange_seconds(shape, R, ranks, link, SUM_BYTES * (l + q))
    # A pass over the centres, after what panels added to values and gradient was sent.
    centres = replace(shape, n=p)
    of_pass = c * p * p * device.kept(l) / at_work(p)
    of_pass += (1 - c) * p * (p / at_work(p) + R) * v + _step_seconds(centres, device, R, shuffled=True)
    of_pass += _exchange_seconds(centres, R, ranks, link, SUM_BYTES * 3 * l)
    epoch += n / temporary * of_pass
    return Estimate(epoch, epoch, needed, kept, c, needed <= memory)


def with_estimated_seconds(
    plan: Plan, device: DeviceCosts, memory: float, link: LinkCosts | None
) -> Plan:
    """A plan for devices that are not here, with seconds, what is kept, and whether it fits.

    Points are dealt to several devices, as `mercer fit` does.
    """
    shape = Shape(
        plan.n, plan.d, plan.n_outputs, plan.subsample_size, plan.preconditioner_rank, plan.batch_size
    )
    dealt, p = plan.ranks > 1, plan.n_centers
    if p is None:
        found = estimate(shape, device, memory, plan.ranks, link, dealt=dealt)
    else:
        parts = (device, memory, plan.ranks, link)
        found = estimate_with_centres(shape, p, plan.n_temporary, *parts)
    notes = plan.notes
    if not found.fits:
        notes += (
            f"each device needs {in_words(found.needed)} and may use {in_words(memory)}: too little",
        )
    return replace(
        plan,
        first_epoch_seconds=found.first_epoch_seconds,
        later_epoch_seconds=found.later_epoch_seconds,
        kept_memory=found.kept,
        kept_as=None,
        dealt=dealt,
        notes=notes,
    )


def usable_memory(memory: float) -> float:
    """What may be used of the memory of a device."""
    return (1 - DEVICE_RESERVED_SHARE) * memory


def _kept_bytes(
    memory: float, needed: float, columns: int, repeated: int, ranks: int, wanted: float
) -> float:
    """Bytes of kernel values that are kept beside what each device needs, on all devices."""
    return kept_bytes(
        ranks * memory,
        work=ranks * needed + repeated_bytes(columns, repeated, ranks, FLOAT32_BYTES),
        data=0.0,
        held_out=0,
        d=0,
        wanted=wanted,
        element_size=FLOAT32_BYTES,
    )


def _needed_bytes(shape: Shape, R: int, ranks: int, dealt: bool) -> float:
    """What each device holds beside kept values: its points, weights, targets and workspaces."""
    n, d, s = shape.n, shape.d, min(shape.s, shape.n)
    points = data_bytes(n, d, ranks, FLOAT32_BYTES, s if dealt else None) / ranks
    passing = passing_bytes(R, d, FLOAT32_BYTES) if dealt else 0.0
    return points + passing + work_bytes(n, shape.l, s, FLOAT32_BYTES)


def _step_seconds(shape: Shape, device: DeviceCosts, R: int, shuffled: bool) -> float:
    """The steps of an epoch, which every device takes: products with the own block and with Z."""
    m, n_batches = min(shape.m, R), max(1, R // shape.m)  # of a panel
    # Sums of the panel, changes of the batches before, and the largest stable step.
    own = R + m * _changed_batches(n_batches, shuffled) + m
    Z = shape.q * (2 - 1 / n_batches)  # before the first step of a panel, there is nothing to add
    corrections = math.ceil(shape.n / R) * shape.s * shape.q  # of the fixed block, V c
    launches = math.ceil(shape.n / shape.m) * STEP_OPERATIONS * device.operation
    return (shape.n * (own + Z) + corrections) * device.kept(shape.l) + launches


def _changed_batches(n_batches: int, shuffled: bool) -> float:
    """Batches from the first to the last one changed before a step, the mean over those of a panel.

    In random order, k of K are expected to lie within K + 2 - 2 (K + 1) / (k + 1) consecutive ones.

    >>> _changed_batches(4, shuffled=False), round(_changed_batches(4, shuffled=True), 3)
    (1.5, 1.792)
    """
    K = n_batches
    if not shuffled:
        return (K - 1) / 2
    return sum(K + 2 - 2 * (K + 1) / (k + 1) for k in range(1, K)) / K


def _exchange_seconds(
    shape: Shape, R: int, ranks: int, link: LinkCosts | None, row_bytes: float
) -> float:
    """Adding up the sums of all panels of an epoch."""
    if ranks == 1 or link is None:
        return 0.0
    hops, panels = 2 * (ranks - 1), math.ceil(shape.n / R)
    return hops * (shape.n * row_bytes / ranks / link.rate + panels * link.latency)
