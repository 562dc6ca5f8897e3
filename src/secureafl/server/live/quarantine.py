"""Clients that send garbage get no more work: by how often, so that a good answer now and then does not help them."""

from __future__ import annotations

from secureafl.server.record.entries import Entry, Event
from secureafl.types import REFUSALS


class Quarantine:
    """Who is set aside: `limit` of a client's last `2 * limit` answers could not be judged. None sets nobody aside."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._answers: dict[str, int] = {}  # a client's last answers as bits, the newest lowest: 1 for garbage
        self._held: set[str] = set()

    def __contains__(self, client: str) -> bool:
        return client in self._held

    def __len__(self) -> int:
        return len(self._held)

    def hear(self, client: str, reason: str) -> int:
        """Count an answer; returns how many of the last ones were garbage if the client is set aside for it now."""
        if self._limit is None or client in self._held:
            return 0
        window = (1 << 2 * self._limit) - 1
        self._answers[client] = (self._answers.get(client, 0) << 1 | (reason in REFUSALS)) & window
        count = self._answers[client].bit_count()
        if count < self._limit:
            return 0
        self._held.add(client)
        del self._answers[client]
        return count

    def row(self, entry: Entry) -> None:
        """Take over what an earlier server wrote down."""
        if entry.event is Event.QUARANTINED and self._limit is not None:
            self._held.add(entry.client)
        elif entry.event in {Event.ARRIVAL, Event.REFUSED}:
            self.hear(entry.client, entry.reason)
