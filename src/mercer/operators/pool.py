"""Memory for kept values that stays with the process from one fit to the next.

The first write to fresh memory can take ten times as long as any later one: the system has to find and
clear it, and in a virtual machine the host as well.  So blocks that a run no longer needs are reused by
the next, in a grid search or in cross-validation.  Meanwhile the system may take them back: they are
marked as free (`MADV_FREE`) and count as available.  Where that is not possible, nothing is held.
"""

from __future__ import annotations

import mmap
import os
import threading
from bisect import bisect_left, insort

# Blocks below this size are left to the usual allocator.
SMALLEST_BLOCK = 1 << 20
# A block serves for what takes at least one part in so many of it.
LARGEST_EXCESS = 2


class Pool:
    """Blocks of memory that are free to be taken, the smallest that fits first.

    >>> pool = Pool()
    >>> block = pool.take(1 << 20)
    >>> len(block), pool.free_bytes
    (1048576, 0)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[tuple[int, int, mmap.mmap]] = []  # by size; the second number breaks ties
        self._count = 0

    @property
    def free_bytes(self) -> int:
        """Bytes that were used before and are free now."""
        with self._lock:
            return sum(size for size, _, _ in self._free)

    def take(self, size: int) -> mmap.mmap:
        """A block of at least `size` bytes with any contents, used before if there is one."""
        with self._lock:
            i = bisect_left(self._free, size, key=lambda entry: entry[0])
            if i < len(self._free) and self._free[i][0] <= LARGEST_EXCESS * size:
                return self._free.pop(i)[2]
        try:
            return _fresh(size)
        except OSError:
            self.release()  # what is held may be all that is missing
        try:
            return _fresh(size)
        except OSError as error:
            raise MemoryError(f"no memory for a block of {size:,} bytes of kernel values") from error

    def give_back(self, blocks: list[mmap.mmap]) -> None:
        """Blocks that nothing refers to any longer, but for garbage."""
        if not hasattr(mmap, "MADV_FREE"):
            return
        for block in blocks:
            try:
                block.madvise(mmap.MADV_FREE)
            except OSError:
                continue  # an older kernel: the block is freed
            with self._lock:
                self._count += 1
                insort(self._free, (len(block), self._count, block))

    def release(self) -> None:
        """Return all free blocks to the system."""
        with self._lock:
            self._free.clear()


def _fresh(size: int) -> mmap.mmap:
    if os.name == "nt":
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


POOL = Pool()


def release_memory() -> None:
    """Return to the system the memory that Mercer holds for the next fit.

    After a fit, the memory of its kept kernel values is held, marked as free: the system takes it back
    when memory gets short, and the next fit starts faster if it did not.
    """
    POOL.release()


def _after_fork() -> None:
    # The lock may have been held by a thread that is not here, and pages would be copied when written.
    POOL.__init__()  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
