"""One session of exploring: runs, the process that trains them, and the pages that look on.

Everything here happens in the server's event loop, so that nothing needs a lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mercer.explorer.dataset import About
from mercer.explorer.messages import shown
from mercer.explorer.process import TrainerProcess
from mercer.explorer.runs import Message, Run, Runs
from mercer.explorer.settings import first_settings, kernels_for, parse_settings
from mercer.files.records import to_data

# Seconds in which a process must begin the next run; then it is replaced.
GRACE = 2.0
# Seconds that an answer about an earlier run may take.
ANSWER_SECONDS = 30.0
# Messages that wait for a page that does not read; then it is dropped, and connects again.
MOST_WAITING = 1_000
MOST_PAGES = 32


class Session:
    def __init__(self, about: About, folder: Path) -> None:
        self.about, self.folder = about, folder
        self.runs = Runs()
        self.current: Run | None = None
        self.trainer = TrainerProcess(folder, self._on_message, self._on_trainer_end)
        self.trainer_state, self.trainer_note = "starting", ""
        self._pages: set[asyncio.Queue[Message | None]] = set()
        self._questions: dict[int, asyncio.Future[Message]] = {}
        self._asked = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._handlers: dict[str, Callable[[Message], None]] = {
            "ready": self._on_ready,
            "started": self._on_started,
            "stage": self._on_stage,
            "plan": self._on_plan,
            "epoch": self._on_epoch,
            "found": self._on_found,
            "detail": self._on_detail,
            "ended": self._on_ended,
            "answer": self._on_answer,
        }

    def begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.trainer.start()
        self.start(to_data(first_settings(self.about)))

    async def close(self) -> None:
        self._end_pages()
        await self.trainer.close()

    def drop_pages(self) -> None:
        """End the events of all pages, from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end_pages)

    def _end_pages(self) -> None:
        for page in list(self._pages):
            self._end(page)

    def _end(self, page: asyncio.Queue[Message | None]) -> None:
        self._pages.discard(page)
        while not page.empty():
            page.get_nowait()
        page.put_nowait(None)

    # Requests of pages.

    def state(self) -> Message:
        """Everything that a page needs to begin, or to go on after it was cut off."""
        return {
            "data": {
                **shown(to_data(replace(self.about, columns=None, command=()))),
                "kernels": kernels_for(self.about),
                "first": to_data(first_settings(self.about)),
            },
            "runs": [run.summary() for run in self.runs],
            "current": None if self.current is None else self.current.number,
            "trainer": {"state": self.trainer_state, "note": self.trainer_note},
        }

    def start(self, data: Any) -> Run:
        """Begin a run; the one that runs is cancelled and forgotten."""
        settings = to_data(parse_settings(data, self.about))
        if self.current is not None and self.current.status not in ("done", "failed"):
            self._remove(self.current)
        run = self.current = self.runs.add(settings)
        self._tell("run", run.summary())
        self._submit()
        return run

    def stop(self) -> None:
        """End the run with the weights that it has."""
        if self.current is not None:
            self.trainer.send({"do": "stop", "run": self.current.number})

    def pin(self, number: int, pinned: bool) -> None:
        self.runs.pin(number, pinned)
        run = self.runs.get(number)
        assert run is not None
        self._tell("run", run.summary())

    def remove(self, number: int) -> None:
        run = self.runs.get(number)
        if run is not None and run.status in ("done", "failed"):
            self._remove(run)

    async def ask(self, number: int, question: Message) -> Message:
        """The answer of the training process about a run that is done."""
        if self.trainer_state != "ready":
            raise ValueError("The training process is starting. Try again in a moment.")
        self._asked += 1
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        asked = self._asked  # others may ask while this one waits
        self._questions[asked] = future
        self.trainer.send({**question, "do": "ask", "ask": asked, "run": number})
        try:
            answer = await asyncio.wait_for(future, ANSWER_SECONDS)
        except asyncio.TimeoutError as error:
            raise ValueError(
                "The training process is busy. Try again when the run has ended."
            ) from error
        finally:
            self._questions.pop(asked, None)
        if "error" in answer:
            raise ValueError(answer["error"])
        result: Message = answer["data"]
        return result

    def model_file(self, number: int) -> Path:
        return self.folder / f"run-{number}.mercer"

    def join(self) -> asyncio.Queue[Message | None]:
        """Events for one page, beginning with the state; None ends them."""
        if len(self._pages) >= MOST_PAGES:
            raise ValueError(f"At most {MOST_PAGES} pages can be open. Close one.")
        page: asyncio.Queue[Message | None] = asyncio.Queue(MOST_WAITING)
        page.put_nowait({"event": "state", "data": self.state()})
        self._pages.add(page)
        return page

    def leave(self, page: asyncio.Queue[Message | None]) -> None:
        self._pages.discard(page)

    def _tell(self, event: str, data: Message) -> None:
        for page in list(self._pages):
            if page.full():  # the page does not read; it connects again
                self._end(page)
            else:
                page.put_nowait({"event": event, "data": data})

    def _remove(self, run: Run) -> None:
        self.runs.remove(run.number)
        self.model_file(run.number).unlink(missing_ok=True)
        self._tell("removed", {"run": run.number})

    # The training process.

    def _submit(self) -> None:
        """Give the current run to the process; without an answer in time, the process is replaced."""
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self.current is None or not self.trainer.ready:
            return
        self.trainer.send({"do": "fit", "run": self.current.number, "settings": self.current.settings})
        loop, number = asyncio.get_running_loop(), self.current.number
        self._watchdog = loop.call_later(GRACE, self._give_up, number)

    def _give_up(self, number: int) -> None:
        if self.current is not None and self.current.number == number:
            self._set_trainer("starting", "the earlier run could not be cancelled in time")
            self.trainer.replace()
            self._forget_questions()

    def _set_trainer(self, state: str, note: str = "") -> None:
        self.trainer_state, self.trainer_note = state, note
        self._tell("trainer", {"state": state, "note": note})

    def _on_trainer_end(self, reason: str) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
        self._forget_questions()
        run = self.current
        if run is not None and run.status not in ("done", "failed"):
            run.status = "failed"
            run.result = {"message": f"The training process ended: {reason}."}
            self._tell("run", run.summary())
        next_one = "" if self.trainer.gave_up else " A new one is starting."
        self._set_trainer("starting", f"The training process ended: {reason}.{next_one}")

    def _forget_questions(self) -> None:
        for future in self._questions.values():
            if not future.done():
                future.set_result({"error": "The training process ended before it could answer."})

    def _on_message(self, message: Message) -> None:
        self._handlers[message["event"]](message)

    def _run(self, message: Message) -> Run | None:
        return self.runs.get(message["run"])

    def _on_ready(self, message: Message) -> None:
        self._set_trainer("ready")
        if self.current is not None and self.current.status not in ("done", "failed"):
            self._submit()

    def _on_started(self, message: Message) -> None:
        run = self._run(message)
        if run is not None:
            if self._watchdog is not None and run is self.current:
                self._watchdog.cancel()
            run.status, run.epochs = "running", []
            self._tell("run", run.summary())

    def _on_stage(self, message: Message) -> None:
        run = self._run(message)
        if run is not None and run.stage != message["text"]:
            run.stage = message["text"]
            self._tell("stage", {"run": run.number, "stage": run.stage})

    def _on_plan(self, message: Message) -> None:
        run = self._run(message)
        if run is not None:
            run.stage, run.epochs = "training", []  # training in float64 begins again
            run.details["plan"] = message["plan"]
            self._tell("detail", {"run": run.number, "part": "plan", "data": message["plan"]})

    def _on_epoch(self, message: Message) -> None:
        run = self._run(message)
        if run is not None:
            run.epochs.append(message["epoch"])
            self._tell("epoch", {"run": run.number, "epoch": message["epoch"]})

    def _on_found(self, message: Message) -> None:
        run = self._run(message)
        if run is not None:
            run.settings = message["settings"]
            self._tell("found", {"run": run.number, "settings": run.settings})

    def _on_detail(self, message: Message) -> None:
        run = self._run(message)
        if run is not None:
            run.details[message["part"]] = message["data"]
            self.runs.measure(run)
            self._tell("detail", {"run": run.number, "part": message["part"], "data": message["data"]})

    def _on_ended(self, message: Message) -> None:
        run = self._run(message)
        if run is None or message["status"] == "cancelled":
            if run is None:  # it was superseded as it ended
                self.model_file(message["run"]).unlink(missing_ok=True)
            return
        run.status, run.stage = message["status"], ""
        run.result = {k: v for k, v in message.items() if k not in ("event", "run", "status")}
        self.runs.measure(run)
        self._tell("run", run.everything())
        for old in self.runs.surplus():
            self._remove(old)

    def _on_answer(self, message: Message) -> None:
        future = self._questions.get(message["ask"])
        if future is not None and not future.done():
            future.set_result(message)
