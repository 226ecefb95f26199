"""Several hosts: the same weights as on one, and hosts that are killed, cut off or far away."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hosts import Hosts, missing

from mercer.processes.joining import HOST_GONE_SECONDS

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 6
# Until a job has begun or ended, on a machine with much else to do.
LONGEST = 540

SCRIPT = """
import os, sys, time, warnings
import numpy as np
from mercer import Callback, Checkpoint, KernelRegressor

class Slow(Callback):
    def on_panel_end(self, run):
        time.sleep(float(sys.argv[2]))

warnings.simplefilter("ignore")
folder = sys.argv[1]
rng = np.random.default_rng(0)
X = rng.normal(size=(4_000, 4))
y = X[:, 0] * X[:, 1]
checkpoint = Checkpoint(os.path.join(folder, "run.checkpoint"), minutes=0)
model = KernelRegressor("laplacian", bandwidth=3.0, ridge=0.01, random_state=0, max_iter=4,
                        batch_size=100, subsample_size=500, callbacks=[checkpoint, Slow()])
model.fit(X, y)
seconds = sum(epoch.seconds for epoch in model.history_.epochs)
place = os.path.join(folder, f"rank{os.environ['RANK']}.npz")
np.savez(place, weights=model.dual_coef_, seconds=seconds)
"""

_missing = missing()
pytestmark = pytest.mark.skipif(_missing is not None, reason=str(_missing))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


class Job:
    """The script on each of two hosts, one rank on each."""

    def __init__(self, hosts, folder, cache, *options, panel_seconds=0.0, **environment):
        self.hosts, self.folder = hosts, folder
        self._script, self._options = (str(folder), str(panel_seconds)), options
        (folder / "train.py").write_text(SCRIPT)
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "XDG_CACHE_HOME": str(cache),
            "MERCER_PATIENCE": str(PATIENCE),
            **environment,
        }
        self.parts = [self.start(host) for host in range(2)]

    def start(self, host):
        with (self.folder / f"told{host}").open("a") as told:
            launcher = self.hosts.launcher(sys.executable, host, *self._options)
            command = [*launcher, str(self.folder / "train.py"), *self._script]
            return self.hosts.start(host, command, self._environment, stderr=told, stdout=told)

    def told(self, host):
        return (self.folder / f"told{host}").read_text()

    def wait_until(self, condition):
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < LONGEST, self.told(0) + self.told(1)
            time.sleep(0.1)

    def wait_for_training(self):
        self.wait_until((self.folder / "run.checkpoint").exists)

    def codes(self):
        """Exit codes of the launchers, once both have ended."""
        self.wait_until(lambda: all(part.poll() is not None for part in self.parts))
        return [part.returncode for part in self.parts]

    def weights(self):
        assert self.codes() == [0, 0], self.told(0) + self.told(1)
        one, two = (np.load(self.folder / f"rank{rank}.npz") for rank in (0, 1))
        np.testing.assert_array_equal(one["weights"], two["weights"])
        return one["weights"]


@pytest.fixture(scope="module")
def on_one_host(tmp_path_factory, cache):
    """Weights of a run on one host, which takes place during the first test."""
    folder = tmp_path_factory.mktemp("one")
    (folder / "train.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "XDG_CACHE_HOME": str(cache)}
    environment |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    command = [sys.executable, str(folder / "train.py"), str(folder), "0"]
    job = subprocess.Popen(command, env=environment)

    def weights():
        assert job.wait(LONGEST) == 0
        return np.load(folder / "rank0.npz")["weights"]

    yield weights
    job.kill()
    job.wait()


def test_two_hosts_end_with_the_weights_of_one(tmp_path, cache, on_one_host):
    with Hosts() as hosts:
        np.testing.assert_array_equal(Job(hosts, tmp_path, cache).weights(), on_one_host())


def wait_for_messages(job, starts_with):
    """Until the ranks on both hosts have said what is wrong; the seconds that it took."""
    began = time.monotonic()
    for host, who in enumerate(starts_with):
        message = f"RankError: Training was ended on all ranks. {who}.* has ended or does not answer: "
        job.wait_until(lambda message=message, host=host: re.search(message, job.told(host)))
    return time.monotonic() - began


def test_a_link_that_is_cut_ends_the_ranks_on_both_hosts_in_time(tmp_path, cache):
    with Hosts() as hosts:
        job = Job(hosts, tmp_path, cache, panel_seconds=0.5)
        job.wait_for_training()
        hosts.cut(1)
        seconds = wait_for_messages(job, (r"Rank 1 \(process \d+ on .*-host1\)", ""))
        assert seconds < 3 * PATIENCE + 20
        hosts.mend(1)  # the launchers wait for one another, up to five minutes
        assert all(job.codes())


@pytest.mark.slow
def test_a_link_that_was_cut_and_mended_loses_nothing(tmp_path, cache, on_one_host):
    with Hosts() as hosts:
        job = Job(hosts, tmp_path, cache, "--max-restarts=2", panel_seconds=0.5)
        job.wait_for_training()
        hosts.cut(1)
        wait_for_messages(job, ("Rank 1", ""))
        hosts.mend(1)
        np.testing.assert_array_equal(job.weights(), on_one_host())


@pytest.mark.slow
def test_a_host_that_is_killed_ends_the_other_and_may_come_back(tmp_path, cache, on_one_host):
    with Hosts() as hosts:
        # Without it, a launcher that joins later waits in vain for the address of the first rank.
        own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        job = Job(hosts, tmp_path, cache, "--max-restarts=2", panel_seconds=0.5, **own_store)
        job.wait_for_training()
        hosts.kill(1)
        began = time.monotonic()
        job.wait_until(lambda: "RankError: Training was ended on all ranks. " in job.told(0))
        assert time.monotonic() - began < 3 * PATIENCE + 20
        job.parts[1].wait()
        time.sleep(HOST_GONE_SECONDS)  # no host comes back sooner
        job.parts[1] = job.start(1)
        np.testing.assert_array_equal(job.weights(), on_one_host())


@pytest.mark.slow
def test_hosts_that_are_far_apart_end_with_the_same_weights(tmp_path, cache, on_one_host):
    seconds = {}
    for delay in (0.0, 0.02):
        folder = tmp_path / str(delay)
        folder.mkdir()
        with Hosts(delay=delay) as hosts:
            np.testing.assert_array_equal(Job(hosts, folder, cache).weights(), on_one_host())
        seconds[delay] = float(np.load(folder / "rank0.npz")["seconds"])
    print(f"training took {seconds[0.0]:.2f} s, with 20 ms of delay each way {seconds[0.02]:.2f} s")
    assert seconds[0.02] > seconds[0.0]
