"""Snapshots of a machine's whole state: safetensors files that are either whole or not there.

They are written and read array by array, so that a state is never in memory twice because of them. A snapshot may hold
only what changed since the one before (`increments`); a full one comes now and then.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load

from secureafl.errors import StoreError, UnreachableError
from secureafl.files import safetensors_parts
from secureafl.server.record.increments import HEADER, Chain, ChainedState, Cut, Link
from secureafl.server.record.store import FIRST, SNAPSHOTS, Files
from secureafl.types import Array, ArrayInParts, ArrayInRows, Vector

WORTHWHILE = 0.5
"""An increment of more than this share of the whole state is written as a full snapshot instead."""
MAPPED_BYTES = 1 << 24
"""Arrays of at least this size are not read but mapped, a copy of one's own, and read as they are used."""


class Snapshots:
    """The snapshots among the files of a run, and the model it began with.

    full_every  one of so many snapshots is full, whatever changed; 1 for all of them
    """

    def __init__(self, files: Files, full_every: int = 1) -> None:
        self._files = files
        self._full_every = full_every
        self._chain: Chain | None = None  # what the next increment builds on: only what this server wrote itself
        self._whole: dict[Link, bool] = {}  # whether a snapshot is a full one, of those that were looked at

    def write_first(self, params: Vector) -> None:
        """Keep the model the run began with: a replay starts from it."""
        self._files.write(FIRST, safetensors_parts({"params": params}))

    def read_first(self) -> Vector:
        """The model the run began with."""
        try:
            with self._files.local(FIRST) as path:
                return np.asarray(load(path.read_bytes())["params"], np.float32)
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            kind = UnreachableError if isinstance(error, ConnectionError) else StoreError
            raise kind(f"cannot read the run's first model, {self._files.where(FIRST)}: {error}") from None

    def write(self, version: int, state: Mapping[str, Array | ArrayInRows]) -> str:
        """Write a snapshot so that no crash leaves half of one; returns its SHA-256. The next one may build on it."""
        if self._full_every == 1:
            return self._write(version, state)
        before = self._chain if self._chain is not None and len(self._chain.links) < self._full_every else None
        cut = Cut(state, before)
        if before is not None and cut.new_bytes > WORTHWHILE * sum(array.nbytes for array in state.values()):
            before, cut = None, Cut(state)
        sha256 = self._write(version, state if before is None else cut.increment())
        self._chain = cut.chain((version, sha256))
        self._whole[version, sha256] = before is None
        return sha256

    def _write(self, version: int, arrays: Mapping[str, Array | ArrayInParts]) -> str:
        total = hashlib.sha256()

        def parts() -> Iterator[bytes | memoryview]:
            for part in safetensors_parts(arrays):
                total.update(part)
                yield part

        self._files.write(self._free_name(version), parts())
        return total.hexdigest()

    def _free_name(self, version: int) -> str:
        """A file that is on record is never written over: the new one is not on record yet, and may never be."""
        taken, again = self._names(version), 1
        while (name := _name(version, f"-{again}" if again > 1 else "")) in taken:
            again += 1
        return name

    def read(self, version: int, sha256: str) -> Mapping[str, Array]:
        """A snapshot's state; `StoreError` says what is wrong with one that is missing or damaged, or with one that it
        builds on.
        """
        newest = self._open(version, sha256)
        if (header := newest.header()) is None:
            return newest
        try:
            links = [self._open(*link) for link in header["chain"]]
        except StoreError as error:
            raise StoreError(f"{error}, and {PurePosixPath(_name(version)).name} builds on it") from None
        return ChainedState(header, [link.raw for link in (*links, newest)])

    def _open(self, version: int, sha256: str) -> _State:
        where = self._files.where(_name(version))
        try:
            for name in self._names(version) or [_name(version)]:
                with self._files.local(name) as path:
                    if _sha256(path) == sha256:
                        return _State(path)
            raise StoreError(f"snapshot {where} is damaged: its SHA-256 is not the one on record")
        except ConnectionError as error:
            raise UnreachableError(f"snapshot {where} cannot be read: {error.strerror}") from None
        except OSError as error:
            raise StoreError(f"snapshot {where}: {error.strerror}") from None
        except SafetensorError as error:
            raise StoreError(f"snapshot {where} is damaged: {error}") from None

    def has(self, version: int) -> bool:
        """Whether there is a snapshot of this version, whole or not."""
        return bool(self._names(version))

    def newest(self, on_record: Sequence[tuple[int, int, str]], num_full: int) -> list[tuple[int, int, str]]:
        """So many of the newest full snapshots on record, and all increments that came after the first of them. What
        an increment builds on is among them.
        """
        kept = []
        for version, number, sha256 in on_record:
            kept.append((version, number, sha256))
            num_full -= self._is_full(version, sha256)
            if not num_full:
                break
        return kept

    def _is_full(self, version: int, sha256: str) -> bool:
        if (version, sha256) not in self._whole:
            try:
                found = self._open(version, sha256).header() is None
            except UnreachableError as error:
                raise ConnectionError(errno.EIO, str(error)) from None
            except StoreError:  # nobody can build on it
                found = True
            self._whole[version, sha256] = found
        return self._whole[version, sha256]

    def keep_only(self, kept: Collection[Link]) -> None:
        """Remove every snapshot but these, each by its version and SHA-256; the newest first, so that whoever reads an
        increment finds all that it builds on, or finds it gone.
        """
        wanted = set(kept)
        versions = {version for version, _ in wanted}
        for name in reversed(self._files.names(f"{SNAPSHOTS}/[0-9]*.safetensors")):
            version = int(PurePosixPath(name).stem.partition("-")[0])
            if version in versions:
                if len(self._names(version)) == 1:
                    continue
                with self._files.local(name) as path:
                    found = (version, _sha256(path))
                if found in wanted:
                    wanted.discard(found)
                    continue
            self._files.remove(name)

    def _names(self, version: int) -> list[str]:
        return self._files.names(_name(version, "*"))


