"""Measuring a device: its capacity C_G, and the rates at which it computes, writes and reads.

The numbers that a plan depends on are those of the device, however many of its cores are in use, and
are rounded so coarsely that a plan does not depend on the noise of one measurement.  The rates, which
only predict seconds, are measured with the threads that will be used.
"""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path

import platformdirs
import torch
from torch import Tensor

from mercer.files.whole import write_text_whole
from mercer.kernels import Gaussian
from mercer.operators.storage import CPU_READ_CODES, READ_COLUMNS, CodedTile
from mercer.operators.summation import AnyTile, Summation, Tile, pieces
from mercer.operators.tiled import panel_rows
from mercer.operators.workers import cores, torch_threads, workers_for
from mercer.planning.keeping import SMALL_BYTES
from mercer.planning.memory import free_memory, reserved_bytes
from mercer.planning.resource import READ_OUTPUTS, Rates, Resource
from mercer.stopwatch import Stopwatch, fastest

# The shape of the products that are timed: short enough to take milliseconds, long enough that the
# centres do not fit in the innermost caches.
PROBE_CENTRES = 4096
PROBE_FEATURES = 256
PROBE_SECONDS = 0.1
# Upper limit on the rows of a probe, which are the first of the centres.
MOST_PROBE_ROWS = PROBE_CENTRES
# A shorter sweep could be decided by two slow moments.
FEWEST_PROBE_ROWS = 1 << 7
PROBE_SWEEPS = 2
# The products by which floats and bytes are compared.
PRODUCT_ROWS = 512
PRODUCT_FEATURES = 512
PRODUCT_PROBES = 5
# Throughput within this share of the best counts as "stopped rising".
SATURATED_SHARE = 0.9
# Rows at which products of one core usually saturate; in repeated measurements on one machine the number
# found varied between half and twice this.
USUAL_ROWS = 128
# Rate of 8-bit products over that of float32 products where a processor has instructions for them.
USUAL_GAIN = 4.0
# Bytes of memory whose rates are measured, and how often it is allocated afresh.
RATE_BYTES = 1 << 25
FRESH_PROBES = 2
READ_RUNS = 2
# Fresh memory is touched in pieces, for so long or until a share of what is wanted has been touched.
TOUCH_BYTES = 1 << 23
TOUCH_SECONDS = 0.03
TOUCHED_SHARE = 0.1
# The first memory that is handed out is what the system has at hand; what a virtual machine has to
# request from its host came up to six times as slowly where this was measured.  Unknown in advance;
# about the middle of the observed range.
FRESH_MEMORY_FACTOR = 1.5
# Part of the cache key: raised when the engine changes, so that devices are measured again.
ENGINE = "engine 7"


def measure_resource(
    device: torch.device, dtype: torch.dtype = torch.float32, cache: Path | None = None
) -> Resource:
    """Measure a device: S_G is read now, C_G is measured once and cached in a file."""
    name = " | ".join([_device_name(device), str(dtype), f"torch {torch.__version__}", ENGINE])
    timed = f"{name} | {workers_for(device).count} threads"
    cache = cache or platformdirs.user_cache_path("mercer") / "capacity.json"
    known = _read_cache(cache)
    if name not in known:
        known[name] = _measure_capacity(device, dtype)
        _write_cache(cache, known)
    if timed not in known:
        known[timed] = asdict(_measure_rates(device, known[name]["feature"]))
        _write_cache(cache, known)
    memory, rows = free_memory(device), int(known[name]["full_rate_rows"])
    return Resource(
        capacity=float(rows * PROBE_CENTRES * (PROBE_FEATURES + 1)),
        full_rate_rows=rows,
        integer_gain=known[name]["integer_gain"],
        memory=memory,
        reserved=reserved_bytes(device, memory),
        device=str(device),
        element_size=torch.finfo(dtype).bits // 8,
        rates=Rates(**known[timed]),
        name=_device_name(device),
    )


