"""Training on one and on two ranks of one thread each: seconds, bytes sent, and the cost model.

    python benchmarks/scaling.py --out benchmarks/scaling.json
    python benchmarks/scaling.py --rows 4000 --rounds 1      # smaller problems, without targets
    python benchmarks/scaling.py --parts model               # the model's table for GPUs

Each rank has one core.  A job trains one epoch without keeping kernel values, and then three that keep
them: in fresh memory, since every job has new processes, and once more in memory that the system has
just taken back ("used before").  Jobs with one and with two ranks alternate, and the best of all rounds
counts, since others may share the machine.  Strong scaling has the same rows on both; weak scaling has
half as many kernel values on one rank.  The delay is put on the line between two hosts, which are
network namespaces; without root it is left out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

# Run as a script, Python looks for modules in this folder, and not in the one above it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.fitted_costs import Fitted, fitted_costs
from benchmarks.paper.data import FOLDER, Data
from benchmarks.paper.peers import BANDWIDTHS
from benchmarks.paper.problem import CPU, bytes_pay, exactly, untrained
from benchmarks.paper.results import machine
from benchmarks.row import Row
from mercer import Gaussian, engine
from mercer.method.schedule import first_epoch_values
from mercer.operators.tiled import CPU_PANEL_ROWS
from mercer.planning.cost_model import (
    NAMED_DEVICE_MEMORY,
    NAMED_DEVICES,
    NAMED_LINKS,
    LinkCosts,
    Shape,
    estimate,
    usable_memory,
)
from mercer.planning.keeping import wanted_bytes
from mercer.planning.memory import FLOAT32_BYTES, in_words
from mercer.planning.plan import Plan
from mercer.planning.plan_text import time_in_words
from mercer.processes.group import Group
from mercer.processes.joining import ranks
from mercer.stopwatch import fastest
from tests.hosts import Hosts, missing

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 3
ROWS = 60_000
LATER_EPOCHS = 2
# Seconds, each way.
DELAY = 0.02
# Longest time that a job may take.
JOB_SECONDS = 600
# Numbers in the exchanges whose times give latency and rate of the connection.
FEW_NUMBERS, MANY_NUMBERS = 1, 1 << 22
# What the model's table is for.
TABLE_POINTS = (10**6, 10**7, 10**8)
TABLE_FEATURES = (100, 784)
TABLE_DEVICES = {1: None, 8: "NVLink", 64: "InfiniBand NDR"}
TABLE_SHAPE = Shape(n=0, d=0, l=10, s=12_000, q=500, m=1_000)


@dataclass(frozen=True)
class Case:
    """What a job trains on: MNIST, in bytes where that is faster, or random floats."""

    name: str
    n: int
    as_bytes: bool = False
    folder: str = ""

    def data(self) -> tuple[Any, Any, float]:
        """Rows, targets, and the bandwidth of a Gaussian kernel."""
        if self.name == "mnist":
            digits = Data(Path(self.folder)).load("mnist", self.n)
            order = np.random.default_rng(0).permutation(len(digits.X))
            return digits.X[order], digits.targets()[order], BANDWIDTHS["mnist"]
        draws = np.random.default_rng(0)
        X = draws.normal(size=(self.n, 100)).astype(np.float32)
        return X, np.sin(X[:, :10]), 10.0

    def __str__(self) -> str:
        kind = "100 floats" if self.name == "floats" else f"784 {'bytes' if self.as_bytes else 'floats'}"
        return f"n = {self.n:,}, {kind}"


@dataclass(frozen=True)
class Timing:
    """What one job measured; of several jobs, the best of each."""

    first: float  # seconds of a first epoch that keeps nothing
    first_fresh: float  # that keeps all it may, in fresh memory
    first_used: float  # in memory used before
    later: float  # that reads what was kept
    kept_share: float  # of the kernel values
    sent_first: float  # bytes that a rank gave to be added
    sent_later: float
    formula_first: float  # the same as the plan has them
    formula_later: float
    model_first: float  # seconds of the cost model
    model_later: float
    work_first: float  # processor seconds of the rank that worked longest
    work_later: float
    model_work_first: float  # seconds of the cost model without exchanges
    model_work_later: float

    def best(self, other: Timing) -> Timing:
        """Of two jobs with the same case."""
        of_plan = ("kept_share", "sent_first", "sent_later", "formula_first", "formula_later")
        names = [field.name for field in fields(self) if field.name not in of_plan]
        return replace(self, **{name: min(getattr(self, name), getattr(other, name)) for name in names})


# In each rank


class Processor(engine.Watcher):
    """Processor seconds of this rank's thread in each epoch."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._before = time.thread_time()

    def on_epoch(self, epoch: Any, training: Any) -> None:
        now = time.thread_time()
        self.seconds.append(now - self._before)
        self._before = now


