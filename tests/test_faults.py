"""Ranks that die, hang or fail: one message on all ranks, in time; restarts lose nothing."""

from __future__ import annotations

import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import numpy as np
import psutil
import pytest
import torch.distributed as dist
from ranks import on_the_desk

from mercer import KernelRegressor
from mercer.processes.group import Group, RankError
from mercer.processes.monitor import Beat, Judge, Monitor, patience
from mercer.processes.seats import Seat
from mercer.training.events.agreement import Agreement

ROOT = Path(__file__).resolve().parent.parent
# Seconds in which ranks start on a busy machine, and in which they train.
LONGEST_START = 12.0
TRAINING_SECONDS = 3.0
SEATS = [Seat("a", 10, frozenset({0}), "cpu"), Seat("b", 11, frozenset({0}), "cpu")]

# Verdicts


def judged(*rounds, seconds=5.0):
    """The verdict after beats of two ranks at intervals, with a patience of 60 s."""
    judge, found = Judge(SEATS, 60.0, 0.0), None
    for i, beats in enumerate(rounds, start=1):
        found = found or judge.verdict(beats, seconds * i)
    return found


def test_long_work_is_no_fault():
    assert judged(*[(Beat(3, True, 1.0), Beat(3, False, 4.0 * i)) for i in range(100)]) is None


def test_a_rank_that_neither_works_nor_waits_hangs():
    told = judged(*[(Beat(3, True, 1.0), Beat(3, False, 2.0 + 0.001 * i)) for i in range(14)])
    assert told.startswith("Rank 1 (process 11 on b) made no progress for 60 s, and the others wait")


def test_a_rank_that_does_nothing_while_nobody_waits_is_left_alone():
    assert judged(*[(Beat(3, False, 5.0 * i), Beat(3, False, 2.0)) for i in range(100)]) is None


def test_ranks_that_wait_for_one_another_are_told():
    told = judged(*[(Beat(3, True, 1.0), Beat(4, True, 2.0)) for _ in range(14)])
    assert told.startswith("All ranks have waited for one another for 60 s")


def test_exchanges_are_progress():
    assert judged(*[(Beat(i, True, 1.0), Beat(i, True, 1.0)) for i in range(100)]) is None


def test_a_failure_is_told_at_once():
    told = judged((Beat(), Beat(failure="MemoryError: 3 GiB")))
    assert told == "Rank 1 (process 11 on b) failed: MemoryError: 3 GiB"


def test_a_rank_that_has_left_is_no_fault():
    assert judged(*[(Beat(3, True, 5.0 * i), Beat(3, left=True)) for i in range(100)]) is None


def test_a_lost_connection_is_not_waited_for_while_all_ranks_answer():
    """An error that only looks like a lost connection must not wait for a fault that never comes."""
    monitor = Monitor.__new__(Monitor)
    monitor.patience, monitor.fault, monitor._woken = 0.2, None, threading.Event()
    monitor._thread = threading.Thread(target=time.sleep, args=(30.0,), daemon=True)
    monitor._thread.start()
    began = time.monotonic()
    monitor.check(lost=True)
    assert time.monotonic() - began < 20


def test_a_rank_interrupted_while_it_leaves_does_not_wait_for_its_monitor():
    """The thread of the monitor may be inside a message, which cannot be closed."""
    monitor = Monitor(Group())
    with (
        patch.object(monitor._thread, "join", side_effect=KeyboardInterrupt),
        suppress(KeyboardInterrupt),
    ):
        monitor.__exit__(None, None, None)
    assert monitor.group.connections.broken


@pytest.mark.parametrize("text", ["soon", "0", "-3", "nan"])
def test_patience_is_a_positive_number(monkeypatch, text):
    monkeypatch.setenv("MERCER_PATIENCE", text)
    with pytest.raises(ValueError, match=f"MERCER_PATIENCE must be a positive number.*'{text}'"):
        patience()
    monkeypatch.setenv("MERCER_PATIENCE", "2.5")
    assert patience() == 2.5


# Real processes