def _measure_capacity(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """What a plan depends on, and the seconds of a multiply-add on one core."""
    timer, fastest = _kernel_product_timer(device, dtype), dict[int, float]()

    def seconds_at(m: int) -> float:
        fastest[m] = min(timer(m), fastest.get(m, math.inf))
        return fastest[m]

    # Other processes can only make a sweep slower, so the last one ends with the best times of all.
    with torch_threads(1):  # tiles run on one core each, so one core is measured
        for _ in range(PROBE_SWEEPS):
            rows = saturating_rows(seconds_at, PROBE_SECONDS)
        feature, gain = _product_rates(device, dtype)
    return {
        "full_rate_rows": cores(device) * quantised(rows),
        "integer_gain": USUAL_GAIN if gain >= math.sqrt(USUAL_GAIN) else float(gain > 0),
        "feature": feature,
    }


def quantised(rows: int) -> int:
    """Rows a core in steps of four from the usual number, so that noise does not decide.

    >>> [quantised(rows) for rows in (16, 64, 128, 256, 512, 4096)]
    [32, 128, 128, 128, 512, 2048]
    """
    return round(USUAL_ROWS * 4.0 ** math.trunc(math.log(rows / USUAL_ROWS, 4)))


def _measure_rates(device: torch.device, feature: float) -> Rates:
    """Seconds with the threads of now, given those of a multiply-add on one core."""
    memory, write = _fresh_memory(device)
    one, two, most = (_reading(memory, outputs) for outputs in (1, 2, READ_OUTPUTS))
    codes = memory.view(torch.int16).view(-1, memory.shape[1])
    code_one, code_two, code_most = (_reading(codes, outputs) for outputs in (1, 2, READ_OUTPUTS))
    return Rates(
        feature=feature / workers_for(device).count,
        write=write,
        read=one,
        read_two=two,
        read_output=max(0.0, most - two) / (READ_OUTPUTS - 2),
        code=code_one,
        code_two=code_two,
        code_output=max(0.0, code_most - code_two) / (READ_OUTPUTS - 2),
    )


def saturating_rows(seconds_at: Callable[[int], float], budget: float = math.inf) -> int:
    """The fewest rows, doubling from 1, at which rows per second have stopped rising.

    `seconds_at(m)` times one product with m rows.  Doubling stops once two further doublings gained
    nothing worth having, not before a number at which any device should, or when products have taken
    `budget` seconds.
    """
    rates: dict[int, float] = {}
    spent = 0.0
    m = 1
    while m <= MOST_PROBE_ROWS:
        seconds = seconds_at(m)
        rates[m], spent = m / seconds, spent + seconds
        best = max(rates.values())
        first = next(rows for rows, rate in rates.items() if rate >= SATURATED_SHARE * best)
        if m >= max(4 * first, FEWEST_PROBE_ROWS) or spent > budget:
            break
        m *= 2
    return first


def _kernel_product_timer(device: torch.device, dtype: torch.dtype) -> Callable[[int], float]:
    kernel = Gaussian(bandwidth=math.sqrt(PROBE_FEATURES))
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(PROBE_CENTRES, PROBE_FEATURES, generator=generator).to(device, dtype)
    centres = kernel.points(x)
    weights = x[:, :1].contiguous()

    def seconds_at(m: int) -> float:
        rows = centres[:m]
        # Reading a value waits for the device; the first run warms up.
        return fastest(lambda: float((kernel.block(rows, centres) @ weights)[0, 0]), 2, _clock(device))

    return seconds_at


def _clock(device: torch.device) -> Callable[[], float]:
    """On a CPU, only the time that the probing thread was running: others may use the core as well."""
    return time.thread_time if device.type == "cpu" else time.perf_counter


def _product_rates(device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """Seconds of a multiply-add, and how many times as fast torch._int_mm is; 0 if it is not usable."""
    codes = torch.ones(PRODUCT_ROWS, PRODUCT_FEATURES, dtype=torch.int8, device=device)
    floats = codes.to(dtype)
    try:
        odd = codes[:33, :41].contiguous()
        exact = int(torch._int_mm(odd, odd.T).sum()) == 33 * 33 * 41
    except (RuntimeError, NotImplementedError):
        exact = False  # CUDA requires multiples of 8; other devices lack it
    by_floats, by_bytes, clock = math.inf, math.inf, _clock(device)
    for _ in range(PRODUCT_PROBES):  # in turn, so that a slow moment does not decide between them
        by_floats = min(by_floats, fastest(lambda: float((floats @ floats.T)[0, 0]), 1, clock))
        if exact:
            seconds = fastest(lambda: float(torch._int_mm(codes, codes.T)[0, 0]), 1, clock)
            by_bytes = min(by_bytes, seconds)
    return by_floats / (PRODUCT_ROWS**2 * PRODUCT_FEATURES), by_floats / by_bytes


def _fresh_memory(device: torch.device) -> tuple[Tensor, float]:
    """Memory with as many columns as training keeps values in, and the seconds a byte of it took."""
    shape = (RATE_BYTES // (4 * panel_rows(device)), panel_rows(device))
    write = math.inf
    for _ in range(FRESH_PROBES):
        memory = torch.empty(shape, dtype=torch.float32, device=device)
        write = min(write, fastest(lambda: float(memory.fill_(1.0)[0, 0]), 1))  # noqa: B023
    return memory, write / RATE_BYTES


def fresh_byte_seconds(size: float, device: torch.device, rates: Rates) -> float:
    """Seconds a byte of `size` bytes of fresh memory: for many, as the system hands it out now."""
    if size <= SMALL_BYTES or device.type != "cpu":
        return rates.write
    held: list[Tensor] = []
    watch = Stopwatch()
    while watch.seconds < TOUCH_SECONDS and len(held) * TOUCH_BYTES < TOUCHED_SHARE * size:
        held.append(torch.empty(TOUCH_BYTES, dtype=torch.uint8).fill_(1))
    return FRESH_MEMORY_FACTOR * watch.seconds / (len(held) * TOUCH_BYTES)


def _reading(memory: Tensor, outputs: int) -> float:
    """Seconds a byte of kept values, K[columns, panel], or codes of them, in a product with weights."""
    n, rows = memory.shape
    cut = pieces(0, n, READ_COLUMNS)
    tiles: list[AnyTile] = [Tile.known(c, memory[c]) for c in cut]
    if memory.dtype == torch.int16:
        tiles = [CodedTile(c, memory[c], step=1.0, at_once=CPU_READ_CODES) for c in cut]
    weights = torch.ones(outputs, n, device=memory.device).T  # (n, l)
    summation = Summation(memory.device, torch.float32, rows, outputs)
    jobs = [tile.times(weights) for tile in tiles]
    # Reading a value waits for the device.
    return fastest(lambda: float(summation.of(jobs, rows)[0, 0]), READ_RUNS) / memory.nbytes


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "mps":
        return f"Apple GPU ({platform.machine()})"
    return f"{_processor_name()}, {os.cpu_count()} cores"


def _processor_name(file: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name on Linux, where Python reports only its architecture."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        lines = []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, named), f"{platform.processor() or platform.machine()} CPU")


_CAPACITY = ("full_rate_rows", "integer_gain", "feature")
_RATES = tuple(field.name for field in fields(Rates))


def _read_cache(path: Path) -> dict[str, dict[str, float]]:
    try:
        known = json.loads(path.read_text())
        names = {key: _RATES if key.endswith("threads") else _CAPACITY for key in known}
        return {key: {n: float(known[key][n]) for n in names[key]} for key in known}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}  # absent, damaged or of another version: measured again


def _write_cache(path: Path, known: dict[str, dict[str, float]]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text_whole(path, json.dumps(known, indent=1))
    except OSError:
        return  # a read-only home only costs measuring again
