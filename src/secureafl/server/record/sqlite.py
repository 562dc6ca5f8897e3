"""A journal in a SQLite database, with the head in a file beside it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from secureafl.errors import StoreError
from secureafl.files import REAL_DISK, Disk
from secureafl.server.record.chain import HEAD, Head, HeadFile, first_hash
from secureafl.server.record.format_1 import TABLES, OldJournal, chained
from secureafl.server.record.journal import Journal, cannot_open, fact_texts, opening
from secureafl.server.record.log_tables import Row
from secureafl.text import one_line

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
    "CREATE INDEX log_client ON log (client)",  # the rows of one among many; runs without it are read more slowly
    "CREATE TABLE updates (number INTEGER PRIMARY KEY, update_bytes BLOB NOT NULL)",  # by number of the row
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
)


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


def create_journal(
    path: Path | None = None,
    facts: Mapping[str, object] | None = None,
    *,
    connect: Connect = connect_sqlite,
    disk: Disk = REAL_DISK,
) -> Journal:
    """A new journal of a run that these facts describe; in memory without a path."""
    texts = fact_texts(facts or {})
    if path is None:
        return Journal.begin(SqliteTables(":memory:", connect), texts)
    if path.exists():
        raise StoreError(f"{path.parent} already holds a run: resume it, or name another folder")
    head_file = HeadFile(path.with_name(HEAD), disk)
    # The head first: as long as it names no row, nothing is lost with a database that was not finished. Then an empty
    # file that only its owner may read; SQLite gives its other files the same mode.
    try:
        head_file.create(Head(0, first_hash(texts)))
        disk.close(disk.open(path, os.O_RDWR | os.O_CREAT))
    except OSError as error:
        raise StoreError(f"cannot write to the run's folder {path.parent}: {error.strerror}") from None
    return Journal.begin(SqliteTables(str(path), connect, path, head_file), texts)


def open_journal(
    path: Path,
    *,
    accept_loss: bool = False,
    known: Head | None = None,
    connect: Connect = connect_sqlite,
    disk: Disk = REAL_DISK,
) -> Journal:
    """The journal of an earlier server, to be gone on with. It has been checked from end to end, or from `known` on.

    `accept_loss` takes a log whose newest rows are lost, and writes down that they are.
    """
    tables = SqliteTables(str(path), connect, path, HeadFile(path.with_name(HEAD), disk))
    return Journal.resume(tables, accept_loss=accept_loss, known=known)


def read_journal(path: Path) -> Journal:
    """The journal of a run that may be live, to be read only: the database is never written."""
    # A database that nobody has open lies still; saying so spares SQLite the files that readers share with writers.
    still = "&immutable=1" if lies_still(path) else ""
    address = f"{path.absolute().as_uri()}?mode=ro{still}"
    tables = SqliteTables(address, connect_sqlite, path, HeadFile(path.with_name(HEAD)))
    with opening(tables):
        kind = OldJournal if tables.is_old() else Journal
    return kind.reading(tables)


class SqliteTables:
    """The tables of a run in a SQLite database. What is changed is in the open transaction, and shown at once."""

    errors = (sqlite3.Error,)
    waiting = False

    def __init__(
        self, address: str, connect: Connect, path: Path | None = None, head_file: HeadFile | None = None
    ) -> None:
        """Without a path, in memory."""
        self.where = str(path)
        self._head_file = head_file
        self._head: Head | None = None  # the newest row that was inserted
        try:
            self._database = connect(address)
        except sqlite3.Error as error:
            raise cannot_open(self.where, error) from None

    def is_unreachable(self, error: Exception) -> bool:
        """A file is there, or it is not."""
        return False

    def create(self, facts: Mapping[str, str]) -> None:
        self._set_up()
        self._database.execute("BEGIN")
        self._create_tables(facts)
        self._database.execute("COMMIT")

    def prepare(self) -> None:
        self._set_up()
        if self.is_old():
            old = OldJournal(self)
            old.check()
            facts = fact_texts({name: fact for name, fact in old.facts().items() if name != "format"})
            with self._explained():
                self._migrate(facts)

    def _set_up(self) -> None:
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")  # a commit returns once it is on the disk
        # Some builds write zeros over all that is deleted: gigabytes, when a bound on the journal's size is met.
        self._database.execute("PRAGMA secure_delete = FAST")

    def is_old(self) -> bool:
        """Whether 0.1 wrote it."""
        columns = {row[1] for row in self.read("PRAGMA table_info(log)")}
        if not columns:
            raise StoreError(f"{self.where} holds no log of a run yet")
        return "payload" in columns

    def _create_tables(self, facts: Mapping[str, str]) -> None:
        for statement in SCHEMA:
            self._database.execute(statement)
        for name, text in facts.items():
            self._database.execute("INSERT INTO facts VALUES (?, ?)", [name, text])

    def _migrate(self, facts: Mapping[str, str]) -> None:
        """Turn a log of format 1 into the present one, at once or not at all."""
        head = Head(0, first_hash(facts))
        self._database.execute("BEGIN IMMEDIATE")
        for table in TABLES:
            self._database.execute(f"ALTER TABLE {table} RENAME TO {table}_1")
        self._create_tables(facts)
        for row, update in chained(self._database, "_1", head):
            self.insert(row, update)
        for table in TABLES:
            self._database.execute(f"DROP TABLE {table}_1")
        self.write_head(self._head or head)  # first: without the new log it is not looked at
        self._database.execute("COMMIT")

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            said = error.strerror if isinstance(error, OSError) else one_line(str(error))
            raise StoreError(f"the run's database {self.where} cannot be written: {said}") from None

    def insert(self, row: Row, update: bytes | None) -> None:
        self.change(f"INSERT INTO log VALUES ({', '.join('?' * len(row))})", row)
        if update is not None:
            self._database.execute("INSERT INTO updates VALUES (?, ?)", (row[0], update))
        self._head = Head(int(row[0]), row[13])

    def load(self, rows: Iterable[tuple[Row, bytes | None]]) -> None:
        for row, update in rows:
            self.insert(row, update)
        self.commit()

    def change(self, statement: str, parameters: Sequence[Any]) -> None:
        if not self._database.in_transaction:
            self._database.execute("BEGIN")
        self._database.execute(statement, parameters)

    def forget_updates(self, up_to: int) -> None:
        self.change("DELETE FROM updates WHERE number <= ?", [up_to])

    def commit(self) -> None:
        if self._database.in_transaction:
            self._database.execute("COMMIT")
            if self._head_file is not None and self._head is not None:
                self._head_file.write(self._head)

    def rollback(self) -> None:
        self._database.execute("ROLLBACK")

    def settle(self) -> None:
        # The last server may have died of a failed sync: what it left in the write-ahead log can be read, and yet never
        # reach the disk. Whatever is written behind it would be lost with it. And SQLite itself
        # would leave the file there while others read.
        self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def read(self, query: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return list(self._database.execute(query, parameters).fetchall())

    def read_update(self, number: int) -> bytes | None:
        found = self.read("SELECT update_bytes FROM updates WHERE number = ?", [number])
        return found[0][0] if found else None

    def update_bytes(self) -> int:
        return int(self.read("SELECT coalesce(sum(length(update_bytes)), 0) FROM updates")[0][0])

    def read_head(self) -> Head:
        assert self._head_file is not None
        return self._head_file.read()

    def write_head(self, head: Head) -> None:
        assert self._head_file is not None
        self._head_file.create(head)

    def close(self) -> None:
        self._database.close()
        if self._head_file is not None:
            self._head_file.close()


def write_ahead(path: Path) -> Path:
    """SQLite's file of what is not in the database itself yet: there while somebody writes, or when a writer died."""
    return path.with_name(path.name + "-wal")


def lies_still(path: Path) -> bool:
    """Whether the database was closed, not just left, by whoever wrote it. Readers may leave an empty file behind."""
    try:
        return write_ahead(path).stat().st_size == 0
    except FileNotFoundError:
        return True
