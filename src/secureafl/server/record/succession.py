"""What those who follow a run in PostgreSQL share: news of new rows, who leads, how far each of them is, and which of
them starts the next server.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import psycopg
from psycopg import sql

from secureafl.server.record.lease import Database
from secureafl.server.record.store import StandbyReport

GONE_SECONDS = 30.0  # a standby that has said nothing for so long is not there any more
_AGE = "extract(epoch FROM clock_timestamp() - seen)::float8"


@dataclass(frozen=True, slots=True)
class Leader:
    """Who holds the lease, or held it last."""

    name: str
    epoch: int
    leads: bool
    """Whether the lease still runs."""


class Succession:
    """The standbys of one run. None of what is written here is part of the log."""

    def __init__(
        self, asking: Callable[[], AbstractContextManager[Database]], connect: Callable[[], Database], schema: str
    ) -> None:
        """`asking` gives a connection for a question or two, whose errors are ours."""
        self._asking = asking
        self._connect = connect
        self._schema = schema

    def leader(self) -> Leader:
        """Who leads the run, or led it last."""
        with self._asking() as database:
            found = database.execute("SELECT holder, epoch, expires > clock_timestamp() FROM lease").fetchone()
        return Leader("nobody", 0, False) if found is None else Leader(*found)

    def news(self) -> News:
        """Tells of rows as they are written."""
        return News(self._connect, self._schema)

    def report(self, said: StandbyReport) -> None:
        """Let readers know how far a standby is; those that have not been heard of for long are taken off."""
        with self._asking() as database:
            database.execute(
                "INSERT INTO standbys VALUES (%s, %s, %s, %s, %s, clock_timestamp()) ON CONFLICT (name) DO UPDATE SET"
                " number = excluded.number, lag_rows = excluded.lag_rows, lag_seconds = excluded.lag_seconds,"
                " can_lead = excluded.can_lead, seen = excluded.seen",
                [said.name, said.number, said.rows, said.seconds, said.can_lead],
            )
            database.execute(f"DELETE FROM standbys WHERE {_AGE} > {GONE_SECONDS}")

    def forget(self, name: str) -> None:
        """This standby follows no more."""
        with self._asking() as database:
            database.execute("DELETE FROM standbys WHERE name = %s", [name])

    def reports(self) -> list[StandbyReport]:
        """What the standbys that are there have said last."""
        with self._asking() as database:
            found = database.execute(
                "SELECT name, number, lag_rows, lag_seconds, can_lead FROM standbys"
                f" WHERE {_AGE} <= {GONE_SECONDS} ORDER BY name"
            ).fetchall()
        return [StandbyReport(*row) for row in found]

    @contextlib.contextmanager
    def turn(self) -> Iterator[bool]:
        """Whether it is for the caller to start the next server, and for no other standby meanwhile."""
        with self._asking() as database:
            asked = database.execute("SELECT pg_try_advisory_lock(hashtext(%s))", [f"{self._schema} succession"])
            found = asked.fetchone()
            yield found is not None and bool(found[0])


class News:
    """Waits for rows to be written: for the database's notice, and a while at most if none comes."""

    def __init__(self, connect: Callable[[], Database], channel: str) -> None:
        self._connect = connect
        self._channel = channel
        self._database: Database | None = None

    def wait(self, seconds: float) -> None:
        """Return when something was written, or after so long."""
        ends = time.monotonic() + seconds
        try:
            if self._database is None or self._database.closed:
                self._database = self._connect()
                self._database.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
                return  # what was written before is news too
            for _ in self._database.notifies(timeout=seconds, stop_after=1):
                return
        except psycopg.Error:
            self.close()
            time.sleep(max(0.0, ends - time.monotonic()))

    def close(self) -> None:
        """Wait no more."""
        if self._database is not None:
            self._database.close()
            self._database = None