def run_rank(case: Case, out: Path) -> None:
    """Train as one of the ranks that the environment tells of; rank 0 writes what it measured."""
    rank = int(os.environ["RANK"])
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % len(os.sched_getaffinity(0))]})
    torch.set_num_threads(1)
    X, Y, width = case.data()
    machine, y = untrained(X, Y, Gaussian(width), case.as_bytes)
    kernel, points = machine.kernel, machine.centres
    with ranks(CPU) as group:
        assert group is not None
        resource = engine.measure_resource(CPU)

        def planned() -> tuple[Plan, Any]:
            # Like one for two ranks, whatever their number: all train by the same plan.
            return engine.choose(kernel, points, y.shape[1], replace(resource, ranks=2))

        plan, levelled = group.decided(planned)
        plan = replace(plan, ranks=group.size)

        def epochs(count: int, kept: float) -> tuple[list[float], list[float], int]:
            before, watcher = group.sent, Processor()
            outcome = engine.train(
                kernel,
                points,
                y,
                plan.step,
                levelled,
                exactly(count),
                watcher=watcher,
                kept_memory=kept,
                group=group,
            )
            seconds = [epoch.seconds for epoch in outcome.history.epochs]
            sent = group.sent - before
            work = [max(ranks) for ranks in zip(*group.gathered(watcher.seconds), strict=True)]
            return seconds, work, sent

        (first,), (work_first,), sent_first = epochs(1, 0.0)
        fresh, work_fresh, sent = epochs(1 + LATER_EPOCHS, plan.kept_memory)
        used, work_used, _ = epochs(1 + LATER_EPOCHS, plan.kept_memory)
        # All ranks at once, as in training; each has the same share of the work, so the slowest counts.
        each = group.gathered(fitted_costs(case.as_bytes, y.shape[1]))
        fitted = max(each, key=lambda one: one.costs.evaluated(fitted_features(one, plan), y.shape[1]))
        shape = Shape(
            plan.n,
            fitted_features(fitted, plan),
            plan.n_outputs,
            plan.subsample_size,
            plan.preconditioner_rank,
            plan.batch_size,
        )
        memory = resource.usable / group.size  # they share that of this machine
        links = (link_costs(group), LinkCosts(math.inf, 0.0))
        modelled, work = (estimate(shape, fitted.costs, memory, group.size, link) for link in links)
    if rank == 0:
        formula_first, formula_later = plan.sent_bytes
        values = first_epoch_values(plan.n, shape.s, CPU_PANEL_ROWS)
        wanted = wanted_bytes(plan.n, values, shape.q, FLOAT32_BYTES, None)
        timing = Timing(
            first=first,
            first_fresh=fresh[0],
            first_used=used[0],
            later=min(fresh[1:] + used[1:]),
            kept_share=plan.kept_memory / wanted,
            sent_first=sent_first,
            sent_later=(sent - sent_first) / LATER_EPOCHS,
            formula_first=formula_first,
            formula_later=formula_later,
            model_first=modelled.first_epoch_seconds,
            model_later=modelled.later_epoch_seconds,
            work_first=work_first,
            work_later=min(work_fresh[1:] + work_used[1:]),
            model_work_first=work.first_epoch_seconds,
            model_work_later=work.later_epoch_seconds,
        )
        out.write_text(json.dumps(asdict(timing)))


