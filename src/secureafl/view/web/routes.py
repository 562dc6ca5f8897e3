"""The pages and their data: fixed HTML, JSON, and one stream of server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from secureafl.errors import SecureAFLError, SettingsError
from secureafl.settings import nearest
from secureafl.view.charts import Along
from secureafl.view.reader import RunReader
from secureafl.view.run_folder import RunFolder
from secureafl.view.web import comparing, queries
from secureafl.view.web.guard import Guard
from secureafl.view.web.queries import Plain

STATIC = Path(__file__).parent / "static"
FOLDER_PAGES = {"/": "runs.html", "/compare": "compare.html"}
PAGES = {"/": "overview.html", "/clients": "clients.html", "/client": "client.html", "/verdict": "verdict.html"}
REFRESH_SECONDS = 0.5
TICK_SECONDS = 1.0
HEARTBEAT_TICKS = 15

Query = Callable[[RunReader, Request], Plain | None]


def application(
    shown: RunReader | RunFolder,
    *,
    token: str | None,
    local_only: bool,
    stopping: Callable[[], bool] = lambda: False,
) -> ASGIApp:
    """The dashboard of one run, or of a folder of them. `stopping` ends the streams, so that the server need not wait
    for open pages.
    """
    routes = _folder_routes(shown, stopping) if isinstance(shown, RunFolder) else _run_routes(shown, stopping)
    pages = FOLDER_PAGES if isinstance(shown, RunFolder) else PAGES
    return Guard(Starlette(routes=routes), token=token, local_only=local_only, pages=pages)


def _run_routes(reader: RunReader, stopping: Callable[[], bool], home: str | None = None) -> list[BaseRoute]:
    """All about one run; `home` is where the list of runs is, seen from its pages."""
    data: dict[str, Query] = {
        "/api/summary": lambda reader, request: queries.summary(reader),
        "/api/charts": lambda reader, request: queries.charts(reader, _along(request)),
        "/api/clients": _clients,
        "/api/client": _client,
        "/api/verdict": _verdict,
    }
    return [
        *(Route(path, _page(file), methods=["GET"]) for path, file in PAGES.items()),
        *(Route(path, _json(_of_run(reader, query)), methods=["GET"]) for path, query in data.items()),
        Route("/api/stream", _stream(reader, stopping, home), methods=["GET"]),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]


def _folder_routes(folder: RunFolder, stopping: Callable[[], bool]) -> list[BaseRoute]:
    """The list of runs, several of them compared, and below `/run/` each by itself."""
    data: dict[str, Callable[[Request], Plain]] = {
        "/api/runs": lambda request: comparing.runs(folder),
        "/api/overlay": lambda request: comparing.overlay(folder, request.query_params.getlist("run"), _along(request)),
        "/api/versus": lambda request: comparing.versus(
            folder,
            request.query_params.get("a", ""),
            request.query_params.get("b", ""),
            only="differ" if request.query_params.get("only") == "differ" else "all",
            page=_whole(request.query_params.get("page", "1")),
        ),
    }
    return [
        *(Route(path, _page(file), methods=["GET"]) for path, file in FOLDER_PAGES.items()),
        *(Route(path, _json(query), methods=["GET"]) for path, query in data.items()),
        Mount("/run/{key}", _EachRun(folder, stopping)),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]


class _EachRun:
    """Passes a request on to the pages of the run that its address names."""

    def __init__(self, folder: RunFolder, stopping: Callable[[], bool]) -> None:
        self._folder = folder
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            reader = await run_in_threadpool(comparing.require, self._folder, scope["path_params"]["key"])
            app: ASGIApp = Router(_run_routes(reader, self._stopping, home="../../"))
        except SecureAFLError as error:
            app = PlainTextResponse(f"{error}\n", 404 if isinstance(error, SettingsError) else 503)
        await app(scope, receive, send)


def _page(file: str) -> Callable[[Request], Response]:
    def page(request: Request) -> Response:
        return FileResponse(STATIC / file, media_type="text/html")

    return page


def _json(query: Callable[[Request], Plain | None]) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:
        try:
            found = query(request)
        except SettingsError as error:
            return JSONResponse({"error": str(error)}, 400)
        except SecureAFLError as error:
            return JSONResponse({"error": str(error)}, 503)
        return JSONResponse({"error": "The run knows nothing of that."}, 404) if found is None else JSONResponse(found)

    return endpoint


def _of_run(reader: RunReader, query: Query) -> Callable[[Request], Plain | None]:
    def asked(request: Request) -> Plain | None:
        reader.refresh(REFRESH_SECONDS)
        found: Plain | None = queries.named(query(reader, request), reader.names)
        return found

    return asked


def _stream(
    reader: RunReader, stopping: Callable[[], bool], home: str | None
) -> Callable[[Request], Awaitable[Response]]:
    def now() -> str:
        try:
            reader.refresh(REFRESH_SECONDS)
            return json.dumps({**queries.tick(reader), "home": home}, allow_nan=False)
        except SecureAFLError as error:
            return json.dumps({"error": str(error)})

    async def ticks(request: Request) -> AsyncIterator[str]:
        last, silent = None, 0
        while not stopping() and not await request.is_disconnected():
            text = await run_in_threadpool(now)
            shown = {**json.loads(text), "quiet_seconds": None}
            if shown != last or silent >= HEARTBEAT_TICKS:
                yield f"data: {text}\n\n"
                last, silent = shown, 0
            silent += 1
            await asyncio.sleep(TICK_SECONDS)

    async def endpoint(request: Request) -> Response:
        return StreamingResponse(ticks(request), media_type="text/event-stream")

    return endpoint


def _along(request: Request) -> Along:
    return "updates" if request.query_params.get("along") == "updates" else "time"


def _clients(reader: RunReader, request: Request) -> Plain:
    asked = request.query_params
    sort = asked.get("sort", "accepted")
    if sort not in queries.SORTS:
        raise SettingsError(f"clients cannot be sorted by {sort!r}; {nearest(sort, list(queries.SORTS))}")
    return queries.clients(
        reader,
        sort=sort,
        descending=asked.get("order") == "down",
        contains=asked.get("contains", ""),
        only_rejected=asked.get("only") == "rejected",
        page=_whole(asked.get("page", "1")),
    )


def _client(reader: RunReader, request: Request) -> Plain | None:
    asked = request.query_params
    return queries.client(
        reader,
        asked.get("name", ""),
        only_rejected=asked.get("only") == "rejected",
        page=_whole(asked.get("page", "1")),
    )


def _verdict(reader: RunReader, request: Request) -> Plain | None:
    return queries.verdict(reader, _whole(request.query_params.get("update", "")))


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 15:
        raise SettingsError(f"{text[:40]!r} is no whole number")
    return int(text)
