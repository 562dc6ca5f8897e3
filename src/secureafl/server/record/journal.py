"""The journal: everything that happened in a run, in order, in a SQLite database anyone can open.

It is at once the audit trail (who was accepted, and why not), the write-ahead log that a crashed server resumes from,
and a record that can be replayed. A row that a client may come to know of is durable before it does. Rows are a chain:
`chain` says how damage is found. The first write that fails is the last one: from then on the journal refuses all.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from secureafl.errors import StoreError
from secureafl.files import REAL_DISK, Disk
from secureafl.server.record import format_1
from secureafl.server.record.chain import HEAD, Head, HeadFile, first_hash, row_hash
from secureafl.server.record.entries import Entry, Event
from secureafl.text import one_line
from secureafl.types import UNJUDGED

FORMAT = 2
"""Of the database. 0.1 wrote format 1, which has no chain and holds updates in the rows themselves."""

SCHEMA = (
    """
CREATE TABLE log (
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
    sent      BLOB,               -- arrivals: SHA-256 of the update
    model     BLOB,               -- arrivals: SHA-256 of the model after it
    before    BLOB NOT NULL,      -- hash of the row before it
    hash      BLOB NOT NULL       -- of all these columns
)""",
    "CREATE TABLE updates (number INTEGER PRIMARY KEY, update_bytes BLOB NOT NULL)",  # float32, by number of the row
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
)

_SAID = "number, seconds, version, client, event, reason, accepted, evidence, ticket, base"
_READ = {
    1: f"SELECT {_SAID}, NULL, model, NULL, NULL FROM log",
    2: f"SELECT {_SAID}, sent, model, before, hash FROM log",
}
_READ_UPDATE = {
    1: format_1.READ_UPDATE,
    2: "SELECT update_bytes, NULL FROM updates WHERE number = ?",
}
_NO_UPDATE = {1: "payload IS NULL", 2: "number NOT IN (SELECT number FROM updates)"}
_MISSING_UPDATE = (
    "SELECT min(number), (SELECT max(number) FROM log) FROM log"
    " WHERE sent IS NOT NULL AND number NOT IN (SELECT number FROM updates)"
    " AND number > (SELECT coalesce(max(base), 0) FROM log WHERE event = ?)"
)
_BATCH = 500

Row: TypeAlias = tuple[Any, ...]


class Connection(Protocol):
    """As much of `sqlite3.Connection` as a journal uses."""

    @property
    def in_transaction(self) -> bool: ...

    def execute(self, statement: str, parameters: Any = ..., /) -> Any: ...

    def close(self) -> None: ...


Connect: TypeAlias = Callable[[str], Connection]


def connect_sqlite(address: str) -> Connection:
    """A database by its path or URI, in autocommit mode, for any thread."""
    return sqlite3.connect(address, check_same_thread=False, isolation_level=None, uri=address.startswith("file:"))


class Journal:
    """Appends entries and reads them back; safe to use from several threads."""

    _snapshots: list[tuple[int, int, str]] | None

    def __init__(
        self,
        path: Path | None = None,
        facts: Mapping[str, object] | None = None,
        *,
        connect: Connect = connect_sqlite,
        disk: Disk = REAL_DISK,
    ) -> None:
        """A new journal of a run that these facts describe; in memory without a path."""
        if path is not None and path.exists():
            raise StoreError(f"{path.parent} already holds a run: resume it, or name another folder")
        self._head_file = HeadFile(path.with_name(HEAD), disk) if path is not None else None
        texts = {name: json.dumps(value) for name, value in {"format": FORMAT, **(facts or {})}.items()}
        self._head = Head(0, first_hash(texts))
        if path is not None:
            self._create_files(path, disk)
        self._connect(":memory:" if path is None else str(path), path, connect)
        self._snapshots = []
        self._format = FORMAT
        with self._opening(), self._writing():
            self._set_up()
            self._database.execute("BEGIN")
            for statement in SCHEMA:
                self._database.execute(statement)
            for name, text in texts.items():
                self._database.execute("INSERT INTO facts VALUES (?, ?)", [name, text])
            self._database.execute("COMMIT")

    @classmethod
    def open(
        cls, path: Path, *, accept_loss: bool = False, connect: Connect = connect_sqlite, disk: Disk = REAL_DISK
    ) -> Journal:
        """The journal of an earlier server, to be gone on with. It has been checked from end to end.

        `accept_loss` takes a log whose newest rows are lost, and writes down that they are.
        """
        journal = cls.__new__(cls)
        journal._connect(str(path), path, connect)
        journal._head_file = HeadFile(path.with_name(HEAD), disk)
        with journal._opening():
            journal._set_up()
            journal._format = journal._read_format()
            if journal._format == 1:
                journal._check_pages()
                journal._migrate()
            if accept_loss:
                journal._accept_loss()
            journal._head = journal._check_chain()
            # The last server may have died of a failed sync: what it left in the write-ahead log can be read, and yet
            # never reach the disk. Whatever is written behind it would be lost with it.
            journal._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return journal

    @classmethod
    def reading(cls, path: Path) -> Journal:
        """The journal of a run that may be live, to be read only: the database is never written."""
        journal = cls.__new__(cls)
        # A database that nobody has open lies still; saying so spares SQLite the files that readers share with writers.
        still = "&immutable=1" if lies_still(path) else ""
        journal._connect(f"{path.absolute().as_uri()}?mode=ro{still}", path, connect_sqlite)
        journal._head_file = HeadFile(path.with_name(HEAD))
        with journal._opening():
            journal._format = journal._read_format()
        journal._failure = StoreError(f"the run's database {path} was opened to be read")
        return journal

    def _connect(self, address: str, path: Path | None, connect: Connect) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._failure: StoreError | None = None
        self._snapshots = None
        self.seconds = 0.0  # of the newest row, once the log was checked
        self.forgotten = 0  # the newest row that was forgotten, once the log was checked
        self._checked = 0  # the newest row up to which the chain was followed
        self._updates_checked = 0  # up to which a missing update was forgotten
        try:
            self._database = connect(address)
        except sqlite3.Error as error:
            raise StoreError(f"cannot open the run's database {path}: {one_line(str(error))}") from None

    def _set_up(self) -> None:
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")  # a commit returns once it is on the disk

    def _read_format(self) -> int:
        columns = {row[1] for row in self._database.execute("PRAGMA table_info(log)").fetchall()}
        if not columns:
            raise StoreError(f"{self.path} holds no log of a run yet")
        if "payload" in columns:
            return 1
        found = int(json.loads(self._fact_texts()["format"]))
        if found > FORMAT:
            raise StoreError(f"{self.path} has format {found}; this version reads up to {FORMAT}: install a newer one")
        return found

    @contextlib.contextmanager
    def _opening(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._close_files()
            if isinstance(error, sqlite3.Error):
                raise StoreError(f"cannot open the run's database {self.path}: {one_line(str(error))}") from None
            if isinstance(error, KeyError | ValueError | TypeError):
                raise StoreError(f"the run's database {self.path} is damaged: its facts cannot be read") from None
            raise

    def _migrate(self) -> None:
        """Turn a log of format 1 into the present one, at once or not at all."""
        texts = {name: json.dumps(value) for name, value in {**self.facts(), "format": FORMAT}.items()}
        self._head = Head(0, first_hash(texts))
        self._format = FORMAT
        with self._writing():
            self._database.execute("BEGIN IMMEDIATE")
            for table in format_1.TABLES:
                self._database.execute(f"ALTER TABLE {table} RENAME TO {table}_1")
            for statement in SCHEMA:
                self._database.execute(statement)
            for name, text in texts.items():
                self._database.execute("INSERT INTO facts VALUES (?, ?)", [name, text])
            for (*said, model), update in format_1.rows(self._database, "_1"):
                sent = None if update is None else hashlib.sha256(update).digest()
                self._insert((self._head.number + 1, *said, sent, model), update)
            for table in format_1.TABLES:
                self._database.execute(f"DROP TABLE {table}_1")
            self._create_head()  # first: without the new log it is not looked at
            self._database.execute("COMMIT")

    def _accept_loss(self) -> None:
        """Let the newest row that is there be the head, if all that is wrong is that later ones are not."""
        assert self._head_file is not None
        try:
            lost = f"rows up to {self._head_file.read().number} were lost"
        except StoreError as error:
            lost = str(error)
        head = self._follow()[0]
        self._head = head
        with self._writing():
            self._create_head()
        self._snapshots = []
        self.append(Entry(self.seconds, 0, "", Event.LOSS_ACCEPTED, f"{lost}; the log ended with row {head.number}"))

    def _create_files(self, path: Path, disk: Disk) -> None:
        """The head first: as long as it names no row, nothing is lost with a database that was not finished. Then an
        empty file that only its owner may read; SQLite gives its other files the same mode.
        """
        try:
            self._create_head()
            disk.close(disk.open(path, os.O_RDWR | os.O_CREAT))
        except OSError as error:
            raise StoreError(f"cannot write to the run's folder {path.parent}: {error.strerror}") from None

    def _create_head(self) -> None:
        if self._head_file is not None:
            self._head_file.create(self._head)

    # Writing

    @property
    def head(self) -> Head:
        """The newest row."""
        return self._head

    def append(self, entry: Entry, *, durable: bool = True) -> None:
        """Write one entry; `durable=False` lets it wait for the next durable one."""
        sent = None if entry.payload is None else hashlib.sha256(entry.payload).digest()
        with self._lock, self._writing():
            self._begin()
            self._insert(_stored(entry, self._head.number + 1, sent), entry.payload)
            if durable:
                self._commit()

    def commit(self) -> None:
        """Make everything appended so far durable."""
        with self._lock, self._writing():
            self._commit()

    def forget(self, up_to: int, entry: Entry) -> None:
        """Delete the rows up to this number, and write down that this was done, what the last of them was, and what the
        facts are: the chain no longer begins with them.
        """
        facts = first_hash(self._fact_texts())
        with self._lock, self._writing():
            self._begin()
            last = self._database.execute("SELECT hash FROM log WHERE number = ?", [up_to]).fetchone()
            if last is None:
                return
            self._database.execute("DELETE FROM updates WHERE number <= ?", [up_to])
            self._database.execute("DELETE FROM log WHERE number <= ?", [up_to])
            said = _stored(entry, self._head.number + 1, None)
            reason = f"{bytes(last[0]).hex()} {facts.hex()}"
            self._insert((*said[:5], reason, *said[6:9], up_to, *said[10:]), None)
            self._commit()

    def drop_updates(self, up_to: int, entry: Entry) -> None:
        """Forget the updates of rows up to this number, and write down that this was done. The rows stay, with the
        hashes of what was sent.
        """
        with self._lock, self._writing():
            self._begin()
            self._database.execute("DELETE FROM updates WHERE number <= ?", [up_to])
            said = _stored(entry, self._head.number + 1, None)
            self._insert((*said[:9], up_to, *said[10:]), None)
            self._commit()

    def fail(self, reason: str) -> StoreError:
        """Write nothing from now on, for this reason."""
        with self._lock:
            self._failure = self._failure or StoreError(reason)
            with contextlib.suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")
            return self._failure

    def close(self) -> None:
        """Make everything durable and close the files; a second time does nothing."""
        if self._failure is None:
            with contextlib.suppress(StoreError):
                self.commit()
        with self._lock:
            self._failure = self._failure or StoreError(f"the run's database {self.path} was closed")
            with contextlib.suppress(sqlite3.Error):  # readers, who may not, are told so
                self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # SQLite would leave it while others read
            self._close_files()

    def _close_files(self) -> None:
        self._database.close()
        if self._head_file is not None:
            self._head_file.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """The first failure is the last write: what it left is rolled back, and every later one is refused."""
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            said = error.strerror if isinstance(error, OSError) else one_line(str(error))
            self._failure = StoreError(f"the run's database {self.path} cannot be written: {said}")
            with contextlib.suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")
            raise self._failure from None

    def _begin(self) -> None:
        if not self._database.in_transaction:
            self._database.execute("BEGIN")

    def _insert(self, said: Row, payload: bytes | None) -> None:
        hashed = row_hash(self._head.hash, said)
        marks = ", ".join("?" * (len(said) + 2))
        self._database.execute(f"INSERT INTO log VALUES ({marks})", (*said, self._head.hash, hashed))
        if payload is not None:
            self._database.execute("INSERT INTO updates VALUES (?, ?)", (said[0], payload))
        self._head = Head(int(said[0]), hashed)
        if said[4] == Event.SNAPSHOT and self._snapshots is not None:
            self._snapshots.insert(0, (said[2], said[0] - 1, said[5]))

    def _commit(self) -> None:
        if self._database.in_transaction:
            self._database.execute("COMMIT")
            if self._head_file is not None:
                self._head_file.write(self._head)

    # Reading

    def entries(
        self, event: Event | None = None, *, after: int = 0, payloads: bool = False, leave_out: Event | None = None
    ) -> Iterator[Entry]:
        """Entries in order, those with a number above `after`; with the updates, read one at a time, if asked for.

        A row that was not checked when the log was opened is checked against its own hash; if all kinds are read, also
        against the one before it.
        """
        before: bytes | None = None
        for row in self._rows(event, after, leave_out):
            if row[0] > self._checked:
                self._check_row(row, before if event is leave_out is None else None)
            before = row[13]
            yield self._entry(row, self._update(row) if payloads else None)

    def entry(self, number: int) -> Entry | None:
        """The entry of this number, without its update."""
        with self._lock, self._explained():
            row = self._database.execute(f"{_READ[self._format]} WHERE number = ?", [number]).fetchone()
        if row is None:
            return None
        self._check_row(row)
        return self._entry(row, None)

    def first_without_update(self) -> Entry | None:
        """The first arrival that was judged and whose update is not on record; None if there is no such row."""
        marks = ", ".join("?" * len(UNJUDGED))
        query = (
            f"SELECT min(number) FROM log WHERE event = ? AND reason NOT IN ({marks}) AND {_NO_UPDATE[self._format]}"
        )
        with self._lock, self._explained():
            number = self._database.execute(query, [str(Event.ARRIVAL), *map(str, UNJUDGED)]).fetchone()[0]
        return None if number is None else self.entry(number)

    def facts(self) -> dict[str, Any]:
        """What was in force when the run began. Among it is the run's secret seed: show it to nobody."""
        try:
            facts = {name: json.loads(value) for name, value in self._fact_texts().items()}
        except ValueError:
            raise StoreError(f"the run's database {self.path} is damaged: its facts cannot be read") from None
        return format_1.upgraded(facts) if self._format == 1 else facts

    def hash_before(self, number: int) -> bytes | None:
        """What the row of this number says the hash of the one before it is; None if there is no such row."""
        with self._lock, self._explained():
            row = self._database.execute("SELECT before FROM log WHERE number = ?", [number]).fetchone()
        return None if row is None else bytes(row[0])

    def last_number(self) -> int:
        """The number of the newest entry; 0 if there is none."""
        with self._lock, self._explained():
            return int(self._database.execute("SELECT coalesce(max(number), 0) FROM log").fetchone()[0])

    def snapshots(self) -> list[tuple[int, int, str]]:
        """(version, number of the last row it covers, SHA-256) of every snapshot on record, newest first."""
        if self._snapshots is not None:
            return list(self._snapshots)
        if self._format == 1:
            with self._lock, self._explained():
                return list(self._database.execute(format_1.READ_SNAPSHOTS).fetchall())
        found = [(entry.version, (entry.number or 0) - 1, entry.reason) for entry in self.entries(Event.SNAPSHOT)]
        return found[::-1]

    def last_before(self, seconds: float) -> int:
        """The number of the newest row that was written before this time of the run; 0 if there is none."""
        with self._lock, self._explained():
            query = "SELECT coalesce(max(number), 0) FROM log WHERE seconds < ?"
            return int(self._database.execute(query, [seconds]).fetchone()[0])

    def update_bytes(self) -> int:
        """Bytes of updates kept."""
        with self._lock, self._explained():
            query = "SELECT coalesce(sum(length(update_bytes)), 0) FROM updates"
            return int(self._database.execute(query).fetchone()[0])

    def check(self) -> Head | None:
        """Follow the chain from the facts to the newest row and compare it with the head kept apart.

        `StoreError` names the first row that is not as it was written, or what is missing. None for a log without a
        chain, as 0.1 wrote it.
        """
        if self._format == 1:
            self._check_pages()
            return None
        return self._check_chain()

    def _check_chain(self) -> Head:
        assert self._head_file is not None
        expected = self._head_file.read()  # first: a live server writes the log, then the head
        head, met = self._follow(expected)
        if not met:
            raise StoreError(self._shortfall(head, expected))
        self._check_updates()
        return head

    def _follow(self, expected: Head | None = None) -> tuple[Head, bool]:
        """The newest row, by way of all others, and whether one of them is the expected one."""
        facts = first_hash(self._fact_texts())
        head, begun_at = Head(0, facts), None
        met, seconds, forgotten = head == expected, 0.0, None
        snapshots: list[tuple[int, int, str]] = []
        for row in self._rows():
            if head.number == 0 and row[0] != 1:  # the first rows were forgotten: a later row must say so
                begun_at = head = Head(row[0] - 1, row[12])
            self._check_row(row, head.hash, head.number + 1)
            head = Head(row[0], row[13])
            met = met or head == expected
            if row[4] == Event.FORGOTTEN:
                forgotten = row[9], row[5]
            elif row[4] == Event.SNAPSHOT:
                snapshots.append((row[2], row[0] - 1, row[5]))
            seconds = max(seconds, row[1])
        if begun_at is not None and forgotten != (begun_at.number, f"{begun_at.hash.hex()} {facts.hex()}"):
            if forgotten is not None and forgotten[1].startswith(f"{begun_at.hash.hex()} "):
                raise StoreError(f"{self.path}: the facts are damaged or were changed: their hash does not match")
            raise StoreError(f"{self.path}: rows 1 to {begun_at.number} are missing, and no row says why")
        self._snapshots, self.seconds, self._checked = snapshots[::-1], seconds, head.number
        self.forgotten = 0 if begun_at is None else begun_at.number
        return head, met

    def _check_updates(self) -> None:
        """Every update that was sent is there, but for those that were forgotten."""
        with self._lock, self._explained():
            missing, newest = self._database.execute(_MISSING_UPDATE, [str(Event.UPDATES_FORGOTTEN)]).fetchone()
        if missing is not None:
            raise StoreError(f"{self.path}: the update in row {missing} is missing, and no row says why")
        self._updates_checked = newest or 0

    def _shortfall(self, head: Head, expected: Head) -> str:
        if head.number < expected.number:
            lost = f"rows {head.number + 1} to {expected.number} are lost"
            return f"{self.path} went back: {lost}. Restore a copy, or accept it: secureafl verify --accept-loss"
        return f"{self.path}: row {expected.number} is not the one that was written"

    def _check_pages(self) -> None:
        with self._lock, self._explained():
            said = self._database.execute("PRAGMA quick_check").fetchone()[0]
        if said != "ok":
            raise StoreError(f"the run's database {self.path} is damaged: {one_line(str(said))}")

    def _rows(self, event: Event | None = None, after: int = 0, leave_out: Event | None = None) -> Iterator[Row]:
        condition, parameters = "number > ?", [after, *(str(kind) for kind in (event, leave_out) if kind is not None)]
        condition += " AND event = ?" * (event is not None) + " AND event <> ?" * (leave_out is not None)
        query = f"{_READ[self._format]} WHERE {condition} ORDER BY number LIMIT {_BATCH}"
        while True:
            with self._lock, self._explained():
                rows = self._database.execute(query, parameters).fetchall()
            yield from rows
            if len(rows) < _BATCH:
                return
            parameters[0] = rows[-1][0]

    def _check_row(self, row: Row, before: bytes | None = None, number: int | None = None) -> None:
        if self._format == 1:
            return
        if number is not None and row[0] != number:
            raise StoreError(f"{self.path}: row {number} is missing")
        try:
            whole = row_hash(row[12], row[:12]) == row[13]
        except TypeError:
            whole = False
        if not whole or (before is not None and row[12] != before):
            raise StoreError(f"{self.path}: row {row[0]} is damaged or was changed: its hash does not match")

    def _update(self, row: Row) -> bytes | None:
        """The update of a row; None if it has none, or it was forgotten."""
        number, sent = row[0], row[10]
        if self._format != 1 and sent is None:
            return None
        with self._lock, self._explained():
            found = self._database.execute(_READ_UPDATE[self._format], [number]).fetchone()
        if found is None or found[0] is None:
            if self._format != 1 and number > self._updates_checked:
                self._check_updates()
            return None
        update, checksum = found
        whole = zlib.crc32(update) == checksum if self._format == 1 else hashlib.sha256(update).digest() == sent
        if not whole:
            raise StoreError(f"{self.path}: the update in row {number} is damaged (its checksum does not match)")
        return bytes(update)

    def _entry(self, row: Row, payload: bytes | None) -> Entry:
        number, seconds, version, client, event, reason, accepted, evidence, ticket, base, sent, model, _, _ = row
        try:
            return Entry(
                float(seconds),
                version,
                str(client),
                Event(str(event)),
                format_1.REASONS.get(str(reason), str(reason)),
                None if accepted is None else bool(accepted),
                _from_json(str(evidence)),
                ticket,
                base,
                payload,
                model,
                number,
                sent,
            )
        except (ValueError, TypeError, AttributeError):  # of a log without a chain
            raise StoreError(f"{self.path}: row {number} is damaged: it cannot be read") from None

    def _fact_texts(self) -> dict[str, str]:
        with self._lock, self._explained():
            found = dict(self._database.execute("SELECT name, value FROM facts").fetchall())
        if not all(isinstance(text, str) for pair in found.items() for text in pair):
            raise StoreError(f"the run's database {self.path} is damaged: its facts cannot be read")
        return found

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns SQLite's errors into ours, with the file's name."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError, OverflowError) as error:
            raise StoreError(f"the run's database {self.path} cannot be read: {one_line(str(error))}") from None


def write_ahead(path: Path) -> Path:
    """SQLite's file of what is not in the database itself yet: there while somebody writes, or when a writer died."""
    return path.with_name(path.name + "-wal")


def lies_still(path: Path) -> bool:
    """Whether the database was closed, not just left, by whoever wrote it. Readers may leave an empty file behind."""
    try:
        return write_ahead(path).stat().st_size == 0
    except FileNotFoundError:
        return True


def _stored(entry: Entry, number: int, sent: bytes | None) -> Row:
    """The columns of a row, in the types that SQLite gives back."""
    return (
        number,
        float(entry.seconds),
        int(entry.version),
        str(entry.client),
        str(entry.event),
        str(entry.reason),
        None if entry.accepted is None else int(entry.accepted),
        _to_json(entry.evidence),
        entry.ticket,
        entry.base,
        sent,
        entry.model,
    )


def _to_json(evidence: Mapping[str, float]) -> str:
    """JSON knows no infinity: such numbers are written as text."""
    return json.dumps({key: value if math.isfinite(value) else str(value) for key, value in evidence.items()})


def _from_json(text: str) -> dict[str, float]:
    return {key: float(value) for key, value in json.loads(text).items()}
