"""Connections of clients that send or read too slowly are closed."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from mercer.serve.limits import Limits

# A connection may be idle, and its head and its body may each be slow.
SLOW_PARTS = 2


def connection_class(limits: Limits) -> type[H11Protocol]:
    """The protocol of every connection of a server with these limits."""

    class Connection(H11Protocol):
        _timer: asyncio.TimerHandle | None = None
        _receives = False  # whether it is the client's turn

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > limits.connections:
                transport.abort()
            else:
                self._start_timer()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._start_timer()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._start_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._timer is not None:
                self._timer.cancel()
            super().connection_lost(exc)

        def _start_timer(self) -> None:
            """The time of the client, to send a request, or of the server, to send an answer, begins."""
            receives = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
            if self._timer is not None:
                if receives == self._receives:
                    return
                self._timer.cancel()
            self._receives = receives
            seconds = SLOW_PARTS * limits.client_seconds
            if not receives:  # the client must also read it
                seconds = limits.seconds + limits.client_seconds
            self._timer = self.loop.call_later(seconds, self.transport.abort)

    return Connection
