"""Latency and throughput of `mercer serve` under load, beside a bare `predict`.

    python benchmarks/serving.py [--centres 2000] [--requests 2000] [--seconds 30] [--json]

A real server in a process of its own answers one-row JSON requests of 1, 4 and 16 clients on loopback,
each on one connection that stays open.  Every answer is compared with `predict`.  The clients are
threads of this process and share the cores with the server, so that latencies include their waiting for
a core.  Each part ends after so many requests or seconds, whichever is sooner.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from mercer import KernelRegressor

CLIENTS = (1, 4, 16)
COLUMNS = 10
ROWS = 500  # that are asked for, again and again
WARM_UP = 200  # requests before the first that counts
# Answers may differ from `predict` by this share of the spread of the targets: rows that are predicted
# together may be rounded differently.
TOLERANCE = 1e-5
MB = 1e6
Array = NDArray[Any]


@dataclass(frozen=True)
class Part:
    """What one number of clients saw; 0 clients: `predict` called directly."""

    clients: int
    requests: int
    p50: float  # milliseconds
    p99: float
    per_second: float
    wrong: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--centres", type=int, default=2_000)
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    X = rng.normal(size=(given.centres, COLUMNS))
    y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2]
    model = KernelRegressor("laplacian", bandwidth=4.0, ridge=0.01, metric=False, random_state=0)
    model.fit(X, y)
    rows = rng.normal(size=(ROWS, COLUMNS))
    expected = model.predict(rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.mercer"
        model.save(path)
        bare = measured(0, lambda: lambda i: float(model.predict(rows[i : i + 1])[0]), expected, given)
        with server(path) as (port, process):
            asking = clients_of(port, rows)
            measured(1, asking, expected, argparse.Namespace(requests=WARM_UP, seconds=given.seconds))
            before = process.memory_info().rss
            parts = [bare, *(measured(count, asking, expected, given) for count in CLIENTS)]
            after = process.memory_info().rss
    memory = {"before": round(before / MB, 1), "after": round(after / MB, 1)}
    if given.json:
        print(json.dumps({"parts": [asdict(part) for part in parts], "server_megabytes": memory}))
    else:
        print(f"one row of {COLUMNS} columns, {given.centres:,} centres")
        print(
            f"{'clients':>12} {'requests':>9} {'p50, ms':>9} {'p99, ms':>9} {'a second':>9} {'wrong':>6}"
        )
        for part in parts:
            name = part.clients or "bare predict"
            print(
                f"{name:>12} {part.requests:>9,} {part.p50:>9.2f} {part.p99:>9.2f} "
                f"{part.per_second:>9,.0f} {part.wrong:>6}"
            )
        print(f"memory of the server: {memory['before']} MB before, {memory['after']} MB after")
    return int(any(part.wrong for part in parts))


def measured(
    clients: int,
    make_ask: Callable[[], Callable[[int], float]],
    expected: Array,
    limits: argparse.Namespace,
) -> Part:
    """Each client asks for its share of the rows, one after the other; `make_ask` makes a client."""
    count = max(1, clients)
    share = -(-limits.requests // count)
    times: list[list[float]] = [[] for _ in range(count)]
    wrong = [0] * count
    tolerance = TOLERANCE * float(expected.std())
    ready = threading.Barrier(count + 1)

    def work(client: int) -> None:
        ask = make_ask()
        ready.wait()
        end = time.perf_counter() + limits.seconds
        for k in range(share):
            i = (client * share + k) % len(expected)
            start = time.perf_counter()
            try:
                found = ask(i)
            except (OSError, http.client.HTTPException):  # no answer is a wrong one
                found = math.nan
            now = time.perf_counter()
            times[client].append(now - start)
            wrong[client] += not abs(found - float(expected[i])) <= tolerance
            if now > end:
                break

    threads = [threading.Thread(target=work, args=(client,), daemon=True) for client in range(count)]
    for thread in threads:
        thread.start()
    ready.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    found = np.concatenate([np.array(one) for one in times])
    p50, p99 = 1e3 * np.quantile(found, [0.5, 0.99])
    rate = len(found) / seconds
    return Part(clients, len(found), float(p50), float(p99), rate, sum(wrong))


def clients_of(port: int, rows: Array) -> Callable[[], Callable[[int], float]]:
    """Makes clients, each with a connection of its own."""
    bodies = [json.dumps([row.tolist()]) for row in rows]
    headers = {"Content-Type": "application/json"}

    def make() -> Callable[[int], float]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

        def ask(i: int) -> float:
            connection.request("POST", "/predict", bodies[i], headers)
            response = connection.getresponse()
            content = json.loads(response.read())
            return float(content["rows"][0]["prediction"]) if response.status == 200 else math.nan

        return ask

    return make


@contextmanager
def server(path: Path) -> Iterator[tuple[int, psutil.Process]]:
    """`mercer serve` at a free port of 127.0.0.1; it is ended at the end."""
    command = [sys.executable, "-m", "mercer", "serve", str(path), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        lines = iter(process.stderr.readline, "")
        found = next(
            (m for line in lines if (m := re.search(r"http://127\.0\.0\.1:(\d+)/", line))), None
        )
        if found is None:
            raise RuntimeError("The server did not start.")
        threading.Thread(target=lambda: list(lines), daemon=True).start()
        yield int(found[1]), psutil.Process(process.pid)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
