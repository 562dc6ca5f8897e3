"""A run in a folder: `run.db`, `head`, `snapshots/`, the final model. Held by one server, its owner's alone to read."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterable, Iterator, Mapping
from pathlib import Path

from secureafl.errors import StoreError
from secureafl.files import REAL_DISK, Disk, FolderLock, is_held, remove_leftovers, write_atomically
from secureafl.server.record.chain import HEAD, Head, HeadFile
from secureafl.server.record.journal import Journal
from secureafl.server.record.sqlite import (
    Connect,
    connect_sqlite,
    create_journal,
    open_journal,
    read_journal,
    write_ahead,
)
from secureafl.server.record.store import SNAPSHOTS, StandbyReport

DATABASE = "run.db"


class FolderFiles:
    """Files in a folder."""

    def __init__(self, directory: Path, disk: Disk = REAL_DISK) -> None:
        self._directory = directory
        self._disk = disk

    def where(self, name: str) -> str:
        return str(self._directory / name)

    def names(self, pattern: str) -> list[str]:
        return sorted(path.relative_to(self._directory).as_posix() for path in self._directory.glob(pattern))

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        write_atomically(self._directory / name, parts, self._disk)

    @contextlib.contextmanager
    def local(self, name: str) -> Iterator[Path]:
        yield self._directory / name

    def remove(self, name: str) -> None:
        self._disk.remove(self._directory / name)


class FolderHold:
    """A folder that this server holds: the system sees to it that nobody else does."""

    def __init__(self, lock: FolderLock) -> None:
        self._lock = lock

    def require(self) -> None:
        """The system takes a lock from no process that lives."""

    def release(self) -> None:
        self._lock.release()


class FolderStore:
    """The run in one folder."""

    def __init__(self, path: Path, *, connect: Connect = connect_sqlite, disk: Disk = REAL_DISK) -> None:
        self._path = path
        self._database = path / DATABASE
        self._connect = connect
        self._disk = disk
        self.files = FolderFiles(path, disk)

    def __str__(self) -> str:
        return str(self._path)

    @property
    def name(self) -> str:
        return self._path.absolute().name

    def hold(self) -> FolderHold:
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = FolderLock(self._path)
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            (self._path / SNAPSHOTS).mkdir(mode=0o700, exist_ok=True)
            remove_leftovers(self._path / SNAPSHOTS)
        except OSError as error:
            lock.release()
            raise self._unwritable(error) from None
        return FolderHold(lock)

    def _unwritable(self, error: OSError) -> StoreError:
        return StoreError(f"cannot write to the run's folder {self._path}: {error.strerror}")

    def is_held(self) -> bool:
        return is_held(self._path)

    def has_run(self) -> bool:
        return self._database.exists()

    def require_run(self) -> None:
        if not self.has_run():
            raise StoreError(
                f"{self._path} holds no run: there is no {DATABASE} in it; name the folder given as run-dir or --record"
            )

    def clear(self) -> None:
        """A database without a single row goes, or half of one."""
        if not self._database.exists():
            return
        try:
            journal = read_journal(self._database)
        except StoreError:
            unbegun = self._database.stat().st_size == 0 or _names_no_row(HeadFile(self._path / HEAD))
        else:
            unbegun = journal.last_number() == 0
            journal.close()
        if not unbegun:
            raise StoreError(f"{self._path} already holds a run: resume it, or name another folder")
        for file in self._path.glob(f"{DATABASE}*"):
            file.unlink()

    def create(self, facts: Mapping[str, object]) -> Journal:
        return create_journal(self._database, facts, connect=self._connect, disk=self._disk)

    def open(self, *, accept_loss: bool = False, known: Head | None = None) -> Journal:
        return open_journal(
            self._database, accept_loss=accept_loss, known=known, connect=self._connect, disk=self._disk
        )

    def read(self) -> Journal:
        self.require_run()
        return read_journal(self._database)

    def identity(self) -> Hashable:
        self.require_run()
        return self._database.stat().st_ino

    def written_at(self) -> float:
        written = 0.0
        for file in (self._database, write_ahead(self._database)):
            with contextlib.suppress(FileNotFoundError):
                written = max(written, file.stat().st_mtime)
        return written

    def standbys(self) -> list[StandbyReport]:
        """None that say so: a standby reports to a database."""
        return []


def _names_no_row(head: HeadFile) -> bool:
    try:
        return head.read().number == 0
    except StoreError:  # of a run that 0.1 wrote, or damaged: then there may have been rows
        return False
