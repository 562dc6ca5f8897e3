"""A disk that fails on purpose, and that keeps after a power cut only what was synced for sure.

`Medium` remembers, file by file, what was written since the last sync, and folder by folder which names were given or
taken since. Everything is written through to real files, so whoever reads sees what an operating system would show.
`FaultyDisk` is one server's way to the medium: its calls fail as its `Plan` says.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

SECTOR = 512


class Crash(BaseException):
    """The simulated server dies here. Whatever it calls afterwards dies too."""


@dataclass(frozen=True, slots=True)
class Change:
    """One write to a file, or a cut to a length."""

    offset: int
    content: bytes | None

    def apply(self, file: bytearray) -> None:
        if self.content is None:
            del file[self.offset :]
        if len(file) < self.offset:
            file.extend(bytes(self.offset - len(file)))
        if self.content is not None:
            file[self.offset : self.offset + len(self.content)] = self.content

    def torn(self, rng: np.random.Generator) -> Change:
        """The same, cut at a sector's end."""
        if self.content is None or len(self.content) <= SECTOR:
            return self
        num_sectors = int(rng.integers(1, -(-len(self.content) // SECTOR)))
        return Change(self.offset, self.content[: num_sectors * SECTOR - self.offset % SECTOR])


@dataclass(eq=False)
class StoredFile:
    """What is on the disk for sure, and what may be."""

    content: bytes = b""
    changes: list[Change] = field(default_factory=list)
    dropped: bool = False  # changes that no later sync will write, though they are shown

    def sync(self) -> None:
        self.content, self.changes = self._with(self.changes), []

    def drop(self) -> None:
        """A sync failed: the operating system takes what it could not write for written."""
        self.dropped = self.dropped or bool(self.changes)
        self.changes = []

    def shown_again(self) -> bytes:
        """What is read once nothing of it is in memory any more."""
        self.dropped = False
        return self._with(self.changes)

    def lose_power(self, rng: np.random.Generator) -> int:
        """Keep some of the unsynced changes, some of them torn; returns how many were lost or torn."""
        share = rng.choice([0.0, 0.5, 0.9, 1.0])
        kept = [change for change in self.changes if rng.random() < share]
        left = [change.torn(rng) if rng.random() < 0.2 else change for change in kept]
        num_lost = len(self.changes) - sum(change is whole for change, whole in zip(left, kept, strict=True))
        self.content, self.changes = self._with(left), []
        return num_lost

    def _with(self, changes: list[Change]) -> bytes:
        file = bytearray(self.content)
        for change in changes:
            change.apply(file)
        return bytes(file)


@dataclass(frozen=True, slots=True)
class Renaming:
    """A change of a folder: a name taken away, a name given, or both at once."""

    removed: Path | None = None
    added: Path | None = None
    file: StoredFile | None = None

    def apply(self, names: dict[Path, StoredFile]) -> None:
        if self.removed is not None:
            names.pop(self.removed, None)
        if self.added is not None and self.file is not None:
            names[self.added] = self.file


class Medium:
    """The files of one run, across all servers that write them."""

    def __init__(self) -> None:
        self._names: dict[Path, StoredFile] = {}  # as the operating system shows them
        self._stored: dict[Path, StoredFile] = {}  # as they are on the disk for sure
        self._renamings: dict[Path, list[Renaming]] = {}  # by folder: since its last sync

    def file(self, path: Path) -> StoredFile:
        """The file of this name, which the operating system has just opened or created."""
        self._notice_removals()
        if path not in self._names:
            self._rename(path.parent, Renaming(added=path, file=StoredFile()))
        return self._names[path]

    def rename(self, old: Path, new: Path) -> None:
        self._rename(new.parent, Renaming(old, new, self._names[old]))

    def remove(self, path: Path) -> None:
        self._rename(path.parent, Renaming(removed=path))

    def sync_directory(self, directory: Path) -> None:
        self._notice_removals()
        for renaming in self._renamings.pop(directory, []):
            renaming.apply(self._stored)

    def drop_names(self, directory: Path) -> None:
        """A folder's sync failed: what was renamed is shown so, but no later sync will write it."""
        self._notice_removals()
        self._renamings.pop(directory, None)

    def evict(self) -> int:
        """Show what the disk holds in place of what a failed sync dropped; returns in how many files."""
        self._notice_removals()
        files = {path: file for path, file in self._names.items() if file.dropped}
        for path, file in files.items():
            path.write_bytes(file.shown_again())
            path.with_name(path.name.removesuffix("-wal") + "-shm").unlink(missing_ok=True)
        return len(files)

    def lose_power(self, rng: np.random.Generator) -> Counter[str]:
        """Leave on the real disk what a power cut would leave; returns what was lost, by kind."""
        self._notice_removals()
        lost: Counter[str] = Counter()
        for renamings in self._renamings.values():
            num_kept = int(rng.integers(0, len(renamings) + 1))
            lost["name lost"] += len(renamings) - num_kept
            for renaming in renamings[:num_kept]:
                renaming.apply(self._stored)
        for file in dict.fromkeys(self._stored.values()):
            lost["write lost or torn"] += file.lose_power(rng)
        self._replace({path: file.content for path, file in self._stored.items()})
        return +lost

    def image(self) -> dict[Path, bytes]:
        """Every file as the operating system shows it."""
        self._notice_removals()
        return {path: path.read_bytes() for path in sorted(self._names)}

    def restore(self, image: Mapping[Path, bytes]) -> None:
        """Make the files these, for sure."""
        self._notice_removals()
        self._replace(image)

    def _replace(self, image: Mapping[Path, bytes]) -> None:
        for path in self._names:
            path.unlink(missing_ok=True)
            path.with_name(path.name + "-shm").unlink(missing_ok=True)
        for path, content in image.items():
            path.write_bytes(content)
        self._names = {path: StoredFile(content) for path, content in image.items()}
        self._stored = dict(self._names)
        self._renamings = {}

    def _rename(self, directory: Path, renaming: Renaming) -> None:
        self._renamings.setdefault(directory, []).append(renaming)
        renaming.apply(self._names)

    def _notice_removals(self) -> None:
        """Some files are removed without asking this disk."""
        for path in [path for path in self._names if not path.exists()]:
            self.remove(path)


@dataclass(frozen=True, slots=True)
class Plan:
    """Which calls of one server fail, counted from 1. None for never."""

    crash_at: int | None = None
    error_at: int | None = None
    stays_full: bool = False
    """From the first failure on, every write fails for want of space."""
    seed: int = 0

    @classmethod
    def draw(cls, rng: np.random.Generator) -> Plan:
        crash_at = 1 + int(rng.exponential(250.0)) if rng.random() < 0.7 else None
        error_at = 1 + int(rng.exponential(250.0)) if rng.random() < 0.4 else None
        return cls(crash_at, error_at, bool(rng.random() < 0.3), int(rng.integers(2**31)))


_ERRORS = {
    "write": (errno.ENOSPC, errno.EIO),
    "create": (errno.ENOSPC, errno.EIO, errno.EMFILE),
    "open": (errno.EIO, errno.EMFILE),
}


class FaultyDisk:
    """One server's disk: a `secureafl.files.Disk` over the medium."""

    def __init__(self, medium: Medium, plan: Plan = Plan()) -> None:
        self.medium = medium
        self.crashed = False
        self.must_stop = False  # a write failed that the server may not ignore
        self.faults: Counter[str] = Counter()
        self.num_calls = 0
        self._plan = plan
        self._rng = np.random.default_rng(plan.seed)
        self._error_due = plan.error_at is not None
        self._open: dict[int, StoredFile] = {}

    def alive(self) -> None:
        """Raise if this server died."""
        if self.crashed:
            raise Crash

    def reach(self, call: str, what: str, *, decisive: bool = True) -> None:
        """Every call comes by here first: it may fail or end the server. A decisive one that fails ends the run."""
        self.alive()
        self.num_calls += 1
        plan = self._plan
        if plan.crash_at is not None and self.num_calls >= plan.crash_at:
            self.crashed = True
            self.faults[f"crash at {call} {what}"] += 1
            raise Crash
        if not self._error_due or self.num_calls < (plan.error_at or 0):
            return
        codes = (errno.ENOSPC,) if plan.stays_full else _ERRORS.get(call, (errno.EIO,))
        if plan.stays_full and call not in {"write", "create"}:
            return
        self._error_due = plan.stays_full
        code = int(self._rng.choice(codes))
        self.faults[f"{errno.errorcode[code]} at {call} {what}"] += 1
        self.must_stop = self.must_stop or decisive
        raise OSError(code, os.strerror(code))

    def open(self, path: Path, flags: int) -> int:
        self.reach("open" if path.exists() else "create", kind_of(path))
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
        file = self._open[descriptor] = self.medium.file(path)
        if flags & os.O_TRUNC:
            file.changes.append(Change(0, None))
        return descriptor

    def write(self, descriptor: int, content: bytes | memoryview, offset: int) -> None:
        whole = bytes(content)
        try:
            self.reach("write", "file")
        except OSError:
            self._write(descriptor, whole[: int(self._rng.integers(0, len(whole) + 1))], offset)
            raise
        self._write(descriptor, whole, offset)

    def _write(self, descriptor: int, content: bytes, offset: int) -> None:
        os.pwrite(descriptor, content, offset)
        self._open[descriptor].changes.append(Change(offset, content))

    def sync(self, descriptor: int) -> None:
        file = self._open[descriptor] if not self.crashed else StoredFile()
        self.reach_sync(file, "file", decisive=True)
        file.sync()

    def reach_sync(self, file: StoredFile, what: str, *, decisive: bool) -> None:
        """As Linux does: what could not be synced is shown as written, and may never be tried again."""
        try:
            self.reach("sync", what, decisive=decisive)
        except OSError:
            if self._rng.random() < 0.5:
                self.faults["dropped by a failed sync"] += bool(file.changes)
                file.drop()
            raise

    def close(self, descriptor: int) -> None:
        self.alive()
        del self._open[descriptor]
        os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        self.reach("rename", kind_of(new))
        old.rename(new)
        self.medium.rename(old, new)

    def sync_directory(self, directory: Path) -> None:
        try:
            self.reach("sync", "folder")
        except OSError:
            if self._rng.random() < 0.5:
                self.medium.drop_names(directory)
            raise
        self.medium.sync_directory(directory)

    def remove(self, path: Path) -> None:
        self.reach("remove", kind_of(path))
        path.unlink(missing_ok=True)
        self.medium.remove(path)

    @property
    def num_open(self) -> int:
        """Files that this server has open."""
        return len(self._open)

    def close_all(self) -> None:
        """What the operating system does for a process that died."""
        for descriptor in self._open:
            os.close(descriptor)
        self._open.clear()


def kind_of(path: Path) -> str:
    """What a file of a run is, whatever its version or its writer's number."""
    name = path.name.removeprefix(".")
    if name[0].isdigit():
        return "snapshot"
    return name.split(".safetensors")[0].partition(".")[0] if not name.startswith("run.db") else name
