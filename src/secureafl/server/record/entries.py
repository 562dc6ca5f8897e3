"""What a row of the log says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Event(StrEnum):
    """What a row is about."""

    JOINED = "joined"
    ISSUED = "issued"
    ARRIVAL = "arrival"
    REFUSED = "refused"
    CLIENT_ERROR = "client-error"
    EXPIRED = "expired"
    LEFT = "left"
    RETURNED = "returned"
    REPORTED = "reported"
    ENGINE_TROUBLE = "engine-trouble"
    UNSOLICITED = "unsolicited"
    QUARANTINED = "quarantined"
    NO_CLIENTS = "no-clients"
    LEFT_OUT = "left-out"
    EVALUATION_FAILED = "evaluation-failed"
    SNAPSHOT = "snapshot"
    FORGOTTEN = "forgotten"
    UPDATES_FORGOTTEN = "updates-forgotten"
    LOSS_ACCEPTED = "loss-accepted"
    RESUMED = "resumed"
    FAILED = "failed"
    FINISHED = "finished"


RENAMED_REASONS = {"opposes-the-crowd": "against-consensus"}
"""Reasons that 0.1 wrote in other words."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the log."""

    seconds: float
    version: int
    client: str
    event: Event
    reason: str = ""
    accepted: bool | None = None
    evidence: Mapping[str, float] = field(default_factory=dict)
    ticket: int | None = None
    base: int | None = None
    payload: bytes | None = field(default=None, repr=False)
    model: bytes | None = None
    number: int | None = None
    sent: bytes | None = None
    """SHA-256 of the update, also where its bytes are not kept."""
