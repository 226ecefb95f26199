"""A real server process and real clients: load, replaced files, signals, slow and oversize requests."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
from serving import client, plain_model, server

import mercer
from mercer.cli import main
from mercer.serve.limits import Limits

CLIENTS = 8


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two versions of one model, whose answers differ by a factor of two."""
    folder = tmp_path_factory.mktemp("versions")
    found = {}
    for factor in (1.0, 2.0):
        path = folder / f"{factor:g}.mercer"
        plain_model(factor, 400).save(path)
        found[factor] = (path, mercer.load(path))
    return found


@pytest.fixture(scope="module")
def running(models, tmp_path_factory):
    path = tmp_path_factory.mktemp("live") / "m.mercer"
    path.write_bytes(models[1.0][0].read_bytes())
    options = ["--max-body", "200KB", "--timeout", "20"]
    with server(path, options=options) as found:
        yield found, path


def rows_of(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(int(rng.integers(1, 20)), 3))


def check(response, X, versions):
    """The version that answered, whose answers these must be."""
    assert response.status_code == 200, response.text
    found = np.array([row["prediction"] for row in response.json()["rows"]])
    for version, model in versions.items():
        if np.abs(found - model.predict(X)).max() < 1e-5 * 2:
            return version
    raise AssertionError("an answer of no version")


def test_no_answer_is_wrong_and_none_is_lost_while_the_file_is_replaced(running, models):
    live, path = running
    versions = {factor: model for factor, (_, model) in models.items()}
    ended = threading.Event()

    def ask(client_number):
        seen = []
        with httpx.Client(base_url=live.url, timeout=60) as session:
            last = False
            while not last:
                last = ended.is_set() and len(seen) >= 10  # the last request begins after the end
                X = rows_of(client_number * 100_000 + len(seen))
                seen.append(check(session.post("/predict", json=X.tolist()), X, versions))
        return seen

    def replace(contents):
        beside = path.with_suffix(".new")
        beside.write_bytes(contents)
        os.replace(beside, path)

    def wait_for(what):
        while what not in "".join(live.lines):
            assert live.process.poll() is None
            time.sleep(0.05)

    with ThreadPoolExecutor(CLIENTS) as pool:
        tasks = [pool.submit(ask, i) for i in range(CLIENTS)]
        time.sleep(0.3)
        new = models[2.0][0].read_bytes()
        replace(new[: len(new) // 2])
        wait_for("still version")
        state = httpx.get(f"{live.url}/health").json()
        assert (state["status"], "problem" in state["models"]["m"]) == ("stale", True)
        replace(new)
        wait_for("read ")
        ended.set()
        seen = [task.result(120) for task in tasks]
    for versions_of_client in seen:
        assert versions_of_client == sorted(versions_of_client)  # never back to the old one
        assert versions_of_client[-1] == 2.0
    text = httpx.get(f"{live.url}/metrics").text
    assert 'mercer_loads_total{model="m",outcome="failure"} 1.0' in text
    assert f'mercer_requests_total{{model="m",status="200"}} {sum(map(len, seen)):.1f}' in text


def test_memory_does_not_grow_under_load(running):
    live, _ = running
    process = psutil.Process(live.process.pid)
    X = np.zeros((200, 3)).tolist()

    def ask(n):
        with httpx.Client(base_url=live.url, timeout=60) as session:
            for _ in range(n):
                assert session.post("/predict", json=X).status_code == 200

    def load():
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(ask, [60] * 4))

    load()  # what is allocated once
    before = process.memory_info().rss
    load()
    load()
    assert process.memory_info().rss - before < 20e6  # bodies alone were 480 × 2.4 KB × 20
    assert process.num_threads() < 40


def test_oversize_bodies_are_refused_and_the_connection_goes_on(running):
    live, _ = running
    with httpx.Client(base_url=live.url, timeout=60) as session:
        for _ in range(2):
            response = session.post("/predict", content=b"[" + b" " * 3_000_000)
            assert response.status_code == 413

            def endless():
                for _ in range(300):
                    yield b" " * 10_000

            assert session.post("/predict", content=endless()).status_code == 413
        assert session.post("/predict", json=[[0, 0, 0]]).status_code == 200


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"POST /predict HTTP/1.1\r\nHost: x\r\n",
        b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n[[",
    ],
    ids=["silent", "head", "body"],
)
def test_a_client_that_stops_in_the_middle_harms_nobody(running, start):
    live, _ = running
    host, port = live.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as stuck:
        stuck.sendall(start)
        assert httpx.post(f"{live.url}/predict", json=[[0, 0, 0]]).status_code == 200
    assert httpx.get(f"{live.url}/health").status_code == 200


@pytest.mark.parametrize(
    "junk", [b"\0" * 100, b"GET\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n"]
)
def test_bytes_that_are_no_request_are_refused(running, junk):
    live, _ = running
    host, port = live.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as odd:
        odd.sendall(junk)
        assert odd.recv(1000).startswith(b"HTTP/1.1 400")
    assert not any("Traceback" in line for line in live.lines)


def test_slow_clients_are_cut_off(models):
    limits = Limits(client_seconds=0.3, seconds=20)
    with client({"m": str(models[1.0][0])}, limits) as (one, _):
        port = one.base_url.port
        started = time.monotonic()
        head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n["
        with socket.create_connection(("127.0.0.1", port), timeout=30) as body:
            body.sendall(head)
            assert b" 408 " in body.recv(1000)
        for start in (b"", head[:30]):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as silent:
                silent.sendall(start)
                with contextlib.suppress(ConnectionResetError):
                    assert silent.recv(1000) == b""
        assert time.monotonic() - started < 20
        assert one.get("/health").status_code == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_ends_the_server_after_the_requests_it_has_received(models, number, tmp_path):
    path, model = models[1.0]
    X = np.random.default_rng(0).normal(size=(20_000, 3)).round(3)
    body = str(X.tolist()).encode()
    with server(path) as live, ThreadPoolExecutor(4) as pool:
        url, kind = f"{live.url}/predict", {"Content-Type": "application/json"}

        def ask(_):
            return httpx.post(url, content=body, headers=kind, timeout=120)

        tasks = [pool.submit(ask, i) for i in range(3)]
        metrics = f"{live.url}/metrics"
        while "mercer_requests_in_work 3.0" not in httpx.get(metrics, timeout=60).text:
            assert not any(task.done() for task in tasks)
        code = live.end(number)
        for task in tasks:
            rows = task.result(60).json()["rows"]
            found = [row["prediction"] for row in rows]
            np.testing.assert_allclose(found, model.predict(X), atol=1e-5)
        with pytest.raises(httpx.TransportError):
            httpx.post(url, json=[[0, 0, 0]])
    assert code == 0
    assert "ended, with all requests answered" in live.lines[-1]


@pytest.mark.slow
def test_the_benchmark_of_serving_finds_no_wrong_answer():
    script = Path(__file__).parents[1] / "benchmarks" / "serving.py"
    command = [sys.executable, str(script), "--centres", "100", "--requests", "32", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    found = json.loads(done.stdout)
    assert [part["clients"] for part in found["parts"]] == [0, 1, 4, 16]
    assert all(part["requests"] == 32 and part["wrong"] == 0 for part in found["parts"])


def test_a_port_in_use_is_said(running, models, capfd):
    live, _ = running
    port = live.url.rpartition(":")[2]
    assert main(["serve", str(models[1.0][0]), "--port", port]) == 1
    assert f"Cannot listen at 127.0.0.1, port {port}" in capfd.readouterr().err
