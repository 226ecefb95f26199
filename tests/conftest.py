"""Fixtures shared by the tests."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from mercer.planning.resource import Resource


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Measurements of other runs must not leak in, nor ours out; one measurement serves the session."""
    cache = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setattr("platformdirs.user_cache_path", lambda _: cache)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def desk() -> Resource:
    """A device written down by hand, so that plans do not depend on the machine that runs the tests."""
    return Resource(capacity=2.7e8, memory=8 * 1024**3, full_rate_rows=256)


@pytest.fixture
def data_directory() -> Path:
    folder = Path(os.environ.get("MERCER_DATA", "../shared/data"))
    if not folder.is_dir():
        pytest.skip(f"needs the real datasets; none in {folder} (set MERCER_DATA to their folder)")
    return folder