SCRIPT = """
import os, signal, sys, time, warnings
import numpy as np
from mercer import Checkpoint, KernelRegressor
from mercer.training.events import agreement
from mercer.processes.joining import restarts

warnings.simplefilter("ignore")
what, place, folder = sys.argv[1:]
rank, whole, seen = int(os.environ["RANK"]), agreement.Agreement.on_panel, 0

def on_panel(self, training):
    global seen
    seen += 1
    if rank == 1 and seen == int(place) and not restarts():
        if what in ("KILL", "STOP"):
            os.kill(os.getpid(), getattr(signal, f"SIG{what}"))
        if what == "hang":
            time.sleep(600)
        if what == "memory":
            raise MemoryError("3 GiB for kept kernel values")
        if what == "work":
            end = time.time() + 25
            while time.time() < end:
                pass
    return whole(self, training)

agreement.Agreement.on_panel = on_panel
rng = np.random.default_rng(0)
X = rng.normal(size=(4_000, 4))
y = X[:, 0] * X[:, 1]
checkpoint = Checkpoint(os.path.join(folder, "run.checkpoint"), minutes=0)
model = KernelRegressor("laplacian", bandwidth=3.0, ridge=0.01, random_state=0, max_iter=4,
                        batch_size=100, subsample_size=500, callbacks=[checkpoint])
model.fit(X, y)
np.save(os.path.join(folder, f"weights{rank}.npy"), model.dual_coef_)
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def torchrun(folder, cache, what, place, *options, size=2, patience="10", seconds=300):
    """Run the script; what it wrote to standard error, its exit code and seconds."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "XDG_CACHE_HOME": str(cache),
        "MERCER_PATIENCE": patience,
        "PYTHONFAULTHANDLER": "1",
    }
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
    began = time.monotonic()
    done = subprocess.run(
        [*start, *options, str(script), what, str(place), str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    return done.stderr, done.returncode, time.monotonic() - began


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, cache):
    """Weights of a group of one rank, which are those of any number of ranks."""
    folder = tmp_path_factory.mktemp("undisturbed")
    script = folder / "train.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "XDG_CACHE_HOME": str(cache)}
    environment |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    command = [sys.executable, str(script), "nothing", "0", str(folder)]
    subprocess.run(command, env=environment, check=True, timeout=300)
    return np.load(folder / "weights0.npy")


def fails_in_training():
    """What a rank says if rank 1 fails at its third panel."""
    on_the_desk()
    rng = np.random.default_rng(0)
    X, seen, whole = rng.normal(size=(3_000, 4)), [], Agreement.on_panel

    def on_panel(self, training):
        seen.append(training)
        if dist.get_rank() == 1 and len(seen) == 3:
            raise MemoryError("3 GiB for kept kernel values")
        return whole(self, training)

    model = KernelRegressor("laplacian", bandwidth=3.0, ridge=0.01, subsample_size=200, random_state=0)
    errors = pytest.raises((RankError, MemoryError))
    with patch.object(Agreement, "on_panel", on_panel), errors as error:
        model.fit(X, X[:, 0])
    return f"{error.typename}: {error.value}", len(seen)


def test_a_failure_in_training_ends_it_on_all_ranks_with_the_name_of_the_rank(pool):
    one, two = pool.run(2, fails_in_training)
    assert re.match(
        r"RankError: Training was ended on all ranks. Rank 1 \(.*\) failed: MemoryError: 3 GiB", one[0]
    )
    assert two == ("MemoryError: 3 GiB for kept kernel values", 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("hang", r"RankError: Training was ended on all ranks. Rank 1 \(.*\) made no progress for 10 s"),
        ("memory", r"Rank 1 \(.*\) failed: MemoryError: 3 GiB for kept kernel values"),
    ],
)
def test_a_rank_that_fails_ends_the_job_with_its_name(tmp_path, cache, what, message):
    told, code, seconds = torchrun(tmp_path, cache, what, 7, size=3)
    assert code != 0
    assert re.search(message, told), told
    assert seconds < 200  # on a machine with much else to do; imports take most of it


def free_port():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


def test_a_rank_that_is_killed_ends_the_others_also_without_a_launcher(tmp_path, cache):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    common = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "XDG_CACHE_HOME": str(cache)}
    common |= {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, str(script), "KILL", "7", str(tmp_path)]
    ranks = [
        subprocess.Popen(command, env={**common, "RANK": str(r)}, stderr=subprocess.PIPE, text=True)
        for r in range(3)
    ]
    told = [rank.communicate(timeout=300)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, -9, 1]
    assert re.search(r"RankError: Training was ended on all ranks. Rank 1 \(process \d+ on", told[0])
    assert "RankError: Training was ended on all ranks" in told[2]


