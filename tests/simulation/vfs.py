"""SQLite on the simulated disk: a VFS that tells the medium of every write, sync and removal.

The journal gets a connection that behaves as the standard library's does.
"""

from __future__ import annotations

import contextlib
import errno
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
from tests.simulation.disk import Change, Crash, FaultyDisk, kind_of

NAME = "secureafl-simulation"
CHECKPOINT_PAGES = 40  # small, so that the log is moved into the database often


@contextlib.contextmanager
def _as_sqlite_says(disk: FaultyDisk) -> Iterator[None]:
    """A disk's errors as SQLite's own. A crash is one too: the connection raises it afterwards."""
    if disk.crashed:
        raise apsw.IOError("the server died")
    try:
        yield
    except OSError as error:
        full = error.errno == errno.ENOSPC
        raise (apsw.FullError if full else apsw.IOError)(error.strerror) from None
    except Crash:
        raise apsw.IOError("the server died") from None


def _reach(disk: FaultyDisk, call: str, path: Path, *, decisive: bool = False) -> None:
    with _as_sqlite_says(disk):
        disk.reach(call, kind_of(path), decisive=decisive)


class _File(apsw.VFSFile):
    def __init__(self, disk: FaultyDisk, path: Path, filename: Any, flags: list[int]) -> None:
        super().__init__("", filename, flags)
        self._disk = disk
        self._path = path
        self._file = disk.medium.file(path)
        self._is_log = bool(flags[0] & apsw.SQLITE_OPEN_WAL)
        # With the first sync of a log or journal that it may have created SQLite syncs the folder, whether the file was
        # there before or not: its creator may have died without.
        self._sync_folder = bool(flags[0] & apsw.SQLITE_OPEN_CREATE) and not flags[0] & apsw.SQLITE_OPEN_MAIN_DB

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802 - SQLite's name
        content = bytes(data)
        _reach(self._disk, "write", self._path, decisive=self._is_log)
        super().xWrite(content, offset)
        self._file.changes.append(Change(offset, content))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        _reach(self._disk, "truncate", self._path)
        super().xTruncate(newsize)
        self._file.changes.append(Change(newsize, None))

    def xSync(self, flags: int) -> None:  # noqa: N802
        decisive = self._is_log and bool(self._file.changes)
        with _as_sqlite_says(self._disk):
            self._disk.reach_sync(self._file, kind_of(self._path), decisive=decisive)
        self._file.sync()
        if self._sync_folder:
            self._disk.medium.sync_directory(self._path.parent)
            self._sync_folder = False


class _FileSystem(apsw.VFS):
    def __init__(self) -> None:
        super().__init__(NAME, "")
        self.disk: FaultyDisk | None = None

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        assert self.disk is not None
        path = Path(name if isinstance(name, str) else name.filename())
        _reach(self.disk, "open" if path.exists() else "create", path)
        return _File(self.disk, path, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        assert self.disk is not None
        _reach(self.disk, "remove", Path(filename))
        super().xDelete(filename, syncdir)
        self.disk.medium.remove(Path(filename))
        if syncdir:
            self.disk.medium.sync_directory(Path(filename).parent)


_FILE_SYSTEM = _FileSystem()


class _Rows:
    """What a statement returned."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = iter(rows)

    def __iter__(self) -> Iterator[Any]:
        return self._rows

    def fetchone(self) -> Any:
        return next(self._rows, None)

    def fetchall(self) -> list[Any]:
        return list(self._rows)


class SimulatedConnection:
    """As much of `sqlite3.Connection` as a journal uses."""

    def __init__(self, disk: FaultyDisk, address: str) -> None:
        self._disk = disk
        self.is_open = False
        _FILE_SYSTEM.disk = disk
        try:
            self._connection = apsw.Connection(address, vfs=NAME)
            self.is_open = True
            self._connection.wal_autocheckpoint(CHECKPOINT_PAGES)
        except apsw.Error as error:
            disk.alive()
            raise sqlite3.OperationalError(str(error)) from None

    @property
    def in_transaction(self) -> bool:
        return bool(self._connection.in_transaction)

    def execute(self, statement: str, parameters: Any = ()) -> _Rows:
        self._disk.alive()
        try:
            return _Rows(list(self._connection.execute(statement, parameters)))
        except (apsw.Error, UnicodeDecodeError) as error:
            self._disk.alive()
            raise sqlite3.OperationalError(str(error)) from None

    def close(self) -> None:
        self.kill()
        self._disk.alive()

    def kill(self) -> None:
        """Close the real files, whatever SQLite says to it."""
        if self.is_open:
            self.is_open = False
            try:
                self._connection.close(True)
            except apsw.Error:  # the standard library ignores it too
                self._connection.close(True)


class Connections:
    """Opens databases on one disk, and knows which are still open."""

    def __init__(self, disk: FaultyDisk) -> None:
        self._disk = disk
        self._made: list[SimulatedConnection] = []

    def __call__(self, address: str) -> SimulatedConnection:
        self._made.append(SimulatedConnection(self._disk, address))
        return self._made[-1]

    @property
    def num_open(self) -> int:
        return sum(connection.is_open for connection in self._made)

    def close_all(self) -> None:
        for connection in self._made:
            connection.kill()