def _name(version: int, again: str = "") -> str:
    return f"{SNAPSHOTS}/{version:012d}{again}.safetensors"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _State(Mapping[str, Array]):
    """The arrays of a file, each read when it is asked for."""

    def __init__(self, path: Path) -> None:
        file: Any = safe_open(path, framework="np")
        self._file = file
        self._names: list[str] = list(file.keys())
        self.raw = _Raw(path)

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        if len(self.raw[name]) >= MAPPED_BYTES:
            kind = self._file.get_slice(name)
            return self.raw[name].view(_DTYPES[kind.get_dtype()]).reshape(kind.get_shape())
        return np.asarray(self._file.get_tensor(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def header(self) -> dict[str, Any] | None:
        """What an increment says of itself; None for a full snapshot."""
        if HEADER not in self._names:
            return None
        header: dict[str, Any] = json.loads(self.raw[HEADER].tobytes())
        return header


class _Raw(Mapping[str, npt.NDArray[np.uint8]]):
    """The arrays of a safetensors file as bytes, mapped into memory: a copy of one's own, made where it is changed."""

    def __init__(self, path: Path) -> None:
        self._bytes = np.memmap(path, np.uint8, "c")
        length = int.from_bytes(self._bytes[:8].tobytes(), "little")
        self._first = 8 + length
        self._header: dict[str, Any] = json.loads(self._bytes[8 : self._first].tobytes())

    def __getitem__(self, name: str) -> npt.NDArray[np.uint8]:
        start, end = self._header[name]["data_offsets"]
        return np.asarray(self._bytes[self._first + start : self._first + end])

    def __iter__(self) -> Iterator[str]:
        return iter(self._header)

    def __len__(self) -> int:
        return len(self._header)


_DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U64": np.uint64,
    "U32": np.uint32,
    "U16": np.uint16,
    "U8": np.uint8,
    "BOOL": np.bool_,
}
