"""What clients sent and were shown in the soak, held against the log of the run while it is written."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.end_to_end.soak_clients import Sends

from secureafl.server.record.entries import Entry, Event
from secureafl.types import Reason, Vector

MALICIOUS = frozenset({Sends.FLIPPED, Sends.FLOOD, Sends.GARBAGE})

NEWCOMER = 8
"""Arrivals after which a client must have a vote."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One update."""

    client: str
    sends: Sends
    hour: float
    digest: bytes
    """SHA-256 of its vector, as the log has it of an honest one."""


@dataclass(frozen=True, slots=True)
class Taken:
    """An arrival on record."""

    client: str
    version: int
    moves: bool
    """Whether it was accepted, and moved the model: one beyond its client's budget does not."""
    sent: bytes | None
    vote: float | None


@dataclass
class Record:
    """Collects both sides; `broken` says which promises were not kept."""

    first_model: Vector
    broken: list[str] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    sent: dict[int, Sent] = field(default_factory=dict)
    """Ticket -> the last update for it."""
    acknowledged: set[int] = field(default_factory=set)
    taken: dict[int, Taken] = field(default_factory=dict)
    """Ticket -> its arrival."""
    refused: dict[int, str] = field(default_factory=dict)
    """Ticket -> why."""
    last_row: int = 0
    version: int = 0

    def __post_init__(self) -> None:
        self._models = {0: _hash(self.first_model)}  # version -> of the model, on record
        self._shown: dict[int, bytes] = {}  # version -> of the model that clients were given
        self.num_shown = 0

    def break_(self, promise: str) -> None:
        if len(self.broken) < 50:
            self.broken.append(promise)

    def show(self, version: int, model: bytes) -> None:
        """A client was given this model."""
        found = hashlib.sha256(model).digest()
        self.num_shown += 1
        if self._shown.setdefault(version, found) != found:
            self.break_(f"clients were given two models of version {version}")

    def take(self, entry: Entry) -> None:
        """The next row of the log."""
        assert entry.number is not None
        if entry.number != self.last_row + 1:
            self.break_(f"row {entry.number} follows row {self.last_row}")
        self.last_row = entry.number
        self.events[entry.event] += 1
        if entry.event is Event.REFUSED and entry.ticket is not None:
            self.refused[entry.ticket] = entry.reason
        if entry.event is not Event.ARRIVAL:
            return
        assert entry.model is not None
        assert entry.ticket is not None
        if entry.version != self.version:
            self.break_(f"arrival {entry.version} follows {self.version - 1}: one is lost or counted twice")
        if entry.ticket not in self.sent:
            self.break_(f"arrival {entry.version} is of ticket {entry.ticket}, for which nobody sent anything")
        self.version = entry.version + 1
        self._models[self.version] = entry.model
        vote = entry.evidence.get("vote")
        moves = bool(entry.accepted) and entry.reason != Reason.OVER_BUDGET
        self.taken[entry.ticket] = Taken(entry.client, entry.version, moves, entry.sent, vote)

    def send(self, ticket: int, sent: Sent) -> None:
        """A client sends this for its ticket, which may be one that another had of a server that died too soon."""
        self.acknowledged.discard(ticket)
        self.sent[ticket] = sent

    def has_bad_signature(self, tickets: Iterable[int]) -> bool:
        """Whether one of these was refused for its signature."""
        return any(self.refused.get(ticket) == Reason.BAD_SIGNATURE for ticket in tickets)

    def num_lost(self) -> int:
        """Acknowledged updates that could be judged and are on record neither as they were sent nor as refused, and
        models that clients were given and that are not on record.
        """
        lost = 0
        for ticket in self.acknowledged:
            sent, taken = self.sent[ticket], self.taken.get(ticket)
            if sent.sends in (Sends.GARBAGE, Sends.OLD_KEY) or ticket in self.refused:
                continue
            lost += taken is None or (taken.client, taken.sent) != (sent.client, sent.digest)
        return lost + sum(self._models.get(version) != model for version, model in self._shown.items())

    def num_let_in(self) -> int:
        """Arrivals that hold garbage or are signed with a replaced key."""
        unwanted = {ticket for ticket, sent in self.sent.items() if sent.sends in (Sends.GARBAGE, Sends.OLD_KEY)}
        return len(unwanted & self.taken.keys())

    def accepted(self, begins: float, ends: float) -> dict[str, float | None]:
        """Of the updates sent in these hours: how many of honest and of malicious clients, and what moved the
        model.
        """
        counts: Counter[tuple[bool, bool]] = Counter()
        for ticket, sent in self.sent.items():
            taken = self.taken.get(ticket)
            if begins <= sent.hour < ends and (taken is not None or ticket in self.refused):
                counts[sent.sends in MALICIOUS, taken is not None and taken.moves] += 1
        honest, malicious = (counts[who, True] + counts[who, False] for who in (False, True))
        return {
            "honest": honest,
            "malicious": malicious,
            "honest accepted": _share(counts[False, True], honest),
            "malicious accepted": _share(counts[True, True], malicious),
            "malicious of accepted": _share(counts[True, True], counts[False, True] + counts[True, True]),
        }

    def votes(self, since: float) -> dict[str, float]:
        """The newest vote of every client of which an update was sent since this hour, and that is no newcomer."""
        counts = Counter(taken.client for taken in self.taken.values())
        late = {ticket for ticket, sent in self.sent.items() if sent.hour >= since}
        newest = {taken.client: taken.vote for ticket, taken in self.taken.items() if ticket in late}
        return {client: vote for client, vote in newest.items() if vote is not None and counts[client] >= NEWCOMER}


def _share(some: int, of: int) -> float | None:
    return round(some / of, 4) if of else None


def _hash(model: Vector) -> bytes:
    return hashlib.sha256(model.tobytes()).digest()
