"""A run in a PostgreSQL database: a schema of its own, with tables like those of SQLite, and one each for the head, for
files in parts, and for the lease of the server that leads.

`PostgresTables` keeps what is inserted until it is committed, and then sends it in one short transaction: a server that
is stopped in between holds nothing that others wait for.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import os
import tempfile
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from secureafl.errors import StoreError
from secureafl.server.record.address import LEASE_SECONDS, RunUrl
from secureafl.server.record.chain import Head, first_hash
from secureafl.server.record.journal import Journal, cannot_open, fact_texts
from secureafl.server.record.lease import Database, Lease, NotLeading
from secureafl.server.record.log_tables import Row
from secureafl.server.record.store import StandbyReport
from secureafl.server.record.succession import Succession
from secureafl.text import one_line

PART_BYTES = 4 << 20
RETRY_SECONDS = 0.2
Result = TypeVar("Result")
SCHEMA = (
    """
CREATE TABLE log (
    number    BIGINT PRIMARY KEY,
    seconds   DOUBLE PRECISION NOT NULL,  -- since the run began
    version   BIGINT NOT NULL,            -- the model that stood when it happened
    client    TEXT NOT NULL,
    event     TEXT NOT NULL,
    reason    TEXT NOT NULL,
    accepted  SMALLINT,                   -- arrivals: 1 or 0
    evidence  TEXT NOT NULL,              -- arrivals: JSON, the numbers behind the verdict
    ticket    BIGINT,                     -- the dispatch it is about
    base      BIGINT,                     -- the version that dispatch carried
    sent      BYTEA,                      -- arrivals: SHA-256 of the update
    model     BYTEA,                      -- arrivals: SHA-256 of the model after it
    before    BYTEA NOT NULL,             -- hash of the row before it
    hash      BYTEA NOT NULL              -- of all these columns
)""",
    "CREATE INDEX log_client ON log (client)",  # the rows of one among many; runs without it are read more slowly
    "CREATE TABLE updates (number BIGINT PRIMARY KEY, update_bytes BYTEA NOT NULL)",  # float32, by number of the row
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE head (number BIGINT NOT NULL, hash BYTEA, epoch BIGINT NOT NULL, written TIMESTAMPTZ NOT NULL)",
    "INSERT INTO head VALUES (0, NULL, 0, clock_timestamp())",
    "CREATE TABLE lease (holder TEXT NOT NULL, epoch BIGINT NOT NULL, expires TIMESTAMPTZ NOT NULL)",
    "INSERT INTO lease VALUES ('nobody', 0, clock_timestamp())",
    "CREATE TABLE standbys (name TEXT PRIMARY KEY, number BIGINT NOT NULL, lag_rows BIGINT NOT NULL,"
    " lag_seconds DOUBLE PRECISION NOT NULL, can_lead BOOLEAN NOT NULL, seen TIMESTAMPTZ NOT NULL)",
    "CREATE TABLE files (name TEXT, part INTEGER, content BYTEA NOT NULL, PRIMARY KEY (name, part))",
    # Floats do not get smaller by being compressed.
    "ALTER TABLE updates ALTER COLUMN update_bytes SET STORAGE EXTERNAL",
    "ALTER TABLE files ALTER COLUMN content SET STORAGE EXTERNAL",
)


class PostgresStore:
    """One run in a database."""

    def __init__(self, url: RunUrl, *, lease_seconds: float = LEASE_SECONDS, patience: float = 0.0) -> None:
        self._url = url
        self._schema = f"secureafl_{url.name}"
        self._lease_seconds = lease_seconds
        self._patience = patience
        self._lease: Lease | None = None
        self.files = PostgresFiles(self)
        self.succession = Succession(self._asking, self.connect, self._schema)

    def __str__(self) -> str:
        return str(self._url)

    @property
    def name(self) -> str:
        return self._url.name

    @property
    def patience(self) -> float:
        """How long to wait for a database that cannot be reached."""
        return self._patience

    @property
    def lease(self) -> Lease:
        """That of this server, which holds the run."""
        assert self._lease is not None
        return self._lease

    def connect(self) -> Database:
        """A connection to the run's tables, in autocommit mode. One that hangs is given up in the time of a lease."""
        patience = self._lease_seconds
        settings: dict[str, Any] = {
            "application_name": "secureafl",
            "connect_timeout": max(2, round(patience / 2)),
            "tcp_user_timeout": round(patience * 1000),
            "keepalives_idle": max(1, round(patience / 2)),
            "keepalives_interval": max(1, round(patience / 4)),
            "keepalives_count": 2,
            **conninfo_to_dict(self._url.database),
        }
        database = psycopg.connect(autocommit=True, **settings)
        try:
            database.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(self._schema)))
            # What a server that was stopped left open, others need not wait for.
            database.execute(f"SET idle_in_transaction_session_timeout = {round(patience * 1000)}")
            database.execute(
                "SELECT set_config('synchronous_commit', 'on', false)"
                " WHERE current_setting('synchronous_commit') = 'off'"
            )
        except BaseException:
            database.close()
            raise
        return database

    @contextlib.contextmanager
    def _asking(self) -> Iterator[Database]:
        """A connection for a question or two; what fails is said in our words."""
        try:
            with contextlib.closing(self.connect()) as database:
                yield database
        except psycopg.Error as error:
            raise cannot_open(str(self), error, unreachable=_is_unreachable(error)) from None

    def hold(self) -> Lease:
        with self._asking() as database:
            if self._oid(database) is None:
                self._create_schema(database)
            self._lease = Lease(
                str(self), self.connect, self._lease_seconds, channel=self._schema, patience=self._patience
            )
        return self._lease

    def _create_schema(self, database: Database) -> None:
        schema = sql.Identifier(self._schema)
        with database.transaction():
            database.execute(
                "SELECT pg_advisory_xact_lock(hashtext(%s))", [self._schema]
            )  # another server may do it too
            if self._oid(database) is None:
                database.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
                for statement in SCHEMA:
                    database.execute(statement)

    def _oid(self, database: Database) -> int | None:
        """The number of the run's schema; None if there is none."""
        found = database.execute("SELECT oid FROM pg_namespace WHERE nspname = %s", [self._schema]).fetchone()
        return None if found is None else int(found[0])

    def is_held(self) -> bool:
        with self._asking() as database:
            found = database.execute("SELECT expires > clock_timestamp() FROM lease").fetchone()
        return found is not None and bool(found[0])

    def has_run(self) -> bool:
        with self._asking() as database:
            if self._oid(database) is None:
                return False
            return bool(database.execute("SELECT 1 FROM facts").fetchone())

    def require_run(self) -> None:
        if not self.has_run():
            raise StoreError(f"{self} holds no run: there is none of the name {self.name!r} in this database")

    def clear(self) -> None:
        with self._asking() as database, database.transaction():
            self.lease.fence(database)
            if database.execute("SELECT 1 FROM log").fetchone() or _read_head(database, str(self)).number:
                raise StoreError(f"{self} already holds a run: resume it, or give this one another name")
            database.execute("DELETE FROM facts")
            database.execute("DELETE FROM files")

    def create(self, facts: Mapping[str, object]) -> Journal:
        return Journal.begin(self._tables(self.lease), fact_texts(facts))

    def open(self, *, accept_loss: bool = False, known: Head | None = None) -> Journal:
        return Journal.resume(self._tables(self.lease), accept_loss=accept_loss, known=known)

    def read(self) -> Journal:
        self.require_run()
        return Journal.reading(self._tables(None))

    def _tables(self, lease: Lease | None) -> PostgresTables:
        try:
            return PostgresTables(str(self), self.connect, lease, self._patience)
        except psycopg.Error as error:
            raise cannot_open(str(self), error, unreachable=_is_unreachable(error)) from None

    def identity(self) -> Hashable:
        self.require_run()
        with self._asking() as database:
            return self._oid(database)

    def written_at(self) -> float:
        with self._asking() as database:
            found = database.execute("SELECT extract(epoch FROM written)::float8 FROM head").fetchone()
        return 0.0 if found is None else float(found[0])

    def standbys(self) -> list[StandbyReport]:
        return self.succession.reports()


