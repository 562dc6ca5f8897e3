"""Snapshots of a machine's whole state: safetensors files that are either whole or not there.

They are written and read array by array, so that a state is never in memory twice because of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load

from secureafl.errors import StoreError
from secureafl.files import safetensors_parts
from secureafl.server.record.store import FIRST, SNAPSHOTS, Files
from secureafl.types import Array, Vector


class Snapshots:
    """The snapshots among the files of a run, and the model it began with."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def write_first(self, params: Vector) -> None:
        """Keep the model the run began with: a replay starts from it."""
        self._files.write(FIRST, safetensors_parts({"params": params}))

    def read_first(self) -> Vector:
        """The model the run began with."""
        try:
            with self._files.local(FIRST) as path:
                return np.asarray(load(path.read_bytes())["params"], np.float32)
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise StoreError(f"cannot read the run's first model, {self._files.where(FIRST)}: {error}") from None

    def write(self, version: int, state: Mapping[str, Array]) -> str:
        """Write a snapshot so that no crash leaves half of one; returns its SHA-256."""
        total = hashlib.sha256()

        def parts() -> Iterator[bytes | memoryview]:
            for part in safetensors_parts(state):
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
        """A snapshot's state; `StoreError` says what is wrong with a missing or damaged one."""
        where = self._files.where(_name(version))
        try:
            for name in self._names(version) or [_name(version)]:
                with self._files.local(name) as path:
                    if _sha256(path) == sha256:
                        return _State(path)
            raise StoreError(f"snapshot {where} is damaged: its SHA-256 is not the one on record")
        except OSError as error:
            raise StoreError(f"snapshot {where}: {error.strerror}") from None
        except SafetensorError as error:
            raise StoreError(f"snapshot {where} is damaged: {error}") from None

    def has(self, version: int) -> bool:
        """Whether there is a snapshot of this version, whole or not."""
        return bool(self._names(version))

    def keep_only(self, kept: Collection[tuple[int, str]]) -> None:
        """Remove every snapshot but these, each by its version and SHA-256."""
        wanted = set(kept)
        versions = {version for version, _ in wanted}
        for name in self._files.names(f"{SNAPSHOTS}/[0-9]*.safetensors"):
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

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        return np.asarray(self._file.get_tensor(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
