"""A run in a PostgreSQL database: a schema of its own, with tables like those of SQLite, and one each for the head, for
files in parts, and for the lease of the server that leads. The bytes of updates and files may be objects elsewhere
(`objects`); then the tables hold their names.

`PostgresTables` keeps what is inserted until it is committed, and then sends it in one short transaction: a server that
is stopped in between holds nothing that others wait for.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from io import BytesIO
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from secureafl.errors import StoreError, UnreachableError
from secureafl.server.record.address import LEASE_SECONDS, RunUrl
from secureafl.server.record.chain import Head, first_hash
from secureafl.server.record.journal import Journal, cannot_open, fact_texts
from secureafl.server.record.lease import Database, Lease, NotLeading
from secureafl.server.record.log_tables import Row
from secureafl.server.record.object_names import (
    DISCARD_UPDATES,
    explained,
    patiently,
    remove_discarded,
    remove_orphans,
    write_object,
)
from secureafl.server.record.objects import AlteredError, Objects, checked, object_name, objects_at, update_name
from secureafl.server.record.postgres_files import PostgresFiles, is_unreachable
from secureafl.server.record.store import StandbyReport
from secureafl.server.record.succession import Succession

RETRY_SECONDS = 0.2
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
    # float32, by number of the row; or the name of the object with it, and its size
    "CREATE TABLE updates (number BIGINT PRIMARY KEY, update_bytes BYTEA, object TEXT, size BIGINT NOT NULL,"
    " CHECK ((update_bytes IS NULL) <> (object IS NULL)))",
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE head (number BIGINT NOT NULL, hash BYTEA, epoch BIGINT NOT NULL, written TIMESTAMPTZ NOT NULL)",
    "INSERT INTO head VALUES (0, NULL, 0, clock_timestamp())",
    "CREATE TABLE lease (holder TEXT NOT NULL, epoch BIGINT NOT NULL, expires TIMESTAMPTZ NOT NULL)",
    "INSERT INTO lease VALUES ('nobody', 0, clock_timestamp())",
    "CREATE TABLE standbys (name TEXT PRIMARY KEY, number BIGINT NOT NULL, lag_rows BIGINT NOT NULL,"
    " lag_seconds DOUBLE PRECISION NOT NULL, can_lead BOOLEAN NOT NULL, seen TIMESTAMPTZ NOT NULL)",
    "CREATE TABLE files (name TEXT, part INTEGER, content BYTEA, object TEXT, PRIMARY KEY (name, part),"
    " CHECK ((content IS NULL) <> (object IS NULL)))",
    "CREATE TABLE objects (location TEXT NOT NULL)",  # no row: there are none
    "CREATE TABLE discarded (object TEXT PRIMARY KEY)",  # which no row names any more, and which are to be removed
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
        self._known_objects: dict[str, Objects] = {}
        self.files = PostgresFiles(self, patience)
        self.succession = Succession(self._asking, self.connect, self._schema)

    def __str__(self) -> str:
        return str(self._url)

    @property
    def name(self) -> str:
        return self._url.name

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
            raise cannot_open(str(self), error, unreachable=is_unreachable(error)) from None

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
            database.execute("DELETE FROM discarded")
            before = self.objects(database)
            database.execute("DELETE FROM objects")
            if self._url.objects is not None:  # a place of its own: whatever else is there is not this run's
                location = f"{self._url.objects}/{self.name}-{secrets.token_hex(4)}"
                with explained(location, "written"):
                    self._objects_at(location).prepare()
                database.execute("INSERT INTO objects VALUES (%s)", [location])
        if before is not None:
            with contextlib.suppress(OSError):
                before.remove(before.names(""))

    def objects(self, database: Database) -> Objects | None:
        """Where the run keeps bytes; None if that is the database."""
        found = database.execute("SELECT location FROM objects").fetchone()
        return None if found is None else self._objects_at(str(found[0]))

    def _objects_at(self, location: str) -> Objects:
        if location not in self._known_objects:
            with explained(location, "opened"):
                self._known_objects[location] = objects_at(location)
        return self._known_objects[location]

    def reach(self) -> None:
        """Raise `UnreachableError` if the database, or the run's objects, cannot be reached."""
        with self._asking() as database:
            objects = None if self._oid(database) is None else self.objects(database)
        if objects is not None:
            with explained(objects.where, "read"):
                objects.reach()

    def create(self, facts: Mapping[str, object]) -> Journal:
        self._require_same()
        return Journal.begin(self._tables(self.lease), fact_texts(facts))

    def open(self, *, accept_loss: bool = False, known: Head | None = None) -> Journal:
        objects = self._require_same()
        journal = Journal.resume(self._tables(self.lease), accept_loss=accept_loss, known=known)
        if objects is not None:
            with self._asking() as database, contextlib.suppress(OSError):
                remove_orphans(objects, database, self.lease.epoch, journal.head.number)
        return journal

    def _require_same(self) -> Objects | None:
        """Where the run keeps bytes. An operator who says so is right, or told what is."""
        with self._asking() as database:
            objects = self.objects(database)
        found = None if objects is None else objects.where.rpartition("/")[0]
        if self._url.objects not in (None, found):
            raise StoreError(
                f"{self} was started with objects = {found!r}, not {self._url.objects!r}: leave it out, or move the run"
                " with: secureafl copy"
            )
        return objects

    def read(self) -> Journal:
        self.require_run()
        return Journal.reading(self._tables(None))

    def _tables(self, lease: Lease | None) -> PostgresTables:
        try:
            with self._asking() as database:
                objects = self.objects(database)
            return PostgresTables(str(self), self.connect, lease, self._patience, objects)
        except psycopg.Error as error:
            raise cannot_open(str(self), error, unreachable=is_unreachable(error)) from None

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

    def __init__(
        self,
        where: str,
        connect: Callable[[], Database],
        lease: Lease | None,
        patience: float = 0.0,
        objects: Objects | None = None,
    ) -> None:
        """`patience` is how long to try again if the database, or `objects`, cannot be reached."""
        self.where = where
        self._objects = objects
        self._discards = False  # whether the next commit leaves objects that no row names
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
        return is_unreachable(error)

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
        for statement, parameters in _insertion(row, update, self._keep(row, update)):
            self.change(statement, parameters)
        self._head = Head(row[0], row[13])

    def _keep(self, row: Row, update: bytes | None) -> str | None:
        """The object that the update of this row is in, which is durable; None if it goes into the row itself."""
        lease = self._leading()
        if update is None or self._objects is None:
            return None
        name = object_name(update_name(row[0]), lease.epoch, bytes(row[10]).hex())
        with explained(self._objects.where, "written"):
            patiently(partial(write_object, self._objects, name, BytesIO(update)), self._patience)
        return name

    def load(self, rows: Iterable[tuple[Row, bytes | None]]) -> None:
        head = self._written
        with self._fenced(), self._database.transaction():
            self._database.execute("SET LOCAL idle_in_transaction_session_timeout = 0")  # objects may take a while
            for row, update in rows:
                for statement, parameters in _insertion(row, update, self._keep(row, update)):
                    self._database.execute(statement, parameters)
                head = Head(row[0], row[13])
            if head is not None:
                self._advance(self._written, head)
        self._written = head

    def change(self, statement: str, parameters: Sequence[Any]) -> None:
        self._leading()
        self._changes.append((statement.replace("?", "%s"), parameters))

    def forget_updates(self, up_to: int) -> None:
        self.change(DISCARD_UPDATES, [up_to])
        self._discards = self._objects is not None

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
        if self._discards and self._objects is not None and self._lease is not None:
            self._discards = False
            with contextlib.suppress(OSError, psycopg.Error):  # they stay on the list
                remove_discarded(self._objects, self._database, self._lease.epoch)

    def _send(self, head: Head) -> None:
        """All at once, in one round trip: an old leader's transaction fails as a whole."""
        with self._fenced(), self._database.pipeline(), self._database.transaction():
            self._advance(self._written, head)
            for statement, parameters in self._changes:
                self._database.execute(statement, parameters)

    def _connect_again(self, error: psycopg.Error) -> None:
        """Wait for a database that cannot be reached, as long as patience lasts; raise what is wrong otherwise."""
        if not self._patience or not is_unreachable(error):
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

    def read_update(self, number: int) -> bytes | None:
        found = self.read("SELECT update_bytes, object FROM updates WHERE number = ?", [number])
        if not found or found[0][1] is None:
            return found[0][0] if found else None
        if self._objects is None:
            raise StoreError(f"{self.where} is damaged: it no longer says where the objects of its rows are")
        try:
            read = partial(checked, self._objects, found[0][1])
            return patiently(lambda: b"".join(read()), self._patience, ConnectionError)
        except ConnectionError as error:
            said = error.strerror
            raise UnreachableError(f"the run's objects in {self._objects.where} cannot be read: {said}") from None
        except OSError as error:
            if not self.read("SELECT 1 FROM updates WHERE number = ?", [number]):
                return None  # it was forgotten meanwhile
            said = {FileNotFoundError: "is missing", AlteredError: "is damaged"}.get(type(error), "cannot be read")
            raise StoreError(f"{self.where}: the update in row {number} {said}: {error.strerror}") from None

    def update_bytes(self) -> int:
        return int(self.read("SELECT coalesce(sum(size), 0)::bigint FROM updates")[0][0])

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


def _insertion(row: Row, update: bytes | None, name: str | None) -> Iterator[tuple[str, Sequence[Any]]]:
    """`name` is that of the object that the update is in, if it is in one."""
    yield f"INSERT INTO log VALUES ({', '.join(['%s'] * len(row))})", row
    if update is not None:
        kept = update if name is None else None
        yield "INSERT INTO updates VALUES (%s, %b, %s, %s)", (row[0], kept, name, len(update))


def _read_head(database: Database, where: str) -> Head:
    found = database.execute("SELECT number, hash FROM head", binary=True).fetchall()
    if len(found) != 1:
        raise StoreError(f"{where} is damaged: its head no longer says how far the log went")
    number, digest = found[0]
    return Head(number, digest or b"")