class PostgresTables:
    """The tables of a run; without a lease, to be read."""

    errors = (psycopg.Error,)

    def __init__(self, where: str, connect: Callable[[], Database], lease: Lease | None, patience: float = 0.0) -> None:
        """`patience` is how long to try again if the database cannot be reached."""
        self.where = where
        self._connect = connect
        self._patience = patience
        self._database = connect()
        self._lease = lease
        self._changes: list[tuple[str, Sequence[Any]]] = []  # that wait for the next commit
        self._written: Head | None = None  # the head in the database
        self._head: Head | None = None  # the newest row that was inserted

    @property
    def waiting(self) -> bool:
        return bool(self._changes)

    def is_unreachable(self, error: Exception) -> bool:
        return _is_unreachable(error)

    def _leading(self) -> Lease:
        assert self._lease is not None
        self._lease.require()
        return self._lease

    def create(self, facts: Mapping[str, str]) -> None:
        head = Head(0, first_hash(facts))
        with self._fenced(), self._database.transaction():
            self._advance(None, head)
            for pair in facts.items():
                self._database.execute("INSERT INTO facts VALUES (%s, %s)", pair)
        self._written = head

    def prepare(self) -> None:
        """There is one format so far."""

    def insert(self, row: Row, update: bytes | None) -> None:
        for statement, parameters in _insertion(row, update):
            self.change(statement, parameters)
        self._head = Head(row[0], row[13])

    def load(self, rows: Iterable[tuple[Row, bytes | None]]) -> None:
        head = self._written
        with self._fenced(), self._database.transaction():
            for row, update in rows:
                for statement, parameters in _insertion(row, update):
                    self._database.execute(statement, parameters)
                head = Head(row[0], row[13])
            if head is not None:
                self._advance(self._written, head)
        self._written = head

    def change(self, statement: str, parameters: Sequence[Any]) -> None:
        self._leading()
        self._changes.append((statement.replace("?", "%s"), parameters))

    def commit(self) -> None:
        if not self._changes or self._head is None:
            return
        head = self._head
        while True:
            try:
                self._send(head)
                break
            except psycopg.Error as error:
                self._connect_again(error)
            with contextlib.suppress(psycopg.Error):  # if it breaks again, so will the next try
                if _read_head(self._database, self.where) == head:
                    break  # the database had it, and could not say so
        self._written = head
        self._changes.clear()

    def _send(self, head: Head) -> None:
        """All at once, in one round trip: an old leader's transaction fails as a whole."""
        with self._fenced(), self._database.pipeline(), self._database.transaction():
            self._advance(self._written, head)
            for statement, parameters in self._changes:
                self._database.execute(statement, parameters)

    def _connect_again(self, error: psycopg.Error) -> None:
        """Wait for a database that cannot be reached, as long as patience lasts; raise what is wrong otherwise."""
        if not self._patience or not _is_unreachable(error):
            raise error
        self._database.close()
        self._database = connected(self._connect, self._patience)

    def rollback(self) -> None:
        self._changes.clear()

    def settle(self) -> None:
        """What was committed is the database's to keep."""

    def read(self, query: str, parameters: Sequence[Any] = ()) -> list[Row]:
        while True:
            try:
                return self._database.execute(query.replace("?", "%s"), parameters or None, binary=True).fetchall()
            except psycopg.Error as error:
                self._connect_again(error)

    def _advance(self, before: Head | None, head: Head) -> None:
        self._leading().advance(self._database, before, head)

    @contextlib.contextmanager
    def _fenced(self) -> Iterator[None]:
        """Say who leads if this server does not."""
        try:
            yield
        except NotLeading:
            assert self._lease is not None
            raise self._lease.refused(self._database) from None

    def read_head(self) -> Head:
        self._written = _read_head(self._database, self.where)
        return self._written

    def write_head(self, head: Head) -> None:
        with self._fenced():
            self._advance(None, head)
        self._written = head

    def close(self) -> None:
        self._database.close()


