"""Snapshots of a machine's whole state: safetensors files that are either whole or not there.

They are written and read array by array, so that a state is never in memory twice because of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load

from secureafl.errors import StoreError
from secureafl.files import REAL_DISK, Disk, remove_leftovers, safetensors_parts, write_atomically
from secureafl.types import Array, Vector

FIRST = "first.safetensors"


class Snapshots:
    """The `snapshots/` folder of a run. One who only reads leaves all as it is: a live server may be writing."""

    def __init__(self, directory: Path, *, read_only: bool = False, disk: Disk = REAL_DISK) -> None:
        self._directory = directory
        self._disk = disk
        if read_only:
            return
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_leftovers(directory)

    def write_first(self, params: Vector) -> None:
        """Keep the model the run began with: a replay starts from it."""
        write_atomically(self._directory / FIRST, safetensors_parts({"params": params}), self._disk)

    def read_first(self) -> Vector:
        """The model the run began with."""
        try:
            return np.asarray(load((self._directory / FIRST).read_bytes())["params"], np.float32)
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise StoreError(f"cannot read the run's first model, {self._directory / FIRST}: {error}") from None

    def path(self, version: int) -> Path:
        return self._directory / f"{version:012d}.safetensors"

    def write(self, version: int, state: Mapping[str, Array]) -> str:
        """Write a snapshot so that no crash leaves half of one; returns its SHA-256."""
        total = hashlib.sha256()

        def parts() -> Iterator[bytes | memoryview]:
            for part in safetensors_parts(state):
                total.update(part)
                yield part

        write_atomically(self._free_path(version), parts(), self._disk)
        return total.hexdigest()

    def _free_path(self, version: int) -> Path:
        """A file that is on record is never written over: the new one is not on record yet, and may never be."""
        path, again = self.path(version), 1
        while path.exists():
            again += 1
            path = self.path(version).with_stem(f"{version:012d}-{again}")
        return path

    def read(self, version: int, sha256: str) -> Mapping[str, Array]:
        """A snapshot's state; `StoreError` says what is wrong with a missing or damaged one."""
        path = self.path(version)
        try:
            for candidate in self._files(version) or [path]:
                if _sha256(candidate) == sha256:
                    return _State(candidate)
            raise StoreError(f"snapshot {path} is damaged: its SHA-256 is not the one on record")
        except OSError as error:
            raise StoreError(f"snapshot {path}: {error.strerror}") from None
        except SafetensorError as error:
            raise StoreError(f"snapshot {path} is damaged: {error}") from None

    def keep_only(self, kept: Collection[tuple[int, str]]) -> None:
        """Remove every snapshot but these, each by its version and SHA-256."""
        wanted = set(kept)
        versions = {version for version, _ in wanted}
        for path in sorted(self._directory.glob("[0-9]*.safetensors")):
            version = int(path.stem.partition("-")[0])
            if version in versions:
                if len(self._files(version)) == 1:
                    continue
                if (found := (version, _sha256(path))) in wanted:
                    wanted.discard(found)
                    continue
            self._disk.remove(path)

    def _files(self, version: int) -> list[Path]:
        return sorted(self._directory.glob(f"{version:012d}*.safetensors"))


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
