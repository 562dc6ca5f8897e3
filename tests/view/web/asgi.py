"""One request to an ASGI application, without a server."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message


@dataclass
class Reply:
    """What came back."""

    status: int = 0
    headers: Headers = field(default_factory=Headers)
    body: bytes = b""

    def json(self) -> Any:
        return json.loads(self.body)


def ask(app: ASGIApp, address: str, *, method: str = "GET", stop_after: int | None = None, **headers: str) -> Reply:
    """Ask for `address`, a path with its query; the client leaves after so many pieces of the body."""
    path, _, query = address.partition("?")
    given = {"host": "127.0.0.1:8765", **{name.replace("_", "-"): value for name, value in headers.items()}}
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in given.items()],
    }
    reply, pieces = Reply(), 0
    gone = asyncio.Event()

    async def receive() -> Message:
        if stop_after is None:
            return {"type": "http.request", "body": b"", "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal pieces
        if message["type"] == "http.response.start":
            reply.status, reply.headers = message["status"], Headers(raw=message["headers"])
        else:
            reply.body += message.get("body", b"")
            pieces += 1
            if pieces == stop_after:
                gone.set()

    asyncio.run(_run(app, scope, receive, send))
    return reply


async def _run(app: ASGIApp, scope: Any, receive: Any, send: Any) -> None:
    await asyncio.wait_for(app(scope, receive, send), 30.0)