class PostgresFiles:
    """Files in a table, in parts. Each call has a connection of its own; a write is fenced like every other."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    def where(self, name: str) -> str:
        return f"{self._store}/{name}"

    def names(self, pattern: str) -> list[str]:
        return [name for name in self._patiently(self._all_names) if fnmatch.fnmatchcase(name, pattern)]

    def _all_names(self) -> list[str]:
        with self._asking() as database:
            return [name for (name,) in database.execute("SELECT DISTINCT name FROM files ORDER BY name").fetchall()]

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        if not self._store.patience:
            self._send(name, parts)
            return
        with tempfile.TemporaryFile() as kept:  # so that it can be sent again
            for part in parts:
                kept.write(part)

            def send() -> None:
                kept.seek(0)
                self._send(name, iter(partial(kept.read, PART_BYTES), b""))

            self._patiently(send)

    def _send(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        with self._asking() as database, database.transaction():
            database.execute("DELETE FROM files WHERE name = %s", [name])
            for number, part in enumerate(_in_parts(parts)):
                database.execute("INSERT INTO files VALUES (%s, %s, %b)", [name, number, part])
            self._store.lease.fence(database)  # last: others wait for a moment, not for all parts

    @contextlib.contextmanager
    def local(self, name: str) -> Iterator[Path]:
        """A copy that is gone afterwards, but for those who have it open."""
        with tempfile.TemporaryDirectory(prefix="secureafl-") as folder:
            path = Path(folder) / Path(name).name
            with self._asking() as database, path.open("wb") as file:
                database.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                with database.transaction():
                    number = 0
                    while part := _part(database, name, number):
                        file.write(part)
                        number += 1
            if not number:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.where(name))
            yield path

    def remove(self, name: str) -> None:
        self._patiently(partial(self._remove, name))

    def _remove(self, name: str) -> None:
        with self._asking() as database, database.transaction():
            self._store.lease.fence(database)
            database.execute("DELETE FROM files WHERE name = %s", [name])

    def _patiently(self, call: Callable[[], Result]) -> Result:
        """Try again for as long as the store's patience lasts."""
        ends = time.monotonic() + self._store.patience
        while True:
            try:
                return call()
            except OSError:
                if time.monotonic() >= ends:
                    raise
                time.sleep(RETRY_SECONDS)

    @contextlib.contextmanager
    def _asking(self) -> Iterator[Database]:
        """A connection for one call; what fails is an error as of any file."""
        try:
            with contextlib.closing(self._store.connect()) as database:
                yield database
        except psycopg.Error as error:
            raise OSError(errno.EIO, one_line(str(error))) from None


