"""Files that are either the old whole or the new whole, whatever kills the process that writes them."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import safetensors.numpy

from secureafl.errors import StateError, StoreError
from secureafl.types import Array, ArrayInParts, StateDict

LOCK_PATIENCE = 2.0  # seconds: a reader that looks whether a server is there holds the lock for an instant


class Disk(Protocol):
    """The operating system's calls that decide what a crash leaves. A test may put one in their place that fails."""

    def open(self, path: Path, flags: int) -> int:
        """A file's descriptor; a new file is its owner's alone."""

    def write(self, descriptor: int, content: bytes | memoryview, offset: int) -> None:
        """Write all of it there."""

    def sync(self, descriptor: int) -> None:
        """Return once it is on the disk."""

    def close(self, descriptor: int) -> None:
        """Let go of the file."""

    def rename(self, old: Path, new: Path) -> None:
        """Give a file another's name."""

    def sync_directory(self, directory: Path) -> None:
        """Return once the names in it are on the disk."""

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""


class RealDisk:
    """The operating system itself."""

    def open(self, path: Path, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, 0o600)

    def write(self, descriptor: int, content: bytes | memoryview, offset: int) -> None:
        rest = memoryview(content).cast("B")
        while rest:
            written = os.pwrite(descriptor, rest, offset)
            rest, offset = rest[written:], offset + written

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def sync_directory(self, directory: Path) -> None:
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)


REAL_DISK = RealDisk()


def write_atomically(path: Path, content: bytes | Iterable[bytes | memoryview], disk: Disk = REAL_DISK) -> None:
    """Write beside, flush to disk, rename. Only its owner may read it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = disk.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        offset = 0
        for part in [content] if isinstance(content, bytes) else content:
            disk.write(descriptor, part, offset)
            offset += memoryview(part).nbytes
        disk.sync(descriptor)
    finally:
        disk.close(descriptor)
    disk.rename(beside, path)
    disk.sync_directory(path.parent)


def safetensors_parts(arrays: Mapping[str, Array | ArrayInParts]) -> Iterator[bytes | memoryview]:
    """The arrays as a safetensors file, piece by piece: the library's own writer needs a copy of them all first."""
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))  # the format wants them aligned
    header: dict[str, Any] = {}
    start = 0
    for name in order:
        array = arrays[name]
        header[name] = {
            "dtype": _SAFETENSORS_DTYPES[array.dtype.str.lstrip("<|")],
            "shape": list(array.shape),
            "data_offsets": [start, start + array.nbytes],
        }
        start += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in order:
        array = arrays[name]
        if not isinstance(array, np.ndarray):
            yield from array.parts()
        elif array.nbytes:
            yield np.ascontiguousarray(array).reshape(-1).data.cast("B")


_SAFETENSORS_DTYPES = {
    "f8": "F64",
    "f4": "F32",
    "f2": "F16",
    "i8": "I64",
    "i4": "I32",
    "i2": "I16",
    "i1": "I8",
    "u8": "U64",
    "u4": "U32",
    "u2": "U16",
    "u1": "U8",
    "b1": "BOOL",
}


def create_private(path: Path, content: bytes) -> None:
    """A new file that only its owner may read. Raises FileExistsError if there is one of this name."""
    descriptor, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # of mode 0600, opened with O_EXCL
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(beside, path)  # unlike a rename, it replaces nothing
    finally:
        Path(beside).unlink()
    REAL_DISK.sync_directory(path.parent)


def save_state(path: Path, state: Mapping[str, Array]) -> None:
    """A state dictionary as safetensors."""
    write_atomically(path, safetensors_parts(state))


def load_state(path: Path) -> StateDict:
    """The state dictionary in a safetensors file."""
    try:
        return dict(safetensors.numpy.load_file(path))
    except safetensors.SafetensorError as error:
        raise StateError(f"{path} is not a snapshot: {error}") from error


def save_json(path: Path, content: Mapping[str, Any]) -> None:
    """Strict JSON with sorted keys; infinities and NaN must have been replaced before."""
    text = json.dumps(content, indent=1, sort_keys=True, allow_nan=False)
    write_atomically(path, (text + "\n").encode())


def remove_leftovers(directory: Path) -> None:
    """Delete what writers that were killed left half-written."""
    for beside in directory.glob(".*.*.*"):
        beside.unlink(missing_ok=True)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the directory alone; waits for a process that holds it. The system frees it when a process dies."""
    with (directory / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def this_process() -> str:
    """This process, as others are told who has something."""
    return f"pid {os.getpid()} on {socket.gethostname()}"


LOCK = "lock"


class FolderLock:
    """A folder that one server holds; the system frees it when the process dies, however it dies."""

    def __init__(self, directory: Path) -> None:
        """Take the folder, or say who has it."""
        self._file = os.fdopen(os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+")
        deadline = time.monotonic() + LOCK_PATIENCE
        while not _flock(self._file.fileno(), fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                holder = self._file.read(1000).strip() or "another server"
                self._file.close()
                raise StoreError(f"{directory} is in use by {holder}: stop it first, or name another folder")
            time.sleep(0.05)
        self._file.truncate(0)
        self._file.write(f"{this_process()}\n")
        self._file.flush()

    def release(self) -> None:
        """Let another server have the folder; a second time does nothing."""
        self._file.close()


def is_held(directory: Path) -> bool:
    """Whether a server has this folder now."""
    try:
        descriptor = os.open(directory / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _flock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _flock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
