"""Starts the server beside the program that asked for it, and opens the page."""

from __future__ import annotations

import secrets
import socket
import tempfile
import threading
import time
import webbrowser
from pathlib import Path
from types import TracebackType
from typing import Any

import uvicorn
from typing_extensions import Self

from mercer.explorer.dataset import Dataset
from mercer.explorer.server import create_app
from mercer.explorer.session import Session

HOST = "127.0.0.1"
# Seconds to wait for the server to start, and for it to end.
START_SECONDS = 30.0
END_SECONDS = 10.0


class Explorer:
    """A page that is being served, until `close`.

    Use it in a `with` statement, or call `close` when done.  `url` is the address of the page, which has
    a token in it; only who has the address can use the page.
    """

    def __init__(self, data: Dataset, port: int = 0) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="mercer-explore-")
        self._socket = socket.socket()
        try:
            folder = Path(self._folder.name)
            data.write(folder)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((HOST, port))
        except BaseException:
            self._socket.close()
            self._folder.cleanup()
            raise
        self.port = int(self._socket.getsockname()[1])
        token = secrets.token_urlsafe(24)
        self.url = f"http://{HOST}:{self.port}/?token={token}"
        self.session = Session(data.about, folder)
        app = create_app(self.session, token, self.port)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, timeout_graceful_shutdown=2, ws="none"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="mercer-explore", daemon=True)
        self._thread.start()
        limit = time.monotonic() + START_SECONDS
        while not self._server.started and self._thread.is_alive() and time.monotonic() < limit:
            time.sleep(0.01)
        if not self._server.started:
            self.close()
            raise RuntimeError("The server could not be started. See the messages above for the reason.")

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])

    def drop_connections(self) -> None:
        """End all connections for events; pages that are open connect again."""
        self.session.drop_pages()

    def open(self) -> None:
        """Open the page in the browser."""
        webbrowser.open(self.url)

    def wait(self) -> None:
        """Serve until Ctrl-C."""
        try:
            while self._thread.is_alive():
                self._thread.join(1.0)
        except KeyboardInterrupt:
            pass
        finally:
            self.close()

    def close(self) -> None:
        """End the server and the training process, and delete their files."""
        self.session.drop_pages()  # the server would wait for their connections to end
        self._server.should_exit = True
        self._thread.join(END_SECONDS)
        self._socket.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Explorer at {self.url}"

    def _repr_html_(self) -> Any:
        """A link, for notebooks."""
        return f'<a href="{self.url}" target="_blank" rel="noopener">Explore at {HOST}:{self.port}</a>'
