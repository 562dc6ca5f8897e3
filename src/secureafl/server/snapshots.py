"""Snapshots of a machine's whole state: safetensors files that are either whole or not there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from secureafl.errors import StoreError
from secureafl.types import Array, StateDict, Vector

FIRST = "first.safetensors"


class Snapshots:
    """The `snapshots/` folder of a run. One who only reads leaves all as it is: a live server may be writing."""

    def __init__(self, directory: Path, *, read_only: bool = False) -> None:
        self._directory = directory
        if read_only:
            return
        directory.mkdir(parents=True, exist_ok=True)
        for left_over in directory.glob("*.tmp"):  # from a crash in the middle of `write`
            left_over.unlink()

    def write_first(self, params: Vector) -> None:
        """Keep the model the run began with: a replay starts from it."""
        self._write(self._directory / FIRST, save({"params": params}))

    def read_first(self) -> Vector:
        """The model the run began with."""
        try:
            return np.asarray(load((self._directory / FIRST).read_bytes())["params"], np.float32)
        except (OSError, SafetensorError, KeyError) as error:
            raise StoreError(f"cannot read the run's first model, {self._directory / FIRST}: {error}") from None

    def path(self, version: int) -> Path:
        return self._directory / f"{version:012d}.safetensors"

    def write(self, version: int, state: Mapping[str, Array]) -> str:
        """Write a snapshot so that no crash leaves half of one; returns its SHA-256."""
        content = save({key: np.asarray(value, order="C") for key, value in state.items()})
        self._write(self.path(version), content)
        return hashlib.sha256(content).hexdigest()

    def read(self, version: int, sha256: str) -> StateDict:
        """A snapshot's state; `StoreError` says what is wrong with a missing or damaged one."""
        path = self.path(version)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise StoreError(f"snapshot {path}: {error.strerror}") from None
        if hashlib.sha256(content).hexdigest() != sha256:
            raise StoreError(f"snapshot {path} is damaged: its SHA-256 is not the one on record")
        try:
            return dict(load(content))
        except SafetensorError as error:
            raise StoreError(f"snapshot {path} is damaged: {error}") from None

    def remove(self, version: int) -> None:
        self.path(version).unlink(missing_ok=True)

    def _write(self, path: Path, content: bytes) -> None:
        draft = path.with_suffix(".tmp")
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
        _fsync_directory(self._directory)


def _fsync_directory(directory: Path) -> None:
    """Make a rename durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
