"""Where the bytes go: the only file that counts them.

    free memory          what this process may still take, containers' limits respected
    reserved             held back for the rest of this program and for others
    data                 the prepared rows, memory-mapped where they would take too much
    work                 weights, targets and copies of them, the spectrum, workspaces
    kept                 kernel values of the first epoch, for later ones
    estimates, search    dense matrices over a few points, before training
    tables               chunks of rows while reading, counts of distinct values, features

PyTorch is imported only for devices that need it, so reading tables does not load it.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from mercer.operators.pool import POOL

if TYPE_CHECKING:
    import torch

GIB = 1024**3
UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
# Held back from the memory found: half of the main memory, which others use as well, and of a device as
# much as the paper's implementation, which reserves 0.6 GB of 12 GB.
RESERVED_SHARE = 0.5
DEVICE_RESERVED_SHARE = 0.05
# Memory-map the data above this share of the budget; the rest is workspace and cache.
DATA_SHARE = 0.5
# Dense matrices over the subsample or the fresh points that estimates hold at once.
ESTIMATE_MATRICES = 10
# Dense float64 matrices over the search's points that measuring one setting holds at once.
SEARCH_MATRICES = 6
# Dense float64 matrices over the centres that solving their equations holds at once.
NORMAL_MATRICES = 6
# Workspace beside what grows with the data, in numbers.
WORKSPACE_NUMBERS = 1 << 22
# A chunk of a table has at most so many rows, and at most so many values (64 MB at eight bytes each).
# With very many columns the fixed cost of a chunk dominates, so it has at least the last number of rows.
CHUNK_ROWS = 1 << 15
CHUNK_VALUES = 1 << 23
FEWEST_CHUNK_ROWS = 1 << 9
# Bytes of an svmlight file parsed at a time.
SVMLIGHT_BYTES = 1 << 24
# Bytes of distinct values of one text column that are counted exactly.
MOST_DISTINCT_BYTES = 1 << 26
# Share of the memory budget that the features of a table may take; training copies them and keeps kernel
# values.
FEATURES_SHARE = 0.25
# Upper limits on a table that is kept in memory between the passes over it: bytes, and a share of the
# free memory.
MOST_KEPT_TABLE = 1 << 28
KEPT_TABLE_SHARE = 0.1
# Columns of a table, unless the user allows more: each takes some twenty kilobytes and a tenth of a
# millisecond, however few rows there are.
MOST_COLUMNS = 50_000
# What a data file may claim, relative to its size on disk and at least the floor.  Real text and numbers
# compress by less than a hundred with gzip; sparse rows and runs of equal values take less than a
# thousandth of what they are as numbers of eight bytes.
UNPACKED_RATIO = 100
TABLE_RATIO = 1000
CLAIM_FLOOR = 1 << 28
VALUE_BYTES = 8
# Share of the free disk that one temporary copy may take.
TEMPORARY_SHARE = 0.9
FLOAT32_BYTES = 4


def parse_memory(memory: float | str) -> float | None:
    """Bytes from a number or a text such as "4GB"; None for "auto".

    >>> parse_memory("1.5 GB") == 1.5 * 1024**3
    True
    """
    if memory == "auto":
        return None
    if isinstance(memory, str):
        found = re.fullmatch(r"\s*([0-9.]+)\s*([KMGT]?)i?B?\s*", memory, re.IGNORECASE)
        try:
            return float(found[1]) * UNITS[found[2].upper()] if found else float("nan")
        except ValueError:
            return float("nan")
    return float(memory)


def in_words(size: float) -> str:
    """A number of bytes as people read it.

    >>> in_words(1.5 * 1024**3)
    '1.50 GiB'
    """
    if 0 < size < 1024**2:
        return f"{size / 1024:.0f} KiB"
    return f"{size / GIB:.2f} GiB" if size >= GIB else f"{size / 1024**2:.0f} MiB"


def reserved_bytes(device: torch.device, free: float) -> float:
    """Bytes of the free memory that are not used unless a limit is given."""
    return (RESERVED_SHARE if device.type == "cpu" else DEVICE_RESERVED_SHARE) * free


def data_limit(device: torch.device, usable: float) -> float:
    """Bytes of data that stay in memory; a device of its own has no file to read from."""
    return DATA_SHARE * usable if device.type == "cpu" else math.inf


def work_bytes(n: int, n_outputs: int, s: int, element_size: int) -> float:
    """Weights, targets and copies of them, spectrum and workspaces of a run."""
    per_point = 9 * n_outputs + 4
    return element_size * (n * per_point + 5 * s * s + WORKSPACE_NUMBERS)


def centres_bytes(
    n: int, p: int, temporary: int, panel: int, n_outputs: int, s: int, element_size: int, ranks: int = 1
) -> float:
    """The same of a run with p centres and some temporary ones, on all ranks.

    Rows have targets, residuals, those that two earlier epochs began with, and a weight.  A panel's
    values with all centres are kept for a while, by each rank those of its own centres.  Sums over rows
    are in float64.
    """
    per_row, per_center, sums = 4 * n_outputs + 1, 12 * n_outputs + 4, 19 * n_outputs
    numbers = n * per_row + (p + temporary) * per_center + 5 * s * s + WORKSPACE_NUMBERS
    return float(element_size * (ranks * numbers + p * panel) + VALUE_BYTES * ranks * p * sums)


def normal_bytes(n: int, p: int, panel: int, n_outputs: int, element_size: int) -> float:
    """Of a run that solves the equations of p centres at once: matrices in float64, a panel's values."""
    numbers = NORMAL_MATRICES * p * p + p * (panel + 8 * n_outputs)
    rows = n * (2 * n_outputs + 1) + p * panel + WORKSPACE_NUMBERS
    return float(VALUE_BYTES * numbers + element_size * rows)


