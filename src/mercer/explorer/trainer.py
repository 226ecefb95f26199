"""The process that trains: it keeps the data and PyTorch loaded, and does what it is told over a pipe.

    python -m mercer.explorer.trainer FOLDER

Messages are lines of JSON, requests on standard input and events on standard output.  A new fit cancels
the one that runs, which looks for it at every stage, panel and epoch, and between any two tasks of its
workers.  The process ends with its input, so that it never outlives the server.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from mercer.estimators import KernelClassifier, KernelRegressor, load
from mercer.estimators.preparation import of_features
from mercer.explorer.bandwidth import Distances
from mercer.explorer.dataset import Dataset, read_dataset
from mercer.explorer.findings import importances, of_held_out, of_plan
from mercer.explorer.messages import to_json
from mercer.explorer.recipes import as_command, as_python
from mercer.explorer.settings import (
    MOST_QUICK_ROWS,
    QUICK_SUBSAMPLE,
    Model,
    Settings,
    found_settings,
    parameters,
    parse_settings,
    rows_of,
)
from mercer.explorer.slices import Slicer
from mercer.files.records import to_data
from mercer.operators.workers import watched
from mercer.planning.plan import Plan
from mercer.training.events.callbacks import Callback, Run

Message = dict[str, Any]
STOPPED = "stopped by the user"
# Models that stay in memory; others are read from their files when they are asked for.
MODELS_IN_MEMORY = 3


class Cancelled(Exception):
    """A newer fit has been asked for."""


class Inbox:
    """Requests as they arrive: the newest fit, and questions in their order."""

    def __init__(self, lines: IO[str]) -> None:
        self._lines = lines
        self._wake = threading.Condition()
        self._fit: Message | None = None
        self._newest = 0  # the run that was asked for last
        self._stopped = 0  # the run that should end with the weights it has
        self.questions: queue.SimpleQueue[Message] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._lines:
            message = json.loads(line)
            with self._wake:
                if message["do"] == "fit":
                    self._fit, self._newest = message, message["run"]
                elif message["do"] == "stop":
                    self._stopped = message["run"]
                else:
                    self.questions.put(message)
                self._wake.notify()
        os._exit(0)  # the server has gone; there is nobody to tell

    def next_fit(self, answer: Callable[[], None]) -> Message:
        """Wait for a fit; questions are answered meanwhile."""
        while True:
            answer()
            with self._wake:
                if self._fit is not None:
                    message, self._fit = self._fit, None
                    return message
                if self.questions.empty():
                    self._wake.wait()

    def superseded(self, run: int) -> bool:
        return self._newest != run

    def stopped(self, run: int) -> bool:
        return self._stopped == run


class Watch(Callback):
    """Sends the stages and epochs of a run, and ends it if it is superseded or stopped."""

    def __init__(self, run: int, inbox: Inbox, send: Callable[..., None], answer: Callable[[], None]):
        self.run, self.inbox, self.send, self.answer = run, inbox, send, answer

    def check(self) -> None:
        if self.inbox.superseded(self.run):
            raise Cancelled

    def on_stage(self, text: str) -> None:
        self.check()
        self.send("stage", run=self.run, text=text)

    def on_fit_begin(self, plan: Plan) -> None:
        self.check()
        self.send("plan", run=self.run, plan=of_plan(plan))

    def on_panel_end(self, run: Run) -> str | None:
        self.check()
        self.answer()
        return STOPPED if self.inbox.stopped(self.run) and len(run.history) else None

    def on_epoch_end(self, run: Run) -> str | None:
        epoch = run.epoch
        self.send(
            "epoch",
            run=self.run,
            epoch={
                "number": epoch.number,
                "train": epoch.train_loss,
                "held_out": epoch.validation_loss,
                "score": epoch.validation_score,
                "seconds": epoch.seconds,
            },
        )
        self.check()
        return STOPPED if self.inbox.stopped(self.run) else None


@dataclass(frozen=True)
class Trained:
    settings: Settings
    model: Model


class Trainer:
    """Fits what it is asked for, and answers questions about earlier runs."""

    def __init__(self, folder: Path, inbox: Inbox, send: Callable[..., None]) -> None:
        self.folder, self.inbox, self.send = folder, inbox, send
        self.data: Dataset = read_dataset(folder)
        self.distances = Distances(self.data)
        self.models: OrderedDict[int, Trained] = OrderedDict()

    def serve(self) -> None:
        while True:
            request = self.inbox.next_fit(self.answer)
            run = int(request["run"])
            try:
                self.fit(run, parse_settings(request["settings"], self.data.about))
                continue
            except Cancelled:
                event = {"status": "cancelled"}
            except Exception as error:  # whatever the data makes of it, the page should say it
                event = {"status": "failed", "message": str(error) or type(error).__name__}
            self.send("ended", run=run, **event)

    def fit(self, run: int, settings: Settings) -> None:
        """Train, and send what there is to show; raise if a newer fit has been asked for."""
        watch = Watch(run, self.inbox, self.send, self.answer)
        with watched(watch.check):
            self._fit(run, settings, watch)

    def _fit(self, run: int, settings: Settings, watch: Watch) -> None:
        start = time.perf_counter()
        self.send("started", run=run)
        data = self.data
        used = data.features_of(settings.columns)
        rows, held_out = rows_of(data, settings), data.held_out
        X = np.asarray(data.X[np.sort(rows)][:, used])
        y = data.y[np.sort(rows)]
        X_val = np.asarray(data.X[held_out][:, used])
        bandwidth = settings.ratio * self.distances.median(settings)
        categories = self._categories(settings, used)
        given = parameters(settings, bandwidth, categories)
        few = settings.rows <= MOST_QUICK_ROWS
        quick: dict[str, Any] = {"subsample_size": min(QUICK_SUBSAMPLE, len(rows))} if few else {}
        kind = KernelClassifier if data.about.task == "classification" else KernelRegressor
        model = kind(**given, **quick, callbacks=[watch])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(X, y, X_val=X_val, y_val=data.y[held_out])
        model.callbacks = ()
        seconds = time.perf_counter() - start
        watch.check()
        if settings.auto:
            found = found_settings(settings, model, data, used)
            settings = replace(found, ratio=float(model.bandwidth_ or 1) / self.distances.median(found))
            self.send("found", run=run, settings=_plain(settings))
            if not settings.metric:  # then the sliders stand for the same model
                categories = self._categories(settings, used)
                given = parameters(
                    replace(settings, auto=False), float(model.bandwidth_ or 1), categories
                )
        self.send("detail", run=run, part="held_out", data=of_held_out(model, data, X_val))
        self._keep(run, Trained(settings, model))
        self.send(
            "ended",
            run=run,
            status="done",
            message=model.stop_reason_,
            bandwidth=model.bandwidth_,
            ridge=float(model.ridge_),
            kernel=str(model.kernel_.name),
            best_epoch=float(model.best_epoch_),
            seconds=seconds,
            bytes=self._path(run).stat().st_size,
            classes=[str(c) for c in getattr(model, "classes_", [])],
            notes=[str(w.message) for w in caught],
            python=as_python(data.about, settings, given),
            command=as_command(data.about, settings, given),
        )

        def check() -> None:
            watch.check()
            self.answer()

        with suppress(Cancelled):  # the run itself has ended
            ranked = importances(model, data, settings, check)
            self.send("detail", run=run, part="importances", data=ranked)

    def _categories(self, settings: Settings, used: list[int]) -> list[int]:
        """Places, among the features used, of those that are codes of categories."""
        fields = self.data.about.fields
        chosen = [i for i in settings.columns if fields[i].levels or i in settings.categories]
        text = self.data.table_columns
        coded = set() if text is None else {c.name for c in text.columns if c.coded}
        return [
            used.index(fields[i].places[0])
            for i in chosen
            if not fields[i].levels or fields[i].name in coded
        ]

    def answer(self) -> None:
        """Answer the questions that have arrived."""
        while not self.inbox.questions.empty():
            question = self.inbox.questions.get()
            try:
                with watched(None):  # a newer fit waits for it
                    result = {"data": self._answer(question)}
            except Exception as error:
                result = {"error": str(error) or type(error).__name__}
            self.send("answer", ask=question["ask"], **result)

    def _answer(self, question: Message) -> Any:
        trained = self._trained(int(question["run"]))
        slicer = Slicer(self.data, trained.settings, trained.model)
        columns, output, row = question["columns"], question.get("output"), question.get("at")
        if len(columns) == 1:
            return slicer.line(columns[0], output, bool(question.get("averaged")), row)
        return slicer.map(columns[0], columns[1], output, row)

    def _path(self, run: int) -> Path:
        return self.folder / f"run-{run}.mercer"

    def _keep(self, run: int, trained: Trained) -> None:
        """Write the model to its file, as `mercer fit` would."""
        about, columns = self.data.about, self.data.columns_of(trained.settings.columns)
        metadata: dict[str, Any] = {"data": about.source, "target": about.target}
        if columns is not None:
            metadata["columns"] = columns.to_dict()
        metadata["explored"] = _plain(trained.settings)
        trained.model.save(self._path(run), metadata)
        self._remember(run, trained)

    def _remember(self, run: int, trained: Trained) -> None:
        self.models[run] = trained
        self.models.move_to_end(run)
        while len(self.models) > MODELS_IN_MEMORY:
            self.models.popitem(last=False)

    def _trained(self, run: int) -> Trained:
        if run not in self.models:
            path = self._path(run)
            if not path.exists():
                raise ValueError(f"Run {run} has no model: it was removed, or has not ended yet.")
            model = load(path)
            settings = parse_settings(model.metadata_["explored"], self.data.about)
            self._remember(run, Trained(settings, of_features(model)))
        self.models.move_to_end(run)
        return self.models[run]


def _plain(settings: Settings) -> dict[str, Any]:
    result: dict[str, Any] = to_data(settings)
    return result


def main(arguments: list[str]) -> None:
    # Whatever a library prints must not get among the messages.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    lock = threading.Lock()

    def send(event: str, **fields: Any) -> None:
        line = to_json({"event": event, **fields})
        with lock:
            out.write(line + "\n")
            out.flush()

    trainer = Trainer(Path(arguments[0]), Inbox(sys.stdin), send)
    send("ready")
    trainer.serve()


if __name__ == "__main__":
    main(sys.argv[1:])
