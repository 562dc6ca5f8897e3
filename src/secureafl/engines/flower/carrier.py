"""Flower's nodes as sessions see them: a push, and pulls until the update is there.

Every update is pulled on its own, so a transfer that stalls blocks one worker and no other node.
"""

from __future__ import annotations

from collections.abc import Collection

from flwr.app import Message
from flwr.serverapp import Grid

from secureafl.engines.flower.codec import Records, reported
from secureafl.engines.sessions import LostError, Report
from secureafl.server import Assignment
from secureafl.server.record.entries import Event
from secureafl.types import Reason
from secureafl.wire import CompressedUpdate, Reply

EXPIRED, NODE_UNAVAILABLE = 3, 5  # Flower's error codes: the update's time is over; the node has gone


class Nodes:
    """A carrier over Flower's grid; a dispatch is known by its message id, a client by its node id."""

    def __init__(self, grid: Grid, records: Records, ttl_seconds: float, report: Report) -> None:
        self._grid = grid
        self._records = records
        self._ttl_seconds = ttl_seconds
        self._report = report
        self._compressing: set[str] = set()  # whose last update came compressed: they can read such models, too

    def present(self) -> Collection[str]:
        return [str(node_id) for node_id in self._grid.get_node_ids()]

    def send(self, assignment: Assignment) -> str:
        client = assignment.client
        compressed = client in self._compressing
        message = self._records.encode(assignment, int(client), self._ttl_seconds, compressed=compressed)
        ids = list(self._grid.push_messages([message]))
        if not ids or not ids[0]:  # simulation leaves a refused push out, deployment returns an empty id
            raise LostError(Event.LEFT, "push refused")
        return ids[0]

    def fetch(self, handle: str, assignment: Assignment) -> Reply | None:
        replies = list(self._grid.pull_messages([handle]))
        if not replies:
            return None
        self._compressing.discard(assignment.client)
        if replies[0].has_error():
            raise _loss(replies[0])
        found = self._records.decode(replies[0], assignment)
        if isinstance(found, CompressedUpdate):
            self._compressing.add(assignment.client)
        if not isinstance(found, Reason) and (said := reported(replies[0])):
            self._report(assignment.client, said)
        return found

    def close(self) -> None:
        """Nothing to do: no call waits for an update."""


def _loss(reply: Message) -> LostError:
    code = reply.error.code
    event = {EXPIRED: Event.EXPIRED, NODE_UNAVAILABLE: Event.LEFT}.get(code, Event.CLIENT_ERROR)
    return LostError(event, f"code {code}: {reply.error.reason or 'no reason given'}")
