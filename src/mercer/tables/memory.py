"""How much memory and disk reading a table may take.

All byte limits of this package are here.  Reading needs a chunk of rows at a time, the counts of
distinct values of text columns, and in the end the features, kept in memory or in a file.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

# Most rows and most values of a chunk (64 MB at eight bytes each).  With very many columns the fixed
# cost of a chunk dominates, so it never has fewer rows than the last number.
CHUNK_ROWS = 1 << 15
CHUNK_VALUES = 1 << 23
FEWEST_CHUNK_ROWS = 1 << 9
# Bytes of an svmlight file parsed at a time.
SVMLIGHT_BYTES = 1 << 24
# Bytes of distinct values of one text column that are counted exactly.
MOST_DISTINCT_BYTES = 1 << 26
# Share of the memory budget that the features may take; training copies them and keeps kernel values.
FEATURES_SHARE = 0.25

FLOAT32_BYTES = 4
GIB = 1024**3


def chunk_rows(n_columns: int) -> int:
    """Rows to read at a time from a table with this many columns."""
    return max(FEWEST_CHUNK_ROWS, min(CHUNK_ROWS, CHUNK_VALUES // max(1, n_columns)))


def feature_bytes(n_rows: int, n_features: int) -> int:
    """Bytes of a dense float32 matrix of features."""
    return FLOAT32_BYTES * n_rows * n_features


def stay_in_memory(size: int, budget: float) -> bool:
    """Whether features of this many bytes are kept in memory rather than in a file."""
    return size <= FEATURES_SHARE * budget


def free_disk(folder: Path | None) -> int:
    """Free bytes on the disk of a folder, by default the one for temporary files."""
    return shutil.disk_usage(folder or tempfile.gettempdir()).free


def free_memory_or_disk(folder: Path | None) -> float:
    """Bytes that a matrix of features can take in memory or in this folder, whichever is larger."""
    from mercer.planning.resource import find_device, free_memory  # imports PyTorch, which takes seconds

    return max(free_memory(find_device("cpu")), free_disk(folder))
