"""Memory of kept values is used again by the next fit, and returned when asked."""

from __future__ import annotations

import gc
import mmap
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import mercer
from mercer import KernelRegressor
from mercer.engine import Limits, Requests, assemble, choose
from mercer.operators.pool import POOL, Pool

reuses = pytest.mark.skipif(not hasattr(mmap, "MADV_FREE"), reason="nothing is held on this system")
MB = 1 << 20


@pytest.fixture(autouse=True)
def _empty_pool():
    gc.collect()
    mercer.release_memory()
    yield
    mercer.release_memory()


@reuses
def test_the_smallest_block_that_fits_is_taken_again():
    pool = Pool()
    blocks = [pool.take(size * MB) for size in (8, 4, 16)]
    pool.give_back(blocks)
    assert pool.free_bytes == 28 * MB
    assert pool.take(3 * MB) is blocks[1]
    assert pool.take(5 * MB) is blocks[0]
    assert len(pool.take(5 * MB)) == 5 * MB  # the block of 16 would be wasted on it
    assert pool.free_bytes == 16 * MB
    pool.release()
    assert pool.free_bytes == 0


def test_where_memory_is_short_the_blocks_held_are_returned_first(monkeypatch):
    pool, refused = Pool(), []
    pool.give_back([pool.take(MB)])
    real = mmap.mmap

    def short(*given, **options):
        if not refused:
            refused.append(given)
            raise OSError(12, "Cannot allocate memory")
        return real(*given, **options)

    monkeypatch.setattr(mmap, "mmap", short)
    assert len(pool.take(8 * MB)) == 8 * MB
    assert refused
    assert pool.free_bytes == 0


def test_memory_that_cannot_be_had_is_a_memory_error(monkeypatch):
    def none(*given, **options):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", none)
    with pytest.raises(MemoryError, match="no memory for a block of 8,388,608 bytes"):
        Pool().take(8 * MB)


@pytest.fixture
def problem(rng, desk):
    kernel = mercer.Gaussian(2.0)
    points = kernel.points(torch.from_numpy(rng.normal(size=(3_000, 4))).float())
    y = points.x[:, :2].sin()
    plan, levelled = choose(kernel, points, 2, desk, requests=Requests(300, 50, 100))
    return kernel, points, y, plan.step, levelled, Limits(3, 0.0, 9, 0.0)


@reuses
def test_a_second_run_takes_the_memory_of_the_first_and_ends_with_the_same_bits(problem):
    run = assemble(*problem, kept_memory=1e9)
    first = run.run()
    assert POOL.free_bytes == 0
    used = run.operator.kept_bytes
    del run
    held = POOL.free_bytes
    assert 0.9 * used < held <= used
    run = assemble(*problem, kept_memory=1e9)
    again = run.run()
    assert POOL.free_bytes == 0
    assert torch.equal(first.alpha, again.alpha)
    del run
    assert POOL.free_bytes == held


@reuses
def test_a_fit_leaves_its_memory_to_the_next_until_it_is_released(rng):
    X = rng.normal(size=(3_000, 4))
    model = KernelRegressor("gaussian", bandwidth=2.0, ridge=0.01, random_state=0)
    model.fit(X, np.sin(X[:, 0]))
    held = POOL.free_bytes
    assert held > 0.5 * model.plan_.kept_memory
    model.fit(X, np.cos(X[:, 0]))
    assert POOL.free_bytes == held
    mercer.release_memory()
    assert POOL.free_bytes == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked on POSIX systems only")
def test_a_forked_process_begins_with_an_empty_pool():
    script = (
        "import os; from mercer.operators.pool import POOL; POOL.give_back([POOL.take(1 << 20)]); "
        "POOL._lock.acquire(); child = os.fork(); "
        "os._exit(int(POOL.free_bytes)) if child == 0 else None; "
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert run.stdout.strip() == "0", run.stderr
