"""The process that serves: its socket, its signals, and its end.

On SIGTERM, SIGINT or SIGHUP no more connections are accepted, requests that were received are answered,
and `serve` returns.  A second Ctrl-C ends at once.
"""

from __future__ import annotations

import ipaddress
import logging
import math
import signal
import socket
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette

from mercer.serve.app import create
from mercer.serve.connections import connection_class
from mercer.serve.limits import Limits
from mercer.serve.registry import Registry

# Seconds that an idle connection stays open.
IDLE_SECONDS = 5
# Seconds beyond the time of a request that an end may take.
DRAIN_SECONDS = 5
SIGNALS = [getattr(signal, n) for n in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, n)]


def serve(
    paths: Mapping[str, str],
    *,
    host: str,
    port: int,
    limits: Limits,
    n_jobs: int | None,
    say: Callable[[str], None],
) -> None:
    """Serve models, by name, until a signal ends it; `say` is told what an operator should know."""
    listener = _bound(host, port)
    try:
        registry = Registry(paths, n_jobs)
        _log_to(say)
        where = _address(listener)
        names = ", ".join(registry.entries)

        def started() -> None:
            if not _is_local(host):
                say("everyone who can reach this address can use the models and see their columns")
            say(f"serving {names} at {where} (Ctrl-C ends)")

        Server(create(registry, limits, say), limits, started).run(sockets=[listener])
        say("ended, with all requests answered")
    finally:
        listener.close()


class Server(uvicorn.Server):
    """A server whose `run` returns after a signal."""

    def __init__(self, app: Starlette, limits: Limits, started: Callable[[], None]) -> None:
        config = uvicorn.Config(
            app,
            http=connection_class(limits),
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=math.ceil(limits.seconds) + DRAIN_SECONDS,
        )
        super().__init__(config)
        self._on_start = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._on_start()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        # Uvicorn raises the signal again at the end, which would make a clean end look like a failure.
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _bound(host: str, port: int) -> socket.socket:
    """A socket for this address, on which nobody is heard until the models are read."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ValueError(
            f"Cannot listen at {host}, port {port}: {reason}. Use another --host or --port."
        ) from error
    return found


def _address(listener: socket.socket) -> str:
    host, port, *_ = listener.getsockname()
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _log_to(say: Callable[[str], None]) -> None:
    """Errors of the web server go to `say`, in one line; what clients do wrong is counted instead."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if record.exc_info and record.exc_info[1] is not None:
                text = f"{text.strip()}: {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
            say(" ".join(text.split()))

    logger = logging.getLogger("uvicorn")
    logger.handlers, logger.propagate = [Handler(logging.ERROR)], False
