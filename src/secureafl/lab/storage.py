"""Files that are either the old whole or the new whole, whatever kills the process that writes them."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from secureafl.errors import StateError
from secureafl.types import Array, StateDict


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside, flush to disk, rename."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.rename(path)
    _sync_directory(path.parent)


def save_state(path: Path, state: Mapping[str, Array]) -> None:
    """A state dictionary as safetensors."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    arrays = {key: np.ascontiguousarray(value).reshape(np.shape(value)) for key, value in state.items()}
    safetensors.numpy.save_file(arrays, beside)
    with beside.open("rb") as file:
        os.fsync(file.fileno())
    beside.rename(path)
    _sync_directory(path.parent)


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


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
