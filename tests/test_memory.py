"""The budget is kept: peak resident memory, measured in a process of its own."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import mercer
from mercer import KernelRegressor
from mercer.data.inputs import fit_inputs

SCRIPT = """
import sys, warnings
import numpy as np, psutil, torch
from mercer import KernelRegressor
warnings.simplefilter("ignore")
n, d, memory = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
rng = np.random.default_rng(0)
X = rng.normal(size=(n, d)).astype(np.float32)
y = np.sin(X[:, :3])
settings = dict(kernel="laplacian", random_state=0)
KernelRegressor(**settings).fit(X[:300], y[:300])  # libraries and threads are there, and counted before
before = psutil.Process().memory_info().rss
open("/proc/self/clear_refs", "w").write("5")  # the peak is counted from here
model = KernelRegressor(**settings, memory_limit=memory, max_iter=2).fit(X, y)
model.predict(X[:2000])
peak = next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith("VmHWM"))
print((peak - before) / 1024**2, model.plan_.kept_memory / 1024**2, model.plan_.peak_memory / 1024**2)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peak resident memory is read as Linux counts it")
@pytest.mark.parametrize(
    ("n", "d", "megabytes"),
    [
        (12_000, 20, 250),
        pytest.param(12_000, 20, 800, marks=pytest.mark.slow),
        pytest.param(10_000, 300, 150, marks=pytest.mark.slow),
    ],
)
def test_peak_resident_memory_stays_within_the_budget(n, d, megabytes):
    command = [sys.executable, "-c", SCRIPT, str(n), str(d), f"{megabytes}MB"]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    used, kept, predicted = map(float, run.stdout.split())
    assert used <= 1.1 * megabytes
    assert predicted <= megabytes
    if megabytes == 250:
        assert kept > 50  # a part is kept, and what is kept is counted


def test_points_in_a_file_are_the_points_in_memory(rng):
    x = rng.normal(size=(500, 7)).astype(np.float32)
    rows = rng.permutation(500)[:400]
    inputs, _ = fit_inputs(x, rows)
    inside, outside = (
        inputs.points(x, rows, torch.zeros(()), known=True, memory=memory) for memory in (1e9, 1e3)
    )
    assert torch.equal(inside.rows, outside.rows)
    assert inside.bound == outside.bound
    pixels = rng.integers(0, 256, size=(500, 70)).astype(np.float32) / 255
    inputs, _ = fit_inputs(pixels, rows, as_bytes=True)
    inside, outside = (
        inputs.points(pixels, rows, torch.zeros(()), known=True, memory=memory) for memory in (1e9, 1e3)
    )
    assert inside.is_bytes
    assert torch.equal(inside.rows, outside.rows)


def test_a_model_whose_data_does_not_fit_is_trained_saved_and_loaded(rng, tmp_path):
    n, d = 6_000, 400
    X = np.memmap(tmp_path / "x", dtype=np.float32, mode="w+", shape=(n, d))
    X[:] = rng.normal(size=(n, d))
    y = np.tanh(X[:, :20].sum(1) / 4)
    settings = {"bandwidth": 20.0, "ridge": 0.1, "subsample_size": 200, "preconditioner_rank": 50}
    settings |= {"batch_size": 64, "max_iter": 3, "random_state": 0}
    model = KernelRegressor("gaussian", memory_limit="15MB", **settings).fit(X, y)
    assert X.nbytes > model.plan_.memory / 2
    assert model.plan_.data_on_disk
    assert "memory-mapped" in str(model.plan_)
    model.save(tmp_path / "model")
    loaded = mercer.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X[:100]), model.predict(X[:100]))
    roomy = KernelRegressor("gaussian", memory_limit="2GB", **settings).fit(X, y)
    assert not roomy.plan_.data_on_disk
    # Fewer fresh points are affordable, so the step is another by a few thousandths.
    np.testing.assert_allclose(model.predict(X), roomy.predict(X), atol=2e-3)


def test_a_tight_budget_does_not_shrink_the_batch_to_nothing(rng):
    X = rng.normal(size=(6_000, 400)).astype(np.float32)
    plan = KernelRegressor("laplacian", memory_limit="8MB", random_state=0).plan(X, X[:, 0])
    assert plan.memory_batch_size == 0
    assert plan.batch_size > 8


CGROUP = Path("/sys/fs/cgroup/memory")  # version 1; in version 2 a shell's own group cannot be limited


@pytest.mark.slow
@pytest.mark.skipif(not os.access(CGROUP, os.W_OK), reason="needs the right to limit a process's memory")
def test_training_survives_a_hard_limit_that_its_data_alone_would_break(tmp_path, rng):
    n, d = 30_000, 1_200  # 144 MB, beside some 200 MB of libraries
    X = np.memmap(tmp_path / "x", dtype=np.float32, mode="w+", shape=(n, d))
    for i in range(0, n, 1_000):
        X[i : i + 1_000] = rng.normal(size=(1_000, d))
    X.flush()
    script = (
        "import sys, warnings, numpy as np; from mercer import KernelRegressor; "
        "warnings.simplefilter('ignore'); "
        f"X = np.memmap({str(tmp_path / 'x')!r}, dtype=np.float32, mode='r', shape=({n}, {d})); "
        "model = KernelRegressor('laplacian', memory_limit='60MB', random_state=0, max_iter=1)"
        ".fit(X, X[:, 0]); "
        f"model.save({str(tmp_path / 'model')!r}); print(model.plan_.data_on_disk)"
    )
    group = CGROUP / f"mercer_test_{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text("400M")
        command = f"echo $$ > {group}/cgroup.procs; exec {sys.executable} -c {shlex.quote(script)}"
        run = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=300)
        assert run.returncode == 0, run.stderr[-500:]
        assert run.stdout.strip() == "True"
        assert (tmp_path / "model").stat().st_size > X.nbytes / 2
    finally:
        group.rmdir()
