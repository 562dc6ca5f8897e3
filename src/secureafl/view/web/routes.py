"""The pages and their data: fixed HTML, JSON, and one stream of server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from secureafl.errors import SecureAFLError, SettingsError
from secureafl.settings import nearest
from secureafl.view.reader import RunReader
from secureafl.view.web import queries
from secureafl.view.web.guard import Guard
from secureafl.view.web.queries import Plain

STATIC = Path(__file__).parent / "static"
PAGES = {"/": "overview.html", "/clients": "clients.html", "/client": "client.html", "/verdict": "verdict.html"}
REFRESH_SECONDS = 0.5
TICK_SECONDS = 1.0
HEARTBEAT_TICKS = 15

Query = Callable[[RunReader, Request], Plain | None]


def application(
    reader: RunReader,
    *,
    token: str | None,
    local_only: bool,
    stopping: Callable[[], bool] = lambda: False,
) -> ASGIApp:
    """The dashboard of one run. `stopping` ends the streams, so that the server need not wait for open pages."""
    routes: list[Route | Mount] = [Route(path, _page(file), methods=["GET"]) for path, file in PAGES.items()]
    data: dict[str, Query] = {
        "/api/summary": lambda reader, request: queries.summary(reader),
        "/api/charts": lambda reader, request: queries.charts(
            reader, "updates" if request.query_params.get("along") == "updates" else "time"
        ),
        "/api/clients": _clients,
        "/api/client": _client,
        "/api/verdict": _verdict,
    }
    routes += [Route(path, _json(reader, query), methods=["GET"]) for path, query in data.items()]
    routes.append(Route("/api/stream", _stream(reader, stopping), methods=["GET"]))
    routes.append(Mount("/static", StaticFiles(directory=STATIC)))
    return Guard(Starlette(routes=routes), token=token, local_only=local_only, pages=PAGES)


def _page(file: str) -> Callable[[Request], Response]:
    def page(request: Request) -> Response:
        return FileResponse(STATIC / file, media_type="text/html")

    return page


def _json(reader: RunReader, query: Query) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:
        try:
            reader.refresh(REFRESH_SECONDS)
            found = queries.named(query(reader, request), reader.names)
        except SettingsError as error:
            return JSONResponse({"error": str(error)}, 400)
        except SecureAFLError as error:
            return JSONResponse({"error": str(error)}, 503)
        return JSONResponse({"error": "The run knows nothing of that."}, 404) if found is None else JSONResponse(found)

    return endpoint


def _stream(reader: RunReader, stopping: Callable[[], bool]) -> Callable[[Request], Awaitable[Response]]:
    def now() -> str:
        try:
            reader.refresh(REFRESH_SECONDS)
            return json.dumps(queries.tick(reader), allow_nan=False)
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
