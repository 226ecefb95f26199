"""An error on one rank only: all ranks end at once, and name it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mercer.processes.monitor import Beat
from tests.test_faults import free_port, judged

ROOT = Path(__file__).resolve().parent.parent
# Seconds between the error and the end of the other ranks, on a machine with much else to do.  A rank
# that does not answer is given 60.
SOON = 30

SCRIPT = """
import os, sys, time, warnings
import numpy as np
import torch
from mercer import KernelRegressor, RankError, RowShare
from mercer.data.dealt_points import DealtPoints
from mercer.processes.joining import ranks
from mercer.training.events import agreement

warnings.simplefilter("ignore")
what, rank, seen = sys.argv[1], int(os.environ["RANK"]), 0
fails = rank == 1
rng = np.random.default_rng(rank)
X = rng.normal(size=(1_500, 4))
y = X[:, 0] * X[:, 1]
model = KernelRegressor("laplacian", bandwidth=3.0, ridge=0.01, random_state=0, max_iter=4,
                        batch_size=100, subsample_size=500)

def failing(place, error):
    def call(self, *given):
        global seen
        seen += 1
        if fails and seen == 5:
            raise error
        return whole(self, *given)
    whole = getattr(*place)
    setattr(*place, call)

if what == "input" and fails:
    X[7, 2] = np.inf
if what == "parameter" and fails:
    model.set_params(max_iter=-1)
if what == "rank error":
    failing((agreement.Agreement, "on_panel"), RankError("This rank computes other numbers."))
if what == "memory":
    failing((DealtPoints, "answer"), RuntimeError("can't allocate memory: 3 GiB for a panel"))
try:
    if what == "end":
        with ranks(torch.device("cpu")):
            if fails:
                time.sleep(1)
                raise ValueError("Predictions must be finite.")
    else:
        model.fit(RowShare(X), y)
except Exception as error:
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    print(time.time())
    sys.stdout.flush()
    sys.exit(1)
"""


def test_a_rank_that_ended_its_part_while_the_others_wait_is_told():
    told = judged(*[(Beat(3, True, 1.0), Beat(3, left=True)) for _ in range(14)])
    assert told.startswith("Rank 1 (process 11 on b) has ended its part, and the others have waited")


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("input", "ValueError: Input X contains infinity"),
        ("rank error", "RankError: This rank computes other numbers."),
        pytest.param("parameter", "ValueError: `max_iter` must be", marks=pytest.mark.slow),
        pytest.param("memory", "RuntimeError: can't allocate memory: 3 GiB", marks=pytest.mark.slow),
        pytest.param("end", "ValueError: Predictions must be finite.", marks=pytest.mark.slow),
    ],
)
def test_an_error_on_one_rank_ends_all_at_once_with_its_name(tmp_path, what, error):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    common = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "XDG_CACHE_HOME": str(tmp_path)}
    common |= {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), what],
            env={**common, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    outputs = [rank.communicate(timeout=300) for rank in ranks]
    ended, told = zip(*outputs, strict=True)
    assert [rank.returncode for rank in ranks] == [1, 1, 1], told
    assert error in told[1]
    sentence = f"RankError: Training was ended on all ranks. Rank 1 (process {ranks[1].pid} on "
    for rank in (0, 2):
        assert sentence in told[rank], told[rank]
        assert f"failed: {error}" in told[rank]
        assert float(ended[rank]) - float(ended[1]) < SOON