def fitted_features(fitted: Fitted, plan: Plan) -> float:
    """The features of a plan, counted as floats."""
    return plan.d * fitted.feature


def link_costs(group: Group) -> LinkCosts | None:
    """Of the connection between the ranks, from exchanges of few and of many numbers."""
    if group.size == 1:
        return None
    few, many = torch.zeros(FEW_NUMBERS), torch.zeros(MANY_NUMBERS)
    of_few, of_many = (fastest(lambda t=t: group.add(t), 3) for t in (few, many))  # type: ignore[misc]
    hops = 2 * (group.size - 1)
    rate = hops * many.nbytes / group.size / max(1e-9, of_many - of_few)
    return LinkCosts(rate, of_few / hops)


# Around them


def run_job(case: Case, size: int, delay: float | None = None) -> Timing:
    """Start the ranks on this host, or with a delay, two hosts with one rank each."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "timing.json"
        script = str(Path(__file__).resolve())
        command = [sys.executable, script, "--as-rank", json.dumps(asdict(case)), "--out", str(out)]
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"PYTHONPATH": path, "WORLD_SIZE": str(size)}
        if delay is None:
            here = environment | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
            started = [subprocess.Popen(command, env=here | {"RANK": str(r)}) for r in range(size)]
            _wait(started)
        else:
            with Hosts(size, delay) as hosts:
                there = environment | {"MASTER_ADDR": hosts.addresses[0], "MASTER_PORT": "29500"}
                _wait([hosts.start(r, command, there | {"RANK": str(r)}) for r in range(size)])
        return Timing(**json.loads(out.read_text()))


def _wait(started: list[Any]) -> None:
    """Until all have ended; one that fails ends the others."""
    try:
        for process in started:
            code = process.wait(JOB_SECONDS)
            if code != 0:
                raise SystemExit(f"A rank ended with code {code}; its message is above.")
    finally:
        for process in started:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


def best_of(rounds: int, jobs: Mapping[str, tuple[Case, int]]) -> dict[str, Timing]:
    """The best timing of each job; in every round, each runs once."""
    found: dict[str, Timing] = {}
    for number in range(1, rounds + 1):
        for name, (case, size) in jobs.items():
            timing = run_job(case, size)
            found[name] = found[name].best(timing) if name in found else timing
        print(f"round {number} of {rounds}: {', '.join(jobs)}", file=sys.stderr, flush=True)
    return found


def scaling_rows(case: Case, rounds: int) -> Iterator[Row]:
    smaller = replace(case, n=round(case.n / math.sqrt(2)))
    jobs = {"one rank": (case, 1), "two ranks": (case, 2), "one rank, weak": (smaller, 1)}
    found = best_of(rounds, jobs)
    one, two, weak = found.values()
    for epoch, memory, target in (
        ("first", "no values kept", 1.85),
        ("first_fresh", f"{one.kept_share:.0%} of the values kept in fresh memory", None),
        ("first_used", f"{one.kept_share:.0%} of the values kept in memory used before", None),
        ("later", f"{one.kept_share:.0%} of the values kept", 1.6),
    ):
        before, after = getattr(one, epoch), getattr(two, epoch)
        name = f"{case}, {'later' if epoch == 'later' else 'first'} epoch, {memory}"
        note = f"{before:.2f} s and {after:.2f} s"
        yield Row(f"{name}: one rank ÷ two ranks", before / after, target, larger=True, note=note)
    note = f"{weak.first:.2f} s for n = {smaller.n:,} and {two.first:.2f} s"
    yield Row(
        f"{case}, weak scaling of the first epoch: one rank ÷ two", weak.first / two.first, note=note
    )
    for epoch in ("first", "later"):
        sent, formula = getattr(two, f"sent_{epoch}"), getattr(two, f"formula_{epoch}")
        note = f"{in_words(sent)} and {in_words(formula)}"
        yield Row(
            f"{case}, bytes sent in a {epoch} epoch: measured ÷ formula", sent / formula, note=note
        )
    for name, timing in (("one rank", one), ("two ranks", two)):
        for epoch in ("first", "later"):
            modelled, measured = getattr(timing, f"model_{epoch}"), getattr(timing, epoch)
            note = f"{modelled:.2f} s and {measured:.2f} s"
            measure = f"{case}, {name}, {epoch} epoch: cost model ÷ measured"
            yield Row(measure, modelled / measured, note=note)
            modelled, measured = getattr(timing, f"model_work_{epoch}"), getattr(timing, f"work_{epoch}")
            note = f"{modelled:.2f} s and {measured:.2f} s"
            measure = f"{case}, {name}, {epoch} epoch without exchanges: cost model ÷ processor time"
            yield Row(measure, modelled / measured, note=note)


def delay_rows(case: Case) -> Iterator[Row]:
    reason = missing()
    if reason is not None:
        print(f"delay: left out, since {reason}")
        return
    near, far = run_job(case, 2, 0.0), run_job(case, 2, DELAY)
    for epoch in ("first", "later"):
        before, after = getattr(near, epoch), getattr(far, epoch)
        modelled = getattr(far, f"model_{epoch}")
        note = f"{after:.2f} s and {before:.2f} s; the cost model has {modelled:.2f} s"
        measure = f"{case}, {epoch} epoch on two hosts: {1000 * DELAY:.0f} ms of delay each way ÷ none"
        yield Row(measure, after / before, note=note)


def model_table() -> str:
    """Seconds of epochs and memory for many points on many devices, in Markdown."""
    names = list(NAMED_DEVICES)
    heads = [f"{name}: {epoch} epoch" for name in names for epoch in ("first", "later")]
    lines = ["| points | features | devices | memory each | " + " | ".join(heads) + " |"]
    lines.append("| " + " | ".join(["---"] * (4 + len(heads))) + " |")
    memory = usable_memory(NAMED_DEVICE_MEMORY)
    for n in TABLE_POINTS:
        for d in TABLE_FEATURES:
            for count, link in TABLE_DEVICES.items():
                shape = replace(TABLE_SHAPE, n=n, d=d)
                connection = None if link is None else NAMED_LINKS[link]
                found = [
                    estimate(shape, NAMED_DEVICES[k], memory, count, connection, dealt=True)
                    for k in names
                ]
                needs = in_words(found[0].needed + found[0].kept / count)
                times = [(e.first_epoch_seconds, e.later_epoch_seconds) for e in found]
                shown = [time_in_words(t) for pair in times for t in pair]
                needs += "" if found[0].fits else ", too much"
                lines.append(f"| {n:,} | {d} | {count} | {needs} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


PARTS = ("mnist", "floats", "delay", "model")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=FOLDER, help="folder of the datasets")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rows", type=int, default=ROWS, help="training rows; no targets if fewer")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--as-rank", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.as_rank is not None:
        run_rank(Case(**json.loads(given.as_rank)), given.out)
        return
    print(machine())
    mnist = Case("mnist", given.rows, bytes_pay(), str(given.data.resolve()))
    floats = Case("floats", given.rows)
    rows: list[Row] = []
    for part in given.parts:
        if part == "model":
            print(model_table())
            continue
        case = mnist if part == "mnist" else floats
        found = delay_rows(case) if part == "delay" else scaling_rows(case, given.rounds)
        for row in found:
            rows.append(row if given.rows >= ROWS else replace(row, target=None))
            print(rows[-1], flush=True)
    if given.out:
        contents = {"machine": machine(), "rows": [row.to_dict() for row in rows]}
        given.out.write_text(json.dumps(contents, indent=1) + "\n")


if __name__ == "__main__":
    main()
