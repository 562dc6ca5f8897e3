"""A database and a network on a virtual clock: as much of PostgreSQL as a leader uses, with rows locked as it does.

Statements are known by how they begin; one that is not known is an error of the simulation. At every call the process
may be stopped, killed or cut off, and the answer to a commit that was done may be lost.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from tests.simulation.leadership import Process, World


class Killed(BaseException):
    """The process is no more."""


class Tables:
    """What is committed."""

    def __init__(self) -> None:
        self.head: dict[str, Any] = {"number": 0, "hash": None, "epoch": 0}
        self.lease: dict[str, Any] = {"holder": "nobody", "epoch": 0, "expires": 0.0}
        self.facts: dict[str, str] = {}
        self.log: dict[int, tuple[Any, ...]] = {}
        self.updates: dict[int, bytes] = {}


class Cursor:
    """The rows that answer a statement."""

    def __init__(self, rows: list[tuple[Any, ...]]) -> None:
        self._rows = rows

    def fetchone(self) -> tuple[Any, ...] | None:
        return self._rows[0] if self._rows else None

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._rows


class Connection:
    """One process's connection. Outside of a transaction every statement is one of its own."""

    def __init__(self, world: World, process: Process, idle_seconds: float) -> None:
        self._world, self._process, self._idle_seconds = world, process, idle_seconds
        self._own: Tables | None = None  # what the open transaction sees
        self._changed: set[str] = set()
        self._rows: dict[int, tuple[Any, ...]] = {}
        self._touched = world.now
        self.closed = False
        world.connections.append(self)

    def close(self) -> None:
        self._forget()
        self.closed = True

    def _forget(self) -> None:
        """Roll back: others may have the rows that were locked."""
        self._own = None
        self._changed.clear()
        self._rows.clear()

    def pipeline(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        self._call()
        self._own = copy.copy(self._world.tables)
        try:
            yield
        except BaseException:
            self._forget()
            raise
        self._call()
        self._commit()
        self._answer()

    def execute(self, statement: str, parameters: Any = None, *, binary: bool = False) -> Cursor:
        self._call()
        alone = self._own is None
        if alone:
            self._own = copy.copy(self._world.tables)
        try:
            found = Cursor(self._run(statement, list(parameters or [])))
        except BaseException:
            if alone:
                self._forget()
            raise
        if alone:
            changes = bool(self._changed or self._rows)
            self._commit()
            if changes:
                self._answer()
        return found

    def _call(self) -> None:
        """Before anything is sent."""
        self._world.disturb(self._process)
        if self.closed or self._process.is_cut_off:
            self.close()
            raise psycopg.OperationalError("the connection is lost")
        self._touched = self._world.now

    def _answer(self) -> None:
        """What was committed is committed, whether or not its process gets to know."""
        if self._world.loses_answer(self._process):
            self.close()
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        self._world.disturb(self._process)

    def _commit(self) -> None:
        assert self._own is not None
        tables, own = self._world.tables, self._own
        if self._rows:
            self._world.written(self._process, self._rows)
        for name in self._changed:
            if name == "lease" and own.lease["epoch"] != tables.lease["epoch"]:
                self._world.handed_over(tables.lease, own.lease)
            setattr(tables, name, getattr(own, name))
        tables.log |= self._rows
        self._forget()

    def _lock(self, name: str) -> None:
        """Wait for whoever has the row; the database ends a transaction that stays idle for too long."""
        for other in self._world.connections:
            if other is not self and not other.closed and name in other._changed:
                self._world.now = max(self._world.now, other._touched + other._idle_seconds)
                other.close()
        if name not in self._changed:
            assert self._own is not None
            setattr(self._own, name, copy.deepcopy(getattr(self._world.tables, name)))
            self._changed.add(name)

    def _run(self, statement: str, values: list[Any]) -> list[tuple[Any, ...]]:
        own, now = self._own, self._world.now
        assert own is not None
        if statement.startswith("SELECT holder, expires, extract"):
            self._lock("lease")
            lease = own.lease
            return [(lease["holder"], lease["expires"], lease["expires"] - now)]
        if statement.startswith("SELECT pg_terminate_backend"):
            for other in self._world.connections:
                if other is not self and "head" in other._changed:
                    other.close()
            return []
        if statement.startswith("UPDATE head SET epoch = epoch + 1"):
            self._lock("head")
            own.head["epoch"] += 1
            return [(own.head["epoch"],)]
        if statement.startswith("UPDATE lease SET holder"):
            self._lock("lease")
            own.lease = {"holder": values[0], "epoch": values[1], "expires": self._world.now + values[2]}
            return []
        if statement.startswith("UPDATE lease SET expires = clock_timestamp() + make_interval"):
            self._lock("lease")
            if own.lease["epoch"] != values[1]:
                return []
            own.lease["expires"] = self._world.now + values[0]
            return [(values[1],)]
        if statement.startswith("UPDATE lease SET expires = clock_timestamp() WHERE"):
            self._lock("lease")
            if own.lease["epoch"] == values[0]:
                own.lease["expires"] = self._world.now
            return []
        if statement.startswith("SELECT holder, epoch FROM lease"):
            return [(own.lease["holder"], own.lease["epoch"])]
        if statement.startswith("WITH moved AS (UPDATE head"):
            self._lock("head")
            number, digest, *conditions, _ = values
            names = [name for name in ("epoch", "number", "hash") if f"{name} = %" in statement.partition("WHERE")[2]]
            if any(own.head[name] != value for name, value in zip(names, conditions, strict=True)):
                raise psycopg.errors.DivisionByZero("division by zero")
            own.head |= {"number": number, "hash": digest}
            return [(1, "")]
        if statement.startswith("INSERT INTO facts"):
            own.facts = {**own.facts, values[0]: values[1]}
            self._changed.add("facts")
            return []
        if statement.startswith("INSERT INTO log"):
            assert values[0] not in own.log, "a row is written twice"
            self._rows[values[0]] = tuple(values)
            return []
        if statement.startswith("INSERT INTO updates"):
            own.updates = {**own.updates, values[0]: values[1]}
            self._changed.add("updates")
            return []
        return self._read(statement, values)

    def _read(self, statement: str, values: list[Any]) -> list[tuple[Any, ...]]:
        own = self._own
        assert own is not None
        if statement.startswith("SELECT number, hash FROM head"):
            return [(own.head["number"], own.head["hash"])]
        if statement.startswith("SELECT name, value FROM facts"):
            return list(own.facts.items())
        if statement.startswith("SELECT number, seconds,"):
            assert "WHERE number > %s ORDER BY" in statement, statement
            return [row for number, row in sorted(own.log.items()) if number > values[0]][:500]
        if statement == "SELECT coalesce(min(number), 0) FROM log":
            return [(min(own.log, default=0),)]
        if statement.startswith("SELECT min(number), (SELECT max(number)"):
            missing = [n for n, row in own.log.items() if row[10] is not None and n not in own.updates]
            return [(min(missing, default=None), max(own.log, default=None))]
        raise AssertionError(f"the simulated database does not know: {statement}")
