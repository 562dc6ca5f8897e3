"""A server as an engine runs it, whose clients all live in one other process: the one that listens on SOCKET.

python -m tests.end_to_end.soak_worker SOCKET [--resume]
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Collection
from multiprocessing.connection import Client, Connection
from typing import Any

import numpy as np
from safetensors.numpy import load
from tests.end_to_end.soak_wire import ARRAY, digest, receive, send
from tests.support import Quadratic

from secureafl.engines.engine_settings import EngineSettings
from secureafl.engines.running import conduct
from secureafl.engines.sessions import LostError, Pace, SessionPool
from secureafl.engines.updates import UpdateReader
from secureafl.layout import Layout
from secureafl.server import Assignment, Federation
from secureafl.server.record.entries import Event
from secureafl.types import NamedArrays, Reason
from secureafl.wire import Reply

PACE = Pace(min_clients=1, num_workers=4, poll_seconds=0.05, max_poll_seconds=0.2)


class Remote:
    """A carrier over one connection. What a client sent is kept until its session asks for it."""

    def __init__(self, link: Connection, reader: UpdateReader, federation: Federation, hoards: bool) -> None:
        """`hoards` is a fault put in on purpose: every update stays in memory."""
        self._link = link
        self._reader = reader
        self._federation = federation
        self._hoard: list[bytes] | None = [] if hoards else None
        self._lock = threading.Lock()
        self._present: frozenset[str] = frozenset()
        self._open: dict[str, int] = {}  # client -> its ticket
        self._updates: dict[str, tuple[int, dict[str, Any], bytes]] = {}  # client -> what came for that ticket
        self._fetched: dict[str, int] = {}  # client -> the last ticket whose update was handed in
        self._closed = False
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            while True:
                head, body = receive(self._link)
                if "present" in head:
                    self._present = frozenset(head["present"])
                elif "stop" in head:
                    self._federation.stop()
                elif self._open.get(head["client"]) == head["ticket"]:
                    self._updates[head["client"]] = head["ticket"], head, body
        except (EOFError, OSError):
            if not self._closed:
                self._federation.fail(ConnectionError("the clients are gone"))

    def present(self) -> Collection[str]:
        return self._present

    def send(self, assignment: Assignment) -> int:
        if assignment.client not in self._present:
            raise LostError(Event.LEFT, "the client has left")
        self._open[assignment.client] = assignment.ticket
        head = {
            "client": assignment.client,
            "ticket": assignment.ticket,
            "version": assignment.version,
            "nonce": assignment.nonce.hex(),
            "judged": self._fetched.pop(assignment.client, None),
        }
        with self._lock:
            send(self._link, head, assignment.params.tobytes())
        return assignment.ticket

    def fetch(self, handle: int, assignment: Assignment) -> Reply | None:
        ticket, head, body = self._updates.get(assignment.client, (None, {}, b""))
        if ticket != handle:
            if assignment.client not in self._present:
                raise LostError(Event.LEFT, "the client has left")
            return None
        del self._updates[assignment.client]
        self._fetched[assignment.client] = handle
        if self._hoard is not None:
            self._hoard.append(body)
        try:
            return self._reader.read(
                assignment,
                len(body),
                signature=lambda: bytes.fromhex(head["signature"]),
                digest=lambda: digest(body),
                arrays=lambda: load(body),
                compressed=None,
            )
        except Exception:  # a malicious client may raise anything from the readers
            return Reason.MALFORMED

    def close(self) -> None:
        self._closed = True


def main(address: str, *options: str) -> None:
    link = Client(address, family="AF_UNIX")
    assert isinstance(link, Connection)
    send(link, {"pid": os.getpid()})
    told, _ = receive(link)
    settings = EngineSettings(**told["settings"], resume="--resume" in options)
    problem = Quadratic(**told["problem"])
    goal = minimiser(problem)

    def serve(federation: Federation, layout: Layout) -> SessionPool[int]:
        remote = Remote(link, UpdateReader(layout, settings), federation, told["hoards"])
        return SessionPool(remote, federation, settings, PACE)

    def evaluate(arrays: NamedArrays) -> dict[str, float]:
        return {"distance": float(np.linalg.norm(arrays[ARRAY] - goal))}

    conduct({ARRAY: np.zeros(problem.dim, np.float32)}, settings, serve, evaluate=evaluate)


def minimiser(problem: Quadratic) -> np.ndarray[Any, np.dtype[np.float64]]:
    """(d,) where the mean of all clients' losses is least."""
    return np.asarray((problem.curvatures * problem.optima).sum(0) / problem.curvatures.sum(0), np.float64)


if __name__ == "__main__":
    main(*sys.argv[1:])