def stream_bytes(n: int, sample: int, block: int, d: int, item: int) -> float:
    """Beside a run on a stream of n rows: targets, the sample as given and as prepared, and blocks.

    Two blocks are held as prepared; one is read, permuted and converted to float64 meanwhile.
    """
    return float(VALUE_BYTES * n + sample * d * (item + FLOAT32_BYTES) + block * d * 5 * VALUE_BYTES)


def data_bytes(n: int, d: float, ranks: int, element_size: int, dealt: int | None) -> float:
    """The rows in memory: all on each rank, or dealt to the ranks but for the first `dealt` ones."""
    rows = ranks * n if dealt is None else n + (ranks - 1) * dealt
    return float(rows * d * element_size)


def centres_data_bytes(n: int, p: int, d: float, ranks: int, element_size: int, dealt: bool) -> float:
    """The rows in memory where there are p centres: if they are dealt to the ranks, all have these."""
    rows = n + ranks * p if dealt else ranks * n
    return float(rows * d * element_size)


def passing_bytes(rows: int, d: float, element_size: int) -> float:
    """The points of a panel and of the next one, as they are sent where each rank holds some."""
    return 2 * rows * (d + 2) * element_size


def repeated_bytes(n: int, width: int, ranks: int, element_size: int) -> float:
    """Z and the own blocks of panels, `width` values a row, which all ranks keep beside the first."""
    return (ranks - 1) * n * width * element_size


def kept_bytes(
    usable: float, *, work: float, data: float, held_out: int, d: int, wanted: float, element_size: int
) -> float:
    """What may be kept of kernel values: all that is wanted, or what the rest leaves room for.

    `data` are the bytes of the rows in memory, none where they are memory-mapped.  Held-out rows are in
    memory twice, as given and as prepared.
    """
    spare = max(0.0, usable - work - data - 2 * element_size * held_out * d)
    return min(spare, wanted)


