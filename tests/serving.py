"""Models and servers for the tests of `mercer serve`."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import polars as pl
from starlette.applications import Starlette

from mercer import KernelClassifier, KernelRegressor
from mercer.serve.app import create
from mercer.serve.limits import Limits
from mercer.serve.registry import Registry
from mercer.serve.server import Server


def shop_table(n: int, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "age": rng.normal(40, 10, n).round(3),
            "city": rng.choice(["Rome", "Oslo", "Lima"], n),
            "member": rng.random(n) < 0.5,
        }
    )


def shop_model() -> KernelClassifier:
    """A classifier of a table with numbers, text and booleans, that knows its errors."""
    table = shop_table(200)
    y = np.where(table["age"].to_numpy() + 8 * (table["city"] == "Oslo").to_numpy() > 42, "yes", "no")
    model = KernelClassifier("laplacian", bandwidth=3.0, metric=False, scale=True, random_state=0)
    return model.fit(table, y)


def plain_model(factor: float = 1.0, n: int = 200) -> KernelRegressor:
    """A regressor of a matrix of three columns without names."""
    X = np.random.default_rng(1).normal(size=(n, 3))
    model = KernelRegressor("gaussian", bandwidth=1.5, ridge=0.01, metric=False, random_state=0)
    return model.fit(X, factor * (X[:, 0] + X[:, 1] ** 2))


@contextlib.contextmanager
def client(
    files: Mapping[str, str],
    limits: Limits | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[tuple[httpx.Client, Starlette]]:
    """A client of a server in a thread of this process, and the application."""
    limits = limits or Limits()
    app = create(Registry(files, None), limits, say)
    ready = threading.Event()
    running = Server(app, limits, ready.set)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=running.run, args=([listener],), daemon=True)
        thread.start()
        assert ready.wait(30)
        with httpx.Client(base_url=url, timeout=60.0) as found:
            yield found, app
        running.should_exit = True
        thread.join(60)


@dataclass
class Running:
    """A server in a process of its own."""

    process: subprocess.Popen[str]
    url: str
    lines: list[str]  # of its standard error

    def end(self, number: int = signal.SIGTERM, seconds: float = 60.0) -> int:
        self.process.send_signal(number)
        return self.process.wait(seconds)


@contextlib.contextmanager
def server(*arguments: str | Path, options: Sequence[str] = ()) -> Iterator[Running]:
    """`mercer serve` on a free port."""
    command = [sys.executable, "-m", "mercer", "serve", *map(str, arguments), "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    lines: list[str] = []

    def listen() -> None:
        assert process.stderr is not None
        lines.extend(process.stderr)

    reader = threading.Thread(target=listen, daemon=True)
    reader.start()
    try:
        while process.poll() is None and not any("serving" in line for line in lines):
            time.sleep(0.05)
        found = re.search(r"http://\S+/", "".join(lines))
        assert found, "".join(lines)
        yield Running(process, found[0].rstrip("/"), lines)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        reader.join(5)
        if process.stderr is not None:
            process.stderr.close()
