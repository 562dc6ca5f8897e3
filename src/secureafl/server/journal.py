"""The journal: everything that happened in a run, in order, in a SQLite database anyone can open.

It is at once the audit trail (who was believed, and why not), the write-ahead log that a crashed server resumes from,
and a record that can be replayed. A row that a client may come to know of is durable before it does.
"""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from secureafl.errors import StoreError

SCHEMA = """
CREATE TABLE IF NOT EXISTS log (
    number    INTEGER PRIMARY KEY,
    seconds   REAL NOT NULL,      -- since the run began
    version   INTEGER NOT NULL,   -- the model that stood when it happened
    client    TEXT NOT NULL,
    event     TEXT NOT NULL,
    reason    TEXT NOT NULL,
    accepted  INTEGER,            -- arrivals: 1 or 0
    evidence  TEXT NOT NULL,      -- arrivals: JSON, the numbers behind the verdict
    ticket    INTEGER,            -- the dispatch it is about
    base      INTEGER,            -- the version that dispatch carried
    payload   BLOB,               -- arrivals: the update, float32
    checksum  INTEGER,            -- CRC-32 of the payload
    model     BLOB                -- arrivals: SHA-256 of the model after it
);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS snapshots (
    version   INTEGER PRIMARY KEY,
    number    INTEGER NOT NULL,   -- the last row of the log that it covers
    sha256    TEXT NOT NULL       -- of the file
);
"""

COLUMNS = "number, seconds, version, client, event, reason, accepted, evidence, ticket, base"
BEHIND = "payload, checksum, model"
"""These lie behind the update in a row: to reach one of them SQLite reads all of it."""


class Event(StrEnum):
    """What a row is about."""

    JOINED = "joined"
    ISSUED = "issued"
    ARRIVAL = "arrival"
    CLIENT_ERROR = "client-error"
    EXPIRED = "expired"
    LEFT = "left"
    RETURNED = "returned"
    ENGINE_TROUBLE = "engine-trouble"
    UNSOLICITED = "unsolicited"
    QUARANTINED = "quarantined"
    LEFT_OUT = "left-out"
    RESUMED = "resumed"
    FINISHED = "finished"


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