def affordable_points(memory: float, matrices: int, features: int, element_size: int) -> int:
    """Points s for which `matrices` of s × s and one of s × `features` take half of so many bytes.

    >>> affordable_points(2 * 8 * (3 * 100**2 + 50 * 100), 3, 50, 8)
    100
    """
    half = memory / (2 * element_size)
    return int((math.sqrt(features**2 + 4 * matrices * half) - features) / (2 * matrices))


def estimate_points(usable: float, d: int, element_size: int) -> int:
    """Points over which the spectrum and the fresh estimates may hold their matrices."""
    return affordable_points(usable, ESTIMATE_MATRICES, 2 * d, element_size)


def search_points(usable: float, d: int, wanted: int, workers: int) -> tuple[int, int]:
    """Points for the search, and how many workers may try a setting at a time.

    Threads keep what they have freed, so where memory is short one setting is tried at a time.
    """
    copies = 4 * d  # features of the sample, in float64 and as given
    if affordable_points(usable, 2 * SEARCH_MATRICES * workers, copies, 8) < wanted:
        workers = 1
    affordable = affordable_points(usable, SEARCH_MATRICES * max(2, workers), copies, 8)
    return max(2, min(wanted, affordable)), workers


def scale_points(usable: float, d: int, variants: int, workers: int, centres: int, chunk: int) -> int:
    """Points that the search may train on with so many centres, each worker one setting at a time.

    The features of the sample are in memory in float64 and as given, prepared in each way, and three
    times for each setting that is being tried.
    """
    matrices = workers * centres * (NORMAL_MATRICES * centres + 2 * chunk)
    left = usable / (2 * VALUE_BYTES) - matrices
    return max(0, int(left / (d * (3 + variants + 3 * workers))))


def return_freed_memory() -> None:
    """Give what was freed back to the system, where the C library would hold it for the next request."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:  # GNU
        trim(0)


def chunk_rows(n_columns: int) -> int:
    """Rows to read at a time from a table with this many columns."""
    return max(FEWEST_CHUNK_ROWS, min(CHUNK_ROWS, CHUNK_VALUES // max(1, n_columns)))


def feature_bytes(n_rows: int, n_features: int) -> int:
    """Bytes of a dense float32 matrix of features."""
    return FLOAT32_BYTES * n_rows * n_features


def claim_limit(size: int, ratio: int) -> int:
    """Bytes that a data file of this size may claim to hold.

    >>> claim_limit(20, 1000) == CLAIM_FLOOR
    True
    """
    return max(CLAIM_FLOOR, ratio * size)


def stay_in_memory(size: int, budget: float) -> bool:
    """Whether features of this many bytes are kept in memory rather than in a file."""
    return size <= FEATURES_SHARE * budget


def keep_table(size: float) -> bool:
    """Whether a table of this many bytes is kept in memory between the passes over it."""
    return size <= min(MOST_KEPT_TABLE, KEPT_TABLE_SHARE * free_memory())


def free_disk(folder: Path | None) -> int:
    """Free bytes on the disk of a folder, by default the one for temporary files."""
    return shutil.disk_usage(folder or tempfile.gettempdir()).free


def free_memory_or_disk(folder: Path | None) -> float:
    """Bytes that a matrix of features can take in memory or in this folder, whichever is larger."""
    return max(free_memory(), free_disk(folder))


def free_memory(device: torch.device | None = None) -> float:
    """S_G in bytes: what this process may still take on the device, the CPU by default."""
    if device is not None and device.type == "cuda":
        import torch

        return float(torch.cuda.mem_get_info(device)[0])
    if device is not None and device.type == "mps":
        import torch

        return float(torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory())
    limits = [float(psutil.virtual_memory().available), *_container_headroom()]
    process = psutil.Process()
    if hasattr(process, "rlimit"):  # Linux
        soft, _ = process.rlimit(psutil.RLIMIT_AS)
        if soft != psutil.RLIM_INFINITY:
            limits.append(float(soft - process.memory_info().vms + POOL.free_bytes))
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
