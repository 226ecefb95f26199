"""Worker threads that each run whole tasks on one core.

PyTorch splits every operation over all cores and waits for the slowest of them before it starts the
next. On a shared machine that wait dominates small operations.  Here a core takes a whole tile of work,
runs all its operations in its own cache, and then takes the next tile, so a slow core delays only its
own share.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache

import psutil
import torch

# More workers than this would contend for the interpreter lock; each gets more cores instead.
MOST_WORKERS = 8
# Seconds between two calls of a check while workers work.
WATCH_SECONDS = 0.01

_here = threading.local()
# Whether this process was forked from one that may have had threads: those did not come along, and the
# libraries that wait for them would wait forever.
_forked = False


class Workers:
    """Threads, each running torch on its share of the cores; a single worker is the caller's thread.

    >>> done = []
    >>> Workers(2).run(lambda i, worker: done.append(i), 3)
    >>> sorted(done)
    [0, 1, 2]
    """

    def __init__(self, cores: int) -> None:
        self.count = min(cores, MOST_WORKERS)
        self._threads_each = max(1, cores // self.count)
        self._pool: ThreadPoolExecutor | None = None  # created when first needed

    def run(self, task: Callable[[int, int], None], n_tasks: int) -> None:
        """Call `task(i, worker)` for each i < n_tasks, in that order, on whichever worker is free.

        Within `watched`, what its check raises ends the run, and is raised here.
        """
        if self.count == 1 or n_tasks <= 1:
            for i in range(n_tasks):
                may_go_on()
                task(i, 0)
            return
        may_go_on()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                self.count, "mercer", torch.set_num_threads, (self._threads_each,)
            )
        waiting = iter(range(n_tasks))  # `next` on it is atomic
        ended = threading.Event()

        def work(worker: int) -> None:
            _here.ended = ended
            for i in waiting:
                task(i, worker)

        with torch_threads(self._threads_each):
            futures = [self._pool.submit(work, worker) for worker in range(min(self.count, n_tasks))]
            try:
                if getattr(_here, "check", None) is not None:
                    while wait(futures, WATCH_SECONDS, FIRST_EXCEPTION).not_done:
                        may_go_on()
                        if any(future.done() and future.exception() for future in futures):
                            break
                for future in futures:
                    future.result()
            finally:
                ended.set()
                for _ in waiting:  # after an error or an interrupt, start nothing more
                    pass
                wait(futures)  # and let what was started finish


class Ended(Exception):
    """Within a task: the run that it belongs to has ended."""


@contextmanager
def watched(check: Callable[[], None] | None) -> Iterator[None]:
    """Call `check` whenever workers begin in here, and while they work; what it raises ends them.

    It is called in the thread that entered.  None calls nothing, within another `watched` too.
    """
    before, _here.check = getattr(_here, "check", None), check
    try:
        yield
    finally:
        _here.check = before


def may_go_on() -> None:
    """To be called between the parts of a long task: raise if its run has ended, or should."""
    ended, check = getattr(_here, "ended", None), getattr(_here, "check", None)
    if ended is not None and ended.is_set():
        raise Ended
    if check is not None:
        check()


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Run torch's own operations on `count` cores in here.

    For matrix products every thread has its own setting.  For everything else a thread copies the
    setting of the process at its first operation.  So a worker sets its own when it is created, and runs
    its first task while the process has the same setting.
    """
    before = torch.get_num_threads()
    if before == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def threads(n_jobs: int | None, share: int | None = None) -> Iterator[None]:
    """Use `n_jobs` workers in here: None takes as many as PyTorch has threads, -1 all cores.

    A rank of a process group has a `share` of the cores, which None and -1 take.  All other operations
    run on one thread.  The processes of a pool share the cores: each uses at most the threads that
    PyTorch was given there, and a forked one a single thread.
    """
    if share is not None and n_jobs in (None, -1):
        n_jobs = share
    if n_jobs is None:
        with small_operations(torch.device("cpu")):
            yield
        return
    wanted = n_jobs if n_jobs > 0 else os.cpu_count() or 1
    in_a_pool = _forked or multiprocessing.parent_process() is not None
    count = min(wanted, torch.get_num_threads()) if in_a_pool else wanted
    with torch_threads(count), small_operations(torch.device("cpu")):
        yield


def cores(device: torch.device) -> int:
    """Cores that this process may use, whatever it uses now; 1 for a device with its own queue."""
    if device.type != "cpu":
        return 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(allowed, psutil.cpu_count(logical=False) or allowed)


@cache
def _workers(cores: int) -> Workers:
    return Workers(cores)


def _after_fork() -> None:
    global _forked
    _forked = True
    _workers.cache_clear()
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def workers_for(device: torch.device) -> Workers:
    """Workers on the cores that torch may use; the caller's thread for a device with its own queue."""
    if device.type != "cpu":
        return _workers(1)
    return _workers(getattr(_here, "cores", None) or torch.get_num_threads())


@contextmanager
def small_operations(device: torch.device) -> Iterator[None]:
    """Run the caller's own operations, between parallel parts, on one core.

    Torch's threads would otherwise spin on cores that the workers need.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        yield
        return
    before, _here.cores = getattr(_here, "cores", None), threads
    try:
        with torch_threads(1):
            yield
    finally:
        _here.cores = before
