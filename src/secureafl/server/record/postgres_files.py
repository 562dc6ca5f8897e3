"""Files of a run in a database: in a table, in parts, or as objects that the table names."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

import psycopg

from secureafl.server.record.lease import Database, Lease
from secureafl.server.record.object_names import (
    DISCARD_FILE,
    patiently,
    remove_discarded,
    write_object,
)
from secureafl.server.record.objects import FILES, AlteredError, Objects, checked, object_name
from secureafl.text import one_line

PART_BYTES = 4 << 20
Result = TypeVar("Result")


class RunDatabase(Protocol):
    """As much of a run in a database as its files need."""

    @property
    def lease(self) -> Lease:
        """That of this server, which holds the run."""

    def connect(self) -> Database:
        """A connection to the run's tables."""

    def objects(self, database: Database) -> Objects | None:
        """Where the run keeps bytes; None if that is the database."""


class PostgresFiles:
    """Each call has a connection of its own; a write is fenced like every other."""

    def __init__(self, run: RunDatabase, patience: float) -> None:
        """`patience` is how long to try again."""
        self._run = run
        self._patience = patience

    def where(self, name: str) -> str:
        return f"{self._run}/{name}"

    def names(self, pattern: str) -> list[str]:
        return [name for name in self._patiently(self._all_names) if fnmatch.fnmatchcase(name, pattern)]

    def _all_names(self) -> list[str]:
        with self._asking() as database:
            return [name for (name,) in database.execute("SELECT DISTINCT name FROM files ORDER BY name").fetchall()]

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        objects = self._patiently(self._objects)
        if objects is None and not self._patience:
            self._send(name, parts)
            return
        with tempfile.TemporaryFile() as kept:  # so that it can be sent again, and has a hash before it has a name
            total = hashlib.sha256()
            for part in parts:
                kept.write(part)
                total.update(part)
            if objects is None:
                self._patiently(lambda: self._send(name, _from_start(kept)))
            else:
                self._keep(objects, name, kept, total.hexdigest())

    def _objects(self) -> Objects | None:
        with self._asking() as database:
            return self._run.objects(database)

    def _keep(self, objects: Objects, name: str, content: BinaryIO, sha256: str) -> None:
        """The object first, and then the row that names it."""
        made = object_name(FILES + name, self._run.lease.epoch, sha256)
        with _said_of(objects, "written"):
            self._patiently(partial(write_object, objects, made, content))
        self._patiently(partial(self._name, name, made))
        self._tidy(objects)

    def _name(self, name: str, made: str) -> None:
        with self._asking() as database, database.transaction():
            database.execute(DISCARD_FILE, [name])
            database.execute("DELETE FROM discarded WHERE object = %s", [made])
            database.execute("INSERT INTO files VALUES (%s, 0, NULL, %s)", [name, made])
            self._run.lease.fence(database)

    def _tidy(self, objects: Objects) -> None:
        with contextlib.suppress(OSError), self._asking() as database:  # what is left stays on the list
            remove_discarded(objects, database, self._run.lease.epoch)

    def _send(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        with self._asking() as database, database.transaction():
            database.execute("DELETE FROM files WHERE name = %s", [name])
            for number, part in enumerate(_in_parts(parts)):
                database.execute("INSERT INTO files VALUES (%s, %s, %b)", [name, number, part])
            self._run.lease.fence(database)  # last: others wait for a moment, not for all parts

    @contextlib.contextmanager
    def local(self, name: str) -> Iterator[Path]:
        """A copy that is gone afterwards, but for those who have it open."""
        with tempfile.TemporaryDirectory(prefix="secureafl-") as folder:
            path = Path(folder) / Path(name).name
            with path.open("wb") as file:
                found = self._read(name, file)
            if not found:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.where(name))
            yield path

    def _read(self, name: str, file: BinaryIO) -> bool:
        """Whether there is such a file; its bytes are copied."""
        with self._asking() as database:
            objects, made = self._run.objects(database), _object_of(database, name)
            if objects is None or made is None:
                return _copy_parts(database, name, file)
        try:
            with _said_of(objects, "read"):
                file.writelines(checked(objects, made))
        except FileNotFoundError:
            with self._asking() as database:
                if _object_of(database, name) == made:
                    raise
            return False  # it was removed meanwhile
        return True

    def remove(self, name: str) -> None:
        self._patiently(partial(self._remove, name))
        if (objects := self._patiently(self._objects)) is not None:
            self._tidy(objects)

    def _remove(self, name: str) -> None:
        with self._asking() as database, database.transaction():
            self._run.lease.fence(database)
            database.execute(DISCARD_FILE, [name])

    def _patiently(self, call: Callable[[], Result]) -> Result:
        return patiently(call, self._patience)

    @contextlib.contextmanager
    def _asking(self) -> Iterator[Database]:
        """A connection for one call; what fails is an error as of any file."""
        try:
            with contextlib.closing(self._run.connect()) as database:
                yield database
        except psycopg.Error as error:
            kind = ConnectionError if is_unreachable(error) else OSError
            raise kind(errno.EIO, one_line(str(error))) from None


def is_unreachable(error: Exception) -> bool:
    """Whether the connection broke or could not be made; else the server has answered."""
    if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return False
    return error.sqlstate is None or error.sqlstate.startswith(("08", "57P", "25P03"))


@contextlib.contextmanager
def _said_of(objects: Objects, done: str) -> Iterator[None]:
    """An error that does not say what it is about says so."""
    try:
        yield
    except (FileNotFoundError, AlteredError):
        raise
    except OSError as error:
        said = f"the run's objects in {objects.where} cannot be {done}: {error.strerror}"
        raise type(error)(error.errno, said) from None


def _object_of(database: Database, name: str) -> str | None:
    found = database.execute("SELECT object FROM files WHERE name = %s", [name]).fetchone()
    return None if found is None else found[0]


def _copy_parts(database: Database, name: str, file: BinaryIO) -> bool:
    database.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with database.transaction():
        number = 0
        while part := _part(database, name, number):
            file.write(part)
            number += 1
    return number > 0


def _part(database: Database, name: str, number: int) -> bytes | None:
    query = "SELECT content FROM files WHERE name = %s AND part = %s"
    found = database.execute(query, [name, number], binary=True).fetchone()
    return None if found is None else bytes(found[0])


def _from_start(kept: BinaryIO) -> Iterator[bytes]:
    kept.seek(0)
    return iter(partial(kept.read, PART_BYTES), b"")


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
