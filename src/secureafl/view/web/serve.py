"""Bind, say where, and serve until Ctrl-C."""

from __future__ import annotations

import contextlib
import errno
import gc
import secrets
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from secureafl.errors import SettingsError
from secureafl.server.record.address import Place
from secureafl.view.reader import RunReader
from secureafl.view.run_folder import RunFolder, holds_runs
from secureafl.view.web.guard import is_loopback
from secureafl.view.web.routes import application

TOKEN_BYTES = 24
MIN_TOKEN = 8


def serve(
    place: Place,
    *,
    host: str,
    port: int,
    token: str | None,
    say: Callable[[str], None],
    names: Path | None = None,
) -> None:
    """Show the run that is kept there, or the runs of a folder, to browsers; `say` is told the address once it can be
    reached. `names` is a file of clients' names.
    """
    shown = open_place(place, names)
    gc.freeze()  # of a large run there are millions of objects: looking through them all would stop a page now and then
    token = choose_token(host, token)
    with bind(host, port) as listener:
        server = uvicorn.Server(
            uvicorn.Config(
                lambda: application(
                    shown, token=token, local_only=is_loopback(host), stopping=lambda: server.should_exit
                ),
                factory=True,
                log_level="warning",
                access_log=False,  # it would print the token
                lifespan="off",
                ws="none",
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=3,
            )
        )
        say(address(host, listener.getsockname()[1], token))
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again after an orderly end
            server.run(sockets=[listener])


def open_place(place: Place, names: Path | None = None) -> RunReader | RunFolder:
    """What reads a run, or a folder of runs."""
    if not holds_runs(place):
        return RunReader(place, names=names)
    assert isinstance(place, Path)
    folder = RunFolder(place, names)
    if not folder.found():
        raise SettingsError(f"there is no run in {place}: name the folder of a run, or one that holds such folders")
    return folder


def choose_token(host: str, given: str | None) -> str | None:
    """The token to ask for: the given one; a new one if others can reach the server; none otherwise."""
    if given is not None:
        if len(given) < MIN_TOKEN or not given.isascii() or not given.replace("-", "").replace("_", "").isalnum():
            raise SettingsError(
                f"a token has at least {MIN_TOKEN} letters, digits, - or _; leave it out to get one made"
            )
        return given
    return None if is_loopback(host) else secrets.token_urlsafe(TOKEN_BYTES)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; what stands in the way is said in one line."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror:
        raise SettingsError(f"there is no address {host!r} to bind to: give one of this machine with --host") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen()
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise SettingsError(
                f"port {port} of {host} is in use: give another with --port, or --port 0 for any free one"
            ) from None
        if error.errno == errno.EACCES:
            raise SettingsError(f"port {port} needs more rights: give one above 1023 with --port") from None
        raise SettingsError(
            f"cannot bind to {host}:{port}: {error.strerror}; give an address of this machine"
        ) from None
    return listener


def address(host: str, port: int, token: str | None) -> str:
    """What to open in a browser."""
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    bracketed = f"[{shown}]" if ":" in shown else shown
    return f"http://{bracketed}:{port}/" + (f"?token={token}" if token else "")
