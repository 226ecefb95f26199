"""What the device offers: parallel capacity C_G, memory S_G, and the batch size m_G they allow.

One iteration of the method costs (d + l) m n operations.  The paper's model of a resource G is that
an iteration takes constant time until it has C_G operations in flight, so that

    m_C solves  (d + l) m n = C_G                        all parallel units busy
    m_S solves  (d + 2 l + c m) n + s q = S_G            memory full, c copies of the m x n block
    m_G = min(m_C, m_S)

(the paper writes d + l and c = 1; its implementation keeps weights and targets, l each, and c = 3).
C_G alone has a batch shrink as 1/n without end.  On real devices a product with few rows is bound by
memory traffic however long it is, so a second measured number, `full_rate_rows`, bounds m_C below.
"""

from __future__ import annotations

import json
import math
import os
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import platformdirs
import psutil
import torch

from mercer.kernels import Gaussian
from mercer.operators.tiled import READ_COLUMNS, panel_rows, pieces
from mercer.operators.workers import small_operations, workers_for

GIB = 1024**3
# Held back from the memory found, for the interpreter, libraries and other processes: the paper's
# implementation reserves 0.6 GB of a 12 GB device, the same twentieth.
RESERVED_SHARE = 0.05
# The shape of the products that are timed: short enough to take milliseconds, long enough that the
# centres do not sit in the innermost caches.
PROBE_CENTRES = 4096
PROBE_FEATURES = 256
PROBE_SECONDS = 0.2
# More rows than this would take memory that nobody has been asked for.
MOST_PROBE_ROWS = 1 << 12
# A sweep that ended earlier would be at the mercy of two slow moments.
FEWEST_PROBE_ROWS = 1 << 7
PROBE_SWEEPS = 2
# The products by which floats and bytes are compared.
PRODUCT_ROWS = 1024
PRODUCT_FEATURES = 512
PRODUCT_PROBES = 8
# Throughput within this share of the best counts as "stopped rising".
SATURATED_SHARE = 0.9
# Bytes of memory whose rates are measured, and how often it is taken afresh.
RATE_BYTES = 1 << 26
FRESH_PROBES = 2
# Outputs up to which a product with kept values is bound by reading them; each further one takes what a
# feature does.
READ_OUTPUTS = 16
# Part of the key of what is remembered: raised when the engine is another, so that it is measured again.
ENGINE = "engine 4"
# The paper's implementation allows for a preconditioner of this many components.
PAPER_COMPONENTS = 1000


@dataclass(frozen=True)
class Rates:
    """Seconds that work takes on a device: what a rehearsal of a run is too short to tell."""

    feature: float  # one multiplication and addition in the product of a tile
    write: float  # one byte of fresh memory
    read: float  # one byte of kept values in a product with the weights of one output
    read_two: float  # the same with two, a matrix product
    read_output: float  # what each further output adds to that, up to `READ_OUTPUTS`

    def reading(self, outputs: int, element_size: int) -> float:
        """One byte of kept values in a product with the weights of so many outputs."""
        if outputs == 1:
            return self.read
        few, more = min(outputs, READ_OUTPUTS) - 2, max(0, outputs - READ_OUTPUTS)
        return self.read_two + few * self.read_output + more * self.feature / element_size


@dataclass(frozen=True)
class Resource:
    """A device as the method sees it.  Measure one with `measure_resource`, or write one down.

    >>> titan = Resource(capacity=float("inf"), memory=12 * GIB, reserved=0.6 * GIB, block_copies=3)
    >>> titan.memory_batch(n=1_100_000, d=440, l=144, preconditioner=12_000 * PAPER_COMPONENTS)
    681
    """

    capacity: float  # C_G: operations in flight that saturate the device
    memory: float  # S_G in bytes, before `reserved`
    device: str = "cpu"
    reserved: float = 0.0  # bytes of `memory` not to be used
    block_copies: float = 1.0  # m x n buffers alive at once
    full_rate_rows: int = 1  # fewest rows at which a long product runs at full rate
    integer_gain: float = 0.0  # rate of 8-bit products over that of float ones; 0 where there are none
    element_size: int = 4
    rates: Rates | None = None
    name: str = "written down by hand"

    def __post_init__(self) -> None:
        for field in ("capacity", "memory"):
            value = getattr(self, field)
            if not value > 0:
                raise ValueError(f"`{field}` must be positive. Got {value!r} instead.")

    def capacity_batch(self, n: int, d: int, l: int) -> float:
        """m_C, the batch that keeps every parallel unit busy; may be infinite."""
        return max(float(self.full_rate_rows), self.capacity / ((d + l) * n))

    def memory_batch(self, n: int, d: int, l: int, preconditioner: int = 0) -> int:
        """m_S, the batch whose kernel block fits; 0 where the data alone does not."""
        floats = (self.memory - self.reserved) / self.element_size - preconditioner
        return max(0, int((floats / n - d - 2 * l) / self.block_copies))

    def batch(self, n: int, d: int, l: int, preconditioner: int = 0) -> int:
        """m_G, at least 1."""
        return max(1, int(min(self.capacity_batch(n, d, l), self.memory_batch(n, d, l, preconditioner))))