def connected(connect: Callable[[], Database], patience: float) -> Database:
    """A connection, as soon as there is one; its error if there is none for so long."""
    ends = time.monotonic() + patience
    while True:
        try:
            return connect()
        except psycopg.Error:
            if time.monotonic() > ends:
                raise
            time.sleep(RETRY_SECONDS)


def _is_unreachable(error: Exception) -> bool:
    """Whether the connection broke or could not be made; else the server has answered."""
    if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return False
    return error.sqlstate is None or error.sqlstate.startswith(("08", "57P", "25P03"))


def _part(database: Database, name: str, number: int) -> bytes | None:
    query = "SELECT content FROM files WHERE name = %s AND part = %s"
    found = database.execute(query, [name, number], binary=True).fetchone()
    return None if found is None else bytes(found[0])


def _in_parts(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """The same bytes in parts that are neither many nor large."""
    part = bytearray()
    for piece in pieces:
        rest = memoryview(piece).cast("B")
        while rest:
            room = PART_BYTES - len(part)
            part += rest[:room]
            rest = rest[room:]
            if len(part) == PART_BYTES:
                yield bytes(part)
                part.clear()
    if part:
        yield bytes(part)


def _insertion(row: Row, update: bytes | None) -> Iterator[tuple[str, Sequence[Any]]]:
    yield f"INSERT INTO log VALUES ({', '.join(['%s'] * len(row))})", row
    if update is not None:
        yield "INSERT INTO updates VALUES (%s, %b)", (row[0], update)


def _read_head(database: Database, where: str) -> Head:
    found = database.execute("SELECT number, hash FROM head", binary=True).fetchall()
    if len(found) != 1:
        raise StoreError(f"{where} is damaged: its head no longer says how far the log went")
    number, digest = found[0]
    return Head(number, digest or b"")