class Journal:
    """Appends entries and reads them back; safe to use from several threads."""

    def __init__(self, path: Path | None = None) -> None:
        self._connect(":memory:" if path is None else str(path), path)
        with self._opened():
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")  # a commit returns once it is on the disk
            self._database.executescript(SCHEMA)

    @classmethod
    def reading(cls, path: Path) -> Journal:
        """The journal of a run that may be live, to be read only: the database is never written."""
        journal = cls.__new__(cls)
        # A database that nobody has open lies still; saying so spares SQLite the files that readers share with writers.
        still = "&immutable=1" if lies_still(path) else ""
        journal._connect(f"{path.absolute().as_uri()}?mode=ro{still}", path)
        with journal._opened():
            journal._database.execute("SELECT 1 FROM log LIMIT 1")
        return journal

    def _connect(self, address: str, path: Path | None) -> None:
        self.path = path
        self._lock = threading.Lock()
        with self._opened():
            self._database = sqlite3.connect(
                address, check_same_thread=False, isolation_level=None, uri=address.startswith("file:")
            )

    @contextlib.contextmanager
    def _opened(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if hasattr(self, "_database"):
                self._database.close()
            raise StoreError(f"cannot open the run's database {self.path}: {error}") from None

    def append(self, entry: Entry, *, durable: bool = True) -> None:
        """Write one entry; `durable=False` lets it wait for the next durable one."""
        checksum = None if entry.payload is None else zlib.crc32(entry.payload)
        values = (
            entry.seconds,
            entry.version,
            entry.client,
            entry.event,
            entry.reason,
            None if entry.accepted is None else int(entry.accepted),
            _to_json(entry.evidence),
            entry.ticket,
            entry.base,
            entry.payload,
            checksum,
            entry.model,
        )
        with self._lock, self._explained():
            if not self._database.in_transaction:
                self._database.execute("BEGIN")
            self._database.execute(
                "INSERT INTO log (seconds, version, client, event, reason, accepted, evidence,"
                " ticket, base, payload, checksum, model) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                values,
            )
            if durable:
                self._database.execute("COMMIT")

    def commit(self) -> None:
        """Make everything appended so far durable."""
        with self._lock, self._explained():
            if self._database.in_transaction:
                self._database.execute("COMMIT")

    def entries(self, event: Event | None = None, *, after: int = 0, payloads: bool = False) -> Iterator[Entry]:
        """Entries in order, those with a number above `after`; with updates and models' hashes only if asked for."""
        query = f"SELECT {COLUMNS}{', ' + BEHIND if payloads else ''} FROM log WHERE number > ?"
        parameters: list[object] = [after]
        if event is not None:
            query += " AND event = ?"
            parameters.append(event)
        query += " ORDER BY number LIMIT 500"
        while True:
            with self._lock, self._explained():
                rows = self._database.execute(query, parameters).fetchall()
            for row in rows:
                yield self._entry(row)
            if len(rows) < 500:
                return
            parameters[0] = rows[-1][0]

    def entry(self, number: int) -> Entry | None:
        """The entry of this number, without its update."""
        with self._lock, self._explained():
            row = self._database.execute(f"SELECT {COLUMNS} FROM log WHERE number = ?", [number]).fetchone()
        return None if row is None else self._entry(row)

    def facts(self) -> dict[str, Any]:
        """What the run says of itself: the settings that decide its verdicts."""
        with self._lock, self._explained():
            return {name: json.loads(value) for name, value in self._database.execute("SELECT name, value FROM facts")}

    def state_fact(self, name: str, value: object) -> None:
        """Write down a fact, durably."""
        self._execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", [name, json.dumps(value)])

    def last_number(self) -> int:
        """The number of the newest entry; 0 if there is none."""
        with self._lock, self._explained():
            return int(self._database.execute("SELECT coalesce(max(number), 0) FROM log").fetchone()[0])

    def note_snapshot(self, version: int, number: int, sha256: str) -> None:
        """Write down that a snapshot of this version exists."""
        self._execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?)", [version, number, sha256])

    def snapshots(self) -> list[tuple[int, int, str]]:
        """(version, number, sha256) of every snapshot written, newest first."""
        with self._lock, self._explained():
            return self._database.execute(
                "SELECT version, number, sha256 FROM snapshots ORDER BY version DESC"
            ).fetchall()

    def forget_snapshot(self, version: int) -> None:
        self._execute("DELETE FROM snapshots WHERE version = ?", [version])

    def payload_bytes(self) -> int:
        """Bytes of updates kept."""
        with self._lock, self._explained():
            return int(self._database.execute("SELECT coalesce(sum(length(payload)), 0) FROM log").fetchone()[0])

    def drop_payloads(self, up_to: int) -> None:
        """Forget the updates of entries up to this number; verdicts and evidence stay."""
        self._execute("UPDATE log SET payload = NULL, checksum = NULL WHERE number <= ?", [up_to])

    def check(self) -> None:
        """Raise `StoreError` if the database file is damaged."""
        with self._lock, self._explained():
            answer = self._database.execute("PRAGMA quick_check").fetchone()[0]
        if answer != "ok":
            raise StoreError(f"the run's database {self.path} is damaged: {answer}")

    def close(self) -> None:
        """Make everything durable and close the file; a second time does nothing."""
        try:
            self.commit()
        except StoreError:
            return
        with self._lock:
            with contextlib.suppress(sqlite3.Error):  # readers, who may not, are told so
                self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # SQLite would leave it while others read
            self._database.close()

    def _execute(self, statement: str, parameters: list[object]) -> None:
        with self._lock, self._explained():
            self._database.execute(statement, parameters)
            if self._database.in_transaction:
                self._database.execute("COMMIT")

    def _entry(self, row: tuple[object, ...]) -> Entry:
        number, seconds, version, client, event, reason, accepted, evidence, ticket, base, *behind = row
        payload, checksum, model = behind or (None, None, None)
        if isinstance(payload, bytes) and zlib.crc32(payload) != checksum:
            raise StoreError(f"{self.path}: the update in row {number} is damaged (its checksum does not match)")
        return Entry(
            seconds,  # type: ignore[arg-type]
            version,  # type: ignore[arg-type]
            str(client),
            Event(str(event)),
            str(reason),
            None if accepted is None else bool(accepted),
            _from_json(str(evidence)),
            ticket,  # type: ignore[arg-type]
            base,  # type: ignore[arg-type]
            payload,  # type: ignore[arg-type]
            model,  # type: ignore[arg-type]
            number,  # type: ignore[arg-type]
        )

    def _explained(self) -> _Explained:
        return _Explained(self.path)


def write_ahead(path: Path) -> Path:
    """SQLite's file of what is not in the database itself yet: there while somebody writes, or when a writer died."""
    return path.with_name(path.name + "-wal")


def lies_still(path: Path) -> bool:
    """Whether the database was closed, not just left, by whoever wrote it. Readers may leave an empty file behind."""
    try:
        return write_ahead(path).stat().st_size == 0
    except FileNotFoundError:
        return True


class _Explained:
    """Turns SQLite's errors into ours, with the file's name."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, sqlite3.Error):
            raise StoreError(f"the run's database {self._path}: {error}") from None


def _to_json(evidence: Mapping[str, float]) -> str:
    """JSON knows no infinity: such numbers are written as text."""
    return json.dumps({key: value if math.isfinite(value) else str(value) for key, value in evidence.items()})


def _from_json(text: str) -> dict[str, float]:
    return {key: float(value) for key, value in json.loads(text).items()}
