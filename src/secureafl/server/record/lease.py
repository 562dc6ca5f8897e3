"""One leader: a lease in the database, renewed as long as its server lives, with an epoch that goes up by one each time
the lease changes hands.

Whoever writes names its epoch, and the database refuses an old one in the same transaction (`Lease.advance`,
`Lease.fence`): a server that was stopped, or cut off, and comes back finds that it can write nothing. It does not come
to that if clocks run alike: a leader that could not renew stops itself while its lease still has a fifth to go. With
`patience` it does not stop but stand still, and goes on if it can renew before any other server has taken the lease.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg

from secureafl.errors import StoreError
from secureafl.files import this_process
from secureafl.server.record.chain import Head

RENEWALS = 4  # in the time of one lease
USABLE = 0.8  # share of its lease for which a leader trusts it
POLL_SECONDS = 0.1
PATIENCE = 2.0  # in leases: how long to wait for one that nobody renews

Database = psycopg.Connection[tuple[Any, ...]]
NotLeading = psycopg.errors.DivisionByZero
"""What the database raises if `Lease.advance` moved no head: one divided by how many it moved."""


class Lease:
    """A run that this server leads. Threads share it."""

    def __init__(
        self,
        where: str,
        connect: Callable[[], Database],
        seconds: float,
        *,
        channel: str = "secureafl",
        patience: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        in_thread: bool = True,
    ) -> None:
        """Take the lease, or say who has it; wait for one that its holder does not renew. Standbys hear on `channel` of
        every new head. `patience` is how long to stand still if the database cannot be reached. Not `in_thread`: the
        caller renews it.
        """
        self._where = where
        self._channel = channel
        self.patience = patience
        self._connect = connect
        self._seconds = seconds
        self._clock = clock
        self._sleep = sleep
        self._lost: StoreError | None = None
        with contextlib.closing(connect()) as database:
            self.epoch, self._until = self._wait(database)
        self._stopped = threading.Event()
        self._renewer: threading.Thread | None = None
        if in_thread:
            self._renewer = threading.Thread(target=self._keep, name="lease", daemon=True)
            self._renewer.start()

    def _wait(self, database: Database) -> tuple[int, float]:
        """The epoch, and how long this server may take itself for the leader."""
        patience, seen = self._clock() + PATIENCE * self._seconds, None
        while True:
            asked = self._clock()
            with database.transaction():
                holder, expires, left = _one(
                    database,
                    "SELECT holder, expires, extract(epoch FROM expires - clock_timestamp())::float8 FROM lease"
                    " FOR UPDATE",
                )
                if left <= 0.0:
                    return self._take(database)
            if seen not in (None, expires) or asked > patience:
                raise StoreError(f"{self._where} is in use by {holder}: stop it first, or give this run another name")
            seen = expires
            self._sleep(min(left, POLL_SECONDS))

    def _take(self, database: Database) -> tuple[int, float]:
        """The head first: that waits for a write of the old leader that is under way, and after it there is none. One
        that was stopped within a write is not waited for: its session is ended. PostgreSQL does so by itself only where
        a transaction is idle, and not between two statements that are sent together.
        """
        database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE relation = 'head'::regclass"
            " AND mode IN ('RowShareLock', 'RowExclusiveLock') AND pid <> pg_backend_pid()"
        )
        epoch = int(_one(database, "UPDATE head SET epoch = epoch + 1 RETURNING epoch")[0])
        asked = self._clock()
        database.execute(
            "UPDATE lease SET holder = %s, epoch = %s, expires = clock_timestamp() + make_interval(secs => %s)",
            [this_process(), epoch, self._seconds],
        )
        return epoch, asked + USABLE * self._seconds

    def require(self) -> None:
        """Raise `StoreError` if this server may no longer take itself for the leader; first stand still for as long as
        its patience lasts.
        """
        while self._lost is None and self._clock() > self._until:
            if self._clock() > self._until + self.patience:
                self._lost = StoreError(
                    f"{self._where} could not be reached for {USABLE * self._seconds + self.patience:g} s to renew the"
                    " lease: this server writes nothing more. Resume the run once the database can be reached"
                )
            else:
                self._sleep(min(POLL_SECONDS, self.patience))
        if self._lost is not None:
            raise self._lost

    def advance(self, database: Database, before: Head | None, head: Head) -> None:
        """Let this be the head, within the open transaction, which fails with `NotLeading` unless this server leads and
        the head was the one before; None for whichever it was. Nothing is waited for: more may be sent at once.
        """
        statement = "UPDATE head SET number = %s, hash = %b, written = clock_timestamp() WHERE epoch = %s"
        values: list[object] = [head.number, head.hash, self.epoch]
        if before is not None:
            statement += " AND number = %s AND hash = %b"
            values += [before.number, before.hash]
        database.execute(
            f"WITH moved AS ({statement} RETURNING epoch) SELECT 1 / count(*), pg_notify(%s, '') FROM moved",
            [*values, self._channel],
        )

    def fence(self, database: Database) -> None:
        """Raise if another server leads, within the open transaction; until its end none will."""
        if not database.execute("SELECT 1 FROM head WHERE epoch = %s FOR SHARE", [self.epoch]).fetchone():
            raise self.refused(database)

    def refused(self, database: Database) -> StoreError:
        """Why this server's write was refused."""
        holder, epoch = _one(database, "SELECT holder, epoch FROM lease")
        if epoch == self.epoch:
            return StoreError(f"{self._where}: the head is not the one that this server wrote: somebody changed it")
        return StoreError(
            f"{self._where} is led by {holder} now (epoch {epoch}, this server had {self.epoch}): this server writes"
            " nothing more. Stop it, or start it again once that one has ended"
        )

    def release(self) -> None:
        """Let another server have the lease at once; a second time does nothing."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        if self._renewer is not None:
            self._renewer.join(self._seconds)
        with contextlib.suppress(psycopg.Error), contextlib.closing(self._connect()) as database:
            database.execute(
                "UPDATE lease SET expires = clock_timestamp() WHERE epoch = %s RETURNING pg_notify(%s, '')",
                [self.epoch, self._channel],
            )

    def _keep(self) -> None:
        """Renew in time, on a connection of its own; a new one if that is broken."""
        database: Database | None = None
        try:
            while not self._stopped.wait(self._seconds / RENEWALS) and self._lost is None:
                try:
                    database = database if database is not None and not database.closed else self._connect()
                    self.renew(database)
                except psycopg.Error:
                    if database is not None:
                        database.close()
        finally:
            if database is not None:
                database.close()

    def renew(self, database: Database) -> None:
        """Lead for the time of one more lease, unless another server does: then this one has lost it for good."""
        try:
            self._renew(database)
        except StoreError as error:
            self._lost = error

    def _renew(self, database: Database) -> None:
        if not self.patience:
            self.require()  # a process that was stopped for longer than its lease does not come back as the leader
        asked = self._clock()
        renewed = database.execute(
            "UPDATE lease SET expires = clock_timestamp() + make_interval(secs => %s) WHERE epoch = %s RETURNING epoch",
            [self._seconds, self.epoch],
        )
        if renewed.fetchone() is None:
            raise self.refused(database)
        self._until = asked + USABLE * self._seconds


def _one(database: Database, query: str, parameters: list[object] | None = None) -> tuple[Any, ...]:
    """The one row that answers the query."""
    found = database.execute(query, parameters).fetchone()
    assert found is not None
    return found
