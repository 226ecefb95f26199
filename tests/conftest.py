"""Fixtures shared by the tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from browser import Browser, started
from ranks import RankPool
from threadpoolctl import threadpool_limits

from mercer.planning.resource import Resource


@pytest.fixture(autouse=True, scope="session")
def _one_thread_for_numpy() -> Iterator[None]:
    """Threads of the oracles' small dense products wait for one another longer than they work."""
    with threadpool_limits(1, user_api="blas"):
        yield


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Measurements of other runs must not leak in, nor ours out; one measurement serves the session."""
    cache = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setattr("platformdirs.user_cache_path", lambda _: cache)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def desk() -> Resource:
    """A user-specified device, so that plans do not depend on the machine that runs the tests."""
    return Resource(capacity=2.7e8, memory=8 * 1024**3, full_rate_rows=256)


@pytest.fixture
def on_desk(desk: Resource, monkeypatch: pytest.MonkeyPatch) -> Resource:
    """Fits follow the plan for `desk` on any machine."""
    monkeypatch.setattr("mercer.preparation.settings.measure_resource", lambda device, dtype: desk)
    return desk


@pytest.fixture
def on_byte_desk(desk: Resource, monkeypatch: pytest.MonkeyPatch) -> Resource:
    """The same where products of bytes pay, which they do not on every machine."""
    device = replace(desk, integer_gain=4.0)
    monkeypatch.setattr("mercer.preparation.settings.measure_resource", lambda *_: device)
    return device


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Chromium, started once for a file of tests."""
    yield from started(tmp_path_factory.mktemp("profile"))


@pytest.fixture(scope="session")
def pool() -> Iterator[RankPool]:
    """Processes for ranks, which are started once: importing PyTorch takes longer than most tests."""
    pool = RankPool()
    yield pool
    pool.close()


@pytest.fixture
def data_directory() -> Path:
    folder = Path(os.environ.get("MERCER_DATA", "../shared/data"))
    if not folder.is_dir():
        pytest.skip(f"needs the real datasets; none in {folder} (set MERCER_DATA to their folder)")
    return folder