def find_device(device: str | torch.device) -> torch.device:
    """The torch device for "auto", "cpu", "cuda", "cuda:1" or "mps"; refuses one that is not there."""
    if str(device) == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ValueError(
            f'`device` must be "auto" or a device PyTorch knows, such as "cpu", "cuda:0" or "mps". '
            f"Got {device!r} instead."
        ) from error
    missing = {
        "cuda": (found.index or 0) >= torch.cuda.device_count(),
        "mps": not torch.backends.mps.is_available(),
    }
    if missing.get(found.type, False):
        raise ValueError(
            f"`device` must be present on this machine. Got {device!r} instead, which PyTorch does "
            'not see: use device="auto", or install a build of PyTorch for it.'
        )
    return found


def free_memory(device: torch.device) -> float:
    """S_G in bytes: what this process may still take on the device."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    if device.type == "mps":
        return float(torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory())
    limits = [float(psutil.virtual_memory().available), *_container_headroom()]
    process = psutil.Process()
    if hasattr(process, "rlimit"):  # Linux
        soft, _ = process.rlimit(psutil.RLIMIT_AS)
        if soft != psutil.RLIM_INFINITY:
            limits.append(float(soft - process.memory_info().vms))
    return max(0.0, min(limits))


def _container_headroom(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> list[float]:
    """Limit minus use of each control group this process is in, versions 1 and 2."""
    headroom: list[float] = []
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return headroom  # not Linux
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory") and "memory" not in controllers.split(","):
            continue
        base = root if controllers == "" else root / "memory"
        limit_name, use_name = (
            ("memory.max", "memory.current")
            if controllers == ""
            else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        )
        # A limit on any ancestor binds; inside a container the own path may not be visible, and
        # then the group's files are at the root itself.
        folder = base / path.strip("/")
        while True:
            limit, use = _number_in(folder / limit_name), _number_in(folder / use_name)
            if limit is not None and use is not None:
                # Pages of files read earlier are given back when needed.
                cache = _statistic(folder / "memory.stat", "inactive_file")
                headroom.append(limit - use + cache)
            if folder == base or base not in folder.parents:
                break
            folder = folder.parent
    return headroom


def _number_in(path: Path) -> float | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return float(text) if text.isdigit() else None  # "max" means no limit


def _statistic(path: Path, key: str) -> float:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0.0
    return next((float(line.split()[1]) for line in lines if line.startswith(key + " ")), 0.0)


def measure_resource(
    device: torch.device, dtype: torch.dtype = torch.float32, cache: Path | None = None
) -> Resource:
    """The resource of a real device: S_G read now, C_G measured once and remembered in `cache`."""
    threads = f"{torch.get_num_threads()} threads"
    key = " | ".join([_device_name(device), str(dtype), threads, f"torch {torch.__version__}", ENGINE])
    cache = cache or platformdirs.user_cache_path("mercer") / "capacity.json"
    known = _read_cache(cache)
    entry = known.get(key)
    if entry is None:
        entry = _measure(device, dtype)
        _write_cache(cache, known | {key: entry})
    memory = free_memory(device)
    return Resource(
        capacity=entry["capacity"],
        full_rate_rows=int(entry["full_rate_rows"]),
        integer_gain=entry["integer_gain"],
        memory=memory,
        reserved=RESERVED_SHARE * memory,
        device=str(device),
        element_size=torch.finfo(dtype).bits // 8,
        rates=Rates(**{field.name: entry[field.name] for field in fields(Rates)}),
        name=_device_name(device),
    )


def _measure(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    timer, fastest = _kernel_product_timer(device, dtype), dict[int, float]()

    def seconds_at(m: int) -> float:
        fastest[m] = min(timer(m), fastest.get(m, math.inf))
        return fastest[m]

    # Others may use the machine during a sweep, which only makes it slower: the last one ends with the
    # best times of all.
    workers = workers_for(device)
    with small_operations(device):  # whole tiles go to whole cores: one of them tells of all
        for _ in range(PROBE_SWEEPS):
            rows = workers.count * saturating_rows(seconds_at, PROBE_SECONDS)
        feature, integer_gain = _product_rates(device, dtype)
    write, one, two, most = _memory_rates(device)
    rates = Rates(
        feature=feature / workers.count,
        write=write,
        read=one,
        read_two=two,
        read_output=max(0.0, most - two) / (READ_OUTPUTS - 2),
    )
    return {
        "capacity": float(rows * PROBE_CENTRES * (PROBE_FEATURES + 1)),
        "full_rate_rows": rows,
        "integer_gain": integer_gain,
        **asdict(rates),
    }


def saturating_rows(seconds_at: Callable[[int], float], budget: float = math.inf) -> int:
    """The fewest rows, doubling from 1, at which rows per second have stopped rising.

    `seconds_at(m)` times one product with m rows.  Doubling stops once two further doublings gained
    nothing worth having, not before a number at which any device should, or when `budget` seconds are
    spent.
    """
    start = time.perf_counter()
    rates: dict[int, float] = {}
    m = 1
    while m <= MOST_PROBE_ROWS:
        rates[m] = m / seconds_at(m)
        best = max(rates.values())
        first = next(rows for rows, rate in rates.items() if rate >= SATURATED_SHARE * best)
        if m >= max(4 * first, FEWEST_PROBE_ROWS) or time.perf_counter() - start > budget:
            break
        m *= 2
    return first


def _kernel_product_timer(device: torch.device, dtype: torch.dtype) -> Callable[[int], float]:
    kernel = Gaussian(bandwidth=math.sqrt(PROBE_FEATURES))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(PROBE_CENTRES, PROBE_FEATURES, generator=generator).to(device, dtype)
    centres = kernel.points(x)
    weights = x[:, :1].contiguous()

    def seconds_at(m: int) -> float:
        rows = kernel.points(x.repeat(-(-m // len(x)), 1)[:m])
        best = math.inf
        for _ in range(2):  # the first warms up
            start = time.perf_counter()
            product = kernel.block(rows, centres) @ weights
            float(product[0, 0])  # waits for the device
            best = min(best, time.perf_counter() - start)
        return best

    return seconds_at


def _product_rates(device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """Seconds of a multiplication and addition, and how many times as fast torch._int_mm is, 0 where it
    is missing or picky."""
    codes = torch.ones(PRODUCT_ROWS, PRODUCT_FEATURES, dtype=torch.int8, device=device)
    floats = codes.to(dtype)
    try:
        odd = codes[:33, :41].contiguous()
        exact = int(torch._int_mm(odd, odd.T).sum()) == 33 * 33 * 41
    except (RuntimeError, NotImplementedError):
        exact = False  # CUDA wants multiples of 8; others have none
    by_floats, by_bytes = math.inf, math.inf
    for _ in range(PRODUCT_PROBES):  # in turn, so that a slow moment does not decide between them
        by_floats = min(by_floats, _seconds(lambda: float((floats @ floats.T)[0, 0])))
        if exact:
            by_bytes = min(by_bytes, _seconds(lambda: float(torch._int_mm(codes, codes.T)[0, 0])))
    return by_floats / (PRODUCT_ROWS**2 * PRODUCT_FEATURES), by_floats / by_bytes


def _memory_rates(device: torch.device) -> tuple[float, float, float, float]:
    """Seconds a byte: of fresh memory, and of kept values read with 1, 2 and `READ_OUTPUTS` outputs."""
    # As training keeps values: K[columns, panel].
    shape = (RATE_BYTES // (4 * panel_rows(device)), panel_rows(device))
    write = math.inf
    for _ in range(FRESH_PROBES):
        memory = torch.empty(shape, dtype=torch.float32, device=device)
        write = min(write, _seconds(lambda: float(memory.fill_(1.0)[0, 0])))  # noqa: B023
    workers, parts = workers_for(device), pieces(0, len(memory), READ_COLUMNS)

    def seconds(outputs: int) -> float:
        weights = torch.ones(outputs, len(memory), device=device)

        def read(i: int, worker: int) -> None:
            torch.mm(weights[:, parts[i]], memory[parts[i]])

        def run() -> None:
            workers.run(read, len(parts))
            float(memory[0, 0])  # waits for the device

        return min(_seconds(run) for _ in range(3)) / RATE_BYTES

    return write / RATE_BYTES, seconds(1), seconds(2), seconds(READ_OUTPUTS)


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "mps":
        return f"Apple GPU ({platform.machine()})"
    return f"{_processor_name()}, {os.cpu_count()} cores"


def _processor_name(file: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's own name on Linux, where Python knows only its architecture."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        lines = []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, named), f"{platform.processor() or platform.machine()} CPU")


_MEASURED = ("capacity", "full_rate_rows", "integer_gain", *(field.name for field in fields(Rates)))


def _read_cache(path: Path) -> dict[str, dict[str, float]]:
    try:
        known = json.loads(path.read_text())
        return {key: {name: float(value[name]) for name in _MEASURED} for key, value in known.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}  # absent or damaged: measured again


def _write_cache(path: Path, known: dict[str, dict[str, float]]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump(known, file, indent=1)
        os.replace(file.name, path)
    except OSError:
        return  # a read-only home only costs measuring again


def affordable_points(memory: float, matrices: int, features: int, element_size: int) -> int:
    """Points s for which `matrices` of s × s and one of s × `features` take half of so many bytes.

    >>> affordable_points(2 * 8 * (3 * 100**2 + 50 * 100), 3, 50, 8)
    100
    """
    half = memory / (2 * element_size)
    return int((math.sqrt(features**2 + 4 * matrices * half) - features) / (2 * matrices))


def with_memory(resource: Resource, memory: float | None) -> Resource:
    """The same device with a budget set by hand."""
    return resource if memory is None else replace(resource, memory=memory, reserved=0.0)
