"""The training process as the server sees it: started, spoken to, and replaced if it ends or hangs."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

Message = dict[str, Any]
# The longest message, in bytes; one with everything that a run shows takes about 100 kB.
LONGEST_MESSAGE = 64 * 2**20
# Seconds between two starts of processes that end before they are ready, and the most such starts.
PAUSE = 1.0
MOST_FAILED_STARTS = 5


class TrainerProcess:
    """Keeps one training process running.

    `on_message` gets its events; `on_end` is told, in words, when a process has ended unasked.
    """

    def __init__(
        self, folder: Path, on_message: Callable[[Message], None], on_end: Callable[[str], None]
    ) -> None:
        self.folder, self.on_message, self.on_end = folder, on_message, on_end
        self.ready = self.gave_up = False
        self.pid: int | None = None
        self._process: Process | None = None
        self._closing = self._replacing = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_running())

    async def _keep_running(self) -> None:
        failed = 0
        while not self._closing and failed < MOST_FAILED_STARTS:
            command = (sys.executable, "-m", "mercer.explorer.trainer", str(self.folder))
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=PIPE, stdout=PIPE, limit=LONGEST_MESSAGE
            )
            self.pid = self._process.pid
            was_ready = await self._listen(self._process)
            code = await self._process.wait()
            self.ready, self.pid = False, None
            replacing, self._replacing = self._replacing, False
            if self._closing:
                return
            if not replacing:
                self.on_end(_in_words(code))
            failed = 0 if was_ready else failed + 1
            if not replacing:
                await asyncio.sleep(PAUSE if failed else 0)
        self.gave_up = True
        self.on_end("it could not be started; see the terminal for the reason")

    async def _listen(self, process: Process) -> bool:
        """Pass messages on until there are no more; whether the process ever was ready."""
        assert process.stdout is not None
        was_ready = False
        while line := await process.stdout.readline():
            message = json.loads(line)
            if message["event"] == "ready":
                was_ready = self.ready = True
            self.on_message(message)
        return was_ready

    def send(self, message: Message) -> None:
        """Send a request; it is lost if there is no process, which then is told by `on_end`."""
        if self._process is not None and self._process.stdin is not None and self.ready:
            with suppress(BrokenPipeError, ConnectionResetError):
                self._process.stdin.write(json.dumps(message).encode() + b"\n")

    def replace(self) -> None:
        """End a process that does not answer; the next one starts at once."""
        if self._process is not None and self._process.returncode is None:
            self._replacing, self.ready = True, False
            with suppress(ProcessLookupError):
                self._process.kill()

    async def close(self) -> None:
        self._closing = True
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
        if self._task is not None:
            with suppress(asyncio.CancelledError):
                await asyncio.wait_for(self._task, 5)


def _in_words(code: int) -> str:
    """How a process ended."""
    if code == -9:
        return "it was killed, perhaps because memory ran out"
    return f"it was ended by signal {-code}" if code < 0 else f"it ended with the exit code {code}"
