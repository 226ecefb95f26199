"""The routes of the server, and the way of a request from its bytes to its answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import polars as pl
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from mercer.estimators.all_answers import AllAnswers
from mercer.serve.answers import as_csv, as_json
from mercer.serve.batches import Batches, Job
from mercer.serve.counters import Counters
from mercer.serve.csv_rows import rows_of_csv
from mercer.serve.faults import JSON, Fault
from mercer.serve.json_rows import rows_of_json
from mercer.serve.limits import Admission, Held, Limits, too_large
from mercer.serve.openapi import description
from mercer.serve.page import SECURITY, page
from mercer.serve.registry import Entry, Registry
from mercer.serve.served import Served
from mercer.serve.wishes import Wishes, wishes_of

CSV = "text/csv"
READERS: dict[str, Callable[[bytes, Served, int], pl.DataFrame]] = {JSON: rows_of_json, CSV: rows_of_csv}
# Threads that read bodies and write answers.
READING_THREADS = 2
# The label of requests for a model that does not exist.
NO_MODEL = "(none)"

Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass
class Service:
    """What the routes share."""

    registry: Registry
    limits: Limits
    counters: Counters
    batches: Batches
    admission: Admission
    readers: ThreadPoolExecutor
    say: Callable[[str], None]

    async def predict(self, request: Request) -> Response:
        """The answer to a request for predictions, counted."""
        start = time.perf_counter()
        name = request.path_params.get("name")
        label = NO_MODEL
        try:
            served = self.registry.only if name is None else self.registry[name]
            label = served.name
            response = await self._answer(request, served)
        except Fault as fault:
            response = fault.response()
        self.counters.request(label, response.status_code, time.perf_counter() - start)
        return response

    async def _answer(self, request: Request, served: Served) -> Response:
        wishes = wishes_of(request.query_params, served)
        given = _media_type(request.headers.get("content-type", JSON))
        if given not in READERS:
            raise Fault(415, f"The body must be {JSON} or {CSV}, as its Content-Type says.")
        if request.headers.get("content-encoding", "identity") != "identity":
            raise Fault(415, "The body must not be compressed.")
        wanted = _accepted(request.headers.get("accept", "*/*"), given)
        if wanted == CSV and (wishes.importances or not served.single):
            raise Fault(
                406, f"CSV has one value for a row and no importances. Use Accept: {JSON} for them."
            )
        with self.admission.request() as held:
            body = await self._body(request, held)
            try:
                return await asyncio.wait_for(
                    self._predicted(served, wishes, given, wanted, body), self.limits.seconds
                )
            except asyncio.TimeoutError:
                raise Fault(
                    504, f"There was no answer in {self.limits.seconds:g} seconds. Send fewer rows."
                ) from None

    async def _body(self, request: Request, held: Held) -> bytes:
        """All bytes of a request, which may neither be too many nor take too long."""
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > self.limits.body:
            raise too_large(self.limits)

        async def read() -> bytes:
            parts = []
            async for part in request.stream():
                held.add(len(part))
                parts.append(part)
            return b"".join(parts)

        try:
            return await asyncio.wait_for(read(), self.limits.client_seconds)
        except asyncio.TimeoutError:
            seconds = self.limits.client_seconds
            raise Fault(408, f"The body did not arrive in {seconds:g} seconds.") from None
        except ClientDisconnect:
            raise Fault(400, "The client has gone.") from None

    async def _predicted(
        self, served: Served, wishes: Wishes, given: str, wanted: str, body: bytes
    ) -> Response:
        """Read, predict and write; what takes long runs beside the event loop."""
        loop = asyncio.get_running_loop()
        try:
            job, notes = await loop.run_in_executor(self.readers, self._job, served, wishes, given, body)
            self.batches.submit(job)
            try:
                answers = await asyncio.wrap_future(job.answers)
            except asyncio.CancelledError:
                job.give_up()
                raise
            self.counters.rows(served.name, len(job.X))
            content = await loop.run_in_executor(
                self.readers, _written, wanted, served, wishes, answers, notes
            )
        except ValueError as error:
            raise Fault.of(error) from error
        except (Fault, asyncio.CancelledError):
            raise
        except Exception as error:
            self.say(f"a prediction failed: {type(error).__name__}: {error}")
            raise Fault(500, "The prediction failed; the server has noted why.") from error
        return Response(content, media_type=wanted, headers={"X-Model-Version": served.version})

    def _job(self, served: Served, wishes: Wishes, given: str, body: bytes) -> tuple[Job, list[str]]:
        frame = READERS[given](body, served, self.limits.rows)
        X, notes = served.columns.features(frame)
        return Job(served, wishes, X), notes

    async def health(self, request: Request) -> Response:
        """Which models are served, and whether a replaced file could not be read."""
        models = {name: _state(entry) for name, entry in self.registry.entries.items()}
        fine = all(entry.problem is None for entry in self.registry.entries.values())
        return _json({"status": "ok" if fine else "stale", "models": models})

    async def metrics(self, request: Request) -> Response:
        text = self.counters.text(self.admission.requests)
        return Response(text, media_type=self.counters.media_type)

    async def openapi(self, request: Request) -> Response:
        content = msgspec.json.encode(description(self.registry, self.limits))
        return Response(msgspec.json.format(content), media_type=JSON)  # people look at it too

    async def page(self, request: Request) -> Response:
        address = str(request.base_url).rstrip("/")
        return HTMLResponse(page(self.registry, self.limits, address), headers=SECURITY)


def create(registry: Registry, limits: Limits, say: Callable[[str], None]) -> Starlette:
    """The application, which ends its threads when the server ends."""
    counters = Counters()
    for entry in registry.entries.values():
        counters.first(entry)
    service = Service(
        registry,
        limits,
        counters,
        Batches(counters.batch),
        Admission(limits),
        ThreadPoolExecutor(READING_THREADS, "mercer-read"),
        say,
    )

    def changed(entry: Entry) -> None:
        counters.load(entry)
        name, served = entry.served.name, entry.served
        if entry.problem is None:
            say(f"{name}: read {served.path!r} again, now version {served.version}")
        else:
            kept = f"{name}: still version {served.version}, since the new file cannot be used"
            say(f"{kept}: {entry.problem}")

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        registry.watch(changed)
        yield
        registry.close()
        service.batches.close()
        service.readers.shutdown()

    get = ["GET"]
    app = Starlette(
        routes=[
            Route("/", service.page, methods=get),
            Route("/predict", service.predict, methods=["POST"]),
            Route("/models/{name}/predict", service.predict, methods=["POST"]),
            Route("/health", service.health, methods=get),
            Route("/metrics", service.metrics, methods=get),
            Route("/openapi.json", service.openapi, methods=get),
        ],
        exception_handlers={HTTPException: _http_fault},
        lifespan=lifespan,
    )
    app.state.service = service
    return app


async def _http_fault(request: Request, error: Exception) -> Response:
    """Addresses and methods that do not exist."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        fault = Fault(405, f"{request.url.path} takes {allowed}, not {request.method}.")
    else:
        fault = Fault(error.status_code, f"There is no {request.url.path}. See / for what there is.")
    response = fault.response()
    response.headers.update(error.headers or {})
    return response


def _written(
    wanted: str, served: Served, wishes: Wishes, answers: AllAnswers, notes: list[str]
) -> bytes:
    if wanted == CSV:
        return as_csv(served, answers)
    return as_json(served, wishes, answers, notes)


def _state(entry: Entry) -> dict[str, Any]:
    served = entry.served
    state: dict[str, Any] = {"version": served.version, "loaded": served.loaded}
    return state if entry.problem is None else {**state, "problem": entry.problem}


def _json(content: Any) -> Response:
    return Response(msgspec.json.encode(content), media_type=JSON)


def _media_type(header: str) -> str:
    return header.partition(";")[0].strip().lower()


def _accepted(header: str, given: str) -> str:
    """The format of the answer: that of the request, if the client takes it."""
    for one in map(_media_type, header.split(",")):
        if one in READERS:
            return one
        if one in ("*/*", f"{given.partition('/')[0]}/*"):
            return given
    raise Fault(406, f"Answers are {JSON} or {CSV}.")
