"""The audit trail: one row per verdict and per thing that went wrong, in a SQLite database anyone can open."""

from __future__ import annotations

import json
import math
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

SCHEMA = """
CREATE TABLE IF NOT EXISTS audit (
    number    INTEGER PRIMARY KEY,
    seconds   REAL NOT NULL,      -- since the run began
    version   INTEGER NOT NULL,   -- the model that stood when it happened
    client    TEXT NOT NULL,
    event     TEXT NOT NULL,
    accepted  INTEGER,            -- for arrivals: 1 or 0
    reason    TEXT NOT NULL,
    evidence  TEXT NOT NULL       -- JSON: the numbers behind a verdict
)
"""


class Event(StrEnum):
    """What a row is about."""

    JOINED = "joined"
    ARRIVAL = "arrival"
    CLIENT_ERROR = "client-error"
    EXPIRED = "expired"
    LEFT = "left"
    RETURNED = "returned"
    ENGINE_TROUBLE = "engine-trouble"


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One row of the trail."""

    seconds: float
    version: int
    client: str
    event: Event
    reason: str = ""
    accepted: bool | None = None
    evidence: Mapping[str, float] = field(default_factory=dict)


class AuditTrail:
    """Appends rows and reads them back; safe to use from several threads."""

    def __init__(self, path: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._database = sqlite3.connect(":memory:" if path is None else path, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._database.execute(SCHEMA)

    def write(self, row: AuditRow) -> None:
        accepted = None if row.accepted is None else int(row.accepted)
        values = (row.seconds, row.version, row.client, row.event, accepted, row.reason, _to_json(row.evidence))
        with self._lock, self._database:
            self._database.execute(
                "INSERT INTO audit (seconds, version, client, event, accepted, reason, evidence)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                values,
            )

    def rows(self, event: Event | None = None) -> Iterator[AuditRow]:
        """All rows in order, or those about one kind of event."""
        query = "SELECT seconds, version, client, event, reason, accepted, evidence FROM audit"
        with self._lock:
            found = self._database.execute(query + " ORDER BY number").fetchall()
        for seconds, version, client, kind, reason, accepted, evidence in found:
            if event is None or kind == event:
                believed = None if accepted is None else bool(accepted)
                yield AuditRow(seconds, version, client, Event(kind), reason, believed, _from_json(evidence))

    def close(self) -> None:
        with self._lock:
            self._database.close()


def _to_json(evidence: Mapping[str, float]) -> str:
    """JSON knows no infinity: such numbers are written as text."""
    return json.dumps({key: value if math.isfinite(value) else str(value) for key, value in evidence.items()})


def _from_json(text: str) -> dict[str, float]:
    return {key: float(value) for key, value in json.loads(text).items()}
