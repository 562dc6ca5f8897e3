"""Who may ask, and what a browser may do with a response. Stands before every request, also those for static files."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection, Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "secureafl-token"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to this address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Guard:
    """Refuses everything but reading, whoever lacks the token, and names that are not this machine's.

    token       asked for on every request; None if the server is bound to this machine alone and none was given
    local_only  answer only to requests for a loopback address, so that no web page elsewhere can reach the server by
                letting a name of its own point here
    pages       paths that a person opens: a token in their address is moved into a cookie
    """

    def __init__(self, app: ASGIApp, *, token: str | None, local_only: bool, pages: Collection[str]) -> None:
        self._app = app
        self._pages = pages
        self._token = token
        self._local_only = local_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        refusal = self._refusal(scope)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        await (refusal or self._app)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("This server only shows.\n", 405, {"Allow": "GET, HEAD"})
        if self._local_only and not is_loopback(_host(headers)):
            return PlainTextResponse("Ask for this server by 127.0.0.1 or localhost.\n", 421)
        if self._token is None:
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == "token"]
        if self._any_right(given) and scope["path"] in self._pages:
            # Kept in a cookie from now on, and out of the address bar, the history and screenshots.
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            response = RedirectResponse(scope["path"] + (f"?{rest}" if rest else ""), 303)
            response.set_cookie(COOKIE, self._token, httponly=True, samesite="lax")
            return response
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if self._any_right([*given, _cookie(headers), bearer if scheme.lower() == "bearer" else ""]):
            return None
        return PlainTextResponse(
            "This dashboard needs its token: open the address that `secureafl dashboard` printed.\n", 401
        )

    def _any_right(self, given: Iterable[str]) -> bool:
        assert self._token is not None
        right = self._token.encode()
        return sum(hmac.compare_digest(right, each.encode()) for each in given) > 0  # all are compared


def _host(headers: Headers) -> str:
    """The name a request asked for, without its port; empty if it is none."""
    try:
        return urlsplit(f"//{headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def _cookie(headers: Headers) -> str:
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return cookie.value if cookie is not None else ""