LEAVES = """
import atexit, contextlib, glob, warnings

def print_carriers():
    names = []
    for place in glob.glob("/proc/self/task/*/comm"):
        with contextlib.suppress(OSError):  # the thread has ended meanwhile
            names.append(open(place).read().strip())
    print(names.count("pt_gloo_runloop"))

atexit.register(print_carriers)  # before Mercer is imported, and so called after it has left
import numpy as np
import torch.distributed as dist
from mercer import Callback, KernelRegressor

class Fails(Callback):
    def on_epoch_end(self, run):
        raise ValueError("after an epoch")

def fit(*callbacks):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = KernelRegressor("laplacian", bandwidth=3.0, ridge=0.01, subsample_size=50, max_iter=1,
                            batch_size=50, random_state=0, callbacks=callbacks)
    return model.fit(X, X[:, 0])

warnings.simplefilter("ignore")
X = np.random.default_rng(0).normal(size=(200, 4))
model = fit()
print_carriers()
dist.destroy_process_group()
print_carriers()
fit(Fails())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="names of threads are read from /proc")
def test_threads_that_carry_messages_end_before_the_interpreter_does():
    """One that lets go of a tensor later aborts the process.  An error keeps the frames of `fit`."""
    command = [sys.executable, "-c", LEAVES]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert "ValueError: after an epoch" in done.stderr
    in_use, destroyed, at_the_end = map(int, done.stdout.split())
    assert in_use > 0
    assert destroyed == at_the_end == 0


@pytest.mark.slow
def test_a_panel_longer_than_the_patience_is_no_fault(tmp_path, cache, undisturbed):
    told, code, _ = torchrun(tmp_path, cache, "work", 7, patience="15")
    assert code == 0, told
    np.testing.assert_array_equal(np.load(tmp_path / "weights0.npy"), undisturbed)


@pytest.mark.parametrize("place", [pytest.param(1, marks=pytest.mark.slow), 9])
def test_a_restart_resumes_and_ends_with_the_weights_of_an_undisturbed_run(
    tmp_path, cache, undisturbed, place
):
    told, code, _ = torchrun(tmp_path, cache, "KILL", place, "--max-restarts=1", patience="60")
    assert code == 0, told
    for rank in (0, 1):
        np.testing.assert_array_equal(np.load(tmp_path / f"weights{rank}.npy"), undisturbed)


def processes_of(job):
    """The launcher and its ranks, which are in sessions of their own; none once it has ended."""
    if job.poll() is not None:
        return []
    launcher = psutil.Process(job.pid)
    return [launcher, *launcher.children(recursive=True)]


def kill(processes):
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def wait_for_a_moment(job, checkpoint, draws):
    """Until a random moment of the start or of training; whether the job still runs then."""
    began = time.time()
    limit = draws.uniform(0, LONGEST_START) if draws.random() < 0.5 else 300
    while job.poll() is None and time.time() - began < limit:
        if limit == 300 and checkpoint.exists() and checkpoint.stat().st_mtime > began:
            time.sleep(draws.uniform(0, TRAINING_SECONDS))
            break
        time.sleep(0.05)
    return job.poll() is None


@pytest.mark.slow
def test_kills_at_random_moments_lose_nothing(tmp_path, cache, undisturbed):
    """Ranks and whole jobs are killed, again and again, and resumed on one to three ranks."""
    draws, script, checkpoint = random.Random(0), tmp_path / "train.py", tmp_path / "run.checkpoint"
    known = "checkpoint.path if os.path.exists(checkpoint.path) else None"
    script.write_text(SCRIPT.replace("model.fit(X, y)", f"model.fit(X, y, resume={known})"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "XDG_CACHE_HOME": str(cache)}
    ranks_killed = jobs_killed = same = 0
    while ranks_killed + jobs_killed < int(os.environ.get("MERCER_KILLS", "200")):
        count = f"--nproc-per-node={draws.choice([1, 2, 3])}"
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", count]
        command = [*start, "--max-restarts=4", str(script), "nothing", "0", str(tmp_path)]
        with (tmp_path / "told").open("w+") as told:
            job = subprocess.Popen(command, env=environment, stderr=told)
            try:
                for _ in range(draws.randint(0, 4)):
                    if wait_for_a_moment(job, checkpoint, draws):
                        ranks = processes_of(job)[1:]
                        kill(draws.sample(ranks, min(1, len(ranks))))
                        ranks_killed += min(1, len(ranks))
                if draws.random() < 0.5 and wait_for_a_moment(job, checkpoint, draws):
                    kill(processes_of(job))
                    jobs_killed += 1
                    job.wait()
                    continue
                assert job.wait(300) == 0, (tmp_path / "told").read_text()
            finally:
                kill(processes_of(job))
        for weights in tmp_path.glob("weights*.npy"):
            np.testing.assert_array_equal(np.load(weights), undisturbed)
            weights.unlink()
        same += 1
        checkpoint.unlink()
        print(f"{ranks_killed} ranks and {jobs_killed} jobs killed, {same} ends with the same weights")
    assert same
