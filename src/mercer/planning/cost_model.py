"""Seconds and memory of training on devices that are not here, from their rates.

With P devices, panels of R rows, s points in the fixed block and q levelled eigenvalues,

    first epoch     (T v + n s q a) / P + (1 - 1/P) n R v + steps + exchanges
    later epochs    (2 c T r + (1 - c) n² v) / P + (1 - c) (1 - 1/P) n R v + steps + exchanges

where v = (d + l) a + e are the seconds of a kernel value and its product with the weights: a for one
multiplication and addition, e for the passes over the value.  T is the triangle of the first epoch, c
the share of it that is kept, and r the seconds of a kept value, read twice.  The own block of a panel,
R × R, and its steps are the same work on all devices.  An exchange adds up the sums of a panel in a
ring: each device sends 2 (P - 1) messages of 1/P of them.

`NAMED_DEVICES` and `NAMED_LINKS` have published figures, peaks; `PEAK_SHARE` of them is assumed to be
reached.  Nothing here was measured on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from mercer.method.schedule import first_epoch_values
from mercer.operators.tiled import DEVICE_PANEL_ROWS
from mercer.planning.choose import ELEMENTWISE_FEATURES
from mercer.planning.keeping import wanted_bytes
from mercer.planning.memory import (
    DEVICE_RESERVED_SHARE,
    FLOAT32_BYTES,
    GIB,
    in_words,
    kept_bytes,
    repeated_bytes,
    work_bytes,
)
from mercer.planning.plan import Plan
from mercer.planning.resource import Rates

# Share of a published peak that is assumed to be reached.
PEAK_SHARE = 0.7
# Bytes of memory traffic for a kernel value, if no operations are fused and nothing stays in a cache:
# the product writes it, four passes of a Laplacian read and write it, the product with weights reads it.
PASS_BYTES = FLOAT32_BYTES * (1 + 4 * 2 + 1)
# Operations of one step (see `method/step.py`), and the seconds that each is assumed to take at least on
# a GPU.
STEP_OPERATIONS = 30
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
    rows: int = DEVICE_PANEL_ROWS  # R, evaluated together

    @classmethod
    def published(cls, flops: float, traffic: float) -> DeviceCosts:
        """Of peak rates: operations and bytes a second."""
        read = 1 / (PEAK_SHARE * traffic)
        return cls(2 / (PEAK_SHARE * flops), PASS_BYTES * read, read, LAUNCH_SECONDS)

    @classmethod
    def measured(cls, rates: Rates, n_outputs: int, rows: int) -> DeviceCosts:
        """Of a device that was measured."""
        products = n_outputs * rates.feature / FLOAT32_BYTES  # of a byte that is read
        read = max(0.0, rates.reading(n_outputs, FLOAT32_BYTES) - products)
        return cls(rates.feature, ELEMENTWISE_FEATURES * rates.feature, read, rows=rows)


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
    shape: Shape, device: DeviceCosts, memory: float, ranks: int, link: LinkCosts | None = None
) -> Estimate:
    """Seconds and bytes; `memory` is what may be used of each device.

    >>> shape = Shape(n=1_000_000, d=100, l=10, s=12_000, q=500, m=1_000)
    >>> one = estimate(shape, NAMED_DEVICES["A100"], 76 * GIB, 1)
    >>> eight = estimate(shape, NAMED_DEVICES["A100"], 76 * GIB, 8, NAMED_LINKS["NVLink"])
    >>> 6 < one.first_epoch_seconds / eight.first_epoch_seconds < 8
    True
    """
    if ranks > 1 and link is None:
        raise ValueError(f"{ranks} devices need a link between them. Got none.")
    n, d, l, s, q = shape.n, shape.d, shape.l, min(shape.s, shape.n), shape.q
    R, others = min(device.rows, n), 1 - 1 / ranks
    triangle = first_epoch_values(n, s, R)
    needed = FLOAT32_BYTES * n * d + work_bytes(n, l, s, FLOAT32_BYTES)
    whole = wanted_bytes(n, triangle, q, FLOAT32_BYTES, None)
    kept = kept_bytes(
        ranks * memory,
        work=ranks * needed + repeated_bytes(n, R + q, ranks, FLOAT32_BYTES),
        data=0.0,
        held_out=0,
        d=0,
        wanted=whole,
        element_size=FLOAT32_BYTES,
    )
    c = kept / whole
    v = (d + l) * device.multiply_add + device.value
    reading = FLOAT32_BYTES * device.read + l * device.multiply_add  # of a value that is kept
    # Z is kept before anything else.
    Z, Z_is_kept = n * s * q * device.multiply_add, kept >= FLOAT32_BYTES * n * q
    steps = _step_seconds(shape, device, R)
    with_Z = _exchange_seconds(shape, R, ranks, link, SUM_BYTES * l + FLOAT32_BYTES * q)
    without_Z = _exchange_seconds(shape, R, ranks, link, SUM_BYTES * l)
    first = (triangle * v + Z) / ranks + others * n * R * v + steps + with_Z
    again = n * n * v / ranks + others * n * R * v
    later = 2 * c * triangle * reading / ranks + (1 - c) * again + steps
    later += without_Z if Z_is_kept else Z / ranks + with_Z
    return Estimate(first, later, needed, kept, c, needed <= memory)


def with_estimated_seconds(
    plan: Plan, device: DeviceCosts, memory: float, link: LinkCosts | None
) -> Plan:
    """A plan for devices that are not here, with seconds, what is kept, and whether it fits."""
    shape = Shape(
        plan.n, plan.d, plan.n_outputs, plan.subsample_size, plan.preconditioner_rank, plan.batch_size
    )
    found = estimate(shape, device, memory, plan.ranks, link)
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
        notes=notes,
    )


def usable_memory(memory: float) -> float:
    """What may be used of the memory of a device."""
    return (1 - DEVICE_RESERVED_SHARE) * memory


def _step_seconds(shape: Shape, device: DeviceCosts, R: int) -> float:
    """The steps of an epoch, which every device takes: products with the own block and with Z."""
    each = shape.l * device.multiply_add + FLOAT32_BYTES * device.read
    per_row = 2 * R + min(shape.m, R) + 2 * shape.q
    corrections = math.ceil(shape.n / R) * shape.s * shape.q  # of the fixed block, V c
    launches = math.ceil(shape.n / shape.m) * STEP_OPERATIONS * device.operation
    return (shape.n * per_row + corrections) * each + launches


def _exchange_seconds(
    shape: Shape, R: int, ranks: int, link: LinkCosts | None, row_bytes: float
) -> float:
    """Adding up the sums of all panels of an epoch."""
    if ranks == 1 or link is None:
        return 0.0
    hops, panels = 2 * (ranks - 1), math.ceil(shape.n / R)
    return hops * (shape.n * row_bytes / ranks / link.rate + panels * link.latency)
