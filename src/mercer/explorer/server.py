"""The page's server: its files, requests about runs, and events as they happen."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from mercer.explorer.guard import MOST_BODY_BYTES, Guard
from mercer.explorer.runs import Run
from mercer.explorer.session import Session

STATIC = Path(__file__).parent / "static"
# Seconds between signs of life, without which a lost connection is not noticed.
HEARTBEAT = 10.0
# Milliseconds after which a page connects again.
RETRY_MILLISECONDS = 500

Handler = Callable[[Request], Awaitable[Response]]


def create_app(session: Session, token: str, port: int) -> Starlette:
    """The application; the session begins and ends with it."""
    routes = Routes(session)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        session.begin()
        yield
        await session.close()

    return Starlette(
        routes=[
            Route("/", routes.page),
            Route("/events", routes.events),
            Route("/runs", routes.start, methods=["POST"]),
            Route("/stop", routes.stop, methods=["POST"]),
            Route("/runs/{run:int}", routes.show),
            Route("/runs/{run:int}", routes.change, methods=["PATCH"]),
            Route("/runs/{run:int}", routes.remove, methods=["DELETE"]),
            Route("/runs/{run:int}/slice", routes.slice, methods=["POST"]),
            Route("/runs/{run:int}/model", routes.model),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[Middleware(Guard, token=token, port=port)],
        exception_handlers={ValueError: _invalid},
        lifespan=lifespan,
    )


async def _invalid(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 400)


async def _body(request: Request) -> dict[str, Any]:
    """The JSON object that a request brings; its length may be claimed falsely."""
    received = bytearray()
    async for chunk in request.stream():
        received += chunk
        if len(received) > MOST_BODY_BYTES:
            raise ValueError("The request is too long.")
    try:
        data = json.loads(received)
    except (ValueError, RecursionError) as error:
        raise ValueError("The request must be JSON.") from error
    if not isinstance(data, dict):
        raise ValueError("The request must be a JSON object.")
    return data


class Routes:
    def __init__(self, session: Session) -> None:
        self.session = session

    async def page(self, request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def events(self, request: Request) -> Response:
        """Events for one page, as server-sent events; the first one is the whole state."""
        page = self.session.join()

        async def lines() -> AsyncIterator[str]:
            try:
                yield f"retry: {RETRY_MILLISECONDS}\n\n"
                while True:
                    try:
                        message = await asyncio.wait_for(page.get(), HEARTBEAT)
                    except asyncio.TimeoutError:
                        yield ": alive\n\n"
                        continue
                    if message is None:
                        return
                    # JSON in ASCII has no line ends, so that a text of the data cannot end the event.
                    yield f"event: {message['event']}\ndata: {json.dumps(message['data'])}\n\n"
            finally:
                self.session.leave(page)

        return StreamingResponse(lines(), media_type="text/event-stream")

    async def start(self, request: Request) -> Response:
        run = self.session.start(await _body(request))
        return JSONResponse({"run": run.number})

    async def stop(self, request: Request) -> Response:
        self.session.stop()
        return JSONResponse({})

    async def show(self, request: Request) -> Response:
        return JSONResponse(self._run(request).everything())

    async def change(self, request: Request) -> Response:
        self.session.pin(self._run(request).number, bool((await _body(request)).get("pinned")))
        return JSONResponse({})

    async def remove(self, request: Request) -> Response:
        self.session.remove(self._run(request).number)
        return JSONResponse({})

    async def slice(self, request: Request) -> Response:
        run, asked = self._run(request), await _body(request)
        columns = asked.get("columns")
        known = run.settings["columns"]
        if not (
            isinstance(columns, list)
            and len(columns) in (1, 2)
            and len(set(map(str, columns))) == len(columns)
            and all(column in known for column in columns)
        ):
            raise ValueError("`columns` must be one or two of the columns of the run.")
        question: dict[str, Any] = {"columns": columns, "averaged": bool(asked.get("averaged"))}
        limits = {"output": len(run.result.get("classes", [])), "at": self.session.about.n_held_out}
        for name, limit in limits.items():
            value = asked.get(name)
            if value is not None and not (isinstance(value, int) and 0 <= value < limit):
                raise ValueError(f"`{name}` must be a number below {limit}.")
            question[name] = value
        return JSONResponse(await self.session.ask(run.number, question))

    async def model(self, request: Request) -> Response:
        """The model file, to be saved."""
        run = self._run(request)
        path = self.session.model_file(run.number)
        if not path.exists():
            raise ValueError(f"Run {run.number} has no model yet.")
        stem = re.sub(r"[^\w-]+", "-", self.session.about.title).strip("-")[:60] or "model"
        return FileResponse(path, filename=f"{stem}-run-{run.number}.mercer")

    def _run(self, request: Request) -> Run:
        run = self.session.runs.get(int(request.path_params["run"]))
        if run is None:
            raise ValueError(f"There is no run {request.path_params['run']}. It may have been removed.")
        return run
